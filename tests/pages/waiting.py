"""Waiting for what pages compute in the background."""

import time

PATIENCE_S = 60


def until_forecast(browser, address: str) -> None:
    """Open the demand until its forecast is made."""
    end = time.monotonic() + PATIENCE_S
    while True:
        browser.open(f"{address}/demand?reload=off")
        if browser.evaluate("Boolean(document.querySelector('svg.plot[data-marks]'))"):
            return
        assert time.monotonic() < end, "no forecast was made"
        time.sleep(0.5)
