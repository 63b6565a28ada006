"""Pages on days when a month has begun and nothing of it is rated yet: no link of any of them leads
to nothing.
"""

import re
from dataclasses import dataclass
from html import unescape
from urllib.parse import urldefrag

import pytest

from fakes.collector import running
from fakes.pages import Page
from gpuledger_collector.accounting.period import parse_instant

BUDGET = (
    '[[budget]]\nname = "theirs"\nteam = "not-begun"\nperiod = "month"\namount = 400\ncurrency ='
    ' "USD"\n'
)
BROWSER = {"Accept": "text/html,*/*;q=0.8"}
MONTH_BEGINS = "2025-11-01T00:00:30Z"
INSTANTS = (MONTH_BEGINS, "2026-01-31T23:59:59Z", "2028-02-29T12:00:00Z")
IN_BERLIN = {
    "2025-10-31T23:00:30Z": "2025-11",
    "2026-03-31T21:59:30Z": "2026-03",
    "2026-03-31T22:00:30Z": "2026-04",
}
"""Around the local ends of months in which the clocks change, and the month there."""
STARTS = (
    *(
        "/",
        "/?team=vision",
        "/?period=2025",
        "/statements/team/2025-10",
        "/statements/team/vision/2025-10",
    ),
    *(
        "/jobs/slurm%3A%3A4",
        "/jobs?period=2025-10",
        "/idle?team=vision",
        "/anomalies",
        "/trust",
        "/demand",
    ),
)
"""A page of every kind."""


@dataclass
class Clock:
    """The collector's clock, which a test sets."""

    now_ms: int = parse_instant(MONTH_BEGINS)

    def __call__(self) -> int:
        return self.now_ms

    def set(self, instant: str) -> None:
        """Let it stand at an instant."""
        self.now_ms = parse_instant(instant)


@pytest.fixture
def declare(run, tmp_path):
    """Applies a declaration."""

    def apply(text: str) -> None:
        (tmp_path / "declared.toml").write_text(text)
        code, out, err = run("apply", tmp_path / "declared.toml")
        assert code == 0, out + err

    return apply


def ask(collector, path):
    return collector.request("GET", path, headers=BROWSER)


def pages_of(collector):
    """A page of every kind, and that each of their links answers."""
    pages = {}
    for path in STARTS:
        status, _, text = ask(collector, path)
        pages[path] = Page(text)
        assert (status, pages[path].faults) == (200, []), path
    links = {
        urldefrag(link).url
        for page in pages.values()
        for link in page.links
        if link.startswith("/")
    }
    # As CSV and without reloading a page is the same page, which test_site follows.
    for path in sorted(
        link for link in links if not re.search("format=csv|reload=off|^/metrics|^/readyz", link)
    ):
        status, _, text = ask(collector, path)
        assert status in {200, 303}, (path, status, text)
    return pages


def test_no_link_of_any_page_leads_to_nothing_whatever_the_date(rated, dsn):
    """September and October have lines; then the clock moves on, and each link of every page
    answers.
    """
    clock = Clock()
    with running(dsn, clock=clock) as collector:
        for instant in INSTANTS:
            clock.set(instant)
            statement = f"/statements/team/vision/{instant[:7]}"
            pages = pages_of(collector)
            for path in ("/?team=vision", "/idle?team=vision", "/jobs/slurm%3A%3A4"):
                assert statement in pages[path].links, (instant, path)
            empty = Page(ask(collector, statement)[2])
            assert "Months with charges: 2025-10 · 2025-09" in empty.text, instant
            assert "/statements/team/vision/2025-10" in empty.links, instant


@pytest.mark.slow
def test_months_are_those_of_the_billing_zone(furnished, run, dsn, declare):
    """In Berlin October 2025 and March 2026 begin and end an hour off each other: every link
    answers there, too.
    """
    declare('billing_zone = "Europe/Berlin"\n')
    run("chargeback", "--from", "2025-09-01", "--to", "2025-11-01")
    clock = Clock()
    with running(dsn, clock=clock) as collector:
        for instant, month in IN_BERLIN.items():
            clock.set(instant)
            assert (
                f"/statements/team/vision/{month}" in pages_of(collector)["/?team=vision"].links
            ), instant


@pytest.mark.parametrize(
    ("now", "month", "said"),
    [
        (MONTH_BEGINS, "2025-11", "Nothing is charged to vision in 2025-11 so far."),
        ("2025-11-01T00:00:00Z", "2025-11", "Nothing is charged to vision in 2025-11 so far."),
        (MONTH_BEGINS, "2025-08", "Nothing was charged to vision in 2025-08."),
        (MONTH_BEGINS, "2025-12", "2025-12 has not begun."),
    ],
)
def test_an_empty_month_says_so(rated, dsn, declare, now, month, said):
    """No amount and no zero stands for it; the months that have charges are links.

    A budget changes nothing of it.
    """
    declare(BUDGET.replace("not-begun", "vision"))
    clock = Clock(parse_instant(now))
    with running(dsn, clock=clock) as collector:
        status, _, text = ask(collector, f"/statements/team/vision/{month}")
        page = Page(text)
        assert (status, page.faults) == (200, [])
        assert said in page.text
        assert "You pay" not in page.text
        assert {f"/statements/team/vision/{name}" for name in ("2025-09", "2025-10")} <= set(
            page.links
        )


def test_only_a_name_that_was_never_seen_has_no_statement(rated, dsn, declare):
    """Whoever has a budget, or is nobody known, has one; another name is refused in a sentence,
    whatever the month.
    """
    declare(BUDGET)
    with running(dsn, clock=Clock()) as collector:
        for owner in ("not-begun", "(unattributed)"):
            status, _, text = ask(collector, f"/statements/team/{owner}/2025-11")
            assert (status, Page(text).faults) == (200, []), owner
        assert "theirs" in Page(ask(collector, "/statements/team/not-begun/2025-11")[2]).text
        for owner, month in (
            ("nosuch", "2025-11"),
            ("nosuch", "2025-10"),
            ("(unallocated)", "2025-10"),
        ):
            status, _, text = ask(collector, f"/statements/team/{owner}/{month}")
            assert (status, Page(text).faults) == (404, []), owner
            assert f"team '{owner}' was billed nothing in {month}" in unescape(text)
