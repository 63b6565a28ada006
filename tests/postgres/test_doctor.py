"""gpuledger doctor: each misconfiguration is found and has its cure; a healthy ledger has none."""

import datetime as dt
import json
import subprocess

import psycopg
import pytest

from fakes.collector import running
from fakes.processes import BIN, environment
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

NOW_MS = int(dt.datetime.now(dt.UTC).timestamp() * 1000)


def doctor(dsn):
    answer = subprocess.run(
        [BIN / "gpuledger", "doctor", "--format", "json", "--dsn", dsn],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in answer.stderr
    return answer.returncode, {entry["topic"]: entry for entry in json.loads(answer.stdout)}


def report(dsn, *, team="vision", status="ok", detail=""):
    start = (NOW_MS // HOUR_MS - 2) * HOUR_MS
    made = {
        "version": 1,
        "node": "n1",
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": 1,
        "heartbeat": {"agent_version": "0", "source": "nvml", "status": status, "detail": detail},
        "accelerators": [
            {"uuid": "GPU-1", "device_uuid": "GPU-1", "index": 0, "model": "NVIDIA L4"}
        ],
        "workloads": [{"id": "1", "kind": "slurm", "tags": {"team": team} if team else {}}],
        "usage_intervals": [
            {
                "accelerator": 0,
                "state": "held",
                "start_ms": start,
                "end_ms": start + HOUR_MS,
                "workload": 0,
                "held_ms": HOUR_MS,
                "busy_ms": HOUR_MS,
            }
        ],
    }
    with running(dsn) as collector:
        assert (
            collector.post(json.dumps(made).encode(), {"Content-Type": "application/json"})[0]
            == 200
        )


def price(dsn):
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO price (purchase, rate_per_gpu_hour, currency, effective_from_ms,"
            " recorded_at) VALUES ('on_demand', 1, 'USD', 0, now())"
        )


def test_an_empty_ledger_says_where_to_begin(dsn):
    """Nothing reported, no price book: where to start, and the one thing that every bill will lack."""
    code, found = doctor(dsn)
    assert code == 1
    assert found["prices"]["verdict"] == "bad"
    assert "import prices" in found["prices"]["remedy"]
    assert found["agents"]["verdict"] == "note"
    assert found["database"]["verdict"] == "ok"


def test_a_healthy_ledger_needs_no_cure(dsn):
    """Priced, attributed, reported and proven: exit 0."""
    price(dsn)
    report(dsn)
    refresh(Database(dsn), ALWAYS, NOW_MS)
    code, found = doctor(dsn)
    assert code == 0, found
    assert {
        found[topic]["verdict"] for topic in ("prices", "agents", "attribution", "database")
    } == {"ok"}


@pytest.mark.parametrize(
    ("change", "topic", "words"),
    [
        (
            "UPDATE node SET last_seen_at = now() - interval '1 hour'",
            "agents",
            "silent for over ten minutes: n1",
        ),
        (
            "UPDATE node SET status = 'no_driver', status_detail = 'the driver is not loaded'",
            "agents",
            "not loaded",
        ),
        ("UPDATE ledger_day SET currency = NULL", "prices", "have no price"),
        (
            "UPDATE ledger_day SET owner_id = NULL WHERE state = 'held'",
            "attribution",
            "100 % of the held time",
        ),
        ("UPDATE conservation_check SET holds = false", "proof", "does not hold on"),
        (
            (
                "INSERT INTO job_run (job, started_at, outcome, detail) VALUES ('rate_usage',"
                " now(), 'failed', 'boom')"
            ),
            "jobs",
            "rate_usage failed recently: boom",
        ),
        (
            (
                "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) "
                "VALUES ('n1', '0192aaaa-0000-7000-8000-000000000001', 1, 'x', now())"
            ),
            "integrity",
            "other bytes",
        ),
    ],
)
def test_each_fault_is_found_with_its_cure(dsn, change, topic, words):
    """One thing is broken in a healthy ledger: it is named, with what to do, and the exit code is
    1.
    """
    price(dsn)
    report(dsn)
    refresh(Database(dsn), ALWAYS, NOW_MS)
    with psycopg.connect(dsn) as connection:
        connection.execute(change)
    code, found = doctor(dsn)
    assert code == 1
    assert found[topic]["verdict"] == "bad"
    assert words in found[topic]["sentence"]
    assert found[topic]["remedy"]


def test_a_database_that_is_away_is_exit_3():
    """Nobody listens at the DSN: one finding says so."""
    code, found = doctor("postgresql://nobody:x@127.0.0.1:1/none")
    assert code == 3
    assert found["database"]["verdict"] == "bad"
