"""What a report of a large fleet says of the present day: it is as it was rated last, where nothing
but usage has arrived since, and rated anew in every other case.
"""

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services import refresh as refreshing
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.ledger.placements import settle

MINUTE = 60_000
MONTH = Period(OCTOBER, OCTOBER + 31 * DAY)
RATED_MS = OCTOBER + DAY + 12 * HOUR
NOW_MS = RATED_MS + 2 * MINUTE
BEHIND_MS = 2 * MINUTE
PRICE = ("prices", "set", "--currency", "USD", "--from", "2025-01-01", "--rate")
RULE = '[[rule]]\nmatch = { account = "nobody" }\nassign = { team = "moved" }\n'
DISCOUNT = '[[adjustment]]\nname = "discount"\nkind = "discount"\npercent = 5\n'
TIER = (
    '[[adjustment]]\nname = "volume"\nkind = "tiered"\ncurrency = "USD"\nsteps = { 0 = 2.0, 10 ='
    " 1.0 }\n"
)
IMPORT = "workload_id,start,end,gpus\n77,2025-10-02T01:00:00Z,2025-10-02T03:00:00Z,2\n"


@pytest.fixture
def fleet(fleet, ledger, run, written, monkeypatch):
    """Two accelerators since yesterday, rated two minutes ago; evidence of them has come since."""
    monkeypatch.setattr(refreshing, "LARGE_FLEET", 2)
    monkeypatch.setattr(wiring, "read_clock", lambda: NOW_MS)
    run(*PRICE, "2.333333333")
    for number in (1, 2):
        fleet.capacity(number, 0)
        fleet.evidence([Held(number, number, HOUR, DAY), Held(number, 3, DAY, DAY + HOUR)])
    refresh(ledger, MONTH, RATED_MS)
    fleet.evidence([Held(1, 2, DAY + 11 * HOUR, DAY + 12 * HOUR)])
    return fleet


def until_ms(fleet):
    (row,) = fleet.rows("SELECT max(until_ms) FROM conservation_check")
    return row[0]


@pytest.mark.parametrize("is_folded", [False, True])
def test_usage_that_has_arrived_waits_for_the_next_rating(fleet, ledger, is_folded):
    """Also once a job has folded it; whoever rates then has every row as without the wait."""
    if is_folded:
        fold_usage(ledger)
    rows = fleet.rows("SELECT xmin, * FROM charge ORDER BY 2, 3, 4, 5, 6")
    assert refresh(ledger, MONTH, NOW_MS, behind_ms=BEHIND_MS) == 0
    assert fleet.rows("SELECT xmin, * FROM charge ORDER BY 2, 3, 4, 5, 6") == rows
    assert until_ms(fleet) == RATED_MS
    assert refresh(ledger, MONTH, NOW_MS) == 1
    assert until_ms(fleet) == NOW_MS


def rated(fleet, ledger):
    """The ledger after a report, which must be what rating everything gives."""
    count = refresh(ledger, MONTH, NOW_MS, behind_ms=BEHIND_MS)
    rows = fleet.dump()
    fleet.connection.execute("INSERT INTO day_recompute (day_ms) SELECT day_ms FROM ledger_day")
    refresh(ledger, MONTH, NOW_MS)
    assert fleet.dump() == rows
    return count


@pytest.mark.parametrize(
    "text", ["", RULE, DISCOUNT, TIER], ids=["price", "rule", "discount", "tier"]
)
@pytest.mark.parametrize("is_folded", [False, True])
def test_what_is_declared_is_in_the_next_report(fleet, ledger, run, written, text, is_folded):
    """The fold of usage that came at the same time does not hide it."""
    command = ("apply", written("declared.toml", text)) if text else (*PRICE, "7.25")
    assert run(*command)[0] == 0
    if is_folded:
        fold_usage(ledger)
    assert rated(fleet, ledger) >= 1
    assert until_ms(fleet) == NOW_MS


def test_a_placement_that_changes_is_in_the_next_report(fleet, ledger):
    """A GPU that shows up is capacity of the day since it was seen."""
    fleet.evidence([Held(7, 1, DAY + HOUR, DAY + HOUR + 1)], node="n7")
    settle(fleet.connection, [fleet.accelerator(7)], OCTOBER + DAY + HOUR)
    fold_usage(ledger)
    assert rated(fleet, ledger) >= 1
    assert until_ms(fleet) == NOW_MS


def test_imported_usage_is_in_the_next_report_and_in_all_after_it(fleet, ledger, run, written):
    """It gives way to what agents report of its pool, so that a day with any is always rated."""
    assert run("import", "usage", written("usage.csv", IMPORT), "--pool", "train")[0] == 0
    assert rated(fleet, ledger) == 1
    assert refresh(ledger, MONTH, NOW_MS + 1, behind_ms=BEHIND_MS) == 1


def test_late_evidence_of_yesterday_is_in_the_next_report(fleet, ledger):
    """Yesterday is rated again; today stays as it was."""
    fleet.evidence([Held(2, 5, 0, HOUR)])
    assert refresh(ledger, MONTH, NOW_MS, behind_ms=BEHIND_MS) == 1
    assert until_ms(fleet) == RATED_MS
    assert fleet.rows(
        "SELECT sum(unobserved_ns) FROM conservation_check WHERE day_ms = %s", OCTOBER
    ) == [(HOUR * 1_000_000,)]


def test_today_is_rated_again_where_its_price_follows_from_yesterday(fleet, ledger, run, written):
    """A tier counts the hours of the month."""
    assert run("apply", written("tier.toml", TIER))[0] == 0
    refresh(ledger, MONTH, RATED_MS)
    fleet.evidence([Held(2, 5, 0, HOUR)])
    assert rated(fleet, ledger) == 2
    assert until_ms(fleet) == NOW_MS


@pytest.mark.parametrize(
    ("accelerators", "behind_ms", "now_ms"),
    [
        (3, BEHIND_MS, NOW_MS),
        (2, BEHIND_MS, NOW_MS + 1),
        (2, 0, NOW_MS),
        (2, 2 * DAY, NOW_MS + HOUR),
    ],
    ids=["small fleet", "rated before", "not for a report", "beyond every bound"],
)
def test_in_other_cases_the_day_is_rated(
    fleet, ledger, monkeypatch, accelerators, behind_ms, now_ms
):
    """A small fleet, a rating that is too long ago, or one who has to know all of it."""
    monkeypatch.setattr(refreshing, "LARGE_FLEET", accelerators)
    assert refresh(ledger, MONTH, now_ms, behind_ms=behind_ms) == 1
    assert until_ms(fleet) == now_ms


def test_commands_say_up_to_when_the_day_is_rated(fleet, ledger, run):
    """And what they print holds; a period that has ended has nothing to say."""
    status, _, said = run("chargeback", "--period", "2025-10")
    assert (status, "rated up to 2025-10-02T12:00:00Z" in said) == (0, True)
    status, printed, _ = run("reconcile", "--period", "2025-10")
    assert (status, "rated up to 2025-10-02T12:00:00Z" in printed) == (0, True)
    assert until_ms(fleet) == RATED_MS
    run("reconcile", "--period", "2025-10", "--evidence")
    assert until_ms(fleet) == NOW_MS


def test_a_proof_that_fails_is_asked_again_of_a_day_that_is_rated_anew(fleet, run):
    """Capacity that changed unnoticed is no difference in the books."""
    fleet.capacity(3, DAY + 2 * HOUR)
    status, printed, _ = run("reconcile", "--from", "2025-10-02", "--to", "2025-10-03")
    assert (status, "rated up to 2025-10-02T12:02:00Z" in printed) == (0, True), printed
