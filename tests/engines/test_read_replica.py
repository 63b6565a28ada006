"""A streaming replica of Debian's Postgres: what reads works there, what writes says so in a
sentence.
"""

import contextlib
import time

import psycopg
import pytest

from fakes.batches import batch
from fakes.books import (
    ANSWERS,
    CLOSED,
    EVIDENCE,
    OPEN,
    Command,
    answers,
    furnish,
    pack_august,
    printed,
    tables,
    world_of,
)
from fakes.engines import Engine, engine
from fakes.processes import CollectorProcess
from gpuledger_collector.storage.errors import ReadReplica
from gpuledger_collector.storage.server import migrate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 600
"""Longer than anything takes on the slowest machine: only a hang exceeds it."""
NOTE = "read replica: usage, charges and findings are as the primary last computed them\n"
REPORTS = [
    ("chargeback",),
    ("idle", "--now"),
    ("idle", *CLOSED),
    ("idle", "--services"),
    ("anomalies",),
    ("accelerators", *OPEN),
    ("budgets",),
    ("disputes", "list"),
    ("runs", *OPEN),
    ("receipt", "1"),
    ("recommend",),
    ("what-if", *CLOSED, "--prices", "PRICES"),
    ("forecast",),
    ("forecast", "history"),
    ("scale", "advise", "--pool", "train"),
    ("scale", "history"),
    ("tags", "check"),
    ("prices", "list"),
    ("notifications", "list"),
    ("actions", "list"),
    ("outbox", "list"),
    ("token", "list"),
    ("audit", "list"),
    ("audit", "verify"),
    ("db", "partitions"),
]
"""Further reading commands: they end as on the primary, and say whose computation they show."""
SILENT = [("export", "config"), ("doctor",), ("db", "check"), ("db", "backup", "BACKUP", "--force")]
"""Reading commands that show no usage, charges or findings."""
WRITING = [
    ("prices", "set", "--rate", "9", "--currency", "USD", "--from", "2026-09-01"),
    ("prices", "set", "--rate", "9", "--currency", "USD", "--from", "2026-09-01", "--dry-run"),
    ("close", *OPEN),
    ("import", "usage", "USAGE"),
    ("apply", "DECLARED"),
    ("token", "create", "--role", "finance"),
    ("privacy", "erase", "ada"),
    ("db", "pack"),
    ("db", "grant-reader", "grafana"),
]
SAMPLE_PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from
,,on_demand,3.60,USD,2025-01-01
"""
PAGES = [
    "/",
    "/statements/team/2026-08",
    "/statements/team/alpha/2026-08",
    "/pools/?name=train",
    "/v1/chargeback?from=2026-08-01&to=2026-09-01&by=team",
    "/v1/nodes",
    "/v1/idle",
    "/v1/anomalies",
    "/v1/budgets",
    "/v1/disputes",
    "/metrics",
]


@pytest.fixture(scope="module")
def pair(folder):
    """A primary with a ledger, and its replica."""
    with engine(15, folder) as primary:
        migrate.upgrade(primary.dsn())
        with world_of(primary.dsn()) as world:
            furnish(world, folder)
        pack_august(primary.dsn())
        answers(Command(primary.dsn()))
        for arguments in REPORTS:  # what reading commands bring up to date on the primary
            Command(primary.dsn())(*given(arguments, folder))
        replica = Engine(15, folder)
        try:
            replica.copy_of(primary)
            catch_up(primary, replica)
            yield primary, replica
        finally:
            replica.stop()


def catch_up(primary, replica):
    """Wait until the replica has replayed what the primary has written."""
    with psycopg.connect(primary.dsn("postgres", "postgres"), autocommit=True) as connection:
        (written,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(replica.dsn("postgres", "postgres"), autocommit=True) as connection:
        while not connection.execute(
            "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)
        ).fetchone()[0]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def given(arguments, folder):
    """The arguments with the files that they name."""
    files = {"PRICES": SAMPLE_PRICES, "USAGE": USAGE, "DECLARED": DECLARED, "BACKUP": ""}
    for name in files.keys() & set(arguments):
        (folder / name).write_text(files[name])
    return [folder / argument if argument in files else argument for argument in arguments]


USAGE = "workload_id,start,end,gpus,pool,tag:team\nx,2026-09-02T00:00Z,2026-09-03T00:00Z,5,train,mallory\n"
DECLARED = (
    '[[budget]]\nname = "b"\nteam = "alpha"\nperiod = "month"\namount = 4\ncurrency = "USD"\n'
)


def test_reading_commands_work_and_writing_ones_say_so(pair, folder):
    """Bills, proofs and seals are those of the primary; a write ends with 3 and one sentence."""
    primary, replica = pair
    expected, content = answers(Command(primary.dsn())), tables(primary.dsn())
    read, write = Command(replica.dsn()), Command(replica.dsn())
    assert answers(read) == expected
    assert tables(replica.dsn()) == content
    assert content[EVIDENCE][0] > content["usage_interval"][0] > 0
    rows = [[" ".join(ANSWERS[name]), "reads", f"{expected[name]} equal"] for name in expected]
    for arguments in REPORTS + SILENT:
        there, here = (
            read(*given(arguments, folder)),
            Command(primary.dsn())(*given(arguments, folder)),
        )
        assert there[0] == here[0], (arguments, there, here)
        assert there[0] in {0, 1}, (arguments, there)
        assert (NOTE in there[2]) == (arguments not in SILENT), (arguments, there)
        rows.append([" ".join(arguments), "reads", f"exit {there[0]}, as on the primary"])
    for arguments in WRITING:
        code, out, err = write(*given(arguments, folder))
        assert (code, err) == (3, str(ReadReplica())), (arguments, code, out, err)
        rows.append([" ".join(arguments), "writes", "exit 3, one sentence"])
    print(printed("On a read replica of Postgres 15", ["gpuledger", "", "result"], rows))


def test_pages_are_served_and_batches_are_kept_by_their_agents(pair, folder):
    """With jobs off pages and reading endpoints answer; a batch gets 503, and no traceback is
    logged.
    """
    replica = pair[1]
    home = folder / "serve"
    home.mkdir()
    collector = CollectorProcess(home, GPULEDGER_DSN=replica.dsn(), GPULEDGER_JOBS="false")
    collector.start()
    try:
        wait_for(lambda: collector.get("/healthz")[0] == 200)
        seen = {path: collector.get(path) for path in PAGES}
        assert {path: status for path, (status, _) in seen.items()} == dict.fromkeys(PAGES, 200), (
            seen
        )
        status, answer = collector.get("/readyz")
        assert (status, "the database takes no writes: it is a read replica" in answer) == (
            503,
            True,
        )
        assert collector.send(batch(99)) == 503
    finally:
        code = collector.stop()
    log = (home / "collector.log").read_text()
    assert code == 0, log
    assert "Traceback" not in log
    assert "read-only transaction" in log


def test_a_collector_with_jobs_says_what_to_set(pair, folder):
    """Jobs write: serving them from a replica ends with 3."""
    collector = CollectorProcess(folder, GPULEDGER_DSN=pair[1].dsn())
    collector.start()
    assert collector.process.wait(PATIENCE_S) == 3
    assert (folder / "collector.log").read_text() == (
        "gpuledger: the database is a read replica, where no job can run: "
        "set GPULEDGER_JOBS=false to serve pages from it\n"
    )


def wait_for(condition, seconds=PATIENCE_S):
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)
