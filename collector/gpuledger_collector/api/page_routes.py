"""What the pages share: who reads them, what an address narrows them to, answers as pages and as
CSV.

Pages are whole without scripts. Reading rates nothing, so a page says up to when the ledger is
rated. Who may read is decided as in api.context; a browser sends the token as the password of HTTP
Basic, with any user name.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period
from gpuledger_collector.api.auth.keys import Keys, KeysUnavailable, bearer_header
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.context import RETRY_AFTER_SECONDS, as_http_error, in_pieces, limits_of
from gpuledger_collector.export import html
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.site import Filters, Site
from gpuledger_collector.services.database import Connection
from gpuledger_collector.services.rated_period import LedgerExtent, read_extent
from gpuledger_collector.services.statement import NoStatement

MAX_MONTHS = 13
DAYS, MOST_DAYS = re.compile(r"[1-9][0-9]{0,3}"), 9999
LAST_DAYS = ("7", "30")
"""Ranges that a list offers beside the months."""
WAIT_SECONDS = 0.02
"""How long a page waits for a value that takes seconds."""
ANOTHER_OWNER = "this token sees another owner's part of the ledger only"
CHALLENGE = 'Basic realm="GPU Ledger: any user name, your token as the password", charset="UTF-8"'
HEADERS = {"Cache-Control": "no-store"}
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class HourlyCache(Generic[T]):
    """A slow value, computed once an hour on a thread, because a page must not wait for it."""

    compute: Callable[[], T]
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[int, T] | None = None
    thread: threading.Thread | None = None

    def get(self, now_ms: int, wait_s: float = WAIT_SECONDS) -> T | None:
        """The latest value, an older one while it is recomputed, None while there is none."""
        hour = now_ms // HOUR_MS
        with self.lock:
            # One thread at a time, however many pages ask; while it runs the older value is shown.
            if (self.value is None or self.value[0] != hour) and (
                self.thread is None or not self.thread.is_alive()
            ):
                self.thread = threading.Thread(
                    target=self._run, args=(hour,), name="hourly-cache", daemon=True
                )
                self.thread.start()
            thread = self.thread if self.value is None else None
        if thread is not None:
            thread.join(wait_s)
        return None if self.value is None else self.value[1]

    def _run(self, hour: int) -> None:
        try:
            self.value = (hour, self.compute())
        except Exception as error:  # a page without a forecast is better than no page
            log.warning("the forecast of a page failed: %s", error)


class NoPage(Exception):
    """There is nothing at an address; the message says why, in a sentence."""


class PageRoute(APIRoute):
    """A route whose answer is a page, also for errors."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with errors as pages."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await limits_of(request).answer(request, handler)
            except (NoPage, NoStatement) as error:
                return await refuse(request, 404, str(error))
            except Exception as error:
                answer = as_http_error(error)
                if answer is None:
                    raise
                if answer.status_code == 503:
                    log.warning("a page failed: %s", error)
                return await refuse(request, answer.status_code, str(answer.detail), answer.headers)

        return handle


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows to its reader: the part of `owner` (None: of everybody), as narrowed by the
    address.

    Rows are read with the rights of the reader, and then narrowed: `owner` may be less than the
    reader may see.
    """

    reader: Principal
    owner: Mapping[str, str] | None = None
    filters: Filters = field(default_factory=Filters)
    wants_csv: bool = False
    is_still: bool = False
    boards_url: str = ""
    """Address of the Grafana with the boards; empty: none is known."""

    @classmethod
    def narrow(cls, reader: Principal, parameters: Mapping[str, str], boards_url: str = "") -> View:
        """Narrow a reader to what an address asks for.

        Raises Denied where that is another's part.
        """
        filters = Filters.from_parameters(parameters)
        # Nobody's time is stored under an empty team.
        wanted = {
            level: "" if name == UNATTRIBUTED else name for level, name in filters.owner.items()
        }
        own = reader.owner or {}
        if any(own.get(level, name) != name for level, name in wanted.items()):
            raise Denied(403, ANOTHER_OWNER)
        return cls(
            reader,
            {**own, **wanted} or None,
            filters,
            parameters.get("format") == "csv",
            parameters.get("reload") == "off",
            boards_url,
        )

    @property
    def scope(self) -> Principal:
        """A reader who may see exactly what is shown."""
        return Principal("viewer", self.reader.name, owner=self.owner)

    def period(self, calendar: Calendar, default: Period, now_ms: int | None = None) -> Period:
        """The days that the address names; last days and an open end reach to the end of today.

        Raises ValueError with a sentence.
        """
        filters = self.filters
        if filters.period:
            return calendar.period(filters.period)
        if not filters.range_name:
            return default
        if now_ms is None:
            raise ValueError("this page is of a period: period=2026-10, 2026-Q4 or 2026")
        if filters.days:
            if not DAYS.fullmatch(filters.days):
                raise ValueError(
                    f"days: {filters.days!r} is no number of days from 1 to {MOST_DAYS}"
                )
            return calendar.last_days(now_ms, int(filters.days))
        if not filters.first:
            raise ValueError("to: give the first day as well, from=2026-10-01")
        if not filters.after:
            return calendar.up_to_today(now_ms, filters.first)
        return calendar.date_range(filters.first, filters.after)

    def site(self, connection: Connection, path: str, now_ms: int, **more: Any) -> Site:
        """The frame of a page."""
        return self.frame(read_extent(connection, now_ms), path, now_ms, **more)

    def frame(self, extent: LedgerExtent, path: str, now_ms: int, **more: Any) -> Site:
        """The frame of a page where it is known how far the ledger is."""
        now = extent.calendar.month_of(now_ms)
        return Site(
            path=path,
            month=self.filters.period if self.filters.period in extent.months else now,
            sees_fleet=self.reader.owner is None,
            filters=self.filters,
            is_still=self.is_still,
            boards_url=self.boards_url,
            calendar=extent.calendar,
            now_ms=now_ms,
            **{
                "periods": extent.months[:MAX_MONTHS],
                "being_made": backlog_text(extent),
                **more,
            },
        )


def backlog_text(extent: LedgerExtent) -> str:
    """What of the past is not added up yet, in a sentence; empty when all is."""
    if extent.backlog_ms is None:
        return ""
    first = extent.calendar.date_of(extent.backlog_ms)
    return f"New evidence from {first.day} {first:%b %Y} on is being added up"


def require_page_reader(keys: Keys) -> Any:
    """A dependency: the reader behind the request of a page, by a bearer token or by HTTP Basic."""

    def reader(request: Request) -> Principal:
        return keys.person(request, bearer_header(request.headers.get("authorization", "")))

    return Depends(reader)


def boards_url(request: Request) -> str:
    """The address of Grafana that the settings name; empty: none."""
    return str(getattr(request.app.state, "boards_url", ""))


def require_view(keys: Keys, *, fleet: bool = False) -> Any:
    """A dependency: what the reader behind the request wants to see; `fleet`: one who sees
    everything.
    """

    def view(request: Request) -> View:
        principal = keys.person(request, bearer_header(request.headers.get("authorization", "")))
        if fleet:
            principal.require_fleet()
        return View.narrow(principal, request.query_params, boards_url(request))

    return Depends(view)


def bare_site(keys: Keys, request: Request) -> Site:
    """The frame of a page that is everybody's or says why there is none: who reads it is known only
    if its token says so. Blocks.
    """
    try:
        principal = keys.person(request, bearer_header(request.headers.get("authorization", "")))
    except (Denied, KeysUnavailable):
        return Site(path=request.url.path, sees_fleet=False, is_reader=False)
    return Site(
        path=request.url.path,
        sees_fleet=principal.owner is None,
        boards_url=boards_url(request),
    )


async def refuse(
    request: Request, status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a page in the frame of its reader."""
    site = await anyio.to_thread.run_sync(bare_site, request.app.state.keys, request)
    return error_page(status, sentence, site, headers)


def page(text: str, status: int = 200, *, site: Site) -> Response:
    """A page with the headers that keep foreign content out of it, and that reload it while
    something is computed.
    """
    policy = f"{html.policy(is_served=True)}; frame-ancestors 'none'"
    headers = {**HEADERS, "Content-Security-Policy": policy}
    if site.reloads:
        headers["Refresh"] = str(site.seconds)
    return Response(text, status, headers, "text/html; charset=utf-8")


def file_name(range_name: str) -> str:
    """A range as part of the name of a file: whatever an address said, a header can hold it."""
    return re.sub(r"[^0-9A-Za-z]+", "-", range_name).strip("-")


def csv_file(rows: Iterable[Iterable[object]], *names: str) -> Response:
    """CSV to save, under a name of these parts; all rows are written before the first byte is sent."""
    name = "-".join(("gpuledger", *filter(None, names)))
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}.csv"'}
    return in_pieces(csv_pieces(rows), "text/csv; charset=utf-8", headers)


def error_page(
    status: int, sentence: str, site: Site, headers: Mapping[str, str] | None = None
) -> Response:
    """A page that says why there is nothing to see, and what to do."""
    text = html.render("refused.html", site=site, status=status, sentence=sentence)
    response = page(text, status, site=site)
    if status == 401:
        response.headers["WWW-Authenticate"] = CHALLENGE
    if status in (429, 503):
        response.headers["Retry-After"] = (headers or {}).get("Retry-After", RETRY_AFTER_SECONDS)
    return response
