"""GET and POST /v1/budgets/ack and /v1/notifications/ack: the pages behind the links of mails. Their signature is all
that is asked for. A link changes something once: after that it says when it was used. A letter's link expires as well,
and so does what is said by it: after some days its people are told anew.
"""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.api.reads import guarded
from gpuledger_collector.notifications.links import NOTIFICATION_PATH, PATH, AckLinks
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications import finding_notifications as notifications
from gpuledger_collector.storage.notifications import links as used
from gpuledger_collector.storage.notifications.finding_rules import IDLE, MAX_ACK_DAYS, Notification
from gpuledger_common.escapes import escape_text

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex"></head>
<body style="font-family:sans-serif;max-width:32em;margin:3em auto;padding:0 1em;line-height:1.5">
<h1 style="font-size:1.3em">{title}</h1>{body}</body></html>"""
BUTTON = '<form method="post"><button style="font-size:1em;padding:.6em 1.2em">I know of it</button></form>'
MUTES = (1, 7, 30)
"""Days that a page offers."""
MEANT_SO = (
    '<form method="post" action="{action}&amp;days={days}" style="margin:0 0 .8em 0">'
    '<button style="font-size:1em;padding:.6em 1.2em">for {said}</button></form>'
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    403: {"description": "The link is not one of ours."},
    404: {"description": "What the link is for is no longer kept."},
    410: {"description": "The link has expired, or was used."},
}
Number = Annotated[int, Query(ge=0, lt=2**62)]
Mac = Annotated[str, Query(max_length=64)]
Told = Annotated[int, Query(ge=0, lt=2**62, description="When its mail told of it; 0: a mail of an earlier version.")]


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """A page of this title, which may hold anything; the body is markup."""
    shown = html.escape(escape_text(title))
    return HTMLResponse(PAGE.format(title=shown, body=body), status, headers=HEADERS)


def used_page(title: str, at_ms: int) -> HTMLResponse:
    """What a link says after it was used."""
    at = html.escape(format_instant(at_ms - at_ms % 1000))
    return page(title, f"<p>This link was used at {at}. It does nothing more.</p>", 410)


def router(links: AckLinks, ledger: Database, clock: Callable[[], dt.datetime]) -> APIRouter:
    """The two routes."""
    made = APIRouter(tags=["budgets"], responses=REFUSALS)

    def known(budget: int, period: int, told: int, mac: str) -> tuple[str, int | None]:
        if not links.holds(budget, period, told, mac):
            raise HTTPException(403, "this link is not one that we sent")
        with ledger.transaction() as connection:
            name = budgets.name_of(connection, budget)
            used_ms = used.used_ms(connection, mac)
        if name is None:
            raise HTTPException(404, "this budget is no longer in force")
        return name, used_ms

    @made.get(PATH, response_class=HTMLResponse)
    def ask(budget: Number, period: Number, mac: Mac, told: Told = 0) -> HTMLResponse:
        """A page with a button; opening it changes nothing."""
        name, used_ms = guarded(lambda: known(budget, period, told, mac))
        if used_ms is not None:
            return used_page(f"Budget {name}", used_ms)
        said = html.escape(escape_text(f"Nobody above you will be told that alerts of budget {name} wait."))
        return page(f"Budget {name}", f"<p>{said}</p>{BUTTON}")

    @made.post(PATH, response_class=HTMLResponse)
    def acknowledge(budget: Number, period: Number, mac: Mac, told: Told = 0) -> HTMLResponse:
        """Acknowledges the alerts of the budget that fire in the period, once; after that the link does nothing."""
        name, used_ms = guarded(lambda: known(budget, period, told, mac))
        at_ms = round(clock().timestamp() * 1000)

        def done() -> int | None:
            with ledger.transaction() as connection:
                if not used.use(connection, mac, at_ms):
                    return None
                return budgets.acknowledge(connection, name, "by the link of a mail", at_ms, period)

        count = guarded(done)
        if count is None:
            return used_page(f"Budget {name}", used_ms or at_ms)
        said = f"<p>{count} alerts are acknowledged.</p>" if count else "<p>No alert waits any more.</p>"
        return page(f"Budget {name}", said)

    _notifications(made, links, ledger, clock)
    return made


def question(notification: Notification, query: str) -> str:
    """What the page of a letter asks, with a button for each answer."""
    action = html.escape(query)
    buttons = "".join(
        MEANT_SO.format(action=action, days=days, said="a day" if days == 1 else f"{days} days") for days in MUTES
    )
    said = "<p>It is meant so: nobody is told of it, and nothing is done about it,</p>"
    if notification.acked_by:
        said = f"<p>{html.escape(escape_text(notification.acked_by))} has said so before.</p>{said}"
    return said + buttons


def acknowledge_notification(ledger: Database, notification: Notification, mac: str, days: int, at_ms: int) -> bool:
    """It is meant so for some days; False where the link of this signature was used before."""
    with ledger.transaction() as connection:
        first = used.use(connection, mac, at_ms)
        if first:
            who = "by the link of its letter"
            notifications.acknowledge(connection, notification.id, who, at_ms + days * DAY_MS, "", at_ms)
        return first


def _notifications(made: APIRouter, links: AckLinks, ledger: Database, clock: Callable[[], dt.datetime]) -> None:
    """The two routes of letters."""

    def known(notification: int, expires: int, mac: str) -> tuple[Notification, str, int | None]:
        if not links.holds_notification(notification, expires, mac):
            raise HTTPException(403, "this link is not one that we sent")
        if clock().timestamp() * 1000 >= expires:
            raise HTTPException(410, "this link has expired; gpuledger notifications ack says the same")
        with ledger.transaction() as connection:
            found = notifications.by_id(connection, notification)
            if found is None:
                raise HTTPException(404, "this letter is no longer kept")
            return found, notifications.subject_of(connection, found), used.used_ms(connection, mac)

    @made.get(NOTIFICATION_PATH, response_class=HTMLResponse)
    def ask_notification(notification: Number, expires: Number, mac: Mac) -> HTMLResponse:
        """A page with buttons; opening it changes nothing."""
        found, name, used_ms = guarded(lambda: known(notification, expires, mac))
        if used_ms is not None:
            return used_page(name, used_ms)
        return page(name, question(found, f"?notification={notification}&expires={expires}&mac={mac}"))

    @made.post(NOTIFICATION_PATH, response_class=HTMLResponse)
    def acknowledged(
        notification: Number, expires: Number, mac: Mac, days: Annotated[int, Query(ge=1, le=MAX_ACK_DAYS)] = 7
    ) -> HTMLResponse:
        """It is meant so for some days, said once by this link; it stands in the audit log."""
        found, name, used_ms = guarded(lambda: known(notification, expires, mac))
        at_ms = round(clock().timestamp() * 1000)
        if not guarded(lambda: acknowledge_notification(ledger, found, mac, days, at_ms)):
            return used_page(name, used_ms or at_ms)
        later = "After that you are told anew." if found.kind == IDLE else "A later episode is told all the same."
        said = f"<p>Noted until {html.escape(format_instant(at_ms + days * DAY_MS))}. {later}</p>"
        return page(name, said)
