"""Minutes, slow metrics and findings go by the settings: no half days, no zeros, and no doubt about
what is left.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from fakes.fleet import DAY, EPOCH, HOUR, NOW_MS, OCTOBER, Held
from fakes.idle_day import furnish, minutes
from fakes.minutes import roll_up_minutes
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.scheduled_jobs import scheduled_jobs
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.upkeep import (
    Expired,
    RetentionDays,
    expire,
    roll_up_node_utilization,
)
from gpuledger_collector.settings import Settings, check
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import minute_rollup, partitions
from gpuledger_collector.storage.telemetry.minutes import expired_before
from gpuledger_common.settings import SettingsError

pytestmark = pytest.mark.slow

NOTHING = RetentionDays(0, 0, 0, 0)
MINUTES = (
    "SELECT accelerator_id, minute_ms, utilization_ratio::float8 FROM gpu_minute ORDER BY 1, 2"
)
HEAT = "SELECT * FROM node_utilization ORDER BY hour_ms, node_id"


def sample(fleet, number, at, utilization):
    """A sample and the mark that ingest leaves with it."""
    partitions.ensure(fleet.connection, "gpu_sample", [OCTOBER + at - at % DAY])
    card = fleet.accelerator(number)
    fleet.connection.execute(
        "INSERT INTO gpu_sample (accelerator_id, at_ms, gpu_utilization_ratio) VALUES (%s, %s, %s)",
        (card, OCTOBER + at, utilization),
    )
    fleet.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (%s, %s)",
        (card, OCTOBER + at - at % HOUR),
    )


def three_days(fleet, ledger, dsn):
    """Two accelerators of a node, a sample an hour for three days, their heat made after the third."""
    for number in (1, 2):
        fleet.capacity(number, 0)
        for at in range(0, 3 * DAY, HOUR):
            sample(fleet, number, at, number / 4)
    fold_usage(ledger)
    roll_up_node_utilization(Database(dsn), 0, OCTOBER + 3 * DAY + HOUR)


def days_left(fleet):
    rows = fleet.rows(
        "SELECT DISTINCT (minute_ms - %s) / %s FROM gpu_minute ORDER BY 1", OCTOBER, DAY
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize(("days", "left"), [(0, [0, 1, 2]), (3, [0, 1, 2]), (2, [1, 2]), (1, [2])])
def test_minutes_go_by_whole_days_counted_from_today(dsn, fleet, ledger, days, left):
    """0 keeps all of them; of the days that stay every minute stays as it was; again it finds
    nothing to do.
    """
    three_days(fleet, ledger, dsn)
    before, node_utilization = fleet.rows(MINUTES), fleet.rows(HEAT)
    store, keep, now_ms = Database(dsn), RetentionDays(days, 0, 0, 0), OCTOBER + 3 * DAY + 5 * HOUR
    assert expire(store, keep, now_ms) == Expired(48 * (3 - len(left)), 0, 0)
    assert fleet.rows(MINUTES) == [row for row in before if (row[1] - OCTOBER) // DAY in left]
    assert fleet.rows(HEAT) == node_utilization
    assert expire(store, keep, now_ms) == Expired(0, 0, 0)


def test_late_evidence_of_a_day_that_went_makes_no_part_of_it_again(dsn, fleet, ledger):
    """Usage and money take it in; minutes, the node's heat and the idle search leave the day as it
    is.
    """
    three_days(fleet, ledger, dsn)
    fleet.connection.execute(
        "INSERT INTO finding_progress VALUES ('idle', %s)", (OCTOBER + 3 * DAY,)
    )
    node_utilization = fleet.rows(HEAT)
    expire(Database(dsn), RetentionDays(1, 0, 0, 0), OCTOBER + 3 * DAY)
    left = fleet.rows(MINUTES)
    sample(fleet, 1, HOUR + 60_000, 1.0)
    fleet.evidence([Held(1, 7, HOUR, 2 * HOUR)])
    fold_usage(ledger)
    roll_up_minutes(ledger, Period(OCTOBER, OCTOBER + 2 * DAY))
    roll_up_node_utilization(Database(dsn), 0, NOW_MS, lambda: False)
    assert fleet.rows(MINUTES) == left
    assert fleet.rows(HEAT) == node_utilization, (
        "with one of its two accelerators it would be another heat"
    )
    assert fleet.rows("SELECT kind FROM finding_progress") == [("idle",)]
    assert fleet.rows(
        "SELECT state, held_ms FROM usage_hour WHERE hour_ms = %s AND workload_id IS NOT NULL",
        OCTOBER + HOUR,
    ) == [("held", HOUR)]
    sample(fleet, 1, 2 * DAY + 60_000, 1.0)
    fold_usage(ledger)
    assert len(fleet.rows(MINUTES)) == len(left) + 1, "a day that is kept takes late ones in"
    assert fleet.rows(HEAT) != node_utilization


def test_minutes_wait_for_the_node_utilization_of_their_day(dsn, fleet, ledger):
    """A day whose heat was never made keeps its minutes and those after it; where heat is not kept
    none waits.
    """
    three_days(fleet, ledger, dsn)
    fleet.connection.execute("DELETE FROM node_utilization_day WHERE day_ms = %s", (OCTOBER + DAY,))
    now_ms = OCTOBER + 4 * DAY
    assert expire(Database(dsn), RetentionDays(1, 0, 0, 0), now_ms).minutes == 48
    assert days_left(fleet) == [1, 2]
    assert expire(Database(dsn), RetentionDays(2, 2, 0, 0), now_ms).minutes == 48
    assert days_left(fleet) == [2]
    roll_up_node_utilization(Database(dsn), 0, now_ms)
    assert expire(Database(dsn), RetentionDays(1, 0, 0, 0), now_ms).minutes == 48
    assert days_left(fleet) == []


def test_stopped_anywhere_it_goes_on_and_nothing_is_made_of_what_is_left(dsn, fleet, ledger):
    """After one of two accelerators: heat made anew does not take the other for the whole node; a
    longer time set later brings nothing back.
    """
    three_days(fleet, ledger, dsn)
    node_utilization, now_ms = fleet.rows(HEAT), OCTOBER + 3 * DAY
    asked = iter([False, True])
    assert (
        expire(Database(dsn), RetentionDays(1, 0, 0, 0), now_ms, lambda: next(asked)).minutes == 48
    )
    fleet.connection.execute("DELETE FROM node_utilization_day")
    roll_up_node_utilization(Database(dsn), 0, now_ms)
    assert fleet.rows(HEAT) == node_utilization
    assert expire(Database(dsn), RetentionDays(3, 0, 0, 0), now_ms).minutes == 48
    assert days_left(fleet) == [2]
    assert expired_before(fleet.connection) == OCTOBER + 2 * DAY


def test_a_fold_under_way_is_waited_for(dsn, fleet, ledger):
    """It does not know the bound yet: what it makes of the day is there before the day goes, and
    goes with it.
    """
    three_days(fleet, ledger, dsn)
    fleet.connection.execute("DELETE FROM gpu_minute WHERE minute_ms < %s", (OCTOBER + DAY,))
    going = threading.Thread(
        target=expire, args=(Database(dsn), RetentionDays(2, 0, 0, 0), OCTOBER + 3 * DAY)
    )
    with ledger.transaction(Lock.LEDGER) as connection:
        assert usage.recompute_requests(connection, Period(OCTOBER, OCTOBER + DAY)) == []
        going.start()
        going.join(0.5)
        assert going.is_alive()
        minute_rollup.roll_up_minutes(connection, [(fleet.accelerator(1), OCTOBER + HOUR)])
    going.join(30)
    assert not going.is_alive()
    assert days_left(fleet) == [1, 2]


def test_the_idle_search_goes_back_no_farther_than_minutes_are_whole(dsn, fleet, ledger, findings):
    """A finding that began in a day that went stays as it was told, also when later evidence calls
    the search back.
    """
    furnish(fleet)
    fleet.capacity(5, 0)
    rest = DAY - 10 * 60_000
    for number, start in ((5, 0), (1, DAY)):
        fleet.evidence(
            Held(number, number, hour, hour + HOUR) for hour in range(start, 2 * DAY, HOUR)
        )
    minutes(fleet, 5, 0, rest, 0.9)
    minutes(fleet, 5, rest, 2 * DAY, 0.0)
    minutes(fleet, 1, DAY, 2 * DAY, 0.0)
    fleet.connection.execute("DELETE FROM hour_recompute")
    find_idle(findings, OCTOBER + 2 * DAY)
    told = fleet.rows("SELECT key, since_ms, opened_ms, cost_micro FROM finding ORDER BY key")
    (over_midnight,) = fleet.rows(
        "SELECT since_ms, opened_ms FROM finding WHERE subject = 'GPU-0005'"
    )
    assert over_midnight[0] == OCTOBER + rest < OCTOBER + DAY < over_midnight[1]
    roll_up_node_utilization(Database(dsn), 0, OCTOBER + 2 * DAY)
    expire(Database(dsn), RetentionDays(1, 0, 0, 0), OCTOBER + 2 * DAY)
    assert days_left(fleet) == [1]
    fleet.connection.execute(
        "INSERT INTO finding_progress VALUES ('idle_late', %s)", (OCTOBER + 2 * HOUR,)
    )
    find_idle(findings, OCTOBER + 2 * DAY)
    assert (
        fleet.rows("SELECT key, since_ms, opened_ms, cost_micro FROM finding ORDER BY key") == told
    )
    assert fleet.rows("SELECT count(late_ms), count(again_ms) FROM late_evidence") == [(0, 0)]


@pytest.mark.parametrize("seed", range(4))
def test_what_a_slow_metric_was_at_any_kept_instant_is_still_known(dsn, fleet, seed):
    """By chance: from the bound on, the value in force is the same before and after; older changes
    are gone.
    """
    dice = random.Random(seed)
    rows = {
        (fleet.accelerator(number), metric, OCTOBER + dice.randrange(5 * DAY)): dice.random()
        for number in range(3)
        for metric in ("gpu_power_limit_watts", "gpu_ecc_corrected_volatile_total")
        for _ in range(dice.randrange(12))
    }
    for key, value in rows.items():
        fleet.connection.execute("INSERT INTO gpu_state VALUES (%s, %s, %s, %s)", (*key, value))
    bound = OCTOBER + 3 * DAY

    def in_force(at):
        return fleet.rows(
            "SELECT DISTINCT ON (accelerator_id, metric) accelerator_id, metric, at_ms, value FROM"
            " gpu_state WHERE at_ms <= %s ORDER BY accelerator_id, metric, at_ms DESC",
            at,
        )

    instants = [bound + step * HOUR for step in range(49)]
    before = [in_force(at) for at in instants]
    gone = expire(Database(dsn), RetentionDays(0, 0, 2, 0), OCTOBER + 5 * DAY).states
    assert [in_force(at) for at in instants] == before
    old = fleet.rows(
        "SELECT count(*), count(DISTINCT (accelerator_id, metric)) FROM gpu_state WHERE at_ms < %s",
        bound,
    )
    assert old[0][0] == old[0][1]
    assert len(fleet.rows("SELECT FROM gpu_state")) == len(rows) - gone
    assert expire(Database(dsn), RetentionDays(0, 0, 2, 0), OCTOBER + 5 * DAY).states == 0


def test_findings_go_by_their_end_and_those_that_go_on_stay(dsn, fleet, monkeypatch):
    """Some at a time; one that began long ago and ended lately stays."""
    monkeypatch.setattr("gpuledger_collector.storage.telemetry.retention.FINDINGS", 3)
    fleet.connection.execute(
        "INSERT INTO finding (key, kind, state, subject, owner, since_ms, opened_ms, until_ms,"
        " resolved_ms, confidence, evidence) SELECT n, 'idle', 'gone_idle', n, '{}', 0, 0, %(at)s +"
        " n * %(day)s, CASE WHEN n < 20 THEN %(at)s + n * %(day)s END, 1, '{}' FROM"
        " generate_series(1, 21) n",
        {"at": OCTOBER, "day": DAY},
    )
    now_ms = OCTOBER + 75 * DAY + HOUR
    assert expire(Database(dsn), RetentionDays(0, 0, 0, 60), now_ms).findings == 14
    keys = fleet.rows("SELECT key::int FROM finding ORDER BY 1")
    assert [row[0] for row in keys] == [*range(15, 22)]
    assert expire(Database(dsn), NOTHING, now_ms + 900 * DAY) == Expired(0, 0, 0)


def test_the_jobs_do_it_by_the_settings(database, dsn, fleet):
    """As they stand in the schedule; what has no setting goes after 400 days."""
    now_ms = time.time_ns() // 1_000_000
    today_ms = now_ms - now_ms % DAY
    for name, at in (("old", now_ms - 401 * DAY), ("young", now_ms - 399 * DAY)):
        fleet.connection.execute(
            "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) "
            "VALUES (%s, %s, 1, '', to_timestamp(%s / 1000.0))",
            (name, EPOCH, at),
        )
        fleet.connection.execute(
            "INSERT INTO backtest (grouped, series, origin_ms, step_ms, horizon_ms, made_ms,"
            " replayed, forecast, known, inside, under) VALUES ('pool', %s, %s, 1, 1, 1, false,"
            " '{}', 0, 0, '{}')",
            (name, at),
        )
    card = fleet.accelerator(1)
    for days in (15, 31, 38, 3):
        fleet.connection.execute(
            "INSERT INTO gpu_minute (accelerator_id, minute_ms, samples) VALUES (%s, %s, 1)",
            (card, today_ms - days * DAY),
        )
        fleet.connection.execute(
            "INSERT INTO gpu_state VALUES (%s, 'gpu_mig_mode', %s, 0)",
            (card, today_ms - days * DAY),
        )
    made = scheduled_jobs(Settings(), database)
    done = {job.name: job.work() for job in made if job.name in {"expire", "tidy"}}
    assert (
        str(done["expire"])
        == "1 minute, 2 changes of slow metrics, 0 findings and 0 unused names deleted"
    )
    assert fleet.rows("SELECT (%s - minute_ms) / %s FROM gpu_minute ORDER BY 1", today_ms, DAY) == [
        (3,),
        (15,),
        (31,),
    ]
    assert fleet.rows("SELECT (%s - at_ms) / %s FROM gpu_state ORDER BY 1", today_ms, DAY) == [
        (3,),
        (15,),
    ]
    assert fleet.rows("SELECT node_name FROM ingest_conflict") == [("young",)]
    assert fleet.rows("SELECT series FROM backtest") == [("young",)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_minute_days": 29}, "keep_minute_days: must be 0 or at least 30"),
        ({"keep_state_days": -1}, "keep_state_days: must be at least 0"),
        ({"keep_finding_days": 59}, "keep_finding_days: must be 0 or at least 60"),
    ],
)
def test_what_its_readers_need_is_not_given_up(given, said):
    """A bound below what searches and recommendations read is refused; 0 is for ever."""
    with pytest.raises(SettingsError, match=said):
        check(Settings(**given))
    check(Settings(**dict.fromkeys(given, 0)))
