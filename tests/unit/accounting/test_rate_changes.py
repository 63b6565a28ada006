"""What a change of a rate did to a bill: the difference of the rates for the hours after it alone,
also where it came within a period.
"""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.budgets import HolderSpend, drivers
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.period import month
from gpuledger_collector.accounting.period_comparison import compare_lines
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.rate_changes import (
    RatedHours,
    find_rate_changes,
    find_rates_within,
)
from gpuledger_collector.accounting.usage import HELD

OCTOBER, NOVEMBER = month("2026-10"), month("2026-11")
MIDDLE_MS = NOVEMBER.start_ms + 11 * 86_400_000 + 5 * 3_600_000
MICRO = 10**6


def price(number, rate, from_ms, model="H100", currency="USD", pool=""):
    return Price(number, pool, model, "on_demand", Decimal(rate), currency, from_ms)


OLD = price(1, "6.88", 0)
NEW = price(2, "5.95", MIDDLE_MS)


def hours(label, own, gpu_hours, model="H100"):
    return RatedHours((label,), model, own, gpu_hours * GPU_NS_PER_HOUR)


def test_a_rate_that_changes_within_the_month_counts_for_the_hours_after_it():
    """100 hours before; 60 at the old rate and 90 at the new one after: 90 x -0.93."""
    (change,) = find_rate_changes(
        [hours("a", OLD, 100)], [hours("a", OLD, 60), hours("a", NEW, 90)]
    )
    assert (change.before, change.after, change.at_ms) == (OLD.rate, NEW.rate, MIDDLE_MS)
    assert change.micro == -90 * 930_000
    assert change.gpu_ns == 90 * GPU_NS_PER_HOUR


def test_the_month_after_has_the_rest_of_the_change():
    """What lay after the change in the earlier month is cheaper there already: 100 hours after, of
    which 60 of 150 would still have been dear.
    """
    (change,) = find_rate_changes(
        [hours("a", OLD, 60), hours("a", NEW, 90)], [hours("a", NEW, 100)]
    )
    assert change.micro == -40 * 930_000


def test_a_new_job_is_compared_with_its_model():
    """As its price is: it has no hours of its own before."""
    (change,) = find_rate_changes([hours("a", OLD, 100)], [hours("b", NEW, 10)])
    assert change.micro == -10 * 930_000
    assert find_rate_changes([hours("a", OLD, 1)], [hours("b", price(3, "1", 0), 5, "L4")]) == []


def test_other_places_and_commitments_are_no_change():
    """A pool of another price, time without a rate, and a version of the same rate."""
    pool = price(4, "5", MIDDLE_MS, pool="cheap")
    same = price(5, "6.88", MIDDLE_MS)
    before = [hours("a", OLD, 10), hours("a", None, 10)]
    assert find_rate_changes(before, [hours("a", pool, 10), hours("a", same, 3)]) == []


PRICES = [
    OLD,
    price(10, "7.5", OCTOBER.start_ms + 86_400_000),
    NEW,
    price(11, "0.9", 0, "L4"),
    price(12, "1.1", OCTOBER.start_ms + 1, "L4"),
]
LINES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(PRICES), st.integers(1, 9)),
    min_size=1,
    max_size=12,
)


@given(LINES, LINES)
def test_changes_of_rates_are_the_price_part(before, after):
    """Where nothing but dated rates of one place makes a price, their effects are the price part,
    but for what rounds: a nanosecond of each holder and change.
    """

    def spends(lines):
        return [
            HolderSpend(
                (label,),
                own.gpu_model,
                gpu_hours * 60 * 10**9,
                int(own.rate * gpu_hours * MICRO) // 60,
            )
            for label, own, gpu_hours in lines
        ]

    def rated(lines):
        return [
            RatedHours((label,), own.gpu_model, own, gpu_hours * 60 * 10**9)
            for label, own, gpu_hours in lines
        ]

    by_price = sum(driver.price_micro for driver in drivers(spends(before), spends(after)))
    changes = find_rate_changes(rated(before), rated(after))
    explained = sum(change.micro for change in changes)
    assert abs(by_price * 60 - explained * 60) <= 60 * 40


def test_within_a_month_the_same_hours_at_the_first_rate_are_compared():
    """Also where nothing before is known: 90 hours at 5.95 would have cost 6.88 each."""
    later = price(6, "5", MIDDLE_MS + 1)
    lines = [hours("a", OLD, 60), hours("a", NEW, 80), hours("b", later, 10), hours("b", None, 5)]
    effects = {change.at_ms: change.micro for change in find_rates_within(lines)}
    assert effects == {MIDDLE_MS: -90 * 930_000, MIDDLE_MS + 1: -10 * 950_000}
    assert find_rates_within([hours("a", NEW, 1)]) == []


def test_compared_lines_name_the_change():
    """Of lines that are read by price, too; groups and parts are those of lines that are not."""

    def line(number, gpu_hours, rate):
        cost = int(Decimal(rate) * gpu_hours * MICRO)
        return ChargedLine(
            ("vision", "H100", str(number)),
            HELD,
            "USD",
            gpu_ns=gpu_hours * GPU_NS_PER_HOUR,
            cost_micro=cost,
        )

    book = {OLD.id: OLD, NEW.id: NEW}
    before, after = [line(1, 100, "6.88")], [line(1, 60, "6.88"), line(2, 90, "5.95")]
    compared = compare_lines(
        (OCTOBER, NOVEMBER), (before, after), ("team",), lambda _keys, _by: True, book
    )
    (group,) = compared.groups
    assert group.keys == ("vision",)
    assert (group.by_price, group.by_volume, group.by_mix) == (-90 * 930_000, 50 * 6_880_000, 0)
    (change,) = compared.rate_changes["USD"]
    assert change.micro == group.by_price
    assert compared.other_price_micro("USD") == 0
