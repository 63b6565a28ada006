"""The link of a budget's mail: it acknowledges what it is signed for, on a press of its button."""

from __future__ import annotations

import datetime as dt
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpuledger_collector.api import acks
from gpuledger_collector.notify.links import AckLinks
from gpuledger_collector.settings import SettingsError, load, read_link_secret
from gpuledger_collector.storage.ledgers import Ledger

LINKS = AckLinks("https://gpuledger.example.com", b"k" * 32)
BUDGET = """
[[budget]]
name = "vision <b>"
team = "vision"
period = "month"
amount = 400
currency = "USD"
recipients = ["lead@example.com"]
"""


def test_a_link_acknowledges_on_its_button_only(october, apply, watch, dsn) -> None:
    """Opening changes nothing, the button acknowledges once, and a changed link is refused."""
    apply(BUDGET)
    watch(17)
    ((number, period),) = october.rows("SELECT DISTINCT budget_id, period_start_ms FROM budget_alert")
    app = FastAPI()
    app.include_router(acks.router(LINKS, Ledger(dsn), lambda: dt.datetime(2025, 10, 17, tzinfo=dt.UTC)))
    client = TestClient(app)
    parts = urlsplit(LINKS.link(number, period))
    link = f"{parts.path}?{parts.query}"
    states = "SELECT DISTINCT state FROM budget_alert WHERE rule = 'actual'"
    page = client.get(link)
    assert page.status_code == 200
    assert "vision &lt;b&gt;" in page.text
    assert october.rows(states) == [("firing",)]
    assert "3 alerts are acknowledged" in client.post(link).text
    assert october.rows(states) == [("acked",)]
    assert "No alert waits" in client.post(link).text
    for wrong in (
        link[:-1] + ("0" if link[-1] != "0" else "1"),
        link.replace(f"period={period}", "period=0"),
        link + "ä",
    ):
        assert client.post(wrong).status_code == 403 or client.post(wrong).status_code == 422
    gone = urlsplit(LINKS.link(number + 99, period))
    assert client.get(f"{gone.path}?{gone.query}").status_code == 404


def test_a_short_secret_and_a_missing_address_are_refused(tmp_path) -> None:
    """A secret that could be guessed, or links to nowhere, are faults of the settings."""
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SettingsError, match="32 characters"):
        read_link_secret(tmp_path / "secret")
    with pytest.raises(SettingsError, match="public_url"):
        load(None, {"GPULEDGER_LINK_SECRET_FILE": str(tmp_path / "secret")}, tmp_path)
