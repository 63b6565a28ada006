"""The other ledger: two ledgers differ by what was changed, and advice together never saves more
than apart.
"""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.counterfactual import (
    GpuReservation,
    Saving,
    UsageChange,
    amount,
    compare,
    dearer,
    merge_changes,
    reserved_saving,
)
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.rating import RatedAccelerator
from gpuledger_collector.accounting.usage import HELD, HourlyUsage

DAY = Period(0, DAY_MS)
CARD = RatedAccelerator(1, 1_000_000, "train", "H100", "n1")
RATE = Decimal("2.499999999")
HOURS = 6


def book(purchase: str = "on_demand", rate: Decimal = RATE) -> PriceBook:
    return PriceBook([Price(1, "", "", purchase, rate, "USD", 0)])


def piece(hour: int, held_ms: int) -> HourlyUsage:
    return HourlyUsage(
        1, hour * HOUR_MS, (hour + 1) * HOUR_MS, HELD, 7, held_ms, held_ms, 0, 0, None
    )


def saved(changes: list[UsageChange], pieces: list[HourlyUsage], prices: PriceBook) -> Saving:
    sums: dict[str, Saving] = {}
    compare(
        sums,
        CARD,
        DAY,
        [DAY],
        pieces,
        merge_changes(changes),
        prices,
        lambda *_: OwnerPath(team="a"),
        DAY_MS,
    )
    return sums["USD"]


SPOTS = [
    Price(n, "", "", "spot", Decimal(rate), "USD", 0)
    for n, rate in ((2, "0.777777777"), (3, "1.9"))
]
PIECES = st.lists(st.integers(1, HOUR_MS), min_size=HOURS, max_size=HOURS)


@st.composite
def advices(draw):
    made = []
    for _ in range(draw(st.integers(1, 4))):
        changes = []
        for hour in draw(st.sets(st.integers(0, HOURS - 1))):
            back = draw(st.integers(0, 1000))
            moved = draw(st.sampled_from([None, *SPOTS]))
            changes.append(
                UsageChange(1, 7, hour * HOUR_MS, back, draw(st.integers(0, 1000 - back)), moved)
            )
        made.append(changes)
    return made


@given(PIECES, advices(), st.sampled_from(["on_demand", "owned"]))
def test_together_never_more_than_the_sum(held, advice, purchase):
    """Cash and capacity: within a micro-unit for each part of each rating interval, whatever the
    advice.
    """
    pieces = [piece(hour, ms) for hour, ms in enumerate(held)]
    prices = book(purchase)
    alone = [saved(changes, pieces, prices) for changes in advice]
    joint = saved([change for changes in advice for change in changes], pieces, prices)
    slack = 4 * HOURS * (len(advice) + 1)
    total = sum(one.cash_micro + one.capacity_micro for one in alone)
    assert joint.cash_micro + joint.capacity_micro <= total + slack
    assert joint.cash_micro <= sum(one.cash_micro for one in alone) + slack
    assert all(one.cash_micro >= -slack for one in alone)


@given(PIECES)
def test_nothing_changed_saves_nothing(held):
    """Not a micro-unit."""
    same = saved([], [piece(hour, ms) for hour, ms in enumerate(held)], book())
    assert (same.cash_micro, same.capacity_micro, same.freed_gpu_ns) == (0, 0, 0)


def test_rented_time_given_back_is_cash_and_owned_time_capacity():
    """A whole hour is the hour's cost, to the micro-unit; a spare part of rented time is paid all
    the same.
    """
    hour = cost_micro(gpu_ns(1_000_000, HOUR_MS), RATE)
    back, spare = [UsageChange(1, 7, 0, 1000)], [UsageChange(1, 7, 0, 0, 500)]
    pieces = [piece(0, HOUR_MS)]
    assert (saved(back, pieces, book()).cash_micro, saved(back, pieces, book()).capacity_micro) == (
        hour,
        0,
    )
    owned = saved(back, pieces, book("owned"))
    assert (owned.cash_micro, owned.capacity_micro) == (0, hour)
    half = saved(spare, pieces, book())
    assert (half.cash_micro, half.freed_gpu_ns) == (0, gpu_ns(1_000_000, HOUR_MS // 2))


def test_moved_time_costs_the_other_rate_with_its_overhead():
    """Spot at 0.777777777 with a tenth on top."""
    price = dearer(SPOTS[0], 100)
    assert price.rate == Decimal("0.855555555")
    made = saved([UsageChange(1, 7, 0, moved_to=price)], [piece(0, HOUR_MS)], book())
    full = gpu_ns(1_000_000, HOUR_MS)
    assert made.cash_micro == cost_micro(full, RATE) - cost_micro(full, price.rate)
    assert made.price_ids == {1, 2}


def test_a_reservation_is_paid_in_every_hour():
    """Two of four hours are used at 2: one GPU at 1.5 loses as much as it would save used in three."""
    paid = {("train", "H100", "2", hour * HOUR_MS): gpu_ns(3_000_000, HOUR_MS) for hour in (0, 1)}
    one = GpuReservation("train", "H100", 1, Decimal("1.5"), "USD")
    assert reserved_saving(paid, one, 4) == 2 * 2_000_000 - 4 * 1_500_000
    assert reserved_saving(paid, one, 2) == 1_000_000
    assert reserved_saving({}, one, 2) == -3_000_000


def test_unpriced_or_mixed_is_no_amount():
    """Unpriced is never zero, and two currencies are never added."""
    sums: dict[str, Saving] = {}
    free = PriceBook([])
    compare(
        sums,
        CARD,
        DAY,
        [DAY],
        [piece(0, HOUR_MS)],
        merge_changes([UsageChange(1, 7, 0, 1000)]),
        free,
        lambda *_: OwnerPath(),
        DAY_MS,
    )
    assert amount(sums) == (None, None)
    assert amount({"USD": Saving(cash_micro=1), "EUR": Saving(cash_micro=1)}) == (None, None)
    assert amount({"USD": Saving(cash_micro=1), "EUR": Saving()})[0] == "USD"
