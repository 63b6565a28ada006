"""One month, seen from every side: chargeback, statement, invoice, receipt, FOCUS, journal, parquet
and budgets.
"""

import csv
import io
import json
import re
from collections import defaultdict
from decimal import Decimal

import pyarrow.parquet
import pytest
from beancount import loader
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, NOW_MS, Held
from fakes.pages import Page
from gpuledger_collector.accounting.chargeback import Allocations, SharedPart, report
from gpuledger_collector.accounting.closing import invoices
from gpuledger_collector.accounting.ledger import ChargedLine, ExportedCharge
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.ledger import chargeback_json
from gpuledger_collector.export.focus_check import check
from gpuledger_collector.storage.billing.allocation import allocate
from gpuledger_collector.storage.database import Database

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
BOOK = """
billing_zone = "Europe/Berlin"

[[price]]
rate_per_gpu_hour = 3.00
list_rate = 4.00
purchase = "on_demand"
currency = "USD"
effective_from = 2025-01-01
pool = ""
gpu_model = ""

[[commitment]]
name = "three"
pool = "train"
gpus = 3
upfront = 144
rate_per_gpu_hour = 0.50
currency = "USD"
starts = 2025-10-01
ends = 2025-10-04

[[shared_cost]]
name = "support <b>"
amount_per_month = 1000
currency = "USD"
key = "cost"

[[shared_cost]]
name = "network"
amount_per_month = "77.77"
currency = "USD"
key = "weights"
weights = { team-1 = 2, team-2 = 1 }
effective_from = 2025-10-11

[[shared_cost]]
name = "unused"
source = "commitment_unused"
key = "even"

[[shared_cost]]
name = "idle"
source = "unallocated"
pool = "other"
key = "gpu_hours"

[[carbon]]
region = "eu"
grams_per_kwh = 350
pue = 1.2

[[budget]]
name = "team one"
team = "team-1"
amount = 400
currency = "USD"
period = "range"
from = 2025-10-01
to = 2025-12-01
"""
SHARED = {"support <b>", "network", "unused", "idle"}


@pytest.fixture
def month(fleet, run, written):
    """Three GPUs, of which a commitment covers two and leaves one unused; three teams; idle
    capacity; energy.
    """
    for number, pool in ((1, "train"), (2, "train"), (3, "other")):
        fleet.capacity(number, 0, 3 * DAY, pool=pool)
    fleet.evidence(
        [
            Held(1, 1, 0, DAY, busy=DAY // 2, idle=DAY // 3, energy=7_200_000_001),
            Held(2, 2, 0, 7 * HOUR + 1),
            Held(3, 4, 0, 5 * HOUR),
            Held(3, None, 5 * HOUR, DAY, "unallocated"),
            Held(2, 3, DAY, DAY + HOUR // 7),
        ]
    )
    code, _, err = run("apply", written("book.toml", BOOK))
    assert code == 0, err
    return run


def billed(run) -> dict[str, dict[str, str]]:
    code, out, err = run("chargeback", *MONTH, "--format", "csv")
    assert code == 0, err
    return {row["team"]: row for row in csv.DictReader(io.StringIO(out))}


def test_every_side_of_a_closed_month_says_the_same(month, fleet, tmp_path):
    """To the cent for people, to the micro-unit in the journal; what was shared is in each of them,
    and only once.
    """
    rows = billed(month)
    direct, whole = (
        sum(Decimal(row[name] or 0) for row in rows.values()) for name in ("cost", "cost_total")
    )
    assert whole == direct + 1000 + Decimal("52.72"), (
        "505 of October's 745 hours (of Berlin) of the network's 77.77"
    )
    assert rows["(unshared)"]["cost_total"] == "52.72", "nobody held anything on those days"
    assert Decimal(rows["(commitment_unused)"]["cost_total"]) == 0
    wanted = {team: Decimal(row["cost_total"]) for team, row in rows.items()}

    receipt = json.loads(month("close", "--period", "2025-10", "--format", "json")[1])
    assert {one["owner"]: Decimal(one["amount"]) for one in receipt["invoices"]} == wanted
    assert {one["owner"]: Decimal(one["shared"]) for one in receipt["invoices"]} == {
        team: Decimal(row["cost_shared"] or 0) for team, row in rows.items()
    }
    assert receipt["totals"] == {"USD": str(whole)}
    by_cost = defaultdict(int)
    for one in receipt["shares"]:
        by_cost[one["name"]] += one["micro"]
    assert set(by_cost) == SHARED
    assert (by_cost["support <b>"], by_cost["unused"], by_cost["idle"]) == (1_000_000_000, 0, 0)
    booked = fleet.rows("SELECT owner, minor, micro FROM invoice")
    assert {owner: Decimal(minor) / 100 for owner, minor, _ in booked} == wanted

    paid = csv.DictReader(
        io.StringIO(month("chargeback", *MONTH, "--view", "cash", "--format", "csv")[1])
    )
    amounts = {row["team"]: Decimal(row["cost_total"]) for row in paid}
    cash = {f"2025-10/USD/{team}": amount for team, amount in amounts.items() if amount}
    for version in ("1.2", "1.4"):
        path = tmp_path / "focus.csv"
        month("chargeback", *MONTH, "--format", "focus", "--focus-version", version, "-o", path)
        with path.open(encoding="utf-8", newline="") as file:
            assert list(check(file, version)) == []
        per_invoice, paid_on = defaultdict(Decimal), defaultdict(Decimal)
        for line in csv.DictReader(io.StringIO(path.read_text())):
            per_invoice[line["InvoiceId"]] += Decimal(line["EffectiveCost"])
            paid_on[line["InvoiceId"]] += Decimal(line["BilledCost"])
        assert per_invoice.pop("2025-10/USD/(purchase)") == 0
        assert per_invoice == {f"2025-10/USD/{team}": amount for team, amount in wanted.items()}
        assert paid_on["2025-10/USD/(purchase)"] > 0
        assert {name: amount for name, amount in paid_on.items() if amount} == cash

    entries, errors, _ = loader.load_string(month("chargeback", *MONTH, "--format", "beancount")[1])
    assert errors == []
    accounts = defaultdict(Decimal)
    for entry in entries:
        for posting in getattr(entry, "postings", ()):
            accounts[posting.account] += posting.units.number
    journal = {
        account: amount for account, amount in accounts.items() if account.startswith("Expenses")
    }
    assert sorted(journal.values()) == sorted(Decimal(micro) / 1_000_000 for _, _, micro in booked)
    assert {entry.date.isoformat()[:7] for entry in entries if hasattr(entry, "postings")} == {
        "2025-10"
    }

    month("chargeback", *MONTH, "--format", "parquet", "-o", tmp_path / "it.parquet")
    kept = pyarrow.parquet.read_table(tmp_path / "it.parquet").to_pylist()
    assert {one["team"]: one["cost_total"] for one in kept} == wanted

    page = Page(month("statement", "--owner", "team-1", "--period", "2025-10")[1])
    mine = rows["team-1"]
    assert page.faults == []
    assert f"You pay {wanted['team-1']:,.2f} USD" in page.text
    assert f"At list prices {Decimal(mine['cost_list']):,.2f} USD" in page.text
    assert "kg CO2e" in page.text
    assert "(Europe/Berlin)" in page.text
    table = page.table("shared cost")
    assert sum(Decimal(row[-1].replace(",", "")) for row in table.rows[1:]) == Decimal(
        mine["cost_shared"]
    )
    assert {
        name for row in table.rows[1:] for name in SHARED if row[0].startswith(name)
    } == SHARED - {"network"}


def test_an_owner_is_named_as_tokens_and_disputes_name_it(month):
    """`--owner team=x` is x of the teams; two levels are refused; another `=` is of the name."""
    asked = ("--period", "2025-10")
    code, said, _ = month("statement", "--owner", "team=team-1", *asked)
    assert code == 0
    plain = month("statement", "--owner", "team-1", "--level", "team", *asked)[1]
    pays = [
        re.findall(r"statement · team team-1|You pay [0-9.]+ USD", Page(text).text)
        for text in (said, plain)
    ]
    assert len(pays[0]) == 2
    assert pays[0] == pays[1]
    code, _, err = month("statement", "--owner", "org=(unattributed)", *asked)
    assert (code, err) == (0, "")
    code, _, err = month("statement", "--owner", "taem=team-1", *asked)
    assert (code, "taem=team-1" in err) == (1, True)
    code, _, err = month("statement", "--owner", "team=team-1", "--level", "org", *asked)
    assert code == 2
    assert "name two levels" in err


def test_a_report_is_of_one_state_of_the_ledger(month, fleet, dsn, monkeypatch):
    """Shares, lines and files are read one after the other: what is rated in between is in none of
    them.
    """
    before = billed(month)

    def rated_again():
        fleet.connection.execute("UPDATE ledger_day SET cost_micro = 2 * cost_micro")

    def rated_after_it(*arguments):
        made = allocate(*arguments)
        rated_again()
        return made

    def rated_before_it(*arguments):
        rated_again()
        return allocate(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("gpuledger_collector.services.chargeback.allocate", rated_after_it)
        assert billed(month) == before
    context = ReadContext(Database(dsn), lambda: NOW_MS, None)
    asked = ("2025-10-01", "2025-11-01", "team", Principal("finance", "amina"))
    before = json.loads("".join(chargeback_json(context, *asked)))
    monkeypatch.setattr("gpuledger_collector.services.chargeback.allocate", rated_before_it)
    again = json.loads("".join(chargeback_json(context, *asked)))
    assert (again["rows"], again["totals"]) == (before["rows"], before["totals"])


def test_what_is_declared_later_changes_nothing_that_was_booked(month, written, fleet):
    """Not even in the same millisecond as the close: a cost declared after it is of the months
    after it.
    """
    month("close", "--period", "2025-10")
    before = billed(month)
    month(
        "apply",
        written(
            "more.toml",
            '[[shared_cost]]\nname = "x"\namount_per_month = 5\ncurrency = "USD"\nkey = "even"\n',
        ),
    )
    assert billed(month) == before
    assert fleet.rows(
        "SELECT count(*) FROM shared_cost s, billing_period p WHERE s.superseded_at IS NULL "
        "AND s.recorded_at <= to_timestamp(p.closed_ms / 1000.0)"
    ) == [(0,)]


def test_a_dispute_is_a_mark_on_the_line_until_it_is_decided(month):
    """On the job that it names, and above; of another team nothing stands there."""
    month("chargeback", *MONTH)
    code, told, err = month(
        "disputes",
        "open",
        "--owner",
        "team-1",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-03",
        "--workload",
        "slurm::1",
        "--reason",
        "<i>the node was down</i>",
    )
    assert code == 0, err
    number = told.split()[1]

    def page(team):
        made = Page(month("statement", "--owner", team, "--period", "2025-10")[1])
        assert made.faults == []
        return made

    mine = page("team-1")
    assert "<i>the node was down</i>" in mine.table("dispute").rows[1][0]
    assert [row[0].split()[:2] for row in mine.table("job").rows if "contested" in row[0]] == [
        ["1", "contested"]
    ]
    assert "contested" not in page("team-2").text
    month("disputes", "resolve", number, "--reject", "--note", "it was up")
    assert "contested" not in page("team-1").text


def test_a_budget_watches_what_the_owner_causes(month):
    """The direct cost: a share of what others caused spends nobody's budget."""
    rows = billed(month)
    (budget,) = json.loads(month("budgets", "--format", "json")[1])["budgets"]
    assert Decimal(rows["team-1"]["cost_shared"]) > 0
    assert Decimal(budget["spent"]) == Decimal(rows["team-1"]["cost"])


amounts = st.dictionaries(
    st.sampled_from(["a", "b", "c", "(unshared)"]),
    st.integers(-(10**9), 10**12),
    min_size=1,
    max_size=4,
)


@given(amounts, amounts, st.sampled_from(["USD", "JPY", "KWD"]))
def test_invoices_are_the_rows_of_the_chargeback(direct, shared, currency):
    """Whatever was charged and shared: an invoice is its row's direct cost and share, and they add
    up to the total.
    """
    cost = SharedCost("x", "amount", 1, currency, "", "cost", "team")
    charged = [
        ExportedCharge(
            charge=Charge(
                day_ms=0,
                start_ms=0,
                end_ms=1,
                accelerator_id=1,
                workload_id=1,
                owner=OwnerPath(team=team),
                state="held",
                pool="",
                gpu_model="",
                node="",
                price=None,
                currency=currency,
                gpu_ns=1,
                unknown_ns=1,
                cost_micro=micro,
                idle_cost_micro=0,
            )
        )
        for team, micro in direct.items()
    ]
    shares = [
        SharedPart(cost, Period(0, 1), currency, (team,), micro) for team, micro in shared.items()
    ]
    lines = [
        ChargedLine(
            (team,), "held", currency, gpu_ns=1, unknown_ns=1, cost_micro=micro, idle_cost_micro=0
        )
        for team, micro in direct.items()
    ]
    made = report(
        lines,
        ("team",),
        Allocations({(currency, (team,)): micro for team, micro in shared.items()}),
    )
    booked = invoices(charged, "team", shares)
    assert {one.owner: one.minor for one in booked} == {
        row.keys[0]: row.total_minor or 0 for row in made.rows
    }
    assert sum(one.micro for one in booked) == sum(direct.values()) + sum(shared.values())
    (total,) = made.totals
    assert sum(one.minor for one in booked) == total.total_minor
