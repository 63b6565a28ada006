"""Evidence that overlaps a period, found without reading the hours before it."""

import importlib.util
import random
from pathlib import Path

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.telemetry import partitions, usage_evidence

MINUTE = 60_000
LENGTHS = (1, MINUTE, HOUR - 1, HOUR, HOUR + 1, 5 * HOUR, DAY)
READ = (
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE"
    " relname LIKE 'usage_interval_p%%'"
)


def ask(connection, table, condition="true"):
    query = f"SELECT accelerator_id, start_ms, end_ms FROM {table} AS s WHERE {condition}"
    return sorted(connection.execute(query).fetchall())


@pytest.mark.parametrize("seed", range(4))
def test_all_that_overlaps_is_found(fleet, seed):
    """Whatever its length, and whether it ends or begins where the period does."""
    chance = random.Random(seed)
    edges = [day * DAY + hour * HOUR for day in range(2) for hour in (0, 1, 12, 23)]
    held = []
    for number in range(120):
        start = max(0, chance.choice(edges) + chance.choice((-HOUR, -1, 0, 1, MINUTE)))
        held.append(Held(1 + number % 3, 1, start, start + chance.choice(LENGTHS)))
    fleet.evidence(held)
    for start in edges:
        for length in (1, HOUR, DAY):
            bounds = OCTOBER + start, OCTOBER + start + length
            plain = ask(
                fleet.connection,
                usage_evidence.intervals(bounds[0] - DAY, bounds[1]),
                f"end_ms > {bounds[0]}",
            )
            for with_packed in (True, False):
                table = usage_evidence.overlapping(*bounds, with_packed=with_packed)
                assert ask(fleet.connection, table) == plain
    assert plain


def test_late_in_a_day_its_earlier_hours_are_not_read(fleet):
    """A fold of one hour reads the rows of two at most, and those that are longer than an hour."""
    fleet.evidence(
        [Held(1, 1, at, at + MINUTE, busy=MINUTE) for at in range(0, DAY, MINUTE)]
        + [Held(2, 2, 0, 23 * HOUR, busy=23 * HOUR), Held(2, 2, 0, 22 * HOUR)]
    )
    fleet.connection.execute("ANALYZE usage_interval")
    last = Period(OCTOBER + 22 * HOUR, OCTOBER + 23 * HOUR)
    with fleet.connection.transaction():
        sums = usage.evidence_sums(fleet.connection, [1, 2], last)
        assert {(total.accelerator_id, total.hour_ms) for total in sums} >= {
            (1, last.start_ms),
            (2, OCTOBER),
        }
        ((rows,),) = fleet.rows(READ)
    assert rows <= 2 * 60 + 2


def test_days_before_the_index_are_read_as_before(fleet):
    """An upgrade leaves them as they are; a new day has the index, and both find the same."""
    found = Path(__file__).parents[3] / "alembic" / "versions" / "0045_long_usage_intervals.py"
    spec = importlib.util.spec_from_file_location("long_usage_intervals", found)
    migration = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(migration)
    fleet.connection.execute("DROP INDEX ix_usage_interval_long")
    fleet.evidence([Held(1, 1, 0, 20 * HOUR), Held(1, 1, 20 * HOUR, 20 * HOUR + MINUTE)])
    fleet.connection.execute(migration.INDEX)
    partitions.ensure(fleet.connection, "usage_interval", {OCTOBER + DAY})
    fleet.evidence([Held(1, 1, DAY, DAY + 20 * HOUR)])
    indexed = fleet.rows(
        "SELECT tablename FROM pg_indexes WHERE indexdef LIKE '%%3600000%%' AND tablename LIKE"
        " 'usage_interval_p%%'"
    )
    assert indexed == [("usage_interval_p20251002",)]
    for day in (0, 1):
        start = OCTOBER + day * DAY + 10 * HOUR
        table = usage_evidence.overlapping(start, start + HOUR, with_packed=False)
        assert len(ask(fleet.connection, table)) == 1
