"""Five-minute series: their hours are the hourly ledger's, their money is the charges', and late
data reaches them.
"""

import random

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.series import filled, rolled
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import roll_up_series
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import series

pytestmark = pytest.mark.slow

MINUTE = 60_000
TIME = """SELECT u.state, u.hour_ms - u.hour_ms %% 3600000 AS hour, sum(u.held_ms * a.gpu_micro),
    sum(u.busy_ms * a.gpu_micro), sum(u.idle_ms * a.gpu_micro), sum(u.unknown_ms * a.gpu_micro), sum(u.energy_mj)
    FROM usage_hour u JOIN accelerator a ON a.id = u.accelerator_id GROUP BY 1, 2 ORDER BY 1, 2"""
DRAWN = """SELECT state, at_ms - at_ms %% 3600000 AS hour, sum(gpu_ns), sum(busy_ns), sum(idle_ns), sum(unknown_ns),
    sum(energy_mj) FROM owner_5min GROUP BY 1, 2 HAVING sum(gpu_ns) > 0 ORDER BY 1, 2"""
MONEY = """SELECT c.day_ms, c.state, c.pool, c.gpu_model, c.currency, o.team, sum(c.cost_micro) FROM charge c
    LEFT JOIN owner o ON o.id = c.owner_id WHERE c.state IN ('held', 'unallocated', 'unavailable')
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6"""
DRAWN_MONEY = """SELECT at_ms - at_ms %% 86400000, s.state, s.pool, s.gpu_model, s.currency, o.team, sum(s.cost_micro)
    FROM owner_5min s LEFT JOIN owner o ON o.id = s.owner_id GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6"""


def assert_laws(fleet):
    assert fleet.rows(DRAWN) == fleet.rows(TIME)
    assert fleet.rows(DRAWN_MONEY) == fleet.rows(MONEY)
    assert fleet.rows(
        "SELECT count(*) FROM owner_5min WHERE least(gpu_ns, busy_ns, idle_ns, unknown_ns) < 0 "
        "OR at_ms %% 300000 <> 0 OR cost_micro < 0"
    ) == [(0,)]


@pytest.mark.parametrize("seed", range(4))
def test_hours_are_those_of_the_ledger_and_money_that_of_the_charges(dsn, fleet, ledger, run, seed):
    """Time by state and hour, money by day, owner and pool: equal to the last unit, whatever the
    evidence.
    """
    filled(fleet, run, random.Random(seed))
    assert rolled(dsn, ledger) > 2
    assert len(fleet.rows(TIME)) > 40
    assert_laws(fleet)
    assert rolled(dsn, ledger) == 0, "nothing was rated since"


def test_a_price_that_changes_inside_an_hour_and_imported_counts_are_drawn(
    dsn, fleet, ledger, run, tmp_path
):
    """Rating intervals of an hour keep their time; what was imported as a count is spread evenly
    over its own time.
    """
    filled(fleet, run, random.Random(9))
    run("prices", "set", "--rate", "3.5", "--currency", "USD", "--from", "2025-10-01T05:32:00Z")
    path = tmp_path / "usage.csv"
    path.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nw1,2025-10-01T10:02:00Z,2025-10-01T11:00:00Z,64,far,ml\n"
    )
    assert run("import", "usage", path)[0] == 0
    rolled(dsn, ledger)
    assert fleet.rows(DRAWN_MONEY) == fleet.rows(MONEY)
    far = fleet.rows("SELECT at_ms, gpu_ns FROM owner_5min WHERE pool = 'far' ORDER BY 1")
    assert far[0] == (OCTOBER + 10 * HOUR, 3 * MINUTE * 64_000_000)
    assert far[1:] == [
        (OCTOBER + 10 * HOUR + at * 300_000, 300_000 * 64_000_000) for at in range(1, 12)
    ]
    fleet.connection.execute("DELETE FROM owner_5min WHERE pool = 'far'")
    assert fleet.rows(DRAWN) == fleet.rows(TIME)


def test_time_lies_where_its_usage_intervals_lie(dsn, fleet, ledger, run):
    """A workload of twenty minutes is in four steps and in no other; a gap inside it stays a gap."""
    run("prices", "set", "--rate", "6", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, DAY)
    fleet.evidence(
        [
            Held(1, 1, 10 * MINUTE, 20 * MINUTE, busy=10 * MINUTE),
            Held(1, 1, 40 * MINUTE, 50 * MINUTE),
        ]
    )
    rolled(dsn, ledger)
    rows = fleet.rows(
        "SELECT at_ms, gpu_ns, busy_ns, unknown_ns, cost_micro FROM owner_5min ORDER BY 1"
    )
    full = 300_000_000_000
    cost = 500_000
    assert rows == [
        (OCTOBER + at * MINUTE, full, busy, full - busy, cost)
        for at, busy in ((10, full), (15, full), (40, 0), (45, 0))
    ]


def test_late_evidence_reaches_the_series_and_only_its_day_is_drawn_again(dsn, fleet, ledger, run):
    """A usage interval that comes two weeks late: one day is made again, the laws hold, the other
    days stay.
    """
    filled(fleet, run, random.Random(5))
    rolled(dsn, ledger)
    before = fleet.rows(
        "SELECT * FROM owner_5min WHERE at_ms >= %s ORDER BY 1, 2, 3, 4, 5", OCTOBER + DAY
    )
    fleet.evidence([Held(0, 3, 2 * HOUR, 3 * HOUR, busy=HOUR)])
    assert rolled(dsn, ledger, NOW_MS + HOUR) == 1
    assert_laws(fleet)
    assert before == fleet.rows(
        "SELECT * FROM owner_5min WHERE at_ms >= %s ORDER BY 1, 2, 3, 4, 5", OCTOBER + DAY
    )


def test_a_day_of_another_zone_is_drawn_whole(dsn, fleet, ledger, run, tmp_path):
    """Days of the bill in Kathmandu begin at a quarter past an hour: the laws hold all the same."""
    path = tmp_path / "zone.toml"
    path.write_text('billing_zone = "Asia/Kathmandu"\n')
    assert run("apply", path)[0] == 0
    filled(fleet, run, random.Random(6))
    rolled(dsn, ledger)
    assert fleet.rows(DRAWN) == fleet.rows(TIME)
    total = "SELECT sum(cost_micro) FROM {}"
    charged = fleet.rows(
        total.format("charge WHERE state IN ('held', 'unallocated', 'unavailable')")
    )
    assert fleet.rows(total.format("owner_5min")) == charged


def test_what_is_too_old_is_expired_and_not_drawn_again(dsn, fleet, ledger, run):
    """Days before the setting's are removed; the next run leaves them so; what is read there is
    unknown, not zero.
    """
    filled(fleet, run, random.Random(7))
    rolled(dsn, ledger)
    age = (NOW_MS - OCTOBER) // DAY - 1
    rolled(dsn, ledger, NOW_MS, keep_days=age)
    assert fleet.rows("SELECT min(at_ms) FROM owner_5min") >= [(OCTOBER + DAY,)]
    assert rolled(dsn, ledger, NOW_MS, keep_days=age) == 0
    with Database(dsn).transaction() as connection:
        seen = series.known_steps(connection, Period(OCTOBER, OCTOBER + 2 * DAY), HOUR)
    assert seen.tolist() == [False] * 24 + [True] * 24


def test_a_collector_that_stops_leaves_the_rest_to_the_next_run(dsn, fleet, ledger, run):
    """One day is drawn, then it is to stop; the next run draws the others, and the laws hold."""
    filled(fleet, run, random.Random(11))
    refresh(ledger, ALWAYS, NOW_MS)
    asked = iter([False, True])
    assert roll_up_series(Database(dsn), 0, NOW_MS, lambda: next(asked)) == 1
    assert rolled(dsn, ledger) > 1
    assert_laws(fleet)


def test_series_are_read_by_what_is_asked(dsn, fleet, ledger, run):
    """By team, by pool, of one owner, at five minutes, hours and days: sums are those of the table."""
    filled(fleet, run, random.Random(8))
    rolled(dsn, ledger)
    period = Period(OCTOBER, OCTOBER + 3 * DAY)
    with Database(dsn).transaction() as connection:
        for step in (300_000, HOUR, DAY):
            for by in (("team",), ("pool",), ("team", "pool", "model"), ()):
                found = series.read(connection, period, step, by)
                whole = sum(int(one.values["gpu_ns"].sum()) for one in found)
                assert fleet.rows("SELECT sum(gpu_ns) FROM owner_5min WHERE state = 'held'") == [
                    (whole,)
                ]
                assert all(len(one.values["gpu_ns"]) == period.ms // step for one in found)
        (mine,) = series.read(connection, period, HOUR, ("team",), {"team": "team-1"})
        assert mine.key == ("team-1",)
        with pytest.raises(KeyError):
            series.read(connection, period, HOUR, ("team",), {"user": "ann"})
