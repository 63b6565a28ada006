"""Heat of nodes is what the minutes say: moved, late, doubled and corrected, and what nobody knows
is no number.
"""

import random
from collections import defaultdict

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.minutes import roll_up_minutes
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.upkeep import roll_up_node_utilization
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_collector.storage.telemetry.node_utilization import QUARTER_MS

pytestmark = pytest.mark.slow

MINUTE = 60_000
KEPT = "SELECT * FROM node_utilization ORDER BY hour_ms, node_id"
MINUTES = (
    "SELECT accelerator_id, minute_ms, utilization_ratio::float8, sm_active_ratio::float8 FROM"
    " gpu_minute"
)
STAYS = (
    "SELECT accelerator_id, node_id, in_ms, out_ms FROM capacity WHERE node_id IS NOT NULL ORDER BY"
    " in_ms"
)


def sample(fleet, accelerator, at, utilization, sm_active=None):
    """A sample and the mark that ingest leaves with it."""
    partitions.ensure(fleet.connection, "gpu_sample", [OCTOBER + at - at % DAY])
    number = fleet.accelerator(accelerator)
    fleet.connection.execute(
        "INSERT INTO gpu_sample (accelerator_id, at_ms, gpu_utilization_ratio, gpu_sm_active_ratio)"
        " VALUES (%s, %s, %s, %s)",
        (number, OCTOBER + at, utilization, sm_active),
    )
    fleet.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (%s, %s)",
        (number, OCTOBER + at - at % HOUR),
    )


def expected(fleet):
    """The whole table by plain Python: each minute at the node where its accelerator was last in
    that minute.
    """
    placements = fleet.rows(STAYS)
    found = defaultdict(lambda: defaultdict(list))
    members = defaultdict(set)
    for accelerator, minute, *ratios in fleet.rows(MINUTES):
        there = [
            node
            for number, node, since, until in placements
            if number == accelerator
            and since < minute + MINUTE
            and (until is None or until > minute)
        ]
        if not there:
            continue
        key = minute - minute % HOUR, there[-1]
        members[key].add(accelerator)
        for name, ratio in zip(("utilization", "sm_active"), ratios, strict=True):
            if ratio is not None:
                found[key][name, minute % HOUR // QUARTER_MS].append(ratio)
    rows = []
    for key in sorted(members):
        row = [*key, sorted(members[key])]
        for name in ("utilization", "sm_active"):
            parts = [found[key].get((name, quarter), []) for quarter in range(4)]
            row += [[sum(part) if part else None for part in parts], [len(part) for part in parts]]
        rows.append(tuple(row))
    return rows


def kept(fleet):
    return [(*row[:2], sorted(row[2]), *row[3:]) for row in fleet.rows(KEPT)]


def assert_laws(fleet):
    """To the last digit: sums of float4 ratios are exact in float8, in whatever order they are
    added.
    """
    assert kept(fleet) == expected(fleet)


def at_random(fleet, dice, accelerators=5, nodes=3):
    """Accelerators that come, go and move at odd instants, some of them never at a node; samples
    with gaps.
    """
    for number in range(accelerators):
        fleet.accelerator(number)
        at = dice.randrange(HOUR)
        for _ in range(dice.randrange(4)):
            end = at + dice.randrange(1, 3 * HOUR)
            fleet.capacity(number, at, end, node=f"n{dice.randrange(nodes)}")
            at = end + dice.choice([0, 0, dice.randrange(HOUR)])
        if dice.random() < 0.7:
            fleet.capacity(number, at, None, node=f"n{dice.randrange(nodes)}")
    return {
        (number, at): (dice.choice([None, 0, dice.random()]), dice.choice([None, dice.random()]))
        for number in range(accelerators)
        for at in range(dice.randrange(MINUTE), 5 * HOUR, 47_000)
        if dice.random() < 0.4
    }


@pytest.mark.parametrize("seed", range(6))
def test_node_utilization_is_what_the_minutes_say_in_whatever_order_they_come(fleet, ledger, seed):
    """Samples in three heaps by chance, folded after each; folded again nothing changes, and rows
    stay as they are.
    """
    dice = random.Random(seed)
    waiting = list(at_random(fleet, dice).items())
    dice.shuffle(waiting)
    for heap in range(3):
        for (number, at), ratios in waiting[heap::3]:
            sample(fleet, number, at, *ratios)
        fold_usage(ledger)
        assert_laws(fleet)
    versions = fleet.rows("SELECT xmin::text, hour_ms, node_id FROM node_utilization ORDER BY 2, 3")
    assert len(versions) > 5 or seed
    roll_up_minutes(ledger, Period(OCTOBER, OCTOBER + DAY))
    assert (
        fleet.rows("SELECT xmin::text, hour_ms, node_id FROM node_utilization ORDER BY 2, 3")
        == versions
    )


def test_unknown_is_no_number_and_idle_is_zero(fleet, ledger):
    """A quarter without a reading has null and no minutes, one at rest has 0 and its minutes."""
    fleet.capacity(1, 0)
    for at in range(0, QUARTER_MS, MINUTE):
        sample(fleet, 1, at, 0)
    sample(fleet, 1, QUARTER_MS, None)
    fold_usage(ledger)
    columns = "utilization, utilization_minutes, sm_active, sm_active_minutes"
    assert fleet.rows(f"SELECT {columns} FROM node_utilization") == [
        ([0.0, None, None, None], [15, 0, 0, 0], [None] * 4, [0] * 4)
    ]


def test_an_accelerator_that_was_elsewhere_leaves_the_node(fleet, ledger, run, tmp_path):
    """The inventory says it was at another node all the time: its minutes go there, and the empty
    row goes.
    """
    fleet.capacity(1, 0)
    fleet.evidence([Held(1, 1, 0, HOUR)])
    sample(fleet, 1, 0, 0.5)
    fold_usage(ledger)
    names = "SELECT n.name, utilization[1] FROM node_utilization JOIN node n ON n.id = node_id"
    assert fleet.rows(names) == [("n1", 0.5)]
    path = tmp_path / "inventory.csv"
    path.write_text(
        "node,uuid,gpu_model,pool,in_at,out_at\nn2,GPU-0001,H100,train,2025-10-01T00:00:00Z,\n"
    )
    assert run("import", "inventory", path)[0] == 0
    fold_usage(ledger)
    assert fleet.rows(names) == [("n2", 0.5)]


def test_days_of_before_are_made_once_and_once_more_when_they_are_over(dsn, fleet, ledger):
    """Minutes without heat, as an older collector leaves them, are taken in; a day that is over is
    made a last time.
    """
    fleet.capacity(1, -20 * DAY)
    for day in (0, 1, 2):
        sample(fleet, 1, day * DAY + HOUR, 0.25)
    fold_usage(ledger)
    whole = kept(fleet)
    assert len(whole) == 3
    fleet.connection.execute("DELETE FROM node_utilization")
    store, now_ms = Database(dsn), OCTOBER + 2 * DAY + 2 * HOUR
    assert roll_up_node_utilization(store, 0, now_ms) == 23
    assert kept(fleet) == whole
    assert roll_up_node_utilization(store, 0, now_ms) == 0
    fleet.connection.execute("DELETE FROM node_utilization")
    assert roll_up_node_utilization(store, 0, OCTOBER + 3 * DAY) == 1, "the day that was not over"
    assert kept(fleet) == whole[2:]
    assert roll_up_node_utilization(store, 0, OCTOBER + 3 * DAY) == 0


def test_a_stop_leaves_the_rest_to_the_next_run(dsn, fleet):
    """Asked before each day, the newest first."""
    fleet.capacity(1, 0)
    asked = iter([False, False, True])
    assert roll_up_node_utilization(Database(dsn), 0, OCTOBER + 5 * DAY, lambda: next(asked)) == 2
    days = [(OCTOBER + day * DAY,) for day in (3, 4)]
    assert fleet.rows("SELECT day_ms FROM node_utilization_day ORDER BY 1") == days
    assert roll_up_node_utilization(Database(dsn), 0, OCTOBER + 5 * DAY) == 3


def test_what_is_older_than_it_is_kept_is_expired_and_not_made_again(dsn, fleet, ledger):
    """The bound is a whole day; late samples of before it are gone again at the next run."""
    fleet.capacity(1, 0)
    for day in (0, 1, 2):
        sample(fleet, 1, day * DAY, 0.5)
    fold_usage(ledger)
    for _ in range(2):
        roll_up_node_utilization(Database(dsn), 1, OCTOBER + 2 * DAY + HOUR)
        assert fleet.rows("SELECT hour_ms FROM node_utilization ORDER BY 1") == [
            (OCTOBER + DAY,),
            (OCTOBER + 2 * DAY,),
        ]
        assert fleet.rows("SELECT day_ms FROM node_utilization_day ORDER BY 1") == [
            (OCTOBER + DAY,),
            (OCTOBER + 2 * DAY,),
        ]
        sample(fleet, 1, HOUR, 0.5)
        fold_usage(ledger)
        assert len(fleet.rows(KEPT)) == 3


def test_an_empty_ledger_has_nothing_to_make(dsn):
    """No capacity, no days."""
    assert roll_up_node_utilization(Database(dsn), 400, NOW_MS) == 0
