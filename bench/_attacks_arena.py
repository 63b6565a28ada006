"""A real collector under attack: TLS by a private authority, tokens of every kind, two teams, and a
neighbor.

The neighbor is a node of its own that sends a batch a few times a second and asks `/readyz` after
each. While an attack goes on and after it, every batch must be answered with 200 within two
seconds, and `/readyz` must say ready exactly when batches are taken.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import math
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.startup import resident_mib
from fakes import hostile_pages, two_teams
from fakes.apiserver import certificates
from fakes.batches import batch, body_of
from fakes.postgres import open_folder
from fakes.processes import BIN, MSGPACK, CollectorProcess, environment
from fakes.two_teams import FOREIGN, OWN, token

IDENTITIES = ("nobody", "wrong token", "revoked token", "agent", "viewer", "finance", "admin")
LIMIT_S = 2.0
PROBE_S = 0.4
JSON = {"Content-Type": "application/json"}
HEADER = "X-Auth-Request-Email"
HOOKS = {
    "loop": "https://127.0.0.1:{port}/",
    "name": "https://localhost:{port}/",
    "mapped": "https://[::ffff:127.0.0.1]:{port}/",
    "decimal": "https://2130706433:{port}/",
    "short": "https://127.1:{port}/",
    "hex": "https://0x7f000001:{port}/",
    "any": "https://0.0.0.0:{port}/",
    "metadata": "https://169.254.169.254/",
    "nat64": "https://[64:ff9b::7f00:1]:{port}/",
}
"""Webhooks that lead inside, with no permission to."""
STORED = (
    "SELECT b.seq FROM ingest_batch b JOIN node n ON n.id = b.node_id WHERE n.name = 'neighbor'"
)
BUDGET = (
    '[[budget]]\nname = "{name}"\nteam = "{team}"\nperiod = "month"\namount = 1\ncurrency = "USD"\n'
)
BUDGET += "recipients = [{to}]\n"


class TlsCollector(CollectorProcess):
    """`gpuledger serve` with a certificate of a private authority."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def connection(self, timeout: float = 60) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)

    def get(self, path: str) -> tuple[int, str]:
        with contextlib.closing(self.connection()) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@dataclass
class Row:
    """A line of the table."""

    attack: str
    identities: str
    requests: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    holes: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Seconds of each answer to the neighbor."""
    lost: int = 0
    """Batches that were acknowledged and are not stored."""
    begun: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: object, times: int = 1) -> None:
        """A request, a statement or a file, and what came of it."""
        with self.lock:
            self.requests += times
            self.seen[str(what)] += times

    @property
    def slowest_s(self) -> float:
        """The neighbor's slowest answer."""
        return max(self.waits, default=0.0)

    @property
    def p99_s(self) -> float:
        """The answer that 99 of 100 of the neighbor's are no slower than."""
        return sorted(self.waits)[math.ceil(0.99 * len(self.waits)) - 1] if self.waits else 0.0

    def expect(self, condition: object, hole: str) -> None:
        """A hole when the condition does not hold."""
        if not condition:
            with self.lock:
                self.holes.append(hole[:900])


class Listener:
    """An HTTPS server on loopback that redirects to another path of itself and keeps what it was
    asked.
    """

    def __init__(self, folder: Path) -> None:
        asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(self.path)
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(307)
                self.send_header("Location", "/inside")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_arguments: object) -> None:
                pass

        self.asked = asked
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


RECEIVERS = (
    hostile_pages.drip_headers,
    hostile_pages.say_nothing,
    hostile_pages.drip,
    hostile_pages.never_end,
)


class HostileReceiver:
    """An HTTPS server on loopback that answers each message as an attacker would."""

    def __init__(self, respond: Callable[[socket.socket], None]) -> None:
        self.respond, self.asked = respond, 0
        self.name = respond.__name__.replace("_", "-")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])

    def serve(self, folder: Path) -> None:
        """Accept in threads of its own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")

        def answer(plain: socket.socket) -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(plain, server_side=True) as connection,
            ):
                connection.recv(65_536)
                self.asked += 1
                self.respond(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = self.listener.accept()
                    threading.Thread(target=answer, args=(plain,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()


class Arena:
    """The collector, whom it knows, and the table of what was tried."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self.folder = folder or open_folder("gpuledger-attacks-")
        self.receivers = [HostileReceiver(respond) for respond in RECEIVERS]
        certificates(self.folder)
        self.listener = Listener(self.folder)
        hooks = "".join(
            f'{name} = "{address.format(port=self.listener.port)}"\n'
            for name, address in HOOKS.items()
        )
        moved = (
            f'[moved]\naddress = "https://127.0.0.1:{self.listener.port}/moved"\nprivate = true\n'
        )
        for receiver in self.receivers:
            receiver.serve(self.folder)
            moved += (
                f'[{receiver.name}]\naddress = "https://127.0.0.1:{receiver.port}/x"\nprivate ='
                " true\n"
            )
        (self.folder / "hooks.toml").write_text(hooks + moved)
        (self.folder / "link").write_text("a secret that signs the links of mails\n")
        self.collector = TlsCollector(self.folder, **(self._settings() | settings))
        self.rows: list[Row] = []
        self.secrets: dict[str, str] = {}
        self.sequence, self.acknowledged = 0, set[int]()
        self.probing = threading.Lock()

    def _settings(self) -> dict[str, str]:
        paths = {
            "TLS_CERTIFICATE_FILE": "server.crt",
            "TLS_KEY_FILE": "server.key",
            "HOOKS_FILE": "hooks.toml",
            "LINK_SECRET_FILE": "link",
            "MAIL_DIR": "mails",
        }
        plain = {
            "MAX_EVIDENCE_AGE_DAYS": "37",
            "REQUIRE_TOKENS": "true",
            "PUBLIC_URL": "https://ledger.example",
            "IDENTITY_HEADER": HEADER,
            "TRUSTED_PROXIES": "10.0.0.0/8",
            "ROLL_UP_SECONDS": "1",
            "RATE_SECONDS": "2",
            "BUDGET_SECONDS": "2",
            "SEND_SECONDS": "1",
        }
        wanted = {name: str(self.folder / file) for name, file in paths.items()} | plain
        return {f"GPULEDGER_{name}": value for name, value in wanted.items()} | {
            "SSL_CERT_FILE": str(self.folder / "ca.crt")
        }

    def open(self) -> None:
        """Start it; two teams with six days of usage, prices, budgets and findings; a token for
        each identity.
        """
        (self.folder / "mails").mkdir()
        self.collector.start()
        self.collector.wait_ready()
        self.dsn = self.collector.dsn()
        self.secrets = {"any node": token(self.dsn, "agent", "prometheus")}
        for number, team in enumerate((OWN, FOREIGN), start=1):
            status, _, text = self.ask(
                "POST", "/v1/batches", "any node", two_teams.six_days(team, number), JSON
            )
            assert status == 200, text
        names = (*HOOKS, "moved", *(receiver.name for receiver in self.receivers))
        hooks = ", ".join(f'"webhook:{name}"' for name in names)
        budgets = BUDGET.format(name="hooks", team=OWN, to=hooks) + BUDGET.format(
            name="mails", team=OWN, to='"lead@example.com"'
        )
        self.apply(two_teams.declared() + budgets)
        reach = {
            "agent": {"node": f"{OWN}-node"},
            "viewer": {"owner": {"team": OWN}},
            "neighbor": {"node": "neighbor"},
        }
        for name in ("agent", "viewer", "finance", "admin", "revoked token", "neighbor"):
            role = name if name in two_teams.ROLES else {"neighbor": "agent"}.get(name, "admin")
            self.secrets[name] = token(self.dsn, role, name, **reach.get(name, {}))
        self.command("token", "revoke", "revoked token")
        self.secrets["wrong token"] = "gpl_" + "x" * 43
        self.wait(lambda: self.bill(FOREIGN) is not None, 60, "the first bill")

    def close(self) -> None:
        self.listener.server.shutdown()
        for receiver in self.receivers:
            receiver.listener.close()
        self.collector.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the product on this database; its password stands in no argument."""
        wanted = environment(GPULEDGER_DSN=self.dsn)
        done = subprocess.run(
            [BIN / "gpuledger", *words],
            env=wanted,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode not in {0, 1}:
            raise SystemExit(f"{' '.join(words)}: {done.returncode}: {done.stderr[-600:]}")
        return done

    def apply(self, declared: str) -> None:
        (self.folder / "declared.toml").write_text(declared)
        self.command("apply", str(self.folder / "declared.toml"))

    def query(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(sql, values or None).fetchall()  # type: ignore[call-overload,no-any-return]

    def bill(self, team: str) -> str | None:
        """What a team owes for three past days."""
        path = f"/v1/chargeback?from={two_teams.day(-4)}&to={two_teams.day(-1)}&by=team"
        rows = json.loads(self.ask("GET", path, "finance")[2]).get("rows", [])
        return next((row["cost"] for row in rows if row["team"] == team), None)

    def wait(self, condition: object, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            if time.monotonic() > deadline:
                raise SystemExit(f"attacks: waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.2)

    def headers(self, identity: str, more: dict[str, str] | None = None) -> dict[str, str]:
        secret = self.secrets.get(identity)
        return {**(more or {}), **({"Authorization": f"Bearer {secret}"} if secret else {})}

    def ask(
        self,
        method: str,
        path: str,
        identity: str,
        body: bytes | None = None,
        more: dict[str, str] | None = None,
    ) -> tuple[int, http.client.HTTPMessage, str]:
        """Status, headers and text of one request over a connection of its own; status 0 where it
        was cut off.
        """
        with contextlib.closing(self.collector.connection()) as connection:
            with contextlib.suppress(OSError):  # it may have answered before it read all
                connection.request(method, path, body, self.headers(identity, more))
            try:
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read().decode("utf-8", "replace")
            except (
                OSError,
                AttributeError,
                http.client.HTTPException,
            ):
                # AttributeError: no connection was made.
                return 0, http.client.HTTPMessage(), ""

    def socket(self) -> ssl.SSLSocket:
        """A connection for bytes that no client sends."""
        connection = self.collector.connection()
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        return connection.sock

    def resident(self) -> float:
        """MiB of the process that answers."""
        assert self.collector.process is not None
        (pid,) = self.collector.workers().values() or [self.collector.process.pid]
        return resident_mib(pid, "VmRSS")

    def probe(self, row: Row) -> None:
        """A batch of the neighbor and what `/readyz` says."""
        with self.probing:
            self.sequence += 1
            start_ms = two_teams.NOW_MS - 3_600_000 + self.sequence * 1000
            body, begun = (
                body_of(batch(self.sequence, "neighbor", 1, start_ms, usage_intervals=[])),
                time.monotonic(),
            )
            status, _, _ = self.ask("POST", "/v1/batches", "neighbor", body, MSGPACK)
            seconds = time.monotonic() - begun
            ready = self.ask("GET", "/readyz", "nobody")[0]
            if status == 200:
                self.acknowledged.add(self.sequence)
        row.waits.append(seconds)
        late = (
            f"the neighbor was answered {status} after {seconds:.1f} s,"
            f" {time.monotonic() - row.begun:.0f} s into it"
        )
        row.expect(status == 200, late)
        row.expect(
            (ready == 200) == (status == 200),
            f"/readyz said {ready} while batches were answered {status}",
        )

    @contextlib.contextmanager
    def attack(self, name: str, identities: str) -> Iterator[Row]:
        """A row of the table, filled by the block; the neighbor sends all the while and once more
        after it.
        """
        row, over = Row(name, identities), threading.Event()
        self.rows.append(row)

        def neighbor() -> None:
            while not over.wait(PROBE_S):
                self.probe(row)

        thread = threading.Thread(target=neighbor, daemon=True)
        thread.start()
        try:
            yield row
        finally:
            over.set()
            thread.join(120)
            self.probe(row)
            row.expect(
                row.p99_s < LIMIT_S,
                f"the neighbor's p99 was {row.p99_s:.1f} s of {len(row.waits)} answers",
            )
            row.lost = self.count_lost()
            row.expect(not row.lost, f"{row.lost} acknowledged batches are not stored")

    def count_lost(self) -> int:
        """How many batches of the neighbor were acknowledged and are not stored."""
        stored = {seq for (seq,) in self.query(STORED)}
        return len(self.acknowledged - stored)
