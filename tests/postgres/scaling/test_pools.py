"""Pools' limits, decisions, outcomes and the webhook: declared, recorded, told once, and judged by
what came.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fakes.collector import running
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.scaling.pools import ScalingTerms
from gpuledger_collector.notifications.sender import Sender
from gpuledger_collector.notifications.webhooks import WebhookTransport
from gpuledger_collector.scheduled_jobs import scheduled_jobs
from gpuledger_collector.services.scaling_advice import advise_scaling
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.capacity import queues, scaling
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications.outbox import Outbox

pytestmark = pytest.mark.slow

ACTING = {
    "min_gpus": 4,
    "max_gpus": 64,
    "money_per_hour": 100,
    "currency": '"USD"',
    "mode": '"act"',
    "webhook": '"capacity"',
}
SECRET = b"a secret of the hook"


@pytest.fixture
def store(database) -> Database:
    return database


def rows(database, query):
    with database.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


REFUSED = (
    ({"mode": '"act"'}, 'pools.toml:1:min_gpus: is required where mode = "act"'),
    ({"min_gpus": 8, "max_gpus": 4}, "max_gpus: is less than min_gpus"),
    ({"headroom": 0.1, "utilization": 0.8}, "utilization: and headroom say the same thing"),
    ({"money_per_hour": 3}, "currency: belongs to money_per_hour"),
    ({"lead_time": 3}, "is it 'lead_time_s'?"),
    ({"cooldown_s": '"10m"'}, "cooldown_s: '10m' is not a whole number of seconds"),
    ({"mode": '"on"'}, "mode: 'on' is not one of advice, act"),
    ({"predict": '"yes"'}, "predict: 'yes' is neither true nor false"),
    ({"node_gpus": 0}, "node_gpus: 0 is not between 0.01 and 1000000"),
)


def test_terms_that_cannot_be_are_refused_with_their_line(pool, database):
    """One sentence with file, line and key; nothing is applied."""
    for keys, said in REFUSED:
        code, _, err = pool(**keys)
        assert code == 2
        assert said in err
    assert rows(database, "SELECT pool FROM scaling_pool") == []


def test_applied_terms_are_in_force_audited_and_the_same_again_changes_nothing(pool, database):
    """A target utilization is headroom; the audit log has the change once."""
    assert pool(**ACTING, utilization=0.8, cooldown_s=600, lead_time_s=900)[0] == 0
    assert (
        "pools: 0 added, 0 superseded, 1 unchanged"
        in pool(**ACTING, utilization=0.8, cooldown_s=600, lead_time_s=900)[1]
    )
    with database.connect() as connection:
        (terms,) = scaling.terms(connection).values()
    assert terms.limits.headroom == pytest.approx(0.25)
    assert (terms.limits.cooldown_ms, terms.lead_ms, terms.mode, terms.webhook) == (
        600_000,
        900_000,
        "act",
        "capacity",
    )
    assert ScalingTerms.from_facts("train", terms.facts()) == terms
    assert "1 superseded" in pool(min_gpus=2)[1]
    kinds = rows(database, "SELECT count(*) FROM audit WHERE what = 'scaling_pool'")
    assert kinds == [(3,)]


class Receiver:
    """A real HTTP server that keeps what it is told."""

    def __enter__(self):
        self.told = told = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                told.append(
                    (self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
                )
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_a_change_is_told_once_signed_and_only_where_the_pool_acts(
    ledger, pool, store, dsn, hour_ms, database
):
    """Advice tells nobody; acting tells each change once, however often the job and the sender run."""
    ledger()
    pool(webhook='"capacity"')
    (first,) = advise_scaling(store, hour_ms).values()
    assert first.webhook == ""
    assert rows(database, "SELECT count(*) FROM outbox") == [(0,)]
    pool(**ACTING, warm_gpus=20)
    for _ in range(3):
        advise_scaling(store, hour_ms + 1000)
    assert rows(database, "SELECT notified, mode FROM scaling_decision ORDER BY id") == [
        ("", "advice"),
        ("webhook:capacity", "act"),
    ]
    with Receiver() as receiver:
        address = f"http://127.0.0.1:{receiver.server.server_port}/scale"
        hook = WebhookTransport(
            "webhook",
            {"capacity": address},
            secrets={"capacity": SECRET},
            clock=lambda: 1_700_000_000,
        )
        box = Outbox(Database(dsn))
        sender = Sender(box, {"webhook": hook}, lambda: hour_ms + 60_000)
        assert sender.send_due().sent == 1
        assert sender.send_due().sent == 0
        ((body, headers),) = receiver.told
    said = json.loads(body)
    assert said["kind"] == "scaling"
    assert said["decision"]["desired_gpus"] == 36.0
    assert said["decision"]["before_gpus"] == first.advice.desired_gpus
    signed = f"{headers['webhook-id']}.1700000000.".encode() + body
    mac = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert headers["Idempotency-Key"] == said["id"]


def test_an_outcome_is_what_came_while_the_decision_served(
    ledger, pool, store, hour_ms, database, run
):
    """Demand, wait and waste from when it serves until the next one does, in GPU-seconds, and waste
    in money.
    """
    ledger()
    made_at = hour_ms - 24 * HOUR_MS * 2
    pool(lead_time_s=3600, min_gpus=20, max_gpus=20)
    advise_scaling(store, made_at)
    assert rows(database, "SELECT count(*) FROM scaling_outcome") == [(0,)]
    advise_scaling(store, made_at + 24 * HOUR_MS)
    # The last known step began an hour before; from its end and the lead time on for a day: 18
    # hours of 16 GPUs wanted, six of 24.
    assert (
        rows(
            database,
            "SELECT until_ms - from_ms, known_ms, demand_gpu_s, wait_gpu_s, waste_gpu_s, currency, "
            "waste_micro FROM scaling_outcome",
        )
        == []
    )
    advise_scaling(store, made_at + 26 * HOUR_MS)
    found = rows(
        database,
        "SELECT until_ms - from_ms, known_ms, demand_gpu_s, wait_gpu_s, waste_gpu_s, currency, "
        "waste_micro FROM scaling_outcome ORDER BY decision_id LIMIT 1",
    )
    day = 24 * HOUR_MS
    assert found == [
        (
            day,
            day,
            (18 * 16 + 6 * 24) * 3600.0,
            6 * 4 * 3600.0,
            18 * 4 * 3600.0,
            "USD",
            18 * 4 * 2 * 1_000_000,
        )
    ]
    with database.connect() as connection:
        kinds = scaling.sums(connection, hour_ms - 28 * day)
    assert kinds["train", "wait"] == sum(
        row[0] for row in rows(database, "SELECT wait_gpu_s FROM scaling_outcome")
    )
    assert set(kinds) == {("train", kind) for kind in scaling.KINDS}
    code, out, _ = run("scale", "history", "--pool", "train", "--format", "json")
    oldest = json.loads(out)[-1]
    assert code == 0
    assert (oldest["desired_gpus"], oldest["wait_gpu_s"], oldest["waste_cost"]) == (
        20.0,
        86400.0,
        "144.00",
    )
    assert len(oldest["inputs_hash"]) == 64
    assert run("scale", "history", "--format", "csv")[1].count("\n") == len(json.loads(out)) + 1
    table = run("scale", "history")[1]
    assert "not yet" in table
    # Of the oldest: a mean of demand has a decimal, what is counted has none.
    (row,) = [line.split() for line in table.splitlines() if line.startswith(oldest["made_at"])]
    assert row[2:5] == ["16.0", "20", "20"]


def test_the_api_keeps_to_the_limits_and_says_which(ledger, pool, dsn):
    """Ceiling, money and floor decide; a money limit without a rate turns acting off and says so."""
    ledger(price=False)
    seen = {}
    with running(dsn) as collector:
        for name, keys in {
            "none": {},
            "ceiling": {"max_gpus": 12, "node_gpus": 8},
            "floor": {"min_gpus": 100},
            "unpriced": ACTING,
        }.items():
            assert pool(**keys)[0] == 0
            status, _, seen[name] = collector.request("GET", "/v1/scaling/train")
            assert status == 200
    assert seen["none"]["desired_gpus"] >= seen["none"]["demand_gpus"] > 0
    assert (seen["none"]["lead_s"], seen["none"]["limited"], seen["none"]["acting"]) == (
        600,
        False,
        False,
    )
    assert (
        seen["ceiling"]["desired_gpus"],
        seen["ceiling"]["desired_nodes"],
        seen["ceiling"]["limited"],
    ) == (
        8,
        1,
        True,
    )
    assert "the ceiling of the pool decides" in seen["ceiling"]["reason"]
    assert seen["floor"]["desired_gpus"] == 100
    assert not seen["unpriced"]["acting"]
    assert "no single rate in USD in the price book" in seen["unpriced"]["reason"]


def test_the_money_limit_buys_so_many_gpus(ledger, pool, dsn):
    """At 2 USD per GPU-hour, 21 USD an hour buy ten GPUs, whatever is wanted."""
    ledger()
    pool(money_per_hour=21, currency='"USD"')
    with running(dsn) as collector:
        status, _, told = collector.request("GET", "/v1/scaling/train")
    assert (status, told["desired_gpus"]) == (200, 10.0)
    assert "the money limit of the pool decides" in told["reason"]


def test_the_stabilisation_window_keeps_a_target_up_and_lets_it_go(ledger, pool, store, hour_ms):
    """After the afternoon's rise the target stands for the window, and no longer: it does not keep
    itself up.
    """
    ledger()
    pool(stabilization_s=3600, predict="false")
    made = [advise_scaling(store, hour_ms - hours * HOUR_MS)["train"] for hours in (30, 29, 28)]
    risen, kept, fallen = (one.advice.desired_gpus for one in made if one is not None)
    assert risen == kept > fallen
    assert "the stabilization window of the pool decides" in made[1].advice.reason


def test_stale_demand_is_never_decided_on(ledger, store, hour_ms, database, pool):
    """Hours after the last evidence there is no decision, and nobody is told."""
    ledger()
    pool(**ACTING)
    made = advise_scaling(store, hour_ms)
    assert made["train"] is not None
    with database.transaction() as connection:
        connection.execute(
            "UPDATE imported_usage SET end_ms = %s WHERE end_ms IS NULL", (hour_ms - 20 * HOUR_MS,)
        )
    before = rows(database, "SELECT count(*) FROM scaling_decision")
    assert advise_scaling(store, hour_ms + 1000)["train"] is None
    assert rows(database, "SELECT count(*) FROM scaling_decision") == before


def test_the_month_of_a_pool_is_shown_in_money_beside_the_setting(ledger, pool, run):
    """Capacity times the rate, policy by policy; the advice shows it too, and a file goes on as
    before.
    """
    ledger(days=14)
    pool(predict="false", lead_time_s=3600)
    code, out, _ = run("scale", "backtest", "--pool", "train", "--format", "json")
    told = json.loads(out)
    by_name = {row["policy"]: row for row in told["policies"]}
    assert (code, told["predict"], told["lead_s"]) == (0, False, 3600)
    assert told["judged_days"] in {4, 5}  # the fifth began with the hour
    assert {"static-peak", "hpa-default", "reactive-tuned", "gpuledger", "oracle"} <= set(by_name)
    for row in by_name.values():
        assert row["cost"] == pytest.approx(2 * row["capacity"], abs=0.01)
    assert by_name["oracle"]["over_demand"] == 0
    code, out, _ = run("scale", "advise", "--pool", "train")
    assert code == 0
    assert {"cost", "USD"} <= set(out.split())
    assert '[[pool]] name = "train": predict = false' in out
    assert run("scale", "backtest")[0] == 2
    assert run("scale", "backtest", "a.csv", "--pool", "train")[0] == 2
    assert run("scale", "backtest", "--pool", "nowhere")[0] == 2


def test_what_is_over_400_days_old_goes_and_a_pools_last_decision_stays(
    ledger, pool, store, hour_ms, database, dsn
):
    """Decisions with their outcomes, and readings of queues; what is decided next still knows what
    was desired last.
    """
    ledger()
    for hours in (50, 26, 24):
        advise_scaling(store, hour_ms - hours * HOUR_MS)
    known = rows(
        database,
        "SELECT d.id, o.decision_id FROM scaling_decision d LEFT JOIN scaling_outcome o "
        "ON o.decision_id = d.id ORDER BY d.id",
    )
    assert [decision == outcome for decision, outcome in known] == [True, False, False]
    later_ms = hour_ms - 25 * HOUR_MS + scaling.KEEP_MS
    with Database(dsn).connect() as connection:
        connection.execute(
            "INSERT INTO queue_reading (source, at_ms, workloads, gpu_micro, waiting, received_at)"
            " VALUES ('slurm', %s, 0, 0, '[]', now()), ('slurm', %s, 0, 0, '[]', now())",
            (hour_ms - 26 * HOUR_MS, hour_ms - 24 * HOUR_MS),
        )
        for _ in range(2):
            scaling.expire(connection, later_ms)
            queues.expire(connection, later_ms)
        assert rows(database, "SELECT id FROM scaling_decision") == [(known[2][0],)]
        assert rows(database, "SELECT count(*) FROM scaling_outcome") == [(0,)]
        assert rows(database, "SELECT at_ms FROM queue_reading") == [(hour_ms - 24 * HOUR_MS,)]
        scaling.expire(connection, later_ms + scaling.KEEP_MS)
    assert rows(database, "SELECT id FROM scaling_decision") == [(known[2][0],)]


def test_a_collectors_daily_tidying_lets_them_go(database, dsn, hour_ms):
    """The job that runs each day does so."""
    with Database(dsn).connect() as connection:
        connection.execute(
            "INSERT INTO queue_reading (source, at_ms, workloads, gpu_micro, waiting, received_at)"
            " VALUES ('slurm', %s, 0, 0, '[]', now()), ('slurm', %s, 0, 0, '[]', now())",
            (hour_ms - queues.KEEP_MS - HOUR_MS, hour_ms),
        )
    made = scheduled_jobs(Settings(), database)
    next(one for one in made if one.name == "tidy").work()
    assert rows(database, "SELECT at_ms FROM queue_reading") == [(hour_ms,)]
