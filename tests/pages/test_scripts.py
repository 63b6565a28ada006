"""With scripts, charts answer to the arrow keys and a form swaps its list; the policy lets both run."""

import pytest

from fakes.two_teams import FOREIGN, MONTH, OWN
from gpuledger_collector.export import plots
from pages.waiting import become, until_forecast

pytestmark = pytest.mark.slow
TIP = "document.querySelector('.tip')"


def press(browser, key):
    browser.evaluate(
        f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown',"
        f" {{key: '{key}', bubbles: true}}))"
    )


def test_a_chart_answers_to_the_arrow_keys(browser, address):
    """Each step says its hour and its value; Escape ends it."""
    until_forecast(browser, address)
    browser.evaluate("document.querySelector('svg.plot[data-marks]').focus()")
    press(browser, "Home")
    first = browser.evaluate(f"{TIP}.textContent")
    assert ", " in first
    assert ": " in first
    press(browser, "ArrowRight")
    assert browser.evaluate(f"{TIP}.textContent") != first
    press(browser, "End")
    assert "likely" in browser.evaluate(f"{TIP}.textContent")
    press(browser, "Escape")
    assert browser.evaluate(f"{TIP}.hidden")


def test_a_form_swaps_its_list(browser, address):
    """The list and the address change, empty fields are not in it, and the page is not loaded anew."""
    browser.open(f"{address}/jobs?period={MONTH}")
    browser.evaluate("window.stayed = true")
    browser.evaluate(
        "(() => { const field = document.querySelector('input[type=search]');"
        f" field.value = '{OWN}-job'; field.dispatchEvent(new Event('input', {{bubbles: true}})) }})()"
    )
    become(browser, "location.search.includes('q=')")
    become(browser, f"!document.querySelector('#main').textContent.includes('{FOREIGN}-job')")
    assert browser.evaluate("window.stayed")
    assert browser.evaluate("location.search") == f"?period={MONTH}&q={OWN}-job&by=none&sort=cost"
    assert f"q={OWN}-job" in browser.evaluate(
        "document.querySelector('#choices a[href*=csv]').getAttribute('href')"
    )


def test_marks_say_what_a_plot_shows():
    """Values, gaps and what is to come, each with the name of its step, escaped."""
    plot = plots.spark(
        [1.0, None], "t", "d", [(1.0, 2.0, 3.0)], steps_named=["<a>", "b", "c"], axis=True
    )
    assert "&lt;a&gt;: 1.0" in plot
    assert "b: not known" in plot
    assert "c: 1.0 to 3.0, likely 2.0" in plot
