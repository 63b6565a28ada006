"""The second wall before viewers over HTTP: with every filter of the code taken out, Postgres shows
nothing foreign.
"""

import contextlib
import json
import threading

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fakes.postgres import administrator, fresh_database
from fakes.replicas import until
from fakes.two_teams import FOREIGN, NOW_MS, OWN, day, token, two_teams
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.services import runs
from gpuledger_collector.services.upkeep import roll_up_series
from gpuledger_collector.storage import overview, row_level_security
from gpuledger_collector.storage.billing import allocation as beside
from gpuledger_collector.storage.billing import reports
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.telemetry import series

MONTH = day(-2)[:7]
QUERY = f"from={day(-4)}&to={day(-1)}&all=true"
ECHOES = (
    f"&#39;{FOREIGN}&#39; was billed nothing",
    f"No job has the key, the id or the name &#39;{FOREIGN}-1&#39;",
    f"Nothing was ever charged to team {FOREIGN}: is the name right?",
    f"no accelerator is called 'GPU-{FOREIGN}'",
    f"no accelerator was on node '{FOREIGN}-node'",
)
"""Answers that say no more than that what was asked for is not there."""
BY = ("&by=team", "&by=project,user", "&by=workload,node", "&by=pool")


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        with psycopg.connect(dsn) as connection:
            for team in (OWN, FOREIGN):
                connection.execute(
                    "INSERT INTO recommendation (key, kind, subject, team, owner, advice, evidence,"
                    " scope, start_ms, end_ms, price_ids, freed_gpu_ns, state, made_ms, expires_ms)"
                    " VALUES (%(team)s, 'idle', %(team)s, %(team)s, %(owner)s, 'give it back',"
                    " '{}', '{}', 0, 1, '{}', 0, 'open', %(now)s, %(now)s)",
                    {"team": team, "owner": json.dumps({"team": team}), "now": NOW_MS},
                )
        roll_up_series(Database(dsn), 100_000, NOW_MS, lambda: False)
        yield made


def ask(fleet, path, role="viewer"):
    collector, secrets = fleet
    return collector.request("GET", path, headers={"Authorization": f"Bearer {secrets[role]}"})


@pytest.fixture(scope="module")
def addresses(fleet):
    """Every reading address of the API's description, and the pages, with a foreign object where
    one is named.
    """
    collector, secrets = fleet
    opening = {"owner": {"team": FOREIGN}, "from": day(-3), "to": day(-2), "reason": "x"}
    headers = {"Authorization": f"Bearer {secrets['finance']}", "Content-Type": "application/json"}
    status, _, made = collector.request(
        "POST", "/v1/disputes", json.dumps(opening).encode(), headers
    )
    assert status == 201
    named = {"pool": f"{FOREIGN}-pool", "number": str(made["id"])}
    described = collector.request("GET", "/openapi.json")[2]["paths"]
    found = [
        path for path, methods in described.items() if "get" in methods and path.startswith("/v1/")
    ]
    asked = [f"{path.format(**named)}?{QUERY}" for path in found]
    asked += [f"/v1/chargeback?{QUERY}{by}" for by in BY]
    asked += [
        f"/v1/samples?{QUERY}&step=3600&gpu=GPU-{FOREIGN}",
        f"/v1/samples?{QUERY}&step=3600&node={FOREIGN}-node",
    ]
    shown = [
        "/",
        f"/pools/{FOREIGN}-pool",
        f"/statements/team/{FOREIGN}/{MONTH}",
        f"/statements/team/{MONTH}",
    ]
    shown += [
        "/models",
        "/idle",
        "/anomalies",
        "/jobs",
        f"/jobs/{FOREIGN}-1",
        f"/jobs/{OWN}-1",
        "/demand",
        "/queues",
        "/trust",
        f"/spend?period={MONTH}",
        f"/spend?period={MONTH}&by=state",
        "/spend?days=1&by=model",
        "/fleet",
        "/fleet?format=csv",
        f"/fleet/gpu/GPU-{FOREIGN}",
    ]
    return [
        *asked,
        *shown,
        *(
            f"{path}?period={MONTH}&format=csv"
            for path in ("/idle", "/anomalies", "/jobs", "/models", "/spend")
        ),
    ]


@pytest.fixture
def sabotaged(monkeypatch):
    """Every filter and refusal of the code that holds a viewer back is gone."""
    whole, anybody = runs.runs.list_charged, (lambda self, *_: None)
    by_team, listed = overview.daily_by_team, reports.charged_lines
    monkeypatch.setattr(Principal, "sees", lambda self, *_: True)
    monkeypatch.setattr(Principal, "require_fleet", anybody)
    monkeypatch.setattr(Principal, "require_admin", anybody)
    monkeypatch.setattr(
        runs.runs,
        "list_charged",
        lambda connection, period, _owner, *more, **named: whole(connection, period, {}, **named),
    )
    monkeypatch.setattr(
        overview,
        "daily_by_team",
        lambda connection, period, _owner: by_team(connection, period, {}),
    )
    monkeypatch.setattr(
        reports, "charged_lines", lambda *asked, owner=None, **named: listed(*asked, **named)
    )
    shares = beside.own_shares
    monkeypatch.setattr(
        beside,
        "own_shares",
        lambda connection, costs, by, _owner: shares(connection, costs, by, {}),
    )
    drawn = series.read
    monkeypatch.setattr(
        series, "read", lambda a, b, c, d, _owner, states: drawn(a, b, c, d, None, states)
    )


def test_with_every_filter_gone_a_viewer_sees_nothing_foreign(fleet, addresses, sabotaged):
    """Threat: a forgotten condition.

    Each address is answered without a fault, and its own rows are still there.
    """
    assert len(addresses) >= 16
    shown = set()
    for path in addresses:
        status, _, answer = ask(fleet, path)
        text = json.dumps(answer).replace(path, "")
        assert status in {200, 403, 404, 422}, (path, status, text)
        for echo in ECHOES:
            text = text.replace(echo, "")
        assert FOREIGN not in text, (path, text)
        if OWN in text:
            shown.add(path.partition("?")[0])
    assert shown >= {
        "/v1/chargeback",
        "/v1/budgets",
        "/v1/idle",
        "/v1/anomalies",
        "/v1/recommendations",
        "/v1/runs",
        "/v1/series",
        "/",
        "/idle",
        "/anomalies",
        "/jobs",
        "/models",
        "/spend",
    }


def test_without_the_wall_the_sabotage_would_show(fleet, addresses, sabotaged, monkeypatch):
    """The test above can fail: with the wall gone too, most addresses tell of the other team."""
    monkeypatch.setattr(row_level_security, "become_viewer", lambda *_: None)
    leaking = [
        path for path in addresses if FOREIGN in json.dumps(ask(fleet, path)[2]).replace(path, "")
    ]
    assert len(leaking) >= 10, leaking


def test_the_answers_are_the_same_with_and_without_it(fleet, addresses, monkeypatch):
    """Behind the wall a viewer reads what the filters of the code let through, to the cent."""
    # Pages say at what second they were made.
    plain = [path for path in addresses if path.startswith("/v1/") or "format=csv" in path]
    walled = {path: ask(fleet, path)[::2] for path in plain}
    monkeypatch.setattr(row_level_security, "become_viewer", lambda *_: None)
    for path in plain:
        assert ask(fleet, path)[::2] == walled[path], path


@pytest.mark.parametrize("walled", [True, False])
def test_a_statement_of_nobody_names_no_other_owner(fleet, monkeypatch, walled):
    """Of a month in which others were billed, the page tells a viewer of no other team, without a
    wall too.
    """
    if not walled:
        monkeypatch.setattr(row_level_security, "become_viewer", lambda *_: None)
    collector, _ = fleet
    headers = {
        "Authorization": (
            f"Bearer {token(collector.dsn, 'viewer', f'idle {walled}', owner={'team': 'idle'})}"
        )
    }
    status, _, text = collector.request("GET", f"/statements/team/idle/{MONTH}", headers=headers)
    assert status == 404
    assert "was billed nothing" in text
    assert FOREIGN not in text
    assert FOREIGN in ask(fleet, f"/statements/team/idle/{MONTH}", "finance")[2]


def test_what_stands_behind_the_wall_is_declared(fleet):
    """Every table of the schema as that role: rows of the owner, a table of days, or no right at
    all.
    """
    with psycopg.connect(fleet[0].dsn) as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND"
                " relkind IN ('r', 'p')"
            )
        ]
    readable = []
    with psycopg.connect(fleet[0].dsn, autocommit=True) as connection:
        for owner in ({"team": OWN}, {}, {"team": "nobody"}):
            assert row_level_security.become_viewer(connection, owner)
            for table in tables:
                columns = row_level_security.COMMON.get(table) or "t.*"
                with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                    rows = connection.execute(f"SELECT {columns} FROM {table} t").fetchall()
                    readable.append(table)
                    assert FOREIGN not in str(rows), table
                    assert (
                        not rows or owner == {"team": OWN} or table in row_level_security.COMMON
                    ), table
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("DELETE FROM charge")
            connection.execute("RESET ROLE")
    assert set(readable) == (set(row_level_security.OWNED) | set(row_level_security.COMMON)) & set(
        tables
    )


def test_raising_it_gives_way_to_writers(dsn, monkeypatch):
    """A batch that holds a table which the wall needs, and wants one that it has, goes on; the wall
    is tried again.
    """
    monkeypatch.setattr(migrate, "LOCK_PAUSE_SECONDS", 0.1)
    with psycopg.connect(dsn, autocommit=True) as watch, psycopg.connect(dsn) as writer:
        row_level_security.disable(watch)
        writer.execute("LOCK TABLE accelerator IN ROW EXCLUSIVE MODE")
        upgrade = threading.Thread(target=migrate.upgrade, args=(dsn,))
        upgrade.start()
        waits = "SELECT FROM pg_locks WHERE relation = 'accelerator'::regclass AND NOT granted"
        until(lambda: watch.execute(waits).fetchone() is not None)
        writer.execute("LOCK TABLE workload IN ROW EXCLUSIVE MODE")
        writer.commit()
        upgrade.join(60)
        assert row_level_security.is_enabled(watch)


@pytest.fixture
def plain_owner(postgres):
    """DSN of an empty database whose owner may make no roles, as on a server that others
    administer.
    """
    admin = make_conninfo(administrator(postgres), dbname="postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("CREATE ROLE plain_owner LOGIN PASSWORD 'x'")
        connection.execute("CREATE DATABASE test_plain TEMPLATE template0 OWNER plain_owner")
    yield make_conninfo(postgres, dbname="test_plain", user="plain_owner", password="x")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("DROP DATABASE test_plain WITH (FORCE)")
        connection.execute("DROP ROLE plain_owner")


def test_on_a_server_of_others_it_takes_one_grant_of_its_administrator(
    plain_owner, postgres, caplog, command
):
    """Until then the filters of the code stand alone, and log and doctor say so; afterwards an
    upgrade raises it.
    """
    migrate.upgrade(plain_owner)
    with psycopg.connect(plain_owner, autocommit=True) as connection:
        assert not row_level_security.is_enabled(connection)
        with row_level_security.as_viewer(connection, {"team": OWN}):
            assert connection.execute("SELECT current_user").fetchone() == ("plain_owner",)
        assert "row-level security for viewers is not enabled" in caplog.text
        advised = row_level_security.advice(connection)
    told = json.loads(command("doctor", "--format", "json", dsn=plain_owner).stdout)
    assert advised in json.dumps(told)
    with psycopg.connect(administrator(postgres), autocommit=True) as connection:
        connection.execute(advised.split("; ")[1])
    migrate.upgrade(plain_owner)
    with psycopg.connect(plain_owner, autocommit=True) as connection:
        assert row_level_security.is_enabled(connection)
        with row_level_security.as_viewer(connection, {"team": OWN}):
            assert connection.execute("SELECT current_user").fetchone() == (
                row_level_security.ROLE,
            )
            assert connection.execute("SELECT count(*) FROM charge").fetchone() == (0,)
        assert connection.execute("SELECT current_user").fetchone() == ("plain_owner",)
    assert advised not in command("doctor", "--format", "json", dsn=plain_owner).stdout


def test_a_restriction_within_another_ends_alone(dsn):
    """Whatever comes after it is as restricted as before, be it by a block or by the session."""

    def seen(connection):
        return connection.execute(
            "SELECT current_user, current_setting('gpuledger.owner', true)"
        ).fetchone()

    own, other = ((row_level_security.ROLE, f'{{"team": "{team}"}}') for team in (OWN, "other"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        unrestricted = seen(connection)[0]
        with row_level_security.as_viewer(connection, {"team": OWN}):
            with row_level_security.as_viewer(connection, {"team": "other"}):
                assert seen(connection) == other
            assert seen(connection) == own
            with (
                contextlib.suppress(psycopg.errors.DivisionByZero),
                connection.transaction(),
                row_level_security.as_viewer(connection, {"team": "other"}),
            ):
                connection.execute("SELECT 1 / 0")
            assert seen(connection) == own
        assert seen(connection) == (unrestricted, "")
    with Database(dsn).as_viewer({"team": OWN}).connect() as connection:
        with row_level_security.as_viewer(connection, {"team": OWN}):
            assert seen(connection) == own
        assert seen(connection) == own


def test_the_remedy_names_no_role_that_is_there(dsn, monkeypatch, caplog):
    """What prevents it then is in the log of the upgrade: an administrator's SQL cannot help."""
    monkeypatch.setitem(row_level_security.OWNED, "charge", "no_such_column")
    with psycopg.connect(dsn, autocommit=True) as connection:
        row_level_security.disable(connection)
        assert "no_such_column" in row_level_security.enable(connection)
        assert "no_such_column" in caplog.text
        advice = row_level_security.advice(connection)
    assert advice.startswith("gpuledger db upgrade")
    assert "CREATE ROLE" not in advice
