"""The largest cause of a change: causes add up to it, and the one that is named goes its way."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.budgets import Driver, HolderSpend, drivers
from gpuledger_collector.accounting.change_causes import (
    CauseKind,
    find_main_cause,
    list_causes,
    say_cause,
)
from gpuledger_collector.accounting.rate_changes import RateChange


def row(name, price=0, volume=0, mix=0):
    """What one job changed, in micro-units."""
    return Driver((name, "ada", "detector"), "H100", 0, price + volume + mix, price, volume, mix)


def rate(micro):
    """A rate that rose, and what that did."""
    return RateChange(
        gpu_model="H100",
        pool="",
        node="",
        region="",
        purchase="on_demand",
        currency="USD",
        at_ms=0,
        before=Decimal("5.95"),
        after=Decimal("6.88"),
        gpu_ns=1,
        micro=micro,
    )


def signed(micro):
    return f"{micro:+,}"


def said(rows, rates=()):
    """The sentence of a change, by which a page names its cause."""
    cause = find_main_cause(rows, rates)
    change = sum(each.change_micro for each in rows)
    return say_cause(cause, change, signed, rate="H100", prices="other prices").text


NODES, CREDIT = row("(node_cost)", price=70), row("(credit)", price=-90)


@pytest.mark.parametrize(
    ("rows", "rates", "sentence"),
    [
        (
            [row("a", volume=20), row("b", volume=50, mix=5)],
            [],
            "mostly for more GPU-hours: +70, of it +50 by job b (+55 in all)",
        ),
        (
            [row("a", volume=-20), row("b", mix=-50)],
            [],
            "mostly for cheaper GPUs: -50, of it -50 by job b",
        ),
        ([row("a", price=40, volume=9)], [rate(38)], "mostly for another rate of H100: +38"),
        ([row("a", price=40, volume=9)], [], "mostly for higher other prices: +40"),
        ([row("a", volume=30), NODES], [], "mostly for node costs: +70"),
        ([row("a", volume=30), CREDIT], [], "mostly for credit: -90"),
        (
            [row("a", volume=30), row("a2", mix=25), row("a3", price=21)],
            [],
            "the largest part for more GPU-hours: +30, of it +30 by job a",
        ),
        (
            [row("a", volume=-20), row("b", volume=50)],
            [],
            "mostly for more GPU-hours: +30, alone +50 by job b",
        ),
        # Neither the sum of other rows nor time of which no job is known is a job.
        (
            [row("(unknown)", volume=30), Driver(("3 others",), "", 0, 40, 0, 40, 0)],
            [],
            "mostly for more GPU-hours: +70",
        ),
    ],
)
def test_the_largest_cause_is_named(rows, rates, sentence):
    """With its amount, and with the job that moved most of it."""
    assert said(rows, rates) == sentence


def test_without_a_change_there_is_no_cause():
    """What one job cost more and another less is no change."""
    assert find_main_cause([row("a", volume=5), row("b", volume=-5)]) is None
    assert find_main_cause([]) is None


def test_a_cause_against_the_change_is_not_named():
    """A credit larger than all else does not explain why a bill rose."""
    rows = [row("a", volume=60), row("b", mix=50), CREDIT]
    assert find_main_cause(rows).kind is CauseKind.VOLUME


HOLDERS = st.lists(
    st.builds(
        lambda name, model, hours, cost: HolderSpend((name, "", ""), model, hours, cost),
        st.sampled_from(["a", "b", "(node_cost)"]),
        st.sampled_from(["H100", "L4"]),
        st.integers(0, 10**12),
        st.integers(-(10**9), 10**10),
    ),
    max_size=6,
)


@given(HOLDERS, HOLDERS, st.lists(st.integers(-(10**9), 10**9).map(rate), max_size=3))
def test_causes_add_up_to_the_change(before, after, rates):
    """Whatever changed: they do not overlap, and the one that is named is one of them."""
    rows = drivers(before, after)
    causes = list_causes(rows, rates)
    change = sum(spend.cost_micro for spend in after) - sum(spend.cost_micro for spend in before)
    assert sum(cause.micro for cause in causes) == change
    main = find_main_cause(rows, rates)
    assert (main is None) == (change == 0)
    assert main is None or (main in causes and main.micro * change > 0)
