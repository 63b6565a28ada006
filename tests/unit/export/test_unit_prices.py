"""Prices of a unit as pages and files show them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.export.html import unit_price


@pytest.mark.parametrize(
    ("value", "text"),
    [("10", "10.00"), ("100", "100.00"), ("0", "0.00"), ("2.5", "2.50"), ("2.123450", "2.12345")],
)
def test_a_unit_price_keeps_its_value(value, text):
    """Zeros before the point are digits of the price: 10 an hour is not 1."""
    assert unit_price(Decimal(value)) == text


@given(st.decimals(min_value=0, max_value=10**6, places=9))
def test_no_unit_price_is_rounded(value):
    """Whatever its digits, what is shown is the price, with at least two decimals."""
    shown = unit_price(value)
    assert Decimal(shown) == value
    assert len(shown.partition(".")[2]) >= 2
