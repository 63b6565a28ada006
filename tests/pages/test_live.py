"""In a browser: a page shows what is new without being loaded anew, and disturbs nobody."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from fakes.two_teams import NOW_MS, OWN, finding_of
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.api import live
from gpuledger_collector.insight.nodes import SILENT_MS
from gpuledger_collector.storage.findings import findings
from pages.waiting import PATIENCE_S, become

pytestmark = pytest.mark.slow
STATE = "document.querySelector('#live').dataset.state"
NEWS = "document.querySelector('.live-news').textContent"
SHIFT = """new Promise((tell) => new PerformanceObserver((list) =>
    tell(list.getEntries().reduce((sum, entry) => sum + entry.value, 0)))
    .observe({type: 'layout-shift', buffered: true}) || setTimeout(tell, 500, 0))"""
"""By how much parts of the page have moved by themselves."""
MARKED = """window.marked = new Set(); new MutationObserver(() =>
    document.querySelectorAll('.changed').forEach((part) => window.marked.add(part)))
    .observe(document.body, {attributes: true, childList: true, subtree: true})"""
"""Collects what is marked, however shortly."""
HOUR = format_instant(NOW_MS // HOUR_MS * HOUR_MS - 5 * HOUR_MS)


@pytest.fixture(scope="module")
def quick_looks():
    """Collectors look every half second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live.LiveHub.__init__, "__defaults__", (0.5,))
        yield


@pytest.fixture(scope="module")
def ledger(quick_looks, signed_in):
    """Such a collector, and its database."""
    return signed_in


def insert_finding(dsn, team, key, **changes):
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT a.id, w.id FROM accelerator a, workload w WHERE a.uuid = %s AND w.external_id"
            " = %s",
            (f"GPU-{team}", f"{team}-1"),
        ).fetchone()
        found = replace(
            finding_of(team, "idle"),
            key=key,
            state="gone_idle",
            accelerator_id=row[0],
            workload_id=row[1],
            **changes,
        )
        findings.upsert(connection, [found])


def followed(browser, address):
    """Open a page and wait until it is live and knows one look."""
    browser.open(address)
    browser.evaluate(
        "window.stayed = true; window.looks = 0;"
        "document.querySelector('#live') && new EventSource(document.querySelector('[data-stream]')"
        ".dataset.stream).addEventListener('look', () => window.looks++)"
    )
    become(browser, "window.looks > 1")
    assert browser.evaluate(STATE) == "live"


def take_picture(browser, name):
    if folder := os.environ.get("GPULEDGER_TEST_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")


@pytest.mark.parametrize("path", ["/?reload=off", "/idle"])
def test_a_new_finding_is_seen_without_a_reload(browser, ledger, path):
    """Its row is marked, the sentence says it, and the focus and what is open stay."""
    address, dsn, _, _ = ledger
    followed(browser, address + path)
    rows = browser.evaluate("document.querySelectorAll('tr[data-key]').length")
    browser.evaluate(
        "window.link = document.querySelector('#main a'); window.link.focus();" + MARKED
    )
    assert browser.evaluate(SHIFT) == 0
    insert_finding(dsn, OWN, f"new on {path}")
    become(browser, f"document.querySelectorAll('tr[data-key]').length === {rows + 1}")
    marked = "[...window.marked].filter((part) => part.localName === 'tr').length"
    assert browser.evaluate(marked) == 1
    take_picture(browser, f"live-{'idle' if path == '/idle' else 'overview'}")
    assert browser.evaluate(NEWS).endswith(": 1 new idle GPU")
    assert browser.evaluate("window.stayed && document.activeElement === window.link")
    become(browser, "document.querySelectorAll('.changed').length === 0")


def test_a_node_that_falls_silent_is_said(browser, ledger):
    """On the list of nodes and in the sentence; and its return."""
    address, dsn, _, _ = ledger
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE node SET last_seen_at = now()")
        followed(browser, f"{address}/?reload=off")
        connection.execute(
            "UPDATE node SET last_seen_at = now() - make_interval(secs => %s) WHERE name = %s",
            (SILENT_MS / 1000 + 60, f"{OWN}-node"),
        )
        become(browser, f"{NEWS}.endsWith('node {OWN}-node fell silent')")
        row = f"document.querySelector('tr[data-key=\"{OWN}-node\"]').textContent"
        assert "silent" in browser.evaluate(row)
        connection.execute("UPDATE node SET last_seen_at = now()")
        become(browser, f"{NEWS}.endsWith('node {OWN}-node reports again')")


def test_a_map_keeps_what_is_open_and_chosen(browser, ledger):
    """A GPU gets a holder: its square changes; the table stays open, the scrubber where it was, and
    charts answer.
    """
    address, dsn, _, _ = ledger
    followed(browser, f"{address}/fleet")
    browser.evaluate(
        "document.querySelector('#picture details').open = true;"
        "document.querySelector('#scrubber').focus()"
    )
    at = browser.evaluate("document.querySelector('#scrubber').value")
    browser.evaluate(MARKED)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO gpu_latest (accelerator_id, at_ms, state, workload_id, gpu_utilization_ratio)"
            " SELECT a.id, %s, 'held', w.id, 0.8 FROM accelerator a, workload w"
            " WHERE a.uuid = %s AND w.external_id = %s ON CONFLICT (accelerator_id) DO UPDATE SET"
            " at_ms = excluded.at_ms, state = excluded.state, workload_id = excluded.workload_id,"
            " gpu_utilization_ratio = excluded.gpu_utilization_ratio",
            (int(time.time() * 1000), f"GPU-{OWN}", f"{OWN}-1"),
        )
    become(browser, f"{NEWS}.endsWith('1 GPU changed state')")
    assert browser.evaluate("[...window.marked].map((part) => part.localName).join()") == "li"
    take_picture(browser, "live-fleet")
    assert browser.evaluate("document.querySelector('#picture details').open")
    assert browser.evaluate("document.activeElement.id") == "scrubber"
    assert browser.evaluate("document.querySelector('#scrubber').value") == at
    assert browser.evaluate(
        "[...document.querySelectorAll('.map-nodes svg')].every((svg) => !svg.querySelector('a title'))"
    )
    # A past hour is not live, and now is again.
    browser.evaluate(
        "(() => { const field = document.querySelector('#at'); field.value ="
        f" '{HOUR[:16]}'; field.dispatchEvent(new Event('change', {{bubbles: true}})) }})()"
    )
    become(browser, "!document.querySelector('#live').classList.contains('on')")
    browser.open(f"{address}/fleet?at={HOUR}")
    assert not browser.evaluate("document.querySelector('#live').classList.contains('on')")


def test_it_can_be_paused_by_the_keyboard(browser, ledger):
    """While it is, nothing changes and no stream is open; then it catches up."""
    address, dsn, collector, _ = ledger
    followed(browser, f"{address}/idle")
    browser.open(f"{address}/idle")  # without the stream of the test itself
    become(browser, "document.querySelector('#live').classList.contains('on')")
    rows = browser.evaluate("document.querySelectorAll('tr[data-key]').length")
    browser.evaluate("document.querySelector('#live button').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="Enter", text="\r", code="Enter")
    assert browser.evaluate(STATE) == "paused"
    assert browser.evaluate("document.querySelector('#live button').textContent") == "Resume"
    assert browser.evaluate("document.querySelector('.live-state').textContent").startswith(
        "Paused: as of "
    )
    insert_finding(dsn, OWN, "while it was paused")
    end = time.monotonic() + PATIENCE_S
    while "gpuledger_live_streams 0.0" not in collector.request("GET", "/metrics")[2]:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert browser.evaluate("document.querySelectorAll('tr[data-key]').length") == rows
    browser.evaluate("document.querySelector('#live button').click()")
    become(browser, f"document.querySelectorAll('tr[data-key]').length === {rows + 1}")


def test_a_tab_that_was_hidden_is_renewed(browser, ledger):
    """It heard nothing meanwhile; a paused one asks for nothing."""
    address, _, _, _ = ledger
    followed(browser, f"{address}/idle")
    browser.evaluate(
        "window.ahead = 0; window.fetched = 0;"
        "const now = performance.now.bind(performance); performance.now = () => now() + ahead;"
        "const load = window.fetch; window.fetch = (...all) => { fetched++; return load(...all) };"
        "const look = (hidden) => {"
        " Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')) };"
        "window.hide = () => { look(true); ahead += 20_000; look(false) }"
    )
    browser.evaluate("window.hide()")
    become(browser, "window.fetched === 1")
    browser.evaluate("document.querySelector('#live button').click(); window.hide()")
    time.sleep(3)  # longer than the pause after which those who watch ask
    assert browser.evaluate("window.fetched") == 1
    assert browser.evaluate("window.stayed")


def test_a_lost_connection_is_said_with_its_instant(browser, ledger, monkeypatch):
    """And it comes back by itself."""
    address, _, collector, _ = ledger
    followed(browser, f"{address}/idle")
    watch = type(collector.parts.app.state.live_hub._watch)
    look = watch.look

    def fail(*_):
        raise psycopg.OperationalError("gone")

    monkeypatch.setattr(watch, "look", fail)
    become(browser, f"{STATE} === 'lost'")
    assert browser.evaluate("document.querySelector('.live-state').textContent").startswith(
        "Connection lost: as of "
    )
    take_picture(browser, "live-lost")
    monkeypatch.setattr(watch, "look", look)
    become(browser, f"{STATE} === 'live'")


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ("MOST_OF_READER", "Not live: too many open pages; as of "),
        ("MOST_STREAMS", "Not live: too many live pages are open; as of "),
    ],
)
def test_a_page_without_a_place_says_so(browser, ledger, monkeypatch, bound, sentence):
    """It is no lost connection; the page comes back when there is a place."""
    address, _, _, _ = ledger
    with monkeypatch.context() as patch:
        patch.setattr(live, bound, 0)
        browser.open(f"{address}/idle")
        become(browser, f"{STATE} === 'refused'")
        text = browser.evaluate("document.querySelector('.live-state').textContent")
        assert text.startswith(sentence)
        take_picture(browser, f"live-refused-{bound}")
    become(browser, f"{STATE} === 'live'")
    assert browser.evaluate("document.querySelector('.live-state').textContent")[:4] == "Live"


def test_paper_and_other_pages_are_not_live(browser, ledger):
    """Printed, the mark is gone; a past month and other pages have none, nor its script."""
    address, _, _, _ = ledger
    browser.open(f"{address}/")
    browser.look(720, printed=True)
    assert browser.evaluate("document.querySelector('#live').offsetHeight") == 0
    browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not browser.evaluate("document.querySelector('#live').classList.contains('on')")
    browser.look(1280)
    for path in ("/?period=2025-01", "/jobs", "/trust", "/idle?days=7"):
        browser.open(address + path)
        assert not browser.evaluate("document.querySelector('[data-stream]')"), path


def test_without_scripts_nothing_of_it_is_seen(browser, ledger):
    """No mark, no empty place."""
    address, _, _, _ = ledger
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(f"{address}/")
        tree = json.dumps(browser.ask("Accessibility.getFullAXTree"))
        assert "Pause" not in tree
        assert "Overview" in tree
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
