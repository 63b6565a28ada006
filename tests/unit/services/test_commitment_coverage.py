"""What commitments cover: nothing that was paid is lost or billed twice, and the order of things
changes nothing.
"""

import random
from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fakes.evidence import DAY, WHOLE, evidence
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED, Commitment
from gpuledger_collector.accounting.ledger import check_conservation, summarize
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import (
    ImportedUsage,
    RatedAccelerator,
    capacity_cost,
    rate_accelerator_day,
    rate_imported,
    unused_charges,
)
from gpuledger_collector.accounting.usage import fold, rating_intervals
from gpuledger_collector.services.commitment_coverage import cover_day, key_of_count
from gpuledger_collector.services.placements import RatedPlacement

LATE = 2**60
H100 = "NVIDIA H100 80GB HBM3"
TEAMS = {1: OwnerPath(team="vision"), 2: OwnerPath(team="speech"), 3: OwnerPath()}
rates = st.decimals(0, 100, places=9)


def commitment(
    gpus=2, upfront=0, rate="1.00", name="c", start=0, hours=24, currency="USD", **place
):
    starts = DAY.start_ms + start * HOUR_MS
    return Commitment(
        1, name, gpus, upfront, Decimal(rate), currency, starts, starts + hours * HOUR_MS, **place
    )


def price(rate, start=0, number=1, currency="USD", listed=None, model=""):
    return Price(number, "", model, "on_demand", Decimal(rate), currency, start, None, listed)


def rated(gpus, facts, usages, commitments, book, day=DAY, until=LATE):
    """The charges of a day of some accelerators (their shares) and imported usage, and its proof."""
    placements = {
        number: [
            RatedPlacement(RatedAccelerator(number, share, "default", H100, "n1"), Period(0, 2**59))
        ]
        for number, share in enumerate(gpus, 1)
    }
    coverage = cover_day(commitments, day, until, placements, usages, book)
    charges, capacities = [], []
    for number, mine in placements.items():
        inside = (
            facts
            if number == 1
            else [replace(fact, accelerator_id=number) for fact in facts[:number]]
        )
        pieces = fold(inside, rating_intervals(day, book.cuts(day)), WHOLE)
        where, covered = (mine[0].accelerator, day, [day]), coverage.shares_of((0, number, 0))
        charges += rate_accelerator_day(
            *where, pieces, book, lambda workload, *_: TEAMS[workload], until, covered
        )
        capacities.append(capacity_cost(*where, book, until, covered))
    for usage in usages:
        charges += rate_imported(
            usage,
            day,
            book,
            lambda workload, *_: TEAMS[workload],
            until,
            coverage.shares_of(key_of_count(usage)),
        )
    charges += unused_charges(coverage, day.start_ms)
    return charges, check_conservation(day, until, capacities, charges, coverage.costs)


@st.composite
def commitments_of_a_day(draw):
    """One to three commitments, for some or all of the day, in one of two currencies."""
    made = []
    for number in range(draw(st.integers(1, 3))):
        start = draw(st.integers(-5, 20))
        made.append(
            commitment(
                gpus=draw(st.integers(1, 5)),
                upfront=draw(st.integers(0, 10**10)),
                rate=str(draw(rates)),
                name=f"c{number}",
                start=start,
                hours=draw(st.integers(1, 40)),
                currency=draw(st.sampled_from(["USD", "EUR"])),
                pool=draw(st.sampled_from(["", "default", "other"])),
            )
        )
    return made


usages = st.builds(
    lambda workload, start, length, gpus: ImportedUsage(
        workload, DAY.start_ms + start, DAY.start_ms + start + length, gpus, "A100", "lab"
    ),
    st.integers(1, 3),
    st.integers(0, DAY_MS - 1),
    st.integers(1, DAY_MS),
    st.integers(1, 4_000_000),
)
counts = st.lists(usages, max_size=3, unique_by=lambda one: (one.workload_id, one.start_ms))


@given(
    evidence(),
    commitments_of_a_day(),
    counts,
    st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4),
    rates,
    st.integers(1, DAY_MS - 1),
)
def test_covered_and_unused_are_what_was_committed(
    facts, commitments, imported, gpus, rate, change
):
    """In time and money, by commitment; the day's charges add up to capacity x rate and the
    commitments.
    """
    book = PriceBook(
        [price(rate, model="H100"), price("3.333333333", DAY.start_ms + change, 2, model="H100")]
    )
    charges, proof = rated(gpus, facts, imported, commitments, book)
    assert proof.holds
    for one in commitments:
        mine = [charge for charge in charges if charge.commitment == one]
        assert sum(charge.gpu_ns for charge in mine) == one.committed_ns(DAY)
        assert sum(charge.cost_micro for charge in mine) == one.cost(DAY)
        assert all(charge.currency == one.currency for charge in mine)
    held = [charge for charge in charges if charge.accelerator_id is not None]
    assert sum(charge.gpu_ns for charge in held) == sum(gpus) * DAY_MS == proof.capacity_ns
    for charge in held:
        assert charge.busy_ns + charge.idle_ns + charge.unknown_ns == (
            charge.gpu_ns if charge.state == "held" else 0
        )
    for charge in charges:
        if charge.state == COMMITMENT_UNUSED:
            assert charge.owner is charge.accelerator_id is charge.workload_id is None
    lines = summarize(charges)
    for currency in ("USD", "EUR"):
        total = sum(charge.cost_micro for charge in charges if charge.currency == currency)
        assert sum(line.cost_micro for line in lines if line.currency == currency) == total


@given(evidence(), commitments_of_a_day(), counts, st.integers(1, 23))
def test_adjoining_hours_add_up_with_commitments(facts, commitments, imported, hour):
    """A day rated in two parts gives each owner, state and commitment what it gives at once."""
    book = PriceBook([price("2.49")])
    cut = DAY.start_ms + hour * HOUR_MS
    totals = []
    for days in ([DAY], [Period(DAY.start_ms, cut), Period(cut, DAY.end_ms)]):
        total = {}
        for day in days:
            for charge in rated([1_000_000, 333_333], facts, imported, commitments, book, day)[0]:
                key = (
                    charge.accelerator_id,
                    charge.owner,
                    charge.state,
                    charge.workload_id,
                    charge.commitment,
                )
                before = total.get(key, (0, 0))
                total[key] = (before[0] + charge.gpu_ns, before[1] + charge.cost_micro)
        totals.append(total)
    assert totals[0] == totals[1]


@given(evidence(), commitments_of_a_day(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_covered_changes_nothing(facts, commitments, shuffled: random.Random):
    """Accelerators, imported usage and commitments in any order: the same charges."""
    book = PriceBook([price("2.49")])
    usage = [
        ImportedUsage(1, DAY.start_ms, DAY.end_ms, 500_000, "A100", "lab"),
        ImportedUsage(2, DAY.start_ms + 7, DAY.end_ms, 1_500_000, "A100", "lab"),
    ]
    gpus = [1_000_000, 500_000, 250_000]
    first = rated(gpus, facts, usage, commitments, book)[0]
    other_usage, other = list(usage), list(commitments)
    shuffled.shuffle(other_usage)
    shuffled.shuffle(other)
    assert set(rated(gpus, facts, other_usage, other, book)[0]) == set(first)


def test_a_day_of_three_gpus_of_which_two_are_committed_by_hand():
    """Two of three are committed at 24.00 upfront and 0.50 an hour: covered hours cost 1.00, the
    others 3.00.
    """
    facts = []
    charges, proof = rated(
        [1_000_000] * 3,
        facts,
        [],
        [commitment(2, 24_000_000, "0.50")],
        PriceBook([price("3.00", listed=Decimal("4.00"))]),
    )
    covered = [charge for charge in charges if charge.commitment is not None]
    others = [charge for charge in charges if charge.commitment is None]
    # A day: 24.00 upfront + 2 x 24 x 0.50 = 48.00 for 48 GPU-hours; each GPU has 16 of them, and 8
    # at 3.00.
    assert [charge.gpu_ns for charge in covered] == [16_000_000 * HOUR_MS] * 3
    assert sum(charge.cost_micro for charge in covered) == 48_000_000
    assert [charge.cost_micro for charge in others] == [24_000_000] * 3
    assert {charge.contracted_cost_micro for charge in covered} == {48_000_000}
    assert {charge.list_cost_micro for charge in covered} == {64_000_000}
    assert all(charge.contracted_cost_micro == charge.cost_micro for charge in others)
    assert proof.capacity_cost == {"USD": 120_000_000}
    assert proof.commitments["c"]["unused_ns"] == 0


def test_what_nobody_used_is_a_line_of_its_own():
    """Three committed, one there: two thirds of the cost are unused, nobody's, and part of the
    proof.
    """
    charges, proof = rated(
        [1_000_000], [], [], [commitment(3, 0, "1.00")], PriceBook([price("9.00")])
    )
    assert {(charge.state, charge.gpu_ns // HOUR_MS, charge.cost_micro) for charge in charges} == {
        ("unobserved", 24_000_000, 24_000_000),
        (COMMITMENT_UNUSED, 48_000_000, 48_000_000),
    }
    assert proof.holds
    assert proof.capacity_cost == proof.charged_cost == {"USD": 72_000_000}
    assert proof.capacity_ns == 24_000_000 * HOUR_MS


def test_a_commitment_without_any_accelerator_is_all_unused():
    """It was paid for, so it stands in the day."""
    charges, proof = rated([], [], [], [commitment(1, 7, "0")], PriceBook([]))
    assert [(charge.state, charge.cost_micro) for charge in charges] == [(COMMITMENT_UNUSED, 7)]
    assert proof.holds


def test_a_proof_that_lost_a_part_of_a_commitment_does_not_hold():
    """Money that is missing on both sides is found: covered + unused must be what was committed."""
    one = commitment(3, 0, "1.00")
    coverage = cover_day([one], DAY, LATE, {}, [], PriceBook([]))
    (unused,) = unused_charges(coverage, DAY.start_ms)
    assert check_conservation(DAY, LATE, [], [unused], coverage.costs).holds
    assert not check_conservation(
        DAY, LATE, [], [replace(unused, cost_micro=unused.cost_micro - 1)], coverage.costs
    ).holds
    assert not check_conservation(
        DAY, LATE, [], [replace(unused, gpu_ns=unused.gpu_ns - 1)], coverage.costs
    ).holds
    assert not check_conservation(DAY, LATE, [], [], coverage.costs).holds


def test_the_most_specific_commitment_covers_first():
    """One for the pool comes before one for any pool, whichever began first."""
    wide, narrow = (
        commitment(1, name="wide", rate="1"),
        commitment(1, name="narrow", rate="2", pool="default"),
    )
    charges, _ = rated([1_000_000], [], [], [wide, narrow], PriceBook([]))
    assert {(charge.commitment.name, charge.state) for charge in charges} == {
        ("narrow", "unobserved"),
        ("wide", COMMITMENT_UNUSED),
    }


def test_another_currency_is_never_put_beside():
    """What a euro commitment covers has no contracted cost in dollars."""
    charges, _ = rated(
        [1_000_000], [], [], [commitment(1, currency="EUR")], PriceBook([price("3.00")])
    )
    (covered,) = charges
    assert (covered.currency, covered.contracted_cost_micro, covered.list_cost_micro) == (
        "EUR",
        None,
        None,
    )
    (line,) = summarize(charges)
    assert line.contracted_cost_micro is None


def test_an_open_day_bears_the_hours_so_far():
    """At half past six, six and a half hours of the commitment are paid for, and no more."""
    until = DAY.start_ms + 6 * HOUR_MS + HOUR_MS // 2
    charges, proof = rated(
        [1_000_000], [], [], [commitment(2, 0, "1.00")], PriceBook([]), until=until
    )
    assert sum(charge.cost_micro for charge in charges) == 13_000_000
    assert proof.holds
