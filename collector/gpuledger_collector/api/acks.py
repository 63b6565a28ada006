"""GET and POST /v1/budgets/ack: the page behind the link of a budget's mail. Its signature is all that is asked for."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse

from gpuledger_collector.api.reads import guarded
from gpuledger_collector.notify.links import PATH, AckLinks
from gpuledger_collector.storage import budgets
from gpuledger_collector.storage.ledgers import Ledger

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex"></head>
<body style="font-family:sans-serif;max-width:32em;margin:3em auto;padding:0 1em;line-height:1.5">
<h1 style="font-size:1.3em">{title}</h1>{body}</body></html>"""
BUTTON = '<form method="post"><button style="font-size:1em;padding:.6em 1.2em">I know of it</button></form>'
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
}
Number = Annotated[int, Query(ge=0, lt=2**62)]
Mac = Annotated[str, Query(max_length=64)]


def router(links: AckLinks, ledger: Ledger, clock: Callable[[], dt.datetime]) -> APIRouter:
    """The two routes."""
    made = APIRouter(tags=["budgets"], responses={403: {"description": "The link is not one of ours."}})

    def name_of(budget: int, period: int, mac: str) -> str:
        if not links.holds(budget, period, mac):
            raise HTTPException(403, "this link is not one that we sent")
        with ledger.connect() as connection:
            name = budgets.name_of(connection, budget)
        if name is None:
            raise HTTPException(404, "this budget is no longer in force")
        return name

    @made.get(PATH, response_class=HTMLResponse)
    def ask(budget: Number, period: Number, mac: Mac) -> HTMLResponse:
        """A page with a button; opening it changes nothing."""
        name = guarded(lambda: name_of(budget, period, mac))
        said = f"<p>Nobody above you will be told that alerts of budget {html.escape(name)} wait.</p>{BUTTON}"
        return HTMLResponse(PAGE.format(title=html.escape(f"Budget {name}"), body=said), headers=HEADERS)

    @made.post(PATH, response_class=HTMLResponse)
    def acknowledge(budget: Number, period: Number, mac: Mac) -> HTMLResponse:
        """Acknowledges the alerts of the budget that fire in the period; again, it does nothing."""
        name = guarded(lambda: name_of(budget, period, mac))

        def done() -> int:
            with ledger.connect() as connection:
                at_ms = round(clock().timestamp() * 1000)
                return budgets.acknowledge(connection, name, "by the link of a mail", at_ms, period)

        count = guarded(done)
        said = f"<p>{count} alerts are acknowledged.</p>" if count else "<p>No alert waits any more.</p>"
        return HTMLResponse(PAGE.format(title=html.escape(f"Budget {name}"), body=said), headers=HEADERS)

    return made
