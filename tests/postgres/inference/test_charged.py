"""Shared servers that are charged: what tenants' owners pay, what the platform gets back, and what
follows from that.
"""

import csv
import io
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal

import psycopg
import pytest
import sqlalchemy as sa

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.rich_ledger import CLOSED, DAYS, OPEN, rich
from fakes.shared_server import DECLARED, KEY, NLP, PERIOD, VISION, ask, count, notes, rows
from gpuledger_collector import wiring
from gpuledger_collector.accounting.inference import CLAIM, Asker, TokenRecord, Tokens
from gpuledger_collector.export.focus_check import check
from gpuledger_collector.services import inference_costs
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.ledger.token_usage import store_token_usage
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.schema.columns import target_of

pytestmark = pytest.mark.slow
__all__ = ["rich"]

CHARGED = DECLARED.replace("weights =", 'mode = "charged"\nweights =')
CLAIMED = Asker("litellm", "t-vision", VISION.model, VISION.backend, CLAIM)


def bill(run, *more, by="team", period=PERIOD):
    """What owners pay, by the first column."""
    code, out, err = run("chargeback", *period, "--by", by, "--format", "csv", *more)
    assert code == 0, err
    return {row[by]: row["cost"] for row in csv.DictReader(io.StringIO(out))}


def moved(fleet, table="charge"):
    """The amounts that move, by server, tenant and team."""
    return {
        tuple(key): micro
        for *key, micro in fleet.rows(
            f"SELECT s.server, s.tenant, o.team, sum(c.cost_micro)::bigint FROM {table} c JOIN"
            " inference_share s ON s.id = c.inference_id JOIN owner o ON o.id = c.owner_id GROUP BY"
            " 1, 2, 3 ORDER BY 1, 2, 3"
        )
    }


def test_tenants_owners_pay_what_the_platform_gets_back(served, run, apply):
    """A key without a team moves nothing: its part stays with the platform."""
    before = bill(run)
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20), (KEY, 3, 100, 0, 0))
    assert apply(CHARGED)[0] == 0
    assert before["platform"] == "72.00"
    assert bill(run) == {**before, "platform": "7.20", "vision": "43.20", "nlp": "21.60"}
    assert moved(served) == {
        ("qwen", "", "platform"): -64_800_000,
        ("qwen", "t-nlp", "nlp"): 21_600_000,
        ("qwen", "t-vision", "vision"): 43_200_000,
    }
    lines = {row["tenant"]: row for row in rows(run, "--by", "tenant")}
    assert {tenant: row["cost_charged"] for tenant, row in lines.items()} == {
        "t-vision": "43.20",
        "t-nlp": "21.60",
        "(unattributed)": "0.00",
    }
    assert {tenant: row["cost"] for tenant, row in lines.items()} == {
        "t-vision": "43.20",
        "t-nlp": "21.60",
        "(unattributed)": "7.20",
    }


def test_time_stays_where_it_was(served, run, apply):
    def time():
        return served.rows(
            "SELECT team, state, sum(gpu_ns), sum(busy_ns), sum(idle_ns) FROM charge LEFT JOIN owner"
            " o ON o.id = owner_id WHERE inference_id IS NULL GROUP BY 1, 2 ORDER BY 1, 2"
        )

    bill(run)
    before = time()
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    bill(run)
    assert time() == before
    assert served.rows("SELECT sum(gpu_ns) FROM charge WHERE inference_id IS NOT NULL") == [(0,)]


def test_showback_changes_no_bill_and_going_back_takes_nothing(served, run, apply):
    before = bill(run)
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(DECLARED)[0] == 0
    assert bill(run) == before
    assert apply(CHARGED)[0] == 0
    assert bill(run)["vision"] == "72.00"
    assert apply(DECLARED)[0] == 0
    assert bill(run) == before
    assert moved(served) == {}


def test_what_nobody_asked_for_and_idle_cost_of_the_platform_stay(served, run, apply):
    count(served, 600, 100)
    ask(served, (VISION, 1, 300, 0, 50))
    assert apply(CHARGED.replace("weights =", 'idle = "platform"\nweights ='))[0] == 0
    # Half of the time is idle; of the other half vision has half of the weighted tokens.
    assert bill(run)["platform"] == "54.00"
    assert bill(run)["vision"] == "18.00"


def test_a_tenant_without_an_owner_stays_with_the_platform(served, run, apply):
    other = Asker("litellm", "t-other", VISION.model, VISION.backend)
    ask(served, (VISION, 1, 100, 0, 0), (other, 2, 300, 0, 0))
    assert apply(CHARGED)[0] == 0
    assert bill(run)["platform"] == "54.00"
    assert bill(run)["vision"] == "18.00"
    assert "no [[tenant]] table names an owner of t-other" in notes(run)


def test_claims_are_charged_only_where_a_setting_says_so(served, run, apply):
    ask(served, (CLAIMED, 1, 100, 0, 0), (NLP, 2, 300, 0, 0))
    assert apply(CHARGED)[0] == 0
    assert bill(run)["platform"] == "18.00"
    assert "vision" not in bill(run)
    assert apply(CHARGED.replace("weights =", 'claims = "charged"\nweights ='))[0] == 0
    assert bill(run)["vision"] == "18.00"
    assert ("qwen", "t-vision", "vision") in moved(served)
    code, out, _ = run("export", "config")
    assert code == 0
    assert 'claims = "charged"' in out
    assert 'mode = "charged"' in out


def test_tenants_of_reservations_are_charged_on_days_without_a_token(served, run, apply):
    reserved = 'idle = "reservations"\nreserved = { t-vision = 0.25, t-nlp = 0.75 }\nweights ='
    assert apply(CHARGED.replace("weights =", reserved))[0] == 0
    assert bill(run)["platform"] == "36.00"
    assert (bill(run)["vision"], bill(run)["nlp"]) == ("9.00", "27.00")


def test_new_evidence_rates_the_day_again(served, run, apply):
    """Of gateways and of the server's counters; evidence that changes nothing changes no charge."""
    ask(served, (VISION, 1, 300, 0, 0))
    assert apply(CHARGED)[0] == 0
    assert bill(run)["vision"] == "72.00"
    ask(served, (NLP, 1, 100, 0, 0))
    assert (bill(run)["vision"], bill(run)["nlp"]) == ("54.00", "18.00")
    count(served, 800, 0)
    assert (bill(run)["vision"], bill(run)["nlp"]) == ("27.00", "9.00")
    before = served.rows("SELECT * FROM charge ORDER BY ctid::text")
    ask(served, (NLP, 1, 100, 0, 0))
    bill(run)
    assert served.rows("SELECT * FROM charge ORDER BY ctid::text") == before


def test_counters_that_are_the_first_of_a_model_rate_its_days_again(served, run, apply):
    """A server that is known by the model of its counters has none before they come."""
    ask(served, (VISION, 1, 300, 0, 0))
    text = CHARGED.replace("weights =", 'served_model = "Qwen3-32B"\nweights =')
    assert apply(text)[0] == 0
    assert bill(run)["platform"] == "72.00"
    count(served, 300, 0)
    assert bill(run)["vision"] == "72.00"


def test_declarations_rate_their_days_again_and_no_others(served, run, apply):
    served.connection.execute("UPDATE capacity SET out_ms = out_ms + %s", (DAY,))
    served.evidence(
        [Held(1, 1, DAY + hour * HOUR, DAY + (hour + 1) * HOUR, busy=HOUR) for hour in range(2)]
    )
    bill(run, period=("--period", "2025-10"))
    ask(served, (VISION, 1, 300, 0, 0), (VISION, 25, 300, 0, 0))
    dated = "effective_from = 2025-10-02\neffective_to = 2025-10-03\nweights ="
    assert apply(CHARGED.replace("weights =", dated))[0] == 0
    requested = served.rows("SELECT DISTINCT day_ms FROM day_recompute ORDER BY 1")
    # Days are marked up to the end of a declaration, included.
    assert requested == [(OCTOBER + DAY,), (OCTOBER + 2 * DAY,)]
    assert bill(run, period=("--period", "2025-10"))["vision"] == "7.20"


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Europe/Berlin"])
def test_tokens_rate_the_days_of_the_bill_that_they_belong_to_and_no_others(
    served, run, apply, zone
):
    """A month that is over is not rated again by tokens of the next one on the same UTC day."""
    served.connection.execute("UPDATE capacity SET out_ms = NULL")
    assert apply(f'billing_zone = "{zone}"\n' + CHARGED)[0] == 0
    calendar = zones.calendar(served.connection)
    served.connection.execute("DELETE FROM day_recompute")
    midnight = calendar.day_of(OCTOBER + 40 * HOUR).start_ms
    first, last = -(-(midnight - OCTOBER) // HOUR), (midnight + DAY - 2 * HOUR - OCTOBER) // HOUR
    ask(served, (VISION, first, 300, 0, 75), (VISION, last, 300, 0, 75))
    assert served.rows("SELECT DISTINCT day_ms FROM day_recompute") == [(midnight,)]


def test_a_workload_is_the_servers_by_what_was_reported_for_the_day(served, run, apply):
    """A tag that comes later changes nothing of days before, in no report and in no charge."""
    report = "INSERT INTO workload_attributes (workload_id, digest, tags) SELECT id, %s, %s FROM workload"
    served.connection.execute(report, (b"1", '{"app": "qwen", "team": "platform"}'))
    ask(served, (VISION, 1, 300, 0, 0))
    assert apply(CHARGED)[0] == 0
    before = bill(run), rows(run)
    served.connection.execute(report, (b"2", '{"app": "other", "team": "platform"}'))
    served.connection.execute("UPDATE workload SET tags = %s", ('{"app": "other"}',))
    served.connection.execute("INSERT INTO day_recompute (day_ms) VALUES (%s)", (OCTOBER,))
    assert (bill(run), rows(run)) == before
    assert before[0]["vision"] == "72.00"


def test_the_proof_states_both_identities(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20))
    assert apply(CHARGED)[0] == 0
    code, out, err = run("reconcile", *PERIOD, "--evidence")
    assert code == 0, (out, err)

    def failures(change):
        calendar = zones.calendar(served.connection)
        day = calendar.day_of(OCTOBER)
        with served.connection.transaction(force_rollback=True):
            served.connection.execute(change)
            found = reconcile(served.connection, day)
            return {mismatch.identity.name for mismatch in found.mismatches}

    assert failures("SELECT 1") == set()
    one = (
        "UPDATE charge SET cost_micro = cost_micro + 1 WHERE inference_id = (SELECT id FROM"
        " inference_share WHERE tenant = 't-vision')"
    )
    assert {"moved", "inference"} <= failures(one)
    both = "UPDATE charge SET cost_micro = -cost_micro WHERE inference_id IS NOT NULL"
    assert "inference" in failures(both)
    assert "moved" not in failures(both)


def test_focus_has_valid_rows_that_add_up_to_nothing(served, run, apply, tmp_path):
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20))
    assert apply(CHARGED)[0] == 0
    path = tmp_path / "focus.csv"
    code, out, err = run("chargeback", *PERIOD, "--format", "focus", "-o", path)
    assert code == 0, (out, err)
    own = [row for row in csv.DictReader(path.open()) if row["x_CostBasis"] == "inference"]
    assert {row["ChargeDescription"] for row in own} == {
        "Shared model server qwen: t-vision",
        "Shared model server qwen: t-nlp",
        "Shared model server qwen: taken over by its tenants",
    }
    assert {row["ChargeCategory"] for row in own} == {"Adjustment"}
    assert sum(round(float(row["EffectiveCost"]) * 1e6) for row in own) == 0
    with path.open(newline="") as file:
        assert list(check(file)) == []


def test_focus_1_4_says_who_received_which_part_of_the_server(served, run, apply, tmp_path):
    """The parts of the tenants are the whole of what they take over; money is that of 1.2."""
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20))
    assert apply(CHARGED)[0] == 0
    path = tmp_path / "focus.csv"
    old = run("chargeback", *PERIOD, "--format", "focus")[1]
    code, out, err = run(
        "chargeback", *PERIOD, "--format", "focus", "--focus-version", "1.4", "-o", path
    )
    assert code == 0, (out, err)
    lines = list(csv.DictReader(path.open()))
    own = {row["AllocatedResourceId"]: row for row in lines if row["x_CostBasis"] == "inference"}
    parts = {
        receiver: json.loads(row["AllocatedMethodDetails"], parse_float=Decimal)
        for receiver, row in own.items()
        if receiver
    }
    ratios = {
        receiver: details["Elements"][0]["AllocatedRatio"] for receiver, details in parts.items()
    }
    cost = {"litellm/t-vision": Decimal(600), "litellm/t-nlp": Decimal(300)}
    assert sum(ratios.values()) == 1
    assert ratios == {
        receiver: (share / 900).quantize(Decimal("1e-9")) for receiver, share in cost.items()
    }
    assert {details["x_Weights"] for details in parts.values()} == {"1 : 0.1 : 4"}
    vision = own["litellm/t-vision"]
    assert (vision["ResourceId"], vision["ResourceName"]) == ("qwen/USD", "qwen")
    assert vision["AllocatedMethodId"] == "weighted-tokens-v1"
    assert vision["AllocatedTags"] == '{"team": "vision"}'
    assert own[""]["AllocatedMethodId"] == ""
    with path.open(newline="") as file:
        assert list(check(file)) == []
    amounts = [row["EffectiveCost"] for row in csv.DictReader(io.StringIO(old))]
    assert [row["EffectiveCost"] for row in lines] == amounts
    # A part that is missing is said.
    broken = tmp_path / "broken.csv"
    broken.write_text(
        "".join(
            line
            for line in path.read_text().splitlines(keepends=True)
            if "litellm/t-nlp" not in line
        )
    )
    with broken.open(newline="") as file:
        assert "add up to" in " ".join(problem.sentence for problem in check(file))


def test_everything_that_reads_bills_has_them(served, run, apply, tmp_path, monkeypatch):
    """Statements, budgets, beancount, spend and the invoice of a close."""
    ask(served, (VISION, 1, 300, 0, 75), (NLP, 2, 400, 200, 20))
    budget = """
[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 40
currency = "USD"
"""
    assert apply(CHARGED + budget)[0] == 0
    month = ("--period", "2025-10")
    assert bill(run, period=month)["vision"] == "48.00"
    code, out, err = run("statement", "--owner", "vision", *month, "-o", tmp_path / "vision.html")
    assert code == 0, (out, err)
    assert "48.00" in (tmp_path / "vision.html").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(wiring, "read_clock", lambda: OCTOBER + 10 * DAY)
        code, out, err = run("budgets", "--format", "csv")
        assert "48.00" in out, (out, err)
    code, out, err = run("chargeback", *month, "--by", "team,workload", "--format", "csv")
    assert "vision,(inference),0.000000,,48.00," in out, (out, err)
    code, out, err = run("chargeback", *month, "--by", "team", "--format", "json")
    adjusted = {row["team"]: row["adjusted_cost_micro"] for row in json.loads(out)["rows"]}
    assert (adjusted["platform"], adjusted["vision"]) == (-72_000_000, 48_000_000)
    code, out, err = run("close", *month, "--allow-unpriced")
    assert code == 0, (out, err)
    code, out, err = run("chargeback", *month, "--format", "beancount")
    assert "48.00" in out, (out, err)
    invoiced = dict(served.rows("SELECT owner, minor FROM invoice"))
    assert (invoiced["platform"], invoiced["nlp"], invoiced["vision"]) == (0, 2400, 4800)
    assert run("periods", "--verify", "2025-10")[0] == 0


def test_a_closed_month_stays_and_late_evidence_is_a_correction(served, run, apply):
    """Closed charges and all corrections are what rating anew gives; the kept split stays."""
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    month = ("--period", "2025-10")
    assert run("close", *month, "--allow-unpriced")[0] == 0
    before = moved(served), rows(run, period=month)
    assert {row["cost_charged"] for row in before[1]} == {"72.00"}
    ask(served, (NLP, 2, 600, 0, 0))
    code, out, err = run("chargeback", "--period", "2025-11", "--by", "team", "--format", "csv")
    assert code == 0, err
    assert (moved(served), rows(run, period=month)) == before
    assert moved(served, "correction") == {
        ("qwen", "t-nlp", "nlp"): 36_000_000,
        ("qwen", "t-vision", "vision"): -36_000_000,
    }
    assert run("periods", "--verify", "2025-10")[0] == 0
    code, out, err = run("reconcile", *month, "--evidence")
    assert code == 0, (out, err)


def test_an_erased_tenant_is_named_in_no_open_charge(served, run, apply, monkeypatch):
    # A server that is declared without an end is rated anew up to today.
    monkeypatch.setattr(wiring, "read_clock", lambda: OCTOBER + 2 * DAY)
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    bill(run)
    code, out, err = run("privacy", "erase", "t-vision")
    assert code == 0, (out, err)
    assert served.rows("SELECT count(*) FROM inference_share WHERE tenant = 't-vision'") == [(0,)]
    assert bill(run)["platform"] == "72.00"


def test_what_a_tenant_pays_for_tokens_cannot_be_reattributed(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    bill(run)
    code, out, err = run("disputes", "open", "--owner", "vision", *PERIOD, "--reason", "no")
    assert code == 0, (out, err)
    accept = ("--accept", "--to", "team=nlp", "--note", "no")
    code, out, err = run("disputes", "resolve", "1", *accept)
    assert code != 0
    assert "follows from its tokens" in out + err


SERVERS = "".join(
    f"""
[[inference]]
name = "server-{number}"
models = ["model-{number}"]
served_by = {{ name = "job-{number}" }}
idle = "{idle}"
mode = "{mode}"
weights = "1 : 0.1 : 3"
{reserved}
"""
    for number, idle, reserved, mode in (
        (1, "tokens", "", "charged"),
        (2, "platform", "", "showback"),
        (3, "reservations", "reserved = { a = 0.25, c = 0.5 }", "charged"),
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


@pytest.fixture
def charged(rich, run, tmp_path):
    """Every feature of a bill, with servers that are charged; October is closed and corrected."""
    path = tmp_path / "inference.toml"
    path.write_text(SERVERS + OWNERS)
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
    return rich


def paid_by_tenants(fleet, period):
    """Micro-units by server, tenant, owner and currency that owners of tenants are charged."""
    return {
        tuple(key): micro
        for *key, micro in fleet.rows(
            "SELECT s.server, s.tenant, o.team, o.project, c.currency, sum(c.cost_micro)::bigint"
            " FROM charge c JOIN inference_share s ON s.id = c.inference_id JOIN owner o ON o.id ="
            f" c.owner_id WHERE s.trust <> '' AND c.day_ms >= {period.start_ms} AND c.day_ms <"
            f" {period.end_ms} GROUP BY 1, 2, 3, 4, 5"
        )
    }


def test_the_charged_bill_is_the_table_of_showback(charged, run, tmp_path):
    """With commitments, node costs, adjustments, two currencies and days of 25 hours."""
    assert run("chargeback", "--period", OPEN)[0] == 0
    period = zones.calendar(charged.connection).month(OPEN)
    days = inference_costs.read_days(charged.connection, period)
    path = tmp_path / "showback.toml"
    path.write_text(SERVERS.replace('"charged"', '"showback"') + OWNERS)
    expected = defaultdict(int)
    for line in days.lines:
        if line.is_charged:
            owner = line.owner.get("team", ""), line.owner.get("project", "")
            key = line.server, line.claimant.tenant, *owner, line.currency
            expected[key] += line.used_micro + line.idle_micro
    stored = paid_by_tenants(charged, period)
    assert {key: micro for key, micro in expected.items() if micro} == stored
    assert {key[0] for key in stored} == {"server-1", "server-3"}
    assert len({key[-1] for key in stored}) == 2
    assert run("apply", path)[0] == 0
    assert run("chargeback", "--period", OPEN)[0] == 0
    shown = inference_costs.read_days(charged.connection, period)
    assert [replace(line, is_charged=False) for line in days.lines] == shown.lines
    assert paid_by_tenants(charged, period) == {}


def test_moving_adds_up_to_zero_everywhere(charged, run):
    """By server, day, currency, pool and model, for charges and for corrections of a closed month,
    which stays; and every proof holds.
    """
    closed = zones.calendar(charged.connection).month(CLOSED)
    lines = "SELECT * FROM charge WHERE day_ms >= %s AND day_ms < %s ORDER BY ctid"
    sealed = charged.connection.execute(lines, (closed.start_ms, closed.end_ms)).fetchall()
    for month in (OPEN, CLOSED):
        assert run("chargeback", "--period", month)[0] == 0
    assert sealed == charged.connection.execute(lines, (closed.start_ms, closed.end_ms)).fetchall()
    for table in ("charge", "correction"):
        sums = charged.rows(
            f"SELECT day_ms, server, pool, gpu_model, currency, sum(cost_micro) FROM {table} JOIN"
            " inference_share s ON s.id = inference_id GROUP BY 1, 2, 3, 4, 5"
        )
        assert sums
        assert {total for *_, total in sums} == {0}
    assert run("periods", "--verify", CLOSED)[0] == 0
    for month in (OPEN, CLOSED):
        code, out, err = run("reconcile", "--period", month, "--evidence")
        assert code == 0, (out, err)


def test_order_and_duplicates_of_evidence_change_no_charge(charged, run):
    def charges():
        charged.connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
        )
        assert run("chargeback", "--period", OPEN)[0] == 0
        return charged.rows(
            "SELECT day_ms, owner_id, state, pool, gpu_model, currency, cost_micro, inference_id"
            " FROM charge WHERE inference_id IS NOT NULL ORDER BY 1, 2, 3, 4, 5, 6, 7, 8"
        )

    before = charges()
    assert before
    rows = charged.connection.execute("SELECT * FROM token_hour ORDER BY random()").fetchall()
    charged.connection.execute("DELETE FROM token_hour")
    with charged.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO token_hour VALUES (%s, %s, %s, %s, %s, %s)", rows)
    assert charges() == before


def test_no_cell_of_what_moves_is_changed_unseen(charged, run):
    """Each column of a charge that moves a server's cost, and of the part that it names."""
    assert run("chargeback", "--period", OPEN)[0] == 0
    connection = charged.connection
    ((row, day_ms),) = charged.rows(
        "SELECT ctid::text, day_ms FROM charge WHERE inference_id IS NOT NULL AND cost_micro > 0"
        " AND owner_id IS NOT NULL ORDER BY day_ms DESC, cost_micro DESC LIMIT 1"
    )
    day = zones.calendar(connection).day_of(day_ms)
    ((share,),) = charged.rows(f"SELECT inference_id FROM charge WHERE ctid = '{row}'")
    places = {"charge": f"ctid = '{row}'", "inference_share": f"id = {share}"}
    for table, where in places.items():
        for column in metadata.tables[table].columns:
            name = column.name
            if column.primary_key:
                continue
            other = (
                f"(SELECT max(t.id) FROM {target.table.name} t WHERE t.id IS DISTINCT FROM w.{name})"
                if (target := target_of(column)) is not None
                else f"w.{name} || 'x'"
                if isinstance(column.type, sa.Text)
                else f"coalesce(w.{name}, 0) + 1"
            )
            with connection.transaction(force_rollback=True):
                connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
                try:
                    with connection.transaction():
                        connection.execute(f"UPDATE {table} w SET {name} = {other} WHERE {where}")
                except psycopg.IntegrityError:
                    continue
                found = reconcile(connection, day, evidence=True)
                assert not found.holds, f"{table}.{name}"
