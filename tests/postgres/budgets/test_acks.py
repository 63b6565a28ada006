"""The link of a budget's mail: it acknowledges what it is signed for, on a press of its button."""

from __future__ import annotations

import datetime as dt
import hmac
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl, urlsplit

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpuledger_collector.api import acks
from gpuledger_collector.notifications.links import AckLinks
from gpuledger_collector.settings import load, read_link_secret
from gpuledger_collector.storage.database import Database
from gpuledger_common.instants import to_ms
from gpuledger_common.settings import SettingsError

NOW_MS = to_ms(dt.datetime(2025, 10, 17, tzinfo=dt.UTC))
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


def asked(number: int, period: int, told: int) -> dict[str, str]:
    """The query of a link."""
    return dict(parse_qsl(urlsplit(LINKS.budget(number, period, told)).query))


def test_a_link_acknowledges_on_its_button_only(october, apply, watch, dsn) -> None:
    """Opening changes nothing, the button acknowledges, after it the link says so, and a changed
    link is refused.
    """
    apply(BUDGET)
    watch(17)
    ((number, period),) = october.rows(
        "SELECT DISTINCT budget_id, period_start_ms FROM budget_alert"
    )
    app = FastAPI()
    app.include_router(acks.router(LINKS, Database(dsn), lambda: NOW_MS))
    client = TestClient(app)
    parts = urlsplit(LINKS.budget(number, period, 17))
    link = f"{parts.path}?{parts.query}"
    states = "SELECT DISTINCT state FROM budget_alert WHERE rule = 'actual'"
    page = client.get(link)
    assert page.status_code == 200
    assert "vision &lt;b&gt;" in page.text
    assert october.rows(states) == [("firing",)]
    assert "3 alerts are acknowledged" in client.post(link).text
    assert october.rows(states) == [("acked",)]
    october.connection.execute("UPDATE budget_alert SET state = 'firing'")
    october.connection.commit()
    for again in (client.get(link), client.post(link), client.post(link)):
        assert again.status_code == 410
        assert 'title="2025-10-17 00:00 UTC">17 Oct 2025, 00:00</time>' in again.text
        assert "<button" not in again.text
    assert ("firing",) in october.rows(states)
    assert client.get(acks.PATH, params=asked(number, period, 18)).status_code == 200
    for wrong in (
        link[:-1] + ("0" if link[-1] != "0" else "1"),
        link.replace(f"period={period}", "period=0"),
        link.replace("sent=17", "sent=18"),
        link.replace("sent=17&", ""),
        link + "ä",
    ):
        assert client.post(wrong).status_code == 403 or client.post(wrong).status_code == 422
    gone = urlsplit(LINKS.budget(number + 99, period, 17))
    assert client.get(f"{gone.path}?{gone.query}").status_code == 404


def test_a_short_secret_and_a_missing_address_are_refused(tmp_path) -> None:
    """A secret that could be guessed, or links to nowhere, are faults of the settings."""
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SettingsError, match="32 characters"):
        read_link_secret(tmp_path / "secret")
    with pytest.raises(SettingsError, match="public_url"):
        load(None, {"GPULEDGER_LINK_SECRET_FILE": str(tmp_path / "secret")}, tmp_path)


def test_buttons_pressed_at_once_acknowledge_once(october, apply, watch, dsn) -> None:
    """Two presses in flight: one acknowledges, the other is told that the link was used."""
    apply(BUDGET)
    watch(17)
    ((number, period),) = october.rows(
        "SELECT DISTINCT budget_id, period_start_ms FROM budget_alert"
    )
    october.connection.commit()
    app = FastAPI()
    app.include_router(acks.router(LINKS, Database(dsn), lambda: NOW_MS))
    client = TestClient(app)
    with ThreadPoolExecutor(8) as pool:
        pressed = [
            pool.submit(client.post, acks.PATH, params=asked(number, period, 17)) for _ in range(8)
        ]
    answers = [one.result() for one in pressed]
    assert sorted(one.status_code for one in answers) == [200, *[410] * 7]
    assert sum("alerts are acknowledged" in one.text for one in answers) == 1


def test_a_link_of_an_earlier_version_serves_once(october, apply, watch, dsn) -> None:
    """Its signature does not say when it was told."""
    apply(BUDGET)
    watch(17)
    ((number, period),) = october.rows(
        "SELECT DISTINCT budget_id, period_start_ms FROM budget_alert"
    )
    october.connection.commit()
    app = FastAPI()
    app.include_router(acks.router(LINKS, Database(dsn), lambda: NOW_MS))
    client = TestClient(app)
    said = f"ack/{number}/{period}".encode()
    old = {
        "budget": number,
        "period": period,
        "mac": hmac.new(LINKS.secret, said, "sha256").hexdigest(),
    }
    assert [client.post(acks.PATH, params=old).status_code for _ in range(2)] == [200, 410]
