"""GET and POST /v1/budgets/ack and /v1/notifications/ack: the pages behind the links of mails.

The signature of a link is its only credential. A link works once; afterwards its page says when it
was used. The link of a finding's notification expires as well, and so does the acknowledgement:
after some days the finding is notified again.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.api.context import LedgerRoute
from gpuledger_collector.export.instants import say_instant
from gpuledger_collector.insight.notifications.finding_rules import IDLE, MAX_ACK_DAYS, Notification
from gpuledger_collector.notifications.links import NOTIFICATION_PATH, PATH, AckLinks
from gpuledger_collector.services.acknowledgements import (
    LinkedNotification,
    read_budget_link,
    read_notification_link,
    use_budget_link,
    use_notification_link,
)
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.database import Database
from gpuledger_common.escapes import escape_text
from gpuledger_common.plurals import plural

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex"></head>
<body style="font-family:sans-serif;max-width:32em;margin:3em auto;padding:0 1em;line-height:1.5">
<h1 style="font-size:1.3em">{title}</h1>{body}</body></html>"""
BUTTON = (
    '<form method="post"><button style="font-size:1em;padding:.6em'
    ' 1.2em">Acknowledge</button></form>'
)
MUTE_DAYS = (1, 7, 30)
"""Days that a page offers."""
MUTE_BUTTON = (
    '<form method="post" action="{action}&amp;days={days}" style="margin:0 0 .8em 0">'
    '<button style="font-size:1em;padding:.6em 1.2em">for {label}</button></form>'
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    403: {"description": "The signature of the link is wrong."},
    404: {"description": "The budget or notification no longer exists."},
    410: {"description": "The link has expired, or was used."},
}
Number = Annotated[int, Query(ge=0, lt=2**62)]
Mac = Annotated[str, Query(max_length=64)]
NotifiedAt = Annotated[
    int,
    Query(
        alias="sent",
        ge=0,
        lt=2**62,
        description="When the mail was written; 0: by an earlier version.",
    ),
]


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """A page with this title, which is escaped; the body is markup."""
    return HTMLResponse(PAGE.format(title=_escape(title), body=body), status, headers=HEADERS)


def used_page(database: Database, title: str, at_ms: int) -> HTMLResponse:
    """The page of a link that was used before."""
    at = _say_instant(database, at_ms)
    return page(title, f"<p>This link was used on {at}. It has no further effect.</p>", 410)


def _say_instant(database: Database, at_ms: int) -> Markup:
    with database.transaction(read_only=True) as connection:
        return say_instant(at_ms, calendar=calendar_of(connection))


def _escape(text: str) -> str:
    return html.escape(escape_text(text))


def router(ack_links: AckLinks, database: Database, clock: Callable[[], int]) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["budgets"], responses=REFUSALS, route_class=LedgerRoute)
    _add_budget_routes(routes, ack_links, database, clock)
    _add_notification_routes(routes, ack_links, database, clock)
    return routes


def _add_budget_routes(
    routes: APIRouter, ack_links: AckLinks, database: Database, clock: Callable[[], int]
) -> None:
    def read_link(budget: int, period: int, notified_at: int, mac: str) -> tuple[str, int | None]:
        """The budget's name, and when the link was used."""
        if not ack_links.holds(budget, period, notified_at, mac):
            raise HTTPException(403, "the signature of this link is wrong")
        linked = read_budget_link(database, budget, mac)
        if linked.name is None:
            raise HTTPException(404, "this budget is no longer in force")
        return linked.name, linked.used_ms

    @routes.get(PATH, response_class=HTMLResponse)
    def ask(budget: Number, period: Number, mac: Mac, notified_at: NotifiedAt = 0) -> HTMLResponse:
        """A page with a button; opening it changes nothing."""
        # GET changes nothing: mail scanners and previews open links.
        name, used_ms = read_link(budget, period, notified_at, mac)
        if used_ms is not None:
            return used_page(database, f"Budget {name}", used_ms)
        effect = _escape(f"Alerts of budget {name} in this period will not be escalated.")
        return page(f"Budget {name}", f"<p>{effect}</p>{BUTTON}")

    @routes.post(PATH, response_class=HTMLResponse)
    def acknowledge(
        budget: Number, period: Number, mac: Mac, notified_at: NotifiedAt = 0
    ) -> HTMLResponse:
        """Acknowledge the budget's firing alerts of the period, once."""
        name, used_ms = read_link(budget, period, notified_at, mac)
        at_ms = clock()
        count = use_budget_link(database, mac, name, period, at_ms)
        if count is None:
            return used_page(database, f"Budget {name}", used_ms or at_ms)
        result = (
            f"<p>{plural(count, 'alert')} {'is' if count == 1 else 'are'} acknowledged.</p>"
            if count
            else "<p>No alert is waiting any more.</p>"
        )
        return page(f"Budget {name}", result)


def _add_notification_routes(
    routes: APIRouter, ack_links: AckLinks, database: Database, clock: Callable[[], int]
) -> None:
    def read_link(notification_id: int, expires: int, mac: str) -> LinkedNotification:
        """The notification of a link. Raises HTTPException."""
        if not ack_links.holds_notification(notification_id, expires, mac):
            raise HTTPException(403, "the signature of this link is wrong")
        if clock() >= expires:
            raise HTTPException(
                410, "this link has expired; use `gpuledger notifications ack` instead"
            )
        linked = read_notification_link(database, notification_id, mac)
        if linked is None:
            raise HTTPException(404, "this notification no longer exists")
        return linked

    @routes.get(NOTIFICATION_PATH, response_class=HTMLResponse)
    def ask_notification(notification: Number, expires: Number, mac: Mac) -> HTMLResponse:
        """A page with buttons; opening it changes nothing."""
        linked = read_link(notification, expires, mac)
        if linked.used_ms is not None:
            return used_page(database, linked.subject, linked.used_ms)
        query = f"?notification={notification}&expires={expires}&mac={mac}"
        return page(linked.subject, _question(linked.notification, query))

    @routes.post(NOTIFICATION_PATH, response_class=HTMLResponse)
    def acknowledge_notification(
        notification: Number,
        expires: Number,
        mac: Mac,
        days: Annotated[int, Query(ge=1, le=MAX_ACK_DAYS)] = 7,
    ) -> HTMLResponse:
        """Acknowledge the finding as intended for some days, once; it is recorded in the audit log."""
        linked = read_link(notification, expires, mac)
        at_ms = clock()
        until_ms = at_ms + days * DAY_MS
        if not use_notification_link(database, mac, linked.notification.id, until_ms, at_ms):
            return used_page(database, linked.subject, linked.used_ms or at_ms)
        later = (
            "Afterwards you are notified again."
            if linked.notification.kind == IDLE
            else "Until then you are not notified of later episodes with the same cause."
        )
        return page(
            linked.subject,
            f"<p>Acknowledged until {_say_instant(database, until_ms)}. {later}</p>",
        )


def _question(notification: Notification, query: str) -> str:
    """The body of a notification's page, with a button for each answer."""
    action = html.escape(query)
    buttons = "".join(
        MUTE_BUTTON.format(action=action, days=days, label="a day" if days == 1 else f"{days} days")
        for days in MUTE_DAYS
    )
    intro = "<p>This is intended: send no notifications and take no action</p>"
    if notification.acked_by:
        intro = f"<p>{_escape(notification.acked_by)} acknowledged it before.</p>{intro}"
    return intro + buttons
