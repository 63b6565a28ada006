"""Waiting for what pages show after a while."""

import time

PATIENCE_S = 90


def become(browser, expression: str) -> None:
    """Wait until an expression of the page is true."""
    end = time.monotonic() + PATIENCE_S
    while not browser.evaluate(f"Boolean({expression})"):
        said = "document.querySelector('#live')?.textContent"
        assert time.monotonic() < end, (expression, browser.evaluate(said))
        time.sleep(0.05)


def until_forecast(browser, address: str) -> None:
    """Open the demand until its forecast is made."""
    end = time.monotonic() + PATIENCE_S
    while True:
        browser.open(f"{address}/demand?reload=off")
        if browser.evaluate("Boolean(document.querySelector('svg.plot[data-marks]'))"):
            return
        assert time.monotonic() < end, "no forecast was made"
        time.sleep(0.5)
