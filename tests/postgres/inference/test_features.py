"""Shared servers where features meet: commitments, node costs, adjustments, two currencies, a closed
and corrected month, a zone with days of 25 hours.
"""

import collections
from collections import defaultdict

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER
from fakes.rich_ledger import CLOSED, DAYS, OPEN, rich
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.accounting.inference_lines import KEYS
from gpuledger_collector.accounting.inference_split import CHARGED as CHARGE
from gpuledger_collector.accounting.inference_split import MODES, SHOWBACK
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services import inference_costs
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

pytestmark = pytest.mark.slow
__all__ = ["rich"]

DECLARED = "".join(
    f"""
[[inference]]
name = "server-{number}"
models = ["model-{number}"]
served_by = {{ name = "job-{number}" }}
idle = "{idle}"
mode = "showback"
{reserved}
"""
    for number, idle, reserved in (
        (1, "tokens", ""),
        (2, "platform", ""),
        (3, "reservations", "reserved = { a = 0.25, c = 0.5 }"),
    )
)
OWNERS = """
[[tenant]]
tenant = "a"
owner = { team = "alpha" }

[[tenant]]
tenant = "c"
owner = { team = "alpha", project = "c" }
"""
CHARGED = """
WITH of_server AS (SELECT id, name FROM workload WHERE name LIKE 'job-_' AND kind = 'slurm'),
held AS (SELECT w.name, c.* FROM charge c JOIN of_server w ON w.id = c.workload_id
    WHERE c.day_ms >= %(start)s AND c.day_ms < %(end)s),
places AS (SELECT DISTINCT name, day_ms, owner_id, pool, gpu_model, currency FROM held
    WHERE node_cost_id IS NULL)
SELECT name, currency, sum(cost_micro)::bigint FROM (
    SELECT name, currency, cost_micro FROM held
    UNION ALL SELECT p.name, c.currency, c.cost_micro FROM charge c JOIN places p
        ON p.day_ms = c.day_ms AND p.owner_id = c.owner_id AND p.pool = c.pool
        AND p.gpu_model = c.gpu_model AND p.currency = c.currency
        WHERE c.adjustment_id IS NOT NULL AND c.state IN ('markup', 'discount', 'tiered')
) lines GROUP BY 1, 2
"""
"""What servers were charged: of each place of an owner one server alone has time, so that what
policies changed there is all of it.
"""


@pytest.fixture(params=MODES)
def mode(request):
    """What becomes of the split: it is shown, or booked."""
    return request.param


@pytest.fixture
def shared(rich, run, tmp_path, mode):
    path = tmp_path / "inference.toml"
    path.write_text(DECLARED.replace(SHOWBACK, mode) + OWNERS)
    code, out, err = run("apply", path)
    assert code == 0, (out, err)
    store_token_usage(
        rich.connection,
        [
            TokenRecord(
                Asker("gw", tenant, f"model-{number}"),
                f"{number}-{tenant}-{day}",
                OCTOBER + day * DAY + 2 * HOUR,
                OCTOBER + day * DAY + 2 * HOUR + at * HOUR,
                Tokens(1_000 * at, 37 * at, 101 * at + day, 1),
            )
            for days in DAYS
            for day in days
            for number in (1, 2, 3)
            for at, tenant in enumerate(("a", "b", ""), 1)
        ],
    )
    # Commands rate what they read; services read what is rated.
    assert run("chargeback", "--period", OPEN)[0] == 0
    return rich


def without_zeros(amounts):
    """Amounts that are any."""
    return {key: micro for key, micro in amounts.items() if micro}


def sums(days):
    """Micro-units by server and currency."""
    totals = defaultdict(int)
    for line in days.lines:
        totals[line.server, line.currency] += line.used_micro + line.idle_micro
    return dict(totals)


@pytest.mark.parametrize("month", [CLOSED, OPEN])
def test_lines_add_up_to_what_the_servers_were_charged(shared, month):
    period = zones.calendar(shared.connection).month(month)
    charged = {
        (name.replace("job", "server"), currency): micro
        for name, currency, micro in shared.connection.execute(
            CHARGED, {"start": period.start_ms, "end": period.end_ms}
        )
        if currency is not None
    }
    days = inference_costs.read_days(shared.connection, period)
    assert len(charged) >= 3
    assert {key: micro for key, micro in sums(days).items() if key[1]} == charged
    assert sum(server.cost_micro for server in days.servers) == sum(charged.values())


def moved(shared, period):
    """What was booked in a period to owners of tenants, by server, owner's team, day and currency."""
    return {
        tuple(key): micro
        for *key, micro in shared.rows(
            "SELECT s.server, o.team, c.day_ms, c.currency, sum(c.cost_micro)::bigint FROM charge c"
            " JOIN inference_share s ON s.id = c.inference_id JOIN owner o ON o.id = c.owner_id"
            f" WHERE s.trust <> '' AND c.day_ms >= {period.start_ms} AND c.day_ms <"
            f" {period.end_ms} GROUP BY 1, 2, 3, 4"
        )
        if micro
    }


def test_adjoining_days_add_up(shared, mode):
    calendar = zones.calendar(shared.connection)
    month = calendar.month(OPEN)
    whole = inference_costs.read_days(shared.connection, month).lines
    parts = [
        line
        for day in calendar.days(month)
        for line in inference_costs.read_days(shared.connection, day).lines
    ]
    assert sorted(parts, key=str) == sorted(whole, key=str)
    assert whole
    of_days = [moved(shared, day) for day in calendar.days(month)]
    assert dict(collections.ChainMap(*of_days)) == moved(shared, month)
    assert bool(moved(shared, month)) is (mode == CHARGE)


def test_hours_add_up_to_their_days(shared, mode):
    period = zones.calendar(shared.connection).month(OPEN)
    days, hours = (
        inference_costs.read_inference(shared.connection, period, (*KEYS[:-2], name))
        for name in ("day", "hour")
    )
    totals = [defaultdict(int), defaultdict(int)]
    charged = [defaultdict(int), defaultdict(int)]
    for answer, total, booked in zip((days, hours), totals, charged, strict=True):
        for line in answer.lines:
            if line.cost is not None:
                key = line.keys["server"], line.keys["tenant"], line.keys["day"], line.cost.currency
                total[key] += line.cost.micro
                booked[key] += line.charged.micro
    assert without_zeros(charged[0]) == without_zeros(charged[1])
    assert sum(charged[1].values()) == sum(moved(shared, period).values())
    assert bool(without_zeros(charged[1])) is (mode == CHARGE)
    assert without_zeros(totals[0]) == without_zeros(totals[1])
    assert sum((line.tokens for line in hours.lines), Tokens()) == sum(
        (line.tokens for line in days.lines), Tokens()
    )


def test_the_order_of_evidence_changes_nothing(shared):
    period = Period(OCTOBER, OCTOBER + 60 * DAY)
    before = inference_costs.read_days(shared.connection, period)
    rows = shared.connection.execute("SELECT * FROM token_hour ORDER BY random()").fetchall()
    shared.connection.execute("DELETE FROM token_hour")
    with shared.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO token_hour VALUES (%s, %s, %s, %s, %s, %s)", rows)
    assert inference_costs.read_days(shared.connection, period) == before


@pytest.mark.parametrize("mode", [SHOWBACK], indirect=True)
def test_no_bill_changes(shared, run):
    """Of all that is billed nothing depends on tokens or servers."""
    asked = [
        run("chargeback", "--period", month, "--by", "team,workload,state", "--format", form)
        for month in (CLOSED, OPEN)
        for form in ("csv", "json", "focus")
    ]
    shared.connection.execute("DELETE FROM inference_server")
    shared.connection.execute("DELETE FROM token_hour")
    assert asked == [
        run("chargeback", "--period", month, "--by", "team,workload,state", "--format", form)
        for month in (CLOSED, OPEN)
        for form in ("csv", "json", "focus")
    ]
