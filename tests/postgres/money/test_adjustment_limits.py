"""Adjustments that no bill should have: discounts of more than everything, and entries for nobody."""

import pytest

from fakes.fleet import DAY, Held

OCTOBER = ("--period", "2025-10")


def discount(name, percent, more=""):
    """A discount as a table of a file."""
    return f'[[adjustment]]\nname = "{name}"\nkind = "discount"\npercent = {percent}\n{more}\n'


@pytest.fixture
def october(fleet, run):
    """Vision holds a GPU at 2.00 for a day: 48.00 USD."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.workload(1, team="vision")
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 1, 0, DAY)])
    assert run("chargeback", *OCTOBER)[0] == 0
    return run


def test_discounts_that_can_meet_take_at_most_everything(october, written):
    """Two of 60 % are refused in one sentence that names both; 60 % and 40 %, and two that never
    meet, are applied.
    """
    text = discount("partner", 60) + discount("research", 60, 'owner = { team = "vision" }')
    code, _, err = october("apply", written("a.toml", text))
    assert code == 2
    sentence = (
        "with 'partner' (60 %), which can hold for the same time, 120 % are taken: at most 100 %"
        " can be"
    )
    assert f"a.toml:6:percent: {sentence}" in err
    assert ",48.00,,USD" in october("chargeback", *OCTOBER, "--format", "csv")[1]
    text = discount("partner", 60) + discount("research", 40, 'owner = { team = "vision" }')
    assert october("apply", written("b.toml", text))[0] == 0
    assert ",0.00,,USD" in october("chargeback", *OCTOBER, "--format", "csv")[1]
    text = "".join(
        discount(team, 60, f'owner = {{ team = "{team}" }}') for team in ("vision", "nlp")
    )
    assert october("apply", written("c.toml", text))[0] == 0
    text = discount("old", 60, "effective_to = 2025-10-02") + discount(
        "new", 60, "effective_from = 2025-10-02"
    )
    assert october("apply", written("d.toml", text))[0] == 0


@pytest.mark.parametrize(("team", "is_known"), [("vision", True), ("ghost", False)])
def test_an_entry_for_nobody_is_booked_with_a_warning(october, written, team, is_known):
    """By command and by file; an owner that was charged is no surprise."""
    warning = f"nobody of this name was ever charged: team={team}"
    terms = ("--amount", "250", "--currency", "USD", "--from", "2025-10-01", "--to", "2025-10-02")
    about = ("--reason", "outage", "--approver", "kim")
    code, out, err = october(
        "adjustments", "credit", "outage", "--owner", f"team={team}", *terms, *about
    )
    assert (code, "booked credit 'outage'" in out) == (0, True), err
    assert (warning in err) is not is_known
    text = (
        f'[[adjustment]]\nname = "seats"\nkind = "debit"\nowner = {{ team = "{team}" }}\namount ='
        ' 5\ncurrency = "USD"\neffective_from = 2025-10-01\neffective_to = 2025-10-02\nreason ='
        ' "x"\napprover = "kim"\n'
    )
    code, _, err = october("apply", written("debit.toml", text))
    assert code == 0, err
    assert (warning in err) is not is_known
