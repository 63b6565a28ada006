"""One proof: what derived tables say twice is compared, by whatever says that a ledger holds."""

import json
from typing import get_args

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.furnishing import furnishing
from fakes.worlds import world
from gpuledger_collector.accounting import identities
from gpuledger_collector.accounting.identities import Depth
from gpuledger_collector.accounting.period import month
from gpuledger_collector.mcp.tools.statements import Check
from gpuledger_collector.services.close import CannotClose, close_period, verify
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage.billing import periods

MONTH = ("--period", "2025-10")
DECLARED = """
[[adjustment]]
name = "volume"
kind = "tiered"
per = "team"
currency = "USD"
steps = { "0" = 2.5, "10" = 2.0 }

[[node_cost]]
name = "cpu"
price_per_node_hour = 0.5
currency = "USD"
"""
IMPORT = (
    "workload_id,start,end,gpus,gpu_model,pool,tag:team\n"
    "77,2025-10-03T00:00:00Z,2025-10-03T08:00:00Z,4,H100,counted,speech\n"
    "78,2025-10-03T12:00:00Z,2025-10-04T12:00:00Z,0.5,H100,counted,vision\n"
)
OWNED = "(SELECT id FROM owner WHERE team = '{}')"


def furnish(dsn):
    """Two teams with a volume price, node costs and imported counts in October; rated."""
    with furnishing(dsn) as (fleet, run, files):
        run("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-01-01")
        run("apply", files.write("declared.toml", DECLARED))
        run("import", "usage", files.write("jobs.csv", IMPORT))
        fleet.workload(1, team="vision")
        fleet.workload(2, team="nlp")
        for accelerator in (1, 2):
            fleet.capacity(accelerator, 0, 3 * DAY)
        fleet.evidence(
            [Held(1, 1, 0, 20 * HOUR, idle=HOUR), Held(2, 2, DAY, DAY + 6 * HOUR, energy=9)]
        )
        assert all(
            each["holds"]
            for each in json.loads(run("reconcile", *MONTH, "--format", "json"))["identities"]
        )


@pytest.fixture
@world(furnish)
def october(fleet, monkeypatch):
    """The ledger of `furnish`, at its time."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    return fleet


@pytest.fixture
def changed(dsn):
    """Changes a cell by SQL as the owner of the tables, past the triggers, in a transaction that is
    rolled back.
    """
    with psycopg.connect(dsn) as connection:

        def change(table, statement):
            connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            assert connection.execute(statement).rowcount == 1, statement
            return connection

        yield change
        connection.rollback()


LINE = "SELECT ctid FROM {} WHERE {} ORDER BY day_ms LIMIT 1"


def update(table, change, where):
    """A statement that changes one row of a table."""
    return table, f"UPDATE {table} SET {change} WHERE ctid = ({LINE.format(table, where)})"


OPEN = {
    "ledger_day money": (
        update("ledger_day", "cost_micro = cost_micro + 20000000", "state = 'held'"),
        "days",
    ),
    "ledger_day owner": (
        update("ledger_day", f"owner_id = {OWNED.format('nlp')}", "state = 'tiered'"),
        "days",
    ),
    "ledger_day hours": (
        update("ledger_day", "gpu_ns = gpu_ns + 1", "state = 'unobserved'"),
        "days",
    ),
    "ledger_day gone": (
        (
            "ledger_day",
            f"DELETE FROM ledger_day WHERE ctid = ({LINE.format('ledger_day', 'true')})",
        ),
        "days",
    ),
    "charge owner": (
        update("charge", f"owner_id = {OWNED.format('nlp')}", "state = 'held'"),
        "days",
    ),
    "tier moved": (
        update("charge", f"owner_id = {OWNED.format('nlp')}", "state = 'tiered'"),
        "adjustments",
    ),
    "tier money": (
        update("charge", "cost_micro = cost_micro - 5000000", "state = 'tiered'"),
        "adjustments",
    ),
    "imported money": (
        update("charge", "cost_micro = cost_micro + 20000000", "pool = 'counted'"),
        "days",
    ),
    "imported hours": (update("charge", "gpu_ns = gpu_ns + 3600", "pool = 'counted'"), "imported"),
    "imported gone": (
        (
            "charge",
            (
                "DELETE FROM charge WHERE ctid ="
                f" ({LINE.format('charge', chr(39).join(('pool = ', 'counted', '')))})"
            ),
        ),
        "imported",
    ),
}


@pytest.mark.parametrize("case", OPEN)
def test_a_change_of_an_open_month_is_found_and_not_closed(october, changed, case):
    """`reconcile` names the identity and the place, and `close` refuses what `reconcile` calls
    wrong.
    """
    (table, statement), name = OPEN[case]
    connection = changed(table, statement)
    sheet = reconcile(connection, month("2025-10"))
    assert not sheet.holds
    found = [mismatch for mismatch in sheet.mismatches if mismatch.identity.name == name]
    assert found
    assert found[0].place["day"].startswith("2025-10-0")
    assert found[0].expected != found[0].stored
    with pytest.raises(CannotClose, match=r"the proof does not hold; .*NOT"):
        close_period(connection, "2025-10", month("2025-10"), "team", "finance", NOW_MS, dry=True)


def test_both_amounts_and_the_place_are_printed(october, run):
    """A person can look the line up."""
    october.connection.execute(
        "UPDATE ledger_day SET cost_micro = cost_micro + 20000000 WHERE state = 'held' "
        "AND owner_id = (SELECT id FROM owner WHERE team = 'nlp')"
    )
    code, text, _ = run("reconcile", *MONTH)
    assert code == 1
    assert "It holds" not in text
    assert (
        "NOT equal, cost_micro of 2025-10-02, team=nlp, held, train, NVIDIA H100 80GB HBM3, USD: "
        "the charges: 15000000; the ledger of days: 35000000." in text
    )
    code, _, wrong = run("close", *MONTH)
    assert code == 1
    assert "the ledger of days: 35000000" in wrong
    code, text, _ = run("doctor", "--format", "json")
    assert code == 1


def test_many_wrong_amounts_are_few_lines(october, run):
    """The first of each identity, and how many more there are; JSON has them all."""
    october.connection.execute("UPDATE ledger_day SET gpu_ns = gpu_ns + 1")
    code, text, _ = run("reconcile", *MONTH)
    assert code == 1
    assert text.count("NOT equal") == 3
    assert "more amounts of the ledger of days (--format json lists them)" in text
    wrong = json.loads(run("reconcile", *MONTH, "--format", "json")[1])["mismatches"]
    assert len(wrong) == len(october.rows("SELECT FROM ledger_day"))


CLOSED = {
    "ledger_day": (
        "UPDATE ledger_day SET cost_micro = cost_micro + 20000000 WHERE state = 'held' AND"
        " owner_id = " + OWNED.format("nlp")
    ),
    "ledger_month": (
        "UPDATE ledger_month SET cost_micro = cost_micro + 1 WHERE state = 'unobserved'"
    ),
    "conservation_check": (
        f"UPDATE conservation_check SET unobserved_ns = unobserved_ns - 1 WHERE day_ms = {OCTOBER}"
    ),
    "invoice": "UPDATE invoice SET minor = minor + 100 WHERE owner = 'nlp'",
    "billing_period": (
        "UPDATE billing_period SET receipt = jsonb_set(receipt, '{invoices,0,micro}', '1')"
    ),
    "charge": "UPDATE charge SET cost_micro = cost_micro + 1 WHERE energy_mj IS NOT NULL",
}


@pytest.mark.parametrize("table", CLOSED)
def test_a_change_of_a_closed_month_is_found(october, run, changed, table):
    """Not only the lines are sealed: whatever a report of the month reads must agree with them."""
    assert run("close", *MONTH)[0] == 0
    assert run("periods", "--verify", "2025-10")[0] == 0
    connection = changed(table, CLOSED[table])
    (closed,) = periods.list_closed(connection)
    result = verify(connection, closed)
    assert not result.holds
    assert result.sealed is (table != "charge")
    assert table == "charge" or result.failures


def test_verify_prints_what_is_wrong(october, run):
    """In a table, in JSON and in CSV, where a column is appended."""
    assert run("close", *MONTH)[0] == 0
    assert (
        json.loads(run("periods", "--verify", "2025-10", "--format", "json")[1])[0]["intact"]
        is True
    )
    october.connection.execute("ALTER TABLE invoice DISABLE TRIGGER USER")
    october.connection.execute("UPDATE invoice SET minor = minor + 100 WHERE owner = 'nlp'")
    code, text, _ = run("periods", "--verify", "2025-10")
    assert code == 1
    assert "reports of it are NOT of the sealed lines" in text
    assert "NOT equal, minor of nlp, USD: the receipt of the close:" in text
    (row,) = json.loads(run("periods", "--verify", "2025-10", "--format", "json")[1])
    assert row["intact"] is False
    assert "the invoices:" in row["wrong"]


def test_what_was_imported_as_counts_says_what_is_proven(fleet, run, written, monkeypatch):
    """A ledger that came by a file of jobs has no inventory: the rows are charged, and nobody saw
    the GPUs.
    """
    run("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-01-01")
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    assert run("import", "usage", written("jobs.csv", IMPORT))[0] == 0
    code, text, _ = run("reconcile", *MONTH)
    assert code == 0
    assert "It holds" not in text
    assert (
        "Its charges have the hours of the imported rows; that the GPUs were held is not proven."
        in text
    )
    assert "does not cover" not in text, "a ledger without a zone of its own has no row of one"


def test_an_assistant_can_name_every_identity():
    """Those that a reconciliation asks without folding; capacity and months have names of their own
    there.
    """
    asked = {
        each.name
        for each in identities.IDENTITIES
        if each.depth in {Depth.tables, Depth.declarations}
    }
    assert asked - {"capacity", "months"} <= set(get_args(Check.model_fields["check"].annotation))


def test_every_identity_is_asked_or_belongs_to_a_close(october, dsn):
    """None is declared and then compared by nobody."""
    with psycopg.connect(dsn) as connection:
        asked = ({"evidence": True}, {}, {"anew": False})
        whole, usual, quick = (
            reconcile(connection, month("2025-10"), **depth).compared for depth in asked
        )
    sealed = [each for each in identities.IDENTITIES if each.depth is identities.Depth.sealed]
    assert [*whole, *sealed] == list(identities.IDENTITIES)
    assert set(whole) - set(usual) == {
        each for each in whole if each.depth is identities.Depth.evidence
    }
    assert quick == [
        each
        for each in usual
        if each.depth is identities.Depth.tables or each is identities.CAPACITY
    ]
