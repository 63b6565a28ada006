"""Every page in a real browser: readable by everybody (axe-core), nothing over the edge, and
printable.
"""

import os
from pathlib import Path

import pytest

from fakes import two_teams as made
from fakes.browser import AXE
from fakes.collector import running
from fakes.engines import lacking
from fakes.postgres import fresh_database
from fakes.queue_hours import fill_queues
from fakes.two_teams import MONTH, NOW_MS, OWN, idle_job, two_teams
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.services.scaling_advice import advise_scaling
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert('a name that is long and has no end')</script>&amp;{{ 7*7 }}"
SIZES = (390, 768, 1280)
OVERRUNS = (
    "[...document.querySelectorAll('dt, dd, p, h2, h3, td, th')].filter((box) =>"
    " box.offsetParent && box.scrollWidth > box.clientWidth + 1).map((box) => box.textContent.trim())"
)
"""Texts that run out of their box, over what stands beside it."""
HOUR = format_instant(NOW_MS // HOUR_MS * HOUR_MS - 5 * HOUR_MS)
PAGES = {
    "overview": "/",
    "team": f"/?team={OWN}",
    "month": f"/statements/team/{MONTH}",
    "statement": f"/statements/team/{OWN}/{MONTH}",
    "jobs": "/jobs",
    "job": f"/jobs/{OWN}-1",
    "models": "/models",
    "idle": "/idle",
    "anomalies": "/anomalies",
    "demand": "/demand",
    "queues": "/queues",
    "pool": f"/pools/{OWN}-pool",
    "trust": "/trust",
    "spend": f"/spend?period={MONTH}",
    "spend of a day": "/spend?days=1",
    "spend of a team": f"/spend?days=7&team={OWN}&by=state",
    "fleet": "/fleet",
    "fleet-hour": f"/fleet?at={HOUR}&color=owner",
    "fleet-pools": f"/fleet?at={HOUR}&by=pool",
    "fleet-nodes": f"/fleet?at={HOUR}&by=node&color=use",
    "gpu": f"/fleet/gpu/GPU-{OWN}",
    "api": "/docs",
    "nothing": "/jobs/nothing",
    "refused": "/jobs?period=never",
}
EMPTY = (
    "overview",
    "month",
    "jobs",
    "models",
    "idle",
    "anomalies",
    "demand",
    "queues",
    "trust",
    "spend",
    "fleet",
)


@pytest.fixture(scope="module")
def browser(browser):
    """The same, with axe-core beside it."""
    if not AXE.exists():
        lacking("no axe-core: npm ci in tests/pages")
    return browser


@pytest.fixture(scope="module")
def full(postgres, tmp_path_factory):
    """A fleet of two teams with findings; the second is called by markup, and so is all that it
    has.
    """
    with pytest.MonkeyPatch.context() as patch, fresh_database(postgres) as dsn:
        patch.setattr(made, "FOREIGN", HOSTILE)
        with two_teams(dsn, tmp_path_factory.mktemp("declared")) as (collector, secrets):
            for team in (OWN, HOSTILE):
                idle_job(dsn, team)
            advise_scaling(Database(dsn), NOW_MS)
            fill_queues(dsn, NOW_MS // HOUR_MS * HOUR_MS - HOUR_MS, HOSTILE.replace("/", "|"))
            yield f"http://127.0.0.1:{collector.port}", secrets["finance"]


@pytest.fixture
def empty(dsn):
    with running(dsn) as collector:
        yield f"http://127.0.0.1:{collector.port}"


def judge(browser, address, width, scheme):
    browser.look(width, scheme)
    browser.open(address)
    return browser.overhang(), browser.evaluate(OVERRUNS), browser.violations()


@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_it(browser, full, name):
    """At three widths, light and dark: no violation of axe-core, and nothing wider than the window."""
    address, secret = full
    browser.sign_in(secret)
    for scheme in ("light", "dark"):
        for width in SIZES:
            assert judge(browser, address + PAGES[name], width, scheme) == (0, [], []), (
                width,
                scheme,
            )
    if folder := os.environ.get("GPULEDGER_TEST_PICTURES"):
        for width in SIZES:
            browser.look(width)
            browser.open(address + PAGES[name])
            browser.picture(Path(folder) / f"{name}-{width}.png")


@pytest.mark.parametrize("name", EMPTY)
def test_so_it_is_while_the_ledger_is_empty(browser, empty, name):
    """The first page that anybody sees."""
    browser.sign_in("")
    for width in SIZES:
        assert judge(browser, empty + PAGES[name], width, "light") == (0, [], []), width


@pytest.mark.parametrize("name", ["overview", "statement", "job", "idle", "trust"])
def test_it_can_be_printed(browser, full, name):
    """On paper it is black on white, without the links of the header, and none of it is cut off."""
    address, secret = full
    browser.sign_in(secret)
    browser.look(720, "dark", printed=True)
    browser.open(address + PAGES[name])
    assert browser.overhang() == 0
    assert (
        browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert browser.evaluate(
        "[...document.querySelectorAll('nav')].every((nav) => nav.offsetHeight === 0)"
    )
    cut = (
        "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth >"
        " box.clientWidth + 1).length"
    )
    assert browser.evaluate(cut) == 0
    assert browser.printed().startswith(b"%PDF-")


@pytest.mark.parametrize("width", [390, 768])
@pytest.mark.parametrize("name", ["gpu", "job", "jobs", "spend", "statement"])
def test_no_table_of_a_list_is_cut_off_on_a_small_screen(browser, full, name, width):
    """The cost stands in the last column, where nobody would look for it by scrolling."""
    address, secret = full
    browser.sign_in(secret)
    browser.look(width)
    browser.open(address + PAGES[name])
    cut = (
        "[...document.querySelectorAll('.scroll:has(> table)')].filter((box) => box.scrollWidth >"
        " box.clientWidth + 1).map((box) => box.getAttribute('aria-label'))"
    )
    assert browser.evaluate(cut) == []


def test_axe_finds_what_is_wrong(browser, full):
    """The judge itself: a button without a name and gray on gray are found."""
    address, secret = full
    browser.sign_in(secret)
    browser.look(1280)
    browser.open(address + "/idle")
    browser.evaluate(
        "document.querySelector('h1').insertAdjacentHTML('afterend', '<button></button>');"
        "document.querySelector('h1').style.color = '#ddd'"
    )
    assert {line.partition(":")[0] for line in browser.violations()} == {
        "button-name",
        "color-contrast",
    }
