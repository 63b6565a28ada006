"""A bill whose evidence is packed: folded and rated again it is the same, and so is all that rests
on evidence.
"""

import pytest

from fakes.fleet import DAY, NOW_MS, OCTOBER
from fakes.rich_ledger import CLOSED, OPEN, rich
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import pack_usage_intervals, roll_up_series
from gpuledger_collector.storage.billing import dispute_evidence, reports
from gpuledger_collector.storage.capacity import demand
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import usage

__all__ = ["rich"]
pytestmark = pytest.mark.slow
LATER = NOW_MS + 100 * DAY
WHOLE = Period(OCTOBER, NOW_MS)
TABLES = {
    "usage_hour": "*",
    "charge": "*",
    "correction": "*",
    "capacity": "accelerator_id, node_id, pool, in_ms, out_ms, source",
    "owner_5min": "*",
    "ledger_day": "*",
    "conservation_check": "day_ms, capacity_ns, held_ns, unallocated_ns, unavailable_ns,"
    " unobserved_ns, capacity_cost, charged_cost, until_ms, holds",
}


def again(ledger, dsn):
    """Fold every hour and rate every day of evidence again, and draw its series."""
    database = Database(dsn)
    ledger.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT accelerator_id,"
        " hour_ms - hour_ms % 3600000 FROM usage_hour"
    )
    ledger.connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
    )
    assert refresh(database, ALWAYS, NOW_MS)
    roll_up_series(database, 0, NOW_MS)


def state(ledger, dsn):
    """Every row of what is derived from evidence, and every question that reads it."""
    database = Database(dsn)
    found = {
        table: sorted(map(repr, ledger.rows(f"SELECT {columns} FROM {table}")))
        for table, columns in TABLES.items()
    }
    ids = [row[0] for row in ledger.rows("SELECT id FROM accelerator ORDER BY id")]
    with database.transaction(read_only=True) as connection:
        found["intervals"] = sorted(map(repr, usage.usage_intervals(connection, ids, WHOLE)))
        found["sums"] = sorted(map(repr, usage.evidence_sums(connection, ids, WHOLE)))
        latest_ms = found["latest"] = usage.latest_evidence_ms(connection, OCTOBER)
        assert usage.latest_evidence_ms(connection, OCTOBER, latest_ms - 1) == latest_ms
        assert usage.latest_evidence_ms(connection, OCTOBER, latest_ms) is None
        lines = list(reports.billed_so_far(connection, OCTOBER))
        found["dispute"] = dispute_evidence.gather(connection, lines, WHOLE)
        for group in ("pool", "team"):
            rows = demand.evidence(connection, OCTOBER, OCTOBER + DAY, group, 300_000)
            found[f"demand by {group}"] = repr(rows)
    return found


def test_what_rests_on_evidence_is_the_same_when_it_is_packed(rich, run, dsn):
    """Hours, charges, checks and series of a second rating, disputes, demand, the deep proof, a
    what-if and a receipt.
    """
    again(rich, dsn)
    before = state(rich, dsn)
    asked = (
        ("reconcile", "--period", OPEN, "--evidence"),
        ("reconcile", "--period", CLOSED, "--evidence"),
        ("receipt", "1"),
    )
    answers = [run(*words) for words in asked]
    evident = rich.rows("SELECT count(*) FROM usage_interval")
    packed = pack_usage_intervals(Database(dsn), 37, LATER)
    assert packed.intervals == evident[0][0] > 0
    assert rich.rows("SELECT count(*) FROM usage_interval") == [(0,)]
    assert state(rich, dsn) == before
    again(rich, dsn)
    assert state(rich, dsn) == before
    assert [run(*words) for words in asked] == answers


def test_the_deep_proof_finds_packed_evidence_that_changed(rich, run, dsn):
    """Its seal says so, before hours are folded from it."""
    pack_usage_intervals(Database(dsn), 37, LATER)
    assert run("reconcile", "--period", OPEN, "--evidence")[0] == 0
    rich.connection.execute(
        "UPDATE usage_interval_day SET jitter_least = jitter_least - 1000 WHERE day_ms >= %s",
        (OCTOBER + 33 * DAY,),
    )
    code, _, error = run("reconcile", "--period", OPEN, "--evidence")
    assert code != 0
    assert "have another checksum than when they were packed" in error
