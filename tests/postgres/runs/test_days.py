"""Days and months of runs are those of the bill: also in the nights in which the clocks move."""

from zoneinfo import ZoneInfo

import pytest

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Zone
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.services.run_report import bucket_start, report_run

pytestmark = pytest.mark.slow

BERLIN = Calendar((Zone("Europe/Berlin", ZoneInfo("Europe/Berlin")),))


def test_a_day_of_unit_costs_is_the_bills():
    """October in Berlin: 745 hours, of which 25 are of the 26th; the month begins at 22:00 UTC."""
    month = BERLIN.month("2025-10")
    hours = range(month.start_ms, month.end_ms, HOUR_MS)
    assert {bucket_start("month", BERLIN)(at) for at in hours} == {month.start_ms}
    of_day = bucket_start("day", BERLIN)
    sizes = [sum(of_day(at) == day.start_ms for at in hours) for day in BERLIN.days(month)]
    assert (sizes.index(25), sum(sizes), set(sizes)) == (25, 745, {24, 25})


def test_the_last_hour_of_the_long_day_is_in_the_report(fleet, run, ledger, tmp_path):
    """A run over midnight of the 26th of October, 25 hours long in Berlin: every hour, and each on
    its day.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    (tmp_path / "zone.toml").write_text('billing_zone = "Europe/Berlin"\n')
    assert run("apply", tmp_path / "zone.toml")[0] == 0
    fleet.capacity(1, 0, 40 * DAY)
    start = 24 * DAY + 20 * HOUR  # 25 October, 22:00 in Berlin
    hours = range(start, start + 28 * HOUR, HOUR)
    fleet.evidence([Held(1, 1, hour, hour + HOUR, busy=HOUR) for hour in hours])
    assert run("chargeback", "--from", "2025-10-25", "--to", "2025-10-28")[0] == 0
    with ledger.transaction() as connection:
        (number,) = connection.execute("SELECT id FROM workload").fetchone()
        made = report_run(connection, number, "day", 1_800_000_000_000)
    assert [
        (str(day.date), day.busy_ns // GPU_NS_PER_HOUR, day.cost_micro["USD"]) for day in made.days
    ] == [
        ("2025-10-25", 2, 4_000_000),
        ("2025-10-26", 25, 50_000_000),
        ("2025-10-27", 1, 2_000_000),
    ]
