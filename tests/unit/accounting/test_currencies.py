"""Currencies of ISO 4217 and their minor units."""

import pytest

from gpuledger_collector.accounting.currencies import (
    MINOR_DIGITS,
    currency_problem,
    is_currency,
    was_currency,
)
from gpuledger_collector.accounting.money import minor_digits


def test_the_list_is_that_of_iso_4217():
    """List one as of 2026-01-01 has 165 codes with a minor unit; each is three capital letters."""
    assert len(MINOR_DIGITS) == 165
    assert all(len(code) == 3 and code.isascii() and code.isupper() for code in MINOR_DIGITS)
    assert {"USD", "EUR", "JPY", "KWD", "CHF", "XOF", "XCG", "ZWG"} <= MINOR_DIGITS.keys()
    assert not {"XXX", "XTS", "XAU", "XAG", "XDR", "XBA", "BGN", "ZZZ", "usd"} & MINOR_DIGITS.keys()


@pytest.mark.parametrize(
    ("code", "digits"),
    [
        ("USD", 2),
        ("JPY", 0),
        ("UYI", 0),
        ("KWD", 3),
        ("CLF", 4),
        ("UYW", 4),
        ("MRU", 2),
        ("BGN", 2),
    ],
)
def test_minor_units(code, digits):
    """None, two, three or four places; a code that has left the list goes on with two."""
    assert minor_digits(code) == digits


def test_former_codes_are_told_from_others():
    """A bill of 2025 may be in leva; a price of today may not."""
    assert (is_currency("BGN"), was_currency("BGN"), was_currency("ZZZ")) == (False, True, False)
    assert currency_problem("BGN") == "'BGN' is not an ISO 4217 code; is it 'EUR'?"


@pytest.mark.parametrize(
    ("given", "meant"), [("$", "USD"), ("€", "EUR"), ("US", "USD"), ("EURO", "EUR"), ("gbp", "GBP")]
)
def test_what_was_meant_is_asked(given, meant):
    """Signs, small letters and slips of one letter."""
    assert currency_problem(given) == f"{given!r} is not an ISO 4217 code; is it {meant!r}?"
    assert currency_problem(meant) is None
