"""What a month's bill reads of the years before it: nothing that grows with them."""

import pytest

from fakes.fleet import DAY, NOW_MS, OCTOBER
from gpuledger_collector.accounting.period import Period, month
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.billing import month_proofs, rated_days, reports, runs
from gpuledger_collector.storage.ledger import zones

OCTOBER_DAYS = Period(OCTOBER, OCTOBER + 31 * DAY)
OTHERS, LINES, MONTHS = 30_000, 3_000, 120
YEARS = (
    "INSERT INTO workload (key, kind, external_id, first_seen_at) SELECT 'slurm::' || w, 'slurm',"
    f" w::text, now() FROM generate_series(1, {OTHERS}) w",
    "INSERT INTO charge (day_ms, start_ms, end_ms, workload_id, state, pool, gpu_model, gpu_ns,"
    " busy_ns, idle_ns, unknown_ns) SELECT day, day, day + 3600000, id, 'held', 'train', 'H100',"
    " 3600000000000, 0, 0, 0 FROM (SELECT id, %(start)s + row_number() OVER (ORDER BY id) %% 31 *"
    f" 86400000 AS day FROM workload ORDER BY id DESC LIMIT {LINES}) w",
    "INSERT INTO billing_period (start_ms, end_ms, name, closed_ms, closed_by, level, lines, seal,"
    " receipt) SELECT %(start)s - m * 2592000000, %(start)s - (m - 1) * 2592000000, 'month ' || m, 0,"
    f" 'somebody', 'team', 0, '', '{{}}' FROM generate_series(1, {MONTHS}) m",
    "ANALYZE",
)
READ = (
    "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE"
    " relname = ANY(%s)"
)


@pytest.mark.parametrize(
    "read",
    [
        lambda connection: list(reports.charges(connection, OCTOBER_DAYS)),
        lambda connection: runs.list_charged(connection, OCTOBER_DAYS, {}),
    ],
    ids=["charges", "runs"],
)
def test_a_month_reads_its_own_workloads_and_no_closed_month_for_each_line(fleet, ledger, read):
    """Ten thousand lines after ten years cost what they cost in the first month."""
    for statement in YEARS:
        fleet.connection.execute(
            statement, {"start": OCTOBER} if "%(start)s" in statement else None
        )
    tables = ["workload", "billing_period"]
    with ledger.transaction() as connection:
        assert len(read(connection)) == LINES
        rows = dict(connection.execute(READ, (tables,)).fetchall())
    assert rows["workload"] <= 2 * LINES
    assert rows.get("billing_period", 0) <= 2 * MONTHS


def test_days_that_are_rated_are_not_looked_for_in_the_capacity(fleet, ledger):
    """Which days are left to rate reads the capacity of the fleet once for each of these alone."""
    for number in range(1, 9):
        fleet.capacity(number, 0)
    rated = Period(OCTOBER, OCTOBER + 40 * DAY)
    refresh(ledger, rated, NOW_MS)
    with ledger.transaction() as connection:
        days = rated_days.days_to_rate(connection, Period(OCTOBER, OCTOBER + 42 * DAY), NOW_MS)
        rows = dict(connection.execute(READ, (["capacity"],)).fetchall())
    assert days == [rated.end_ms, rated.end_ms + DAY]
    assert rows["capacity"] <= 3 * 8


def test_months_with_a_rated_day_are_listed_without_reading_each_day(fleet, ledger):
    """The latest first; a month between two of them that has none is left out."""
    fleet.capacity(1, -70 * DAY)
    for first, days in ((-61, 31), (0, 31)):
        asked = Period(OCTOBER + first * DAY, OCTOBER + (first + days) * DAY)
        assert refresh(ledger, asked, NOW_MS) == days
    with ledger.transaction(read_only=True) as connection:
        listed = month_proofs.rated_months(connection, zones.calendar(connection))
        rows = dict(connection.execute(READ, (["conservation_check"],)).fetchall())
    assert listed == [month("2025-10"), month("2025-08")]
    assert rows["conservation_check"] <= 8
