"""The journal as second oracle: beancount itself says that the month adds up, and that a changed
copy does not.
"""

from decimal import Decimal

import pytest
from beancount import loader
from beancount.core import realization
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.export.beancount import account_names

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")


@pytest.fixture
def journal(fleet, run):
    """A month of two currencies, odd names, a price that changes, and a close with a correction
    after it.
    """
    run("prices", "set", "--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
    run(
        "prices",
        "set",
        "--rate",
        "1.7",
        "--currency",
        "EUR",
        "--pool",
        "eu",
        "--from",
        "2025-01-01",
    )
    for number, pool in ((1, "us"), (2, "eu")):
        fleet.capacity(number, 0, 3 * DAY, pool=pool)
    fleet.workload(9, team='Ä "quoted" \\ team')
    fleet.evidence(
        [
            Held(1, 1, 0, HOUR - 7),
            Held(2, 2, HOUR, 2 * HOUR),
            Held(1, 9, DAY, DAY + HOUR),
            Held(1, None, 9 * HOUR, 10 * HOUR, "unavailable"),
        ]
    )
    return run("chargeback", *MONTH, "--format", "beancount")[1]


def faults(text):
    return [error.message for error in loader.load_string(text)[1]]


def test_beancount_finds_nothing_wrong(journal, run):
    """Every transaction balances, every account is open, the balance at the end holds, and sums are
    the ledger's.
    """
    entries, errors, _ = loader.load_string(journal)
    assert errors == []
    accounts = realization.compute_balance(
        realization.get(realization.realize(entries), "Expenses")
    )
    billed = {position.units.currency: position.units.number for position in accounts}
    assert billed == {"USD": Decimal("167.999976"), "EUR": Decimal("122.4")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.", "1."),
        ("USD\n", "EUR\n"),
        (" balance Income:Capacity -1", " balance Income:Capacity -2"),
    ],
)
def test_a_changed_copy_is_rejected(journal, old, new):
    """One digit, one currency, one assertion."""
    at = journal.index(old, journal.index(" * "))
    assert faults(journal[:at] + journal[at:].replace(old, new, 1))


def test_a_month_without_charges_is_an_empty_journal(fleet, run):
    """Nothing was charged: a journal that beancount takes."""
    assert faults(run("chargeback", *MONTH, "--format", "beancount")[1]) == []


@given(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=8))
def test_every_owner_has_an_account_of_its_own(names):
    """Whatever people call their teams."""
    found = account_names(names)
    assert len(set(found.values())) == len(names)
    assert all(name.startswith("Expenses:Gpu:") for name in found.values())
    text = "\n".join(f"2025-01-01 open {account}" for account in found.values())
    assert faults(text) == []
