"""Amounts of money: the forms in which they are read, and how what people write is read."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.money import (
    MICRO,
    Money,
    decimal_text,
    minor_digits,
    parse_amount,
    round_amounts,
    to_minor_units,
)

CURRENCIES = st.sampled_from(["USD", "EUR", "JPY", "BHD", "CLF"])


@pytest.mark.parametrize(
    ("micro", "currency", "plain", "grouped", "signed", "exact", "estimate", "sentence"),
    [
        (
            40_000_123_456,
            "USD",
            "40000.12",
            "40,000.12",
            "+40,000.12",
            "40000.123456",
            "40,000",
            "USD 40,000.12",
        ),
        (-1_500_000, "JPY", "-2", "-2", "-2", "-1.5", "-2", "JPY -2"),
        (
            -127_875_000,
            "BHD",
            "-127.875",
            "-127.875",
            "-127.875",
            "-127.875",
            "-128",
            "BHD -127.875",
        ),
        (50_000, "USD", "0.05", "0.05", "+0.05", "0.05", "0", "USD 0.05"),
        (-1, "USD", "0.00", "0.00", "0.00", "-0.000001", "0", "USD 0.00"),
        (0, "JPY", "0", "0", "0", "0", "0", "JPY 0"),
    ],
)
def test_an_amount_has_six_forms(
    micro, currency, plain, grouped, signed, exact, estimate, sentence
):
    """Two decimals for dollars, none for yen, three for dinars; what rounds to nothing has no sign."""
    amount = Money(micro, currency)
    assert (amount.plain(), amount.grouped(), amount.signed(), amount.exact()) == (
        plain,
        grouped,
        signed,
        exact,
    )
    assert (amount.estimate(), str(amount)) == (estimate, sentence)


@given(st.integers(-(10**15), 10**15), CURRENCIES)
def test_every_form_is_the_amount(micro, currency):
    """The exact form is the amount; the plain and the grouped one are its minor units, and lead
    back to them.
    """
    amount = Money(micro, currency)
    assert Decimal(amount.exact()) * MICRO == micro
    assert Decimal(amount.exact(6)) * MICRO == micro
    assert amount.exact(6) == decimal_text(micro)
    assert Decimal(amount.plain()).scaleb(minor_digits(currency)) == amount.minor
    assert amount.grouped().replace(",", "") == amount.plain()
    assert Money.from_minor(amount.minor, currency).plain() == amount.plain()


@given(st.lists(st.integers(-(10**12), 10**12), max_size=8), CURRENCIES)
def test_amounts_of_a_list_add_up_to_its_total(micros, currency):
    """As shown, each within one minor unit of its own."""
    parts = round_amounts(micros, currency)
    assert sum(part.minor for part in parts) == Money(sum(micros), currency).minor
    assert [part.minor for part in parts] == to_minor_units(micros, currency)


def test_an_amount_is_read_as_written():
    """Digits may be set apart by underscores; what is no amount is refused with a sentence."""
    assert parse_amount("40000.50") == 40_000_500_000
    assert parse_amount("40_000") == 40_000_000_000
    for wrong in ("", "x", "-1", "0", "1.0000001", "nan", "inf", "1e300"):
        with pytest.raises(ValueError, match="amount"):
            parse_amount(wrong)


def test_minor_units_are_those_of_the_currency():
    """Two digits for dollars, none for yen, three for dinars, two for a code that is not in the
    list.
    """
    assert [minor_digits(code) for code in ("USD", "JPY", "BHD", "XYZ")] == [2, 0, 3, 2]
