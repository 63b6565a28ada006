"""Corrections and seals as laws: what was billed plus its corrections is what would be billed now."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting import seal
from gpuledger_collector.accounting.corrections import difference, total
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rating import Charge

CHEAP = Price(1, "", "", "on_demand", Decimal("2"), "USD", 0)
DEAR = Price(2, "", "", "on_demand", Decimal("3.5"), "USD", 0)
amounts = st.integers(0, 10**12)
maybe = st.none() | amounts


@st.composite
def charges(draw) -> Charge:
    price = draw(st.sampled_from([None, CHEAP, DEAR]))
    money = {}
    if price is not None:
        money = {
            "cost_micro": draw(amounts),
            "idle_cost_micro": draw(maybe),
            "list_cost_micro": draw(maybe),
        }
    start = draw(st.integers(0, 86_399_999))
    return Charge(
        day_ms=0,
        start_ms=start,
        end_ms=86_400_000,
        accelerator_id=draw(st.sampled_from([None, 1, 2])),
        workload_id=draw(st.sampled_from([None, 7, 8])),
        owner=draw(
            st.sampled_from(
                [None, OwnerPath(team="vision"), OwnerPath(team="speech", project="asr")]
            )
        ),
        state=draw(st.sampled_from(["held", "unobserved"])),
        pool="p",
        gpu_model="H100",
        node="n1",
        price=price,
        currency=None if price is None else "USD",
        gpu_ns=draw(amounts),
        busy_ns=draw(amounts),
        idle_ns=draw(amounts),
        unknown_ns=draw(amounts),
        energy_mj=draw(maybe),
        **money,
    )


def held_line(gpu_ns: int) -> Charge:
    return Charge(
        day_ms=0,
        start_ms=0,
        end_ms=1,
        accelerator_id=1,
        workload_id=7,
        owner=None,
        state="held",
        pool="p",
        gpu_model="H100",
        node="n",
        price=CHEAP,
        currency="USD",
        gpu_ns=gpu_ns,
        busy_ns=5,
        cost_micro=10,
        idle_cost_micro=0,
        list_cost_micro=10,
    )


def sums(lines) -> dict[object, tuple[int, ...]]:
    """Amounts by line, unknown as nothing, lines of nothing left out."""
    found: dict[object, tuple[int, ...]] = {}
    for one in total(lines):
        key = (
            one.accelerator_id,
            one.workload_id,
            one.owner,
            one.state,
            one.price and one.price.rate,
        )
        found[key] = (
            one.gpu_ns,
            one.busy_ns,
            one.idle_ns,
            one.unknown_ns,
            one.cost_micro or 0,
            one.idle_cost_micro or 0,
            one.list_cost_micro or 0,
            one.energy_mj or 0,
        )
    return found


@given(st.lists(charges(), max_size=8), st.lists(charges(), max_size=8))
def test_what_was_billed_plus_its_corrections_is_what_would_be_billed_now(before, after):
    """To the nanosecond and the micro-unit, whatever changed."""
    assert sums([*before, *difference(before, after)]) == sums(after)


@given(
    st.lists(charges(), max_size=6),
    st.lists(charges(), max_size=6),
    st.lists(charges(), max_size=6),
)
def test_corrections_of_corrections_add_up(first, second, third):
    """Corrected twice is corrected once to the last state; corrected again to the same is nothing."""
    once = [*first, *difference(first, second)]
    twice = [*once, *difference(once, third)]
    assert sums(twice) == sums(third)
    assert difference(twice, third) == []


def test_a_price_book_written_anew_with_the_same_rates_corrects_nothing():
    """Another version of the same terms is no other price."""
    line = held_line(5)
    assert difference([line], [replace(line, price=replace(CHEAP, id=99))]) == []
    assert [
        one.cost_micro for one in difference([line], [replace(line, price=DEAR, cost_micro=17)])
    ] == [-10, 17]


def exported(number: int) -> ExportedCharge:
    return ExportedCharge(
        charge=held_line(number),
        accelerator_uuid="GPU-a",
        workload_key="slurm::7",
        workload_name="train",
        user="amina",
        tags={"team": "vision"},
    )


@given(st.integers(1, 70), st.data())
def test_one_line_is_proven_to_be_in_the_seal_and_another_is_not(size, data):
    """The path beside a line leads to the seal from that line alone."""
    lines = [seal.line_of(exported(number)) for number in range(size)]
    leaves = [seal.leaf(line) for line in lines]
    at = data.draw(st.integers(0, size - 1))
    way = seal.path(leaves, at)
    assert seal.proves(lines[at], way, seal.root(leaves))
    assert not seal.proves(seal.line_of(exported(size + 1)), way, seal.root(leaves))
    assert len(way) <= 7


def test_the_tree_is_that_of_rfc_6962():
    """Root over seven one-byte leaves, split at the largest power of two as the RFC writes it down."""
    leaves = [seal.leaf(bytes([number])) for number in range(7)]

    def by_the_book(part):
        if len(part) == 1:
            return part[0]
        split = 1
        while split * 2 < len(part):
            split *= 2
        return seal._node(by_the_book(part[:split]), by_the_book(part[split:]))

    assert seal.root(leaves) == by_the_book(leaves)
    with pytest.raises(IndexError):
        seal.path(leaves, 7)


@pytest.mark.parametrize("change", ["gpu_ns", "cost_micro", "busy_ns", "end_ms"])
def test_every_amount_is_in_the_seal(change):
    """A line that differs in anything that is billed has another hash; names that people change are
    not in it.
    """
    one = exported(3)
    other = replace(one, charge=replace(one.charge, **{change: 4_711}))
    assert seal.line_of(one) != seal.line_of(other)
    assert seal.line_of(one) == seal.line_of(replace(one, workload_name="renamed", tags={}))
