"""A Grafana that already runs, over its HTTP API: data sources, boards, and queries as its panels
send them.

`GPULEDGER_TEST_GRAFANA_URL` names it, such as http://admin:admin@127.0.0.1:3000; its visitor must
be an administrator. What the tests make in it they delete again. Grafana must reach the tests'
Postgres, so it runs on the same machine.
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from fakes.grafana import Range

POSTGRES = "gpuledger-test-postgres"


ROUNDS = 4096
"""Of the hash of a password: the driver of Grafana's Postgres data source refuses less than 1,000,
and the tests' server makes one.
"""


def hash_for_grafana(administrator: str, role: str, password: str) -> None:
    """Hash the password of a role again, as Postgres does by default; before 16 it knows no other
    number of rounds.
    """
    with psycopg.connect(administrator, autocommit=True) as connection:
        connection.execute(
            "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = 'scram_iterations'",
            (str(ROUNDS),),
        )
        connection.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
        )


class Refused(Exception):
    """What Grafana answered instead of doing it."""


class RealGrafana:
    """Grafana's HTTP API."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Content-Type": "application/json"}
        if parts.username:
            secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer."""
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=sent, headers=self._headers, method=method
        )
        # A proxy of the environment does not lead to a Grafana of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise Refused(
                f"{method} {path}: {error.code} {error.read().decode(errors='replace')}"
            ) from error

    def add_postgres(self, dsn: str) -> None:
        """A data source over a database, as the provisioning file describes it."""
        target = conninfo_to_dict(dsn)
        self.remove_postgres()
        self.call(
            "POST",
            "/api/datasources",
            {
                "name": POSTGRES,
                "uid": POSTGRES,
                "type": "postgres",
                "access": "proxy",
                "url": f"{target['host']}:{target['port']}",
                "user": target["user"],
                "database": target["dbname"],
                "jsonData": {
                    "database": target["dbname"],
                    "sslmode": "disable",
                    "postgresVersion": 1500,
                },
                "secureJsonData": {"password": target["password"]},
            },
        )

    def remove_postgres(self) -> None:
        """The data source is gone; that there was none is well."""
        try:
            self.call("DELETE", f"/api/datasources/uid/{POSTGRES}")
        except Refused as error:
            if ": 404 " not in str(error):
                raise

    def keep(self, board: dict[str, Any]) -> dict[str, Any]:
        """Save a board under a uid of the tests; what Grafana has then stored."""
        uid = f"test-{board['uid']}"
        named = {**board, "uid": uid, "title": f"test {board['title']}", "id": None, "version": 0}
        self.call("POST", "/api/dashboards/db", {"dashboard": named, "overwrite": True})
        return self.call("GET", f"/api/dashboards/uid/{uid}")["dashboard"]

    def drop(self, board: dict[str, Any]) -> None:
        """Delete what `keep` saved."""
        self.call("DELETE", f"/api/dashboards/uid/test-{board['uid']}")

    def ask(self, sql: str, form: str, span: Range, interval_s: float) -> list[dict[str, Any]]:
        """The frames of one query, as a panel gets them: Grafana expands macros, and makes wide
        series of long ones.
        """
        answer = self.call(
            "POST",
            "/api/ds/query",
            {
                "from": str(int(span.since.timestamp() * 1000)),
                "to": str(int(span.until.timestamp() * 1000)),
                "queries": [
                    {
                        "refId": "A",
                        "datasource": {"uid": POSTGRES, "type": "postgres"},
                        "rawSql": sql,
                        "format": form,
                        "intervalMs": int(interval_s * 1000),
                        "maxDataPoints": 1000,
                    }
                ],
            },
        )["results"]["A"]
        if answer.get("error"):
            raise Refused(f"{answer['error']}\n{sql}")
        return answer["frames"]
