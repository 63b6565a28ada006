"""The fold: evidence in any order, any number of times, becomes hours that never hold more than an
hour.
"""

import random

from hypothesis import given
from hypothesis import strategies as st

from fakes.evidence import DAY, WHOLE, evidence, usage_interval
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.usage import fold, rating_intervals


def covered(facts):
    """Milliseconds of the day that some evidence covers, counted the slow way."""
    total, reach = 0, DAY.start_ms
    for fact in sorted(facts, key=lambda one: one.start_ms):
        start = max(fact.start_ms, reach)
        if fact.end_ms > start:
            total += fact.end_ms - start
            reach = fact.end_ms
    return total


@given(evidence())
def test_an_hour_never_holds_more_than_an_hour_and_nothing_seen_is_lost(facts):
    """Parts of an rating interval add up to at most the rating interval; over the day they add up
    to what the evidence covers.
    """
    pieces = fold(facts, DAY.hours(), WHOLE)
    by_hour = {}
    for piece in pieces:
        by_hour[piece.start_ms] = by_hour.get(piece.start_ms, 0) + piece.held_ms
        if piece.state == "held":
            assert piece.busy_ms + piece.idle_ms + piece.unknown_ms == piece.held_ms
    assert all(held <= HOUR_MS for held in by_hour.values())
    assert sum(by_hour.values()) == covered(facts)


@given(evidence(), st.randoms(use_true_random=False))
def test_order_and_duplicates_do_not_matter(facts, chance):
    """Batches may arrive in any order and twice."""
    again = facts + chance.sample(facts, k=chance.randint(0, len(facts)))
    chance.shuffle(again)
    assert fold(again, DAY.hours(), WHOLE) == fold(facts, DAY.hours(), WHOLE)


@given(evidence(), st.integers(1, 23))
def test_folding_is_additive_over_adjoining_hours(facts, hour):
    """A day folded in two parts is the day folded at once."""
    hours = DAY.hours()
    assert fold(facts, hours[:hour], WHOLE) + fold(facts, hours[hour:], WHOLE) == fold(
        facts, hours, WHOLE
    )


@given(
    st.integers(0, DAY_MS - 1),
    st.integers(1, DAY_MS),
    st.integers(0, 10**9),
    st.lists(st.integers(1, DAY_MS - 1)),
)
def test_energy_is_split_over_time_without_loss(start, length, energy, cuts):
    """Whatever the rating intervals, the energies of a usage interval add up to its energy."""
    end = min(DAY_MS, start + length)
    pieces = fold(
        [usage_interval(start, end, mj=energy)],
        rating_intervals(DAY, [DAY.start_ms + cut for cut in cuts]),
        WHOLE,
    )
    assert sum(piece.energy_mj for piece in pieces) == energy
    assert sum(piece.held_ms for piece in pieces) == end - start


def test_two_nodes_that_claim_the_same_gpu_share_no_second():
    """Where spans overlap, the one that began first keeps the time, whoever came first."""
    facts = [
        usage_interval(0, HOUR_MS, workload=1, node=1),
        usage_interval(HOUR_MS // 2, 2 * HOUR_MS, workload=2, node=2),
    ]
    random.Random(1).shuffle(facts)
    pieces = fold(facts, DAY.hours(), WHOLE)
    assert [(piece.workload_id, piece.held_ms) for piece in pieces] == [(1, HOUR_MS), (2, HOUR_MS)]


def test_holders_of_one_span_share_it():
    """Two workloads at weights 2:1 hold an hour as 40 and 20 minutes, and each keeps its own
    activity.
    """
    facts = [
        usage_interval(0, HOUR_MS, workload=1, held=2_400_000, busy=600_000, record=0),
        usage_interval(0, HOUR_MS, workload=2, held=1_200_000, busy=1_200_000, record=1),
    ]
    first, second = fold(facts, DAY.hours(), WHOLE)
    assert (first.held_ms, first.busy_ms, first.idle_ms) == (2_400_000, 600_000, 1_800_000)
    assert (second.held_ms, second.busy_ms, second.idle_ms) == (1_200_000, 1_200_000, 0)


def test_time_outside_the_inventory_is_not_counted():
    """An accelerator that went out at half past is held for half an hour."""
    capacity = [Period(DAY.start_ms, DAY.start_ms + HOUR_MS // 2)]
    (piece,) = fold([usage_interval(0, HOUR_MS)], DAY.hours(), capacity)
    assert piece.held_ms == HOUR_MS // 2


def test_rating_intervals_are_hours_cut_where_a_price_changes():
    """A price change at 09:30 makes 25 rating intervals of a day; a cut on the hour makes none."""
    made = rating_intervals(
        DAY, [DAY.start_ms + 9 * HOUR_MS + HOUR_MS // 2, DAY.start_ms + 3 * HOUR_MS, DAY.end_ms]
    )
    assert len(made) == 25
    assert sum(rating_interval.ms for rating_interval in made) == DAY_MS
    assert Period(DAY.start_ms + 9 * HOUR_MS, DAY.start_ms + 9 * HOUR_MS + HOUR_MS // 2) in made
