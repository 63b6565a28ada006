"""Accelerators of a fleet that are rated together are charged as each of them is alone, to the
micro-unit.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import fields, replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.adjustments import Adjustment
from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts, edges_of
from gpuledger_collector.accounting.ledger import check_conservation
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import DayAdjustments, RatedAccelerator
from gpuledger_collector.accounting.usage import HELD, STATES, HourlyUsage
from gpuledger_collector.services import columnar_rating, rating
from gpuledger_collector.services.placements import RatedPlacement
from gpuledger_collector.storage.ledger.hour_columns import NONE, HourColumns, sort_keys

DAY = Period(20_000 * DAY_MS, 20_001 * DAY_MS)
WORKLOADS = {
    number: WorkloadFacts(
        number, "slurm", f"user-{number}", account, None, {"team": f"team-{number % 2}"}, key=key
    )
    for number, account, key in ((1, "a", "slurm::9"), (2, "b", "slurm::8"), (3, "a", "slurm::7"))
}
REPORTED = {7: replace(WORKLOADS[1], tags={"team": "moved"}), 8: replace(WORKLOADS[2], account="a")}
REPORTS = {1: [None, 7], 2: [None, 8], 3: [None]}
MARKUP = Adjustment(1, "overhead", "markup", percent=Decimal("7.3"), from_on=dt.date(2020, 1, 1))

instants = st.one_of(
    st.integers(DAY.start_ms, DAY.end_ms),
    st.integers(0, 24).map(lambda hour: DAY.start_ms + hour * HOUR_MS),
)
rates = st.one_of(st.just(Decimal("2.333333333")), st.decimals("0.000000001", 500, places=9))


@st.composite
def books(draw):
    """Prices that begin, end and lack, in two currencies, and rules that change whom they charge
    within an hour, by what was reported or by where a workload runs.
    """
    prices = [
        Price(
            number,
            draw(st.sampled_from(["", "train"])),
            draw(st.sampled_from(["", "H100"])),
            "on_demand",
            draw(rates),
            draw(st.sampled_from(["USD", "EUR"])),
            draw(st.one_of(st.just(0), instants)),
            draw(st.one_of(st.none(), instants)),
            draw(st.one_of(st.none(), rates)),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    match = st.sampled_from([{"account": "a"}, {"pool": "train"}])
    project = st.sampled_from(["p", "{node}"])
    rules = (
        [Rule(1, "a", 1, draw(match), {"project": draw(project)}, draw(instants), None)]
        if draw(st.booleans())
        else []
    )
    return PriceBook(prices, (), edges_of(rules)), rules


@st.composite
def placed(draw, number):
    """An accelerator that stays all day, comes or goes, moves, or has stranded capacity beside it."""
    place = RatedAccelerator(
        number,
        draw(st.sampled_from([1_000_000, 142_857, 500_000, 1])),
        draw(st.sampled_from(["train", "serve"])),
        draw(st.sampled_from(["NVIDIA H100", "A100"])),
        draw(st.sampled_from(["n1", "n2"])),
        uuid=f"GPU-{number}",
    )
    first, middle, last = sorted(draw(st.tuples(instants, instants, instants)))
    whole = RatedPlacement(place, Period(DAY.start_ms - DAY_MS, DAY.end_ms + DAY_MS))
    return draw(
        st.sampled_from(
            [
                [whole],
                [whole],
                [RatedPlacement(place, Period(first, last + 1))],
                [
                    RatedPlacement(place, Period(first, middle)),
                    RatedPlacement(replace(place, node="n3"), Period(middle, last + 1)),
                ],
                [whole, RatedPlacement(replace(place, gpu_micro=7, stranded=True), DAY)],
            ]
        )
    )


@st.composite
def usages(draw, number, cuts):
    """Rows of an accelerator as the hourly ledger has them: they may exceed the hour, and begin
    where a price did.
    """
    rows = {}
    for _ in range(draw(st.integers(0, 12))):
        start_ms = draw(
            st.one_of(
                st.sampled_from([hour.start_ms for hour in DAY.hours()]),
                st.sampled_from(cuts or [DAY.start_ms]),
            )
        )
        state = draw(st.sampled_from([HELD, HELD, HELD, *STATES[1:3]]))
        workload_id = draw(st.sampled_from([1, 2, 3, None])) if state == HELD else None
        report = None if workload_id is None else draw(st.sampled_from(REPORTS[workload_id]))
        busy, idle, unknown = draw(
            st.tuples(
                *[st.one_of(st.sampled_from([0, 1, 900_000]), st.integers(0, HOUR_MS // 2))] * 3
            )
        )
        held = busy + idle + unknown if state == HELD else draw(st.integers(0, HOUR_MS))
        activity = (busy, idle, unknown) if state == HELD else (0, 0, 0)
        energy = draw(st.one_of(st.none(), st.integers(0, 10**9)))
        end_ms = start_ms - start_ms % HOUR_MS + HOUR_MS
        rows[start_ms, state, workload_id, report] = HourlyUsage(
            number, start_ms, end_ms, state, workload_id, held, *activity, energy, report
        )
    return list(rows.values())


@st.composite
def worlds(draw):
    """A day of a few accelerators, rated up to an instant."""
    book, rules = draw(books())
    placements = {number: draw(placed(number)) for number in range(1, draw(st.integers(1, 4)) + 1)}
    until_ms = draw(st.one_of(st.just(DAY.end_ms), instants))
    pieces = [piece for number in placements for piece in draw(usages(number, book.cuts(DAY)))]
    return (
        book,
        rules,
        placements,
        until_ms,
        [piece for piece in pieces if piece.start_ms < until_ms],
    )


def columns_of(pieces):
    cells = [
        (
            piece.accelerator_id,
            piece.start_ms,
            STATES.index(piece.state),
            NONE if piece.workload_id is None else piece.workload_id,
            NONE if piece.attributes_id is None else piece.attributes_id,
            piece.held_ms,
            piece.busy_ms,
            piece.idle_ms,
            piece.unknown_ms,
            NONE if piece.energy_mj is None else piece.energy_mj,
        )
        for piece in pieces
    ]
    columns = zip(*cells, strict=True) if cells else [[]] * len(fields(HourColumns))
    return HourColumns(*(np.array(column, dtype=np.int64) for column in columns))


def charged(world, *, together):
    book, rules, placements, until_ms, pieces = world
    owners = rating.Owners(rules, WORKLOADS, None, REPORTED)
    rated = {}
    by_accelerator = {
        number: sorted(
            (piece for piece in pieces if piece.accelerator_id == number), key=owners.order
        )
        for number in placements
    }
    if together:
        columns = columns_of(pieces)
        rated, by_accelerator = rating._rated_together(
            DAY, until_ms, placements, columns, owners, book
        )
    adjusting = DayAdjustments(policies=[MARKUP])
    usage = rating.DayUsage(
        DAY, until_ms, placements, by_accelerator, [], owners, adjusting=adjusting, rated=rated
    )
    return rated, rating.price_usage(usage, book)


@given(worlds())
def test_together_as_alone(world):
    """The same charges in the same order, the same capacity, and a check that holds for both or for
    neither.
    """
    _, (expected, capacities, _) = charged(world, together=False)
    _, (charges, same_capacities, _) = charged(world, together=True)
    assert charges == expected
    assert same_capacities == capacities
    until_ms = world[3]
    assert check_conservation(DAY, until_ms, capacities, charges) == check_conservation(
        DAY, until_ms, capacities, expected
    )


def plain_world(rate):
    place = RatedPlacement(RatedAccelerator(1, 1_000_000, "train", "H100", "n1"), DAY)
    held = [
        HourlyUsage(
            1, DAY.start_ms, DAY.start_ms + HOUR_MS, HELD, number, 1_000_001, 1, 1_000_000, 0, None
        )
        for number in (1, 2, 3)
    ]
    book = PriceBook([Price(1, "", "", "on_demand", Decimal(rate), "USD", 0)])
    return book, [], {1: [place]}, DAY.end_ms, held


@pytest.mark.parametrize(("rate", "is_together"), [("2.333333333", True), ("9000000000000", False)])
def test_amounts_beyond_63_bits_are_rated_alone(rate, is_together):
    """Where a product could leave 63 bits, accounting's own integers rate it."""
    rated, (charges, *_) = charged(plain_world(rate), together=True)
    assert bool(rated) is is_together
    assert charges == charged(plain_world(rate), together=False)[1][0]
    assert sum(charge.cost_micro for charge in charges if charge.adjustment is None) == 24 * round(
        Decimal(rate) * 10**6
    )


def test_most_accelerators_of_a_fleet_are_rated_together():
    """What stays in its place has no pieces left to be rated one by one."""
    book, rules, placements, until_ms, held = plain_world(2)
    moving = [replace(piece, accelerator_id=2) for piece in held]
    place = replace(placements[1][0].accelerator, accelerator_id=2)
    noon = DAY.start_ms + 12 * HOUR_MS
    placements = placements | {
        2: [
            RatedPlacement(place, Period(DAY.start_ms, noon)),
            RatedPlacement(replace(place, node="n2"), Period(noon, DAY.end_ms)),
        ]
    }
    owners = rating.Owners(rules, WORKLOADS)
    rated, pieces = rating._rated_together(
        DAY, until_ms, placements, columns_of([*held, *moving]), owners, book
    )
    assert list(rated) == [1]
    assert list(pieces) == [2]
    assert columnar_rating.LARGEST < 2**63


@given(
    st.lists(
        st.tuples(*(st.integers(low, 2**size) for low, size in ((-1, 31), (0, 41), (-1, 61)))),
        min_size=1,
    )
)
def test_sort_keys_compare_as_their_rows_do(rows):
    """Also where the product of the ranges of their columns leaves 63 bits."""
    keys = sort_keys(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))
    by_key = sorted(range(len(rows)), key=lambda at: (int(keys[at]), at))
    assert by_key == sorted(range(len(rows)), key=lambda at: (rows[at], at))
    assert len(set(keys.tolist())) == len(set(rows))
