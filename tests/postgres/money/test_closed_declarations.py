"""A closed month keeps the shares and exchange rates that were declared when it was closed."""

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, Held

OCTOBER_PERIOD = ("--period", "2025-10")
RATES = '[[exchange]]\nfrom = "EUR"\nto = "USD"\nrate = {}\neffective_from = "2025-10-01"\n'
SHARES = '[[share]]\nteam = "vision"\npool = "train"\ngpus = {}\n'
VIEWS = {
    "currency": (RATES, "1.1", "2", ("--by", "team", "--currency", "USD")),
    "share": (SHARES, "1", "2", ("--by", "share")),
}


@pytest.fixture
def october(fleet, run, monkeypatch):
    """Vision holds one of two GPUs at 2.00 EUR for an hour, nlp both for the next."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    run("prices", "set", "--rate", "2", "--currency", "EUR", "--from", "2025-01-01")
    fleet.workload(1, team="vision")
    fleet.workload(2, team="nlp")
    for number in (1, 2):
        fleet.capacity(number, 0, DAY)
    fleet.evidence([Held(1, 1, 0, HOUR), Held(1, 2, HOUR, 2 * HOUR), Held(2, 2, HOUR, 2 * HOUR)])
    return run


def close(run):
    """Close the month."""
    code, _, err = run("close", *OCTOBER_PERIOD)
    assert code == 0, err


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_closed_month_does_not_change(october, written, name):
    """What a CFO was sent is there again after other rates and shares; of an open month the new
    ones count.
    """
    text, old, new, asked = VIEWS[name]
    assert october("apply", written("a.toml", text.format(old)))[0] == 0
    first = october("chargeback", *OCTOBER_PERIOD, *asked, "--format", "csv")
    assert first[0] == 0, first[2]
    assert october("apply", written("b.toml", text.format(new)))[0] == 0
    second = october("chargeback", *OCTOBER_PERIOD, *asked, "--format", "csv")
    assert second[1] != first[1]
    close(october)
    assert october("chargeback", *OCTOBER_PERIOD, *asked, "--format", "csv")[1] == second[1]
    assert october("apply", written("c.toml", text.format(old)))[0] == 0
    assert october("chargeback", *OCTOBER_PERIOD, *asked, "--format", "csv") == second


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("currency", "2025-10 is at today's rate: none into USD was declared when it was closed"),
        ("share", "2025-10 has shares as declared today: none was declared when it was closed"),
    ],
)
def test_a_month_that_was_closed_without_any_has_those_of_today_and_says_so(
    october, written, name, words
):
    """A view that nobody could have asked for then is no other than it was."""
    text, rate, _, asked = VIEWS[name]
    close(october)
    assert october("apply", written("a.toml", text.format(rate)))[0] == 0
    code, out, err = october("chargeback", *OCTOBER_PERIOD, *asked)
    assert code == 0, err
    assert words in out + err
