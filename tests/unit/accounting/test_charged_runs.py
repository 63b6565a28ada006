"""Amounts of runs and jobs: none of them is made up, and a correction says what it knows."""

from decimal import Decimal

import pytest

from gpuledger_collector.accounting.charged_runs import ChargedAmounts
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR

AMOUNTS = {
    "gpu_ns": 0,
    "busy_ns": 0,
    "idle_ns": 0,
    "unknown_ns": 0,
    "currency": "USD",
    "cost_micro": 10,
    "idle_cost_micro": None,
    "energy_mj": None,
}


def test_the_idle_cost_of_a_corrected_price_is_known():
    """It has no time of its own; its idle cost says that the time was known."""
    assert not ChargedAmounts(**AMOUNTS).has_known_activity
    assert ChargedAmounts(**AMOUNTS | {"idle_cost_micro": 4}).has_known_activity


@pytest.mark.parametrize(
    ("gpu_ns", "cost_micro", "currency", "paid"),
    [
        (GPU_NS_PER_HOUR, 6_880_000, "USD", "6.8800"),
        # 25 minutes at 6.88: the charge is rounded up to a millionth, which the price is not.
        (GPU_NS_PER_HOUR * 5 // 12, 2_866_667, "USD", "6.8800"),
        (3 * GPU_NS_PER_HOUR, 1_000_000, "USD", "0.3333"),
        (GPU_NS_PER_HOUR, 0, "USD", "0.0000"),
        (GPU_NS_PER_HOUR, None, None, None),
        (0, 10, "USD", None),
        (-GPU_NS_PER_HOUR, -6_880_000, "USD", None),
    ],
)
def test_what_an_hour_cost_is_the_charge_over_the_hours(gpu_ns, cost_micro, currency, paid):
    """Free is zero, without a price is unknown, and what corrections took back has no price."""
    amounts = {"gpu_ns": gpu_ns, "cost_micro": cost_micro, "currency": currency}
    expected = None if paid is None else Decimal(paid)
    assert ChargedAmounts(**AMOUNTS | amounts).cost_per_gpu_hour == expected


@pytest.mark.parametrize("name", AMOUNTS)
def test_what_a_query_forgets_is_no_zero(name):
    """Each amount must be given."""
    with pytest.raises(TypeError, match=name):
        ChargedAmounts(**{key: value for key, value in AMOUNTS.items() if key != name})
