"""Two collectors before one Postgres: jobs, batches, messages and decisions each once among them."""

import shutil
import threading
import time

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.batches import NOON_MS, batch, body_of
from fakes.fleet import DAY, OCTOBER, Fleet, Held
from fakes.mail import Inbox, mail_server, message
from fakes.postgres import fresh_database, open_folder
from fakes.replicas import replicas, until
from gpuledger_collector.cli import build
from gpuledger_collector.storage.notifications import outbox
from gpuledger_collector.storage.telemetry.usage_evidence import intervals

pytestmark = pytest.mark.slow

NODES, BATCHES = 3, 8
APART = [
    "compare_seals",
    "expire",
    "merge_partitions",
    "pack_samples",
    "pack_slow_metrics",
    "pack_usage_intervals",
    "prove_months",
    "roll_up_node_utilization",
    "roll_up_pool_hours",
    "roll_up_series",
    "store_capacity_plans",
    "store_inference_days",
]
"""Jobs that need not wait for the others."""
BUDGET = """
[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 10
currency = "USD"
actual = [50, 100]
recipients = ["lead@example.com", "head@example.com"]
"""


@pytest.fixture(scope="module")
def inbox():
    """A mail server that both collectors send to."""
    taken = Inbox()
    with mail_server(taken) as taken.port:
        yield taken


@pytest.fixture(scope="module")
def shared(postgres):
    """The database of both."""
    with fresh_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def pair(shared, inbox):
    """Two collectors; a test that kills one starts it again."""
    folder = open_folder("gpuledger-replicas-")
    settings = {
        "GPULEDGER_MAIL_SERVER": f"127.0.0.1:{inbox.port}",
        "GPULEDGER_MAIL_SECURITY": "none",
        "GPULEDGER_MAIL_FROM": "ledger@example.com",
    }
    with replicas(folder, shared, **settings) as made:
        yield made
    shutil.rmtree(folder, ignore_errors=True)


def rows(dsn, statement, values=None):
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement, values).fetchall()


def leader_of(pair):
    until(lambda: any(one.leads() for one in pair))
    first, second = pair
    return (first, second) if first.leads() else (second, first)


def test_jobs_run_on_one_of_them(pair, shared):
    """Runs are those of the leader alone; no two overlap, but for work that goes on apart, and that
    not with itself.
    """
    leader, other = leader_of(pair)
    until(lambda: leader.job_runs() >= 25)
    assert other.job_runs() == 0
    assert not other.leads()
    overlaps = rows(
        shared,
        "SELECT count(*) FROM job_run a JOIN job_run b ON a.id < b.id"
        " AND a.started_at < b.ended_at AND b.started_at < a.ended_at"
        " AND (a.job = b.job OR NOT (a.job = ANY(%(apart)s) OR b.job = ANY(%(apart)s)))",
        {"apart": APART},
    )
    assert overlaps == [(0,)]


def test_the_same_batch_to_both_at_once_is_stored_once(pair, shared):
    """Of two copies that start together one is committed and one known; evidence and samples are
    there once.
    """
    lock, statuses = threading.Lock(), []
    barrier = threading.Barrier(2 * NODES)

    def send(one, node):
        for seq in range(1, BATCHES + 1):
            made = batch(seq, node=node, start_ms=NOON_MS + seq * 60_000)
            barrier.wait(60)
            status = one.send(made)
            with lock:
                statuses.append(status)

    threads = [
        threading.Thread(target=send, args=(one, f"twin-{n}")) for n in range(NODES) for one in pair
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert statuses == [200] * (2 * NODES * BATCHES)
    whole = NODES * BATCHES
    assert rows(
        shared, "SELECT count(*), sum(usage_intervals), sum(samples) FROM ingest_batch"
    ) == [(whole, 2 * whole, 12 * whole)]
    assert rows(
        shared,
        f"SELECT count(*), count(DISTINCT (accelerator_id, start_ms)) FROM {intervals(0)} AS s",
    ) == [(2 * whole, 2 * whole)]
    assert rows(
        shared, "SELECT count(*), count(DISTINCT (accelerator_id, at_ms)) FROM gpu_sample"
    ) == [(12 * whole, 12 * whole)]
    assert rows(shared, "SELECT count(*) FROM ingest_conflict") == [(0,)]


def test_other_bytes_under_one_key_at_both_at_once_are_one_batch_and_one_conflict(pair, shared):
    """Whichever is first counts; the other one is refused by whoever has it."""
    bodies = [
        batch(1, node="split", start_ms=NOON_MS),
        batch(1, node="split", start_ms=NOON_MS + 60_000),
    ]
    assert body_of(bodies[0]) != body_of(bodies[1])
    answers = []
    barrier = threading.Barrier(2)

    def send(one, made):
        barrier.wait(60)
        answers.append(one.send(made))

    threads = [
        threading.Thread(target=send, args=pair_of) for pair_of in zip(pair, bodies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers.count(200) == 1
    assert rows(
        shared,
        "SELECT count(*) FROM ingest_batch b JOIN node n ON n.id = node_id WHERE n.name = 'split'",
    ) == [(1,)]
    assert rows(shared, "SELECT count(*) FROM ingest_conflict WHERE node_name = 'split'") == [(1,)]


def test_the_leader_is_killed_and_the_other_tells_of_a_budget_once(pair, shared, inbox, tmp_path):
    """kill -9 while mails go out: the other one leads with one of its next jobs, a budget that is
    crossed meanwhile is told of once to each, and no mail comes twice.
    """
    leader, other = leader_of(pair)
    with psycopg.connect(shared) as connection:
        for number in range(40):
            outbox.insert(connection, message(f"event-{number}", f"reader-{number}@example.com"))
    until(lambda: len(inbox.mails) >= 5)
    leader.kill()
    until(other.leads)
    spend(shared, tmp_path)
    leader.start()
    leader.wait_ready()
    until(lambda: rows(shared, "SELECT count(*) FROM outbox WHERE kind = 'budget'") == [(2,)])
    until(
        lambda: (
            rows(shared, "SELECT count(*) FROM outbox WHERE state IN ('waiting', 'handing_over')")
            == [(0,)]
        )
    )
    runs = other.job_runs()
    until(lambda: other.job_runs() > runs + 8)
    assert not leader.leads()
    told = [str(mail["To"]) for mail in inbox.mails]
    events = [one for one in told if one.startswith("reader-")]
    assert len(events) == len(set(events))
    # One mail at most was in the hands of the process that was killed.
    unconfirmed = rows(shared, "SELECT count(*) FROM outbox WHERE state = 'unconfirmed'")[0][0]
    assert unconfirmed <= 1
    assert 40 - unconfirmed <= len(events) <= 40
    budget = sorted(one for one in told if not one.startswith("reader-"))
    assert budget == ["head@example.com", "lead@example.com"]


def spend(dsn, folder):
    """Team vision held a GPU since midnight, at a price that crosses both thresholds of its budget
    within seconds.
    """

    def command(*arguments):
        done = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", dsn])
        assert done.exit_code == 0, done.output

    now = int(time.time() * 1000)
    start, held = now - now % DAY - OCTOBER, now % DAY
    fleet = Fleet(dsn)
    fleet.capacity(1, start)
    fleet.workload(1, team="vision")
    command("prices", "set", "--rate", "100000", "--currency", "USD", "--from", "2024-01-01")
    (folder / "ledger.toml").write_text(BUDGET)
    command("apply", folder / "ledger.toml")
    fleet.evidence([Held(1, 1, start, start + held, busy=held)])
    fleet.connection.close()
