"""Whether the bill of a closed month may be trusted, and what changed since: one verdict on every
page of the month, from what is kept.
"""

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, Held
from fakes.pages import Page, text_for_machines
from fakes.statement_trace import tracing
from gpuledger_collector.accounting.closed_verdict import ClosedVerdict
from gpuledger_collector.accounting.closing import ClosedPeriod, LaterChange
from gpuledger_collector.accounting.month_proof import SealComparison
from gpuledger_collector.accounting.period import UTC_DAYS, month
from gpuledger_collector.api import fleet_pages, pages
from gpuledger_collector.api.auth.principal import ANYBODY, Principal
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.insight.pool_outlook import Outlook
from gpuledger_collector.services.month_proof import (
    COMPARE_AGAIN_MS,
    compare_seals,
    prove_months,
)

OCTOBER = {"period": "2025-10"}
OCTOBER_MS = month("2025-10").start_ms


@pytest.fixture
def closed(rated, run, monkeypatch):
    """October, closed, of which an hour of vision came to be known later."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    for name in ("2025-09", "2025-10"):
        assert run("close", "--period", name, "--by", "amina")[0] == 0
    rated.evidence([Held(1, 4, 10 * DAY, 10 * DAY + HOUR, busy=HOUR)])
    assert run("chargeback", "--from", "2025-10-01", "--to", "2026-01-01")[0] == 0
    return rated


def pages_of_october(reads, reader=None):
    """The overview, the list of statements, the statement of vision and, of the whole fleet, the
    page of trust, with instants as machines write them.
    """
    view = View.narrow(reader or ANYBODY, OCTOBER)
    answers = [
        pages.overview_page(reads, pages.HourlyCache(Outlook), "", view),
        pages.month_page(reads, "team", "2025-10", view),
        pages.statement_page(reads, "team", "vision", "2025-10", view),
    ]
    if reader is None:
        answers.append(fleet_pages.trust_page(reads, view))
    texts = [answer.body.decode() for answer in answers]
    assert [Page(text).faults for text in texts] == [[]] * len(texts)
    return [text_for_machines(text) for text in texts]


def test_each_page_has_the_same_verdict(closed, reads, ledger):
    """Its seal, as compared when it was, and who got how much since; before: the command."""
    compare = "Its seal was not compared with the ledger since: gpuledger periods --verify 2025-10"
    shown = pages_of_october(reads)
    assert [compare in text for text in shown] == [True] * 4
    assert ["proven before the month was closed" in text for text in shown[::2]] == [True] * 2
    assert "not proven yet" not in "".join(shown), "it was, or it could not have been closed"
    prove_months(ledger, NOW_MS)
    assert compare_seals(ledger, NOW_MS) == 2
    overview, listed, own, trust = pages_of_october(reads)
    holds = "Its seal was compared with the ledger at 2025-11-20T12:00Z and holds."
    for text in (overview, listed, own, trust):
        assert holds in text
    for text in (overview, listed, trust):
        assert "by amina." in text
        assert "1.0 GPU-hours moved: vision +2.10, nobody -2.10 USD, billed in 2025-11." in text
    assert "1.0 GPU-hours came to it: vision +2.10 USD, billed in 2025-11." in own
    assert "0.00 USD in sum" not in overview


def test_a_viewer_is_told_of_its_own_amounts_alone(closed, reads, ledger):
    """What others got or lost is not said to it, nor what nobody pays."""
    prove_months(ledger, NOW_MS)
    for team, said in (("vision", "vision +2.10 USD"), ("data", "nothing of what you see")):
        view = View.narrow(Principal("viewer", team, owner={"team": team}), OCTOBER)
        answer = pages.overview_page(reads, pages.HourlyCache(Outlook), "", view)
        text = Page(answer.body.decode()).text
        assert said in text
        assert "nobody -" not in text
        assert team == "vision" or "vision" not in text


def test_a_changed_line_is_told_once_its_seal_is_compared_again(closed, reads, ledger):
    """By the job a month later, or at once by the command."""
    prove_months(ledger, NOW_MS)
    compare_seals(ledger, NOW_MS)
    closed.connection.execute("ALTER TABLE charge DISABLE TRIGGER USER")
    changed = closed.connection.execute(
        "UPDATE charge SET cost_micro = cost_micro + 1 WHERE day_ms = %(day)s AND ctid = (SELECT"
        " min(ctid) FROM charge WHERE day_ms = %(day)s AND cost_micro > 0)",
        {"day": OCTOBER_MS},
    )
    assert changed.rowcount == 1
    assert compare_seals(ledger, NOW_MS + COMPARE_AGAIN_MS - 1) == 0
    later = NOW_MS + COMPARE_AGAIN_MS
    assert [compare_seals(ledger, later) for _ in range(3)] == [1, 1, 0], "one at a time"
    for text in pages_of_october(reads):
        assert "and DIFFERS: gpuledger periods --verify 2025-10 says where." in text


def test_months_that_were_compared_lately_are_not_read(closed, reads, ledger, tmp_path):
    """Whether one is due needs no day of a closed month, however many months there are."""
    prove_months(ledger, NOW_MS)
    compare_seals(ledger, NOW_MS)
    with tracing(tmp_path / "statements"):
        assert compare_seals(ledger, NOW_MS + 1) == 0
    statements = (tmp_path / "statements").read_text()
    assert "month_proof" in statements
    assert "conservation_check" not in statements


@pytest.mark.parametrize("is_proven", [True, False])
def test_the_command_keeps_what_it_finds(closed, run, reads, ledger, is_proven):
    """Who verifies a month by hand need not wait for a job to have it on the pages, not even for
    the first one.
    """
    if is_proven:
        prove_months(ledger, NOW_MS)
    assert run("periods", "--verify", "2025-10")[0] == 0
    assert compare_seals(ledger, NOW_MS) == is_proven, "September alone, once it is proven"
    for text in pages_of_october(reads):
        assert "at 2025-11-20T12:00Z and holds." in text


def change(owner, micro, state="held", gpu_ns=0, currency="USD"):
    return LaterChange(
        owner=owner,
        state=state,
        currency=currency,
        booked_ms=month("2025-11").start_ms,
        lines=1,
        gpu_ns=gpu_ns,
        micro=micro,
    )


def verdict(changes, days=31):
    """The verdict of October with these changes."""
    span = month("2025-10")
    record = ClosedPeriod(
        name="2025-10", period=span, closed_ms=NOW_MS, closed_by="amina", lines=1, seal="00"
    )
    return ClosedVerdict(
        month=record,
        seal=SealComparison(NOW_MS, holds=True),
        changes=changes,
        is_part=False,
        calendar=UTC_DAYS,
        rated_days=[day.start_ms for day in UTC_DAYS.days(span)][-days:],
    )


def test_many_owners_are_added_up_and_nobody_stands_last():
    """The sum of what is named is the sum of all, to the cent."""
    changes = [change(f"team{at}", 1_004_000) for at in range(10)]
    changes.append(change("", -10_040_000, state="unobserved"))
    assert verdict(changes).changed == (
        "Since then 11 lines changed: team0 +1.01, team1 +1.01, team2 +1.01, team3 +1.01, team4"
        " +1.00, team5 +1.00, 4 others +4.00, nobody -10.04 USD, billed in 2025-11."
    )


def test_what_changed_no_amount_says_so():
    """Evidence may change who used a GPU and nobody's amount."""
    assert verdict([change("vision", 0)]).changed == (
        "Since then 1 line changed: no amount changed, booked in 2025-11."
    )
    assert verdict([]).changed == "Since then nothing was corrected."


def test_a_part_of_a_month_is_named():
    """A ledger that began on 28 October has a bill of four days; of all of them nothing is said."""
    assert verdict([], days=4).days == (
        "The ledger has 4 of its 31 days alone, 2025-10-28 to 2025-10-31: the bill is of those."
    )
    assert verdict([]).days == ""


def test_time_that_was_unobserved_at_the_close_is_explained():
    """The bill has it, the days do not: the evidence came between."""
    late = [change("vision", 5, gpu_ns=3_600_000_000_000_000)]
    late.append(change("", -5, state="unobserved", gpu_ns=-3_600_000_000_000_000))
    assert (
        "The bill of 2025-10 has 1.0 GPU-hours more as unobserved"
        in verdict(
            [change("vision", 5), change("", -5, state="unobserved", gpu_ns=-3_600_000_000_000)]
        ).observed_later
    )
    assert "1,000.0 GPU-hours moved" in verdict(late).changed
    assert verdict([]).observed_later == ""
