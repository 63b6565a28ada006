"""What reading routes share: the ledger, the reader behind a request, errors as HTTP answers, and
parameters.

Reading changes nothing and rates nothing: jobs do that, and answers state up to when. Without any
reader token everyone on loopback may read; afterwards only those with a token. A viewer sees one
owner's subtree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
from fastapi import Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period, date_range
from gpuledger_collector.api.auth.keys import Keys, KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.reader_limits import ReaderLimits, ReadRefused
from gpuledger_collector.export.pieces import Packed
from gpuledger_collector.services.database import Connection, Database, StorageError, TooManyLines
from gpuledger_collector.services.scaling_advice import NoAdvice, UnknownPool

RETRY_AFTER_SECONDS = "5"
UNAVAILABLE = "database unavailable; retry later"
MAX_DAYS = 400
MAX_ROWS = 1000
REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "A reader's token is needed."},
    403: {
        "description": (
            "This token may not read this, or other machines reach the collector and there is no"
            " token."
        )
    },
    429: {
        "description": "Too many questions of this reader are in progress: retry after Retry-After."
    },
    503: {
        "description": (
            "It takes too long, or the database or recent demand is unavailable: retry after"
            " Retry-After."
        )
    },
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Limit = Annotated[
    int, Query(ge=1, le=MAX_ROWS, description="Largest number of items in the answer.")
]
After = Annotated[str, Query(description="`next` of the previous answer; empty: from the start.")]
Start = Annotated[
    str,
    Query(alias="from", description="First day (of the billing zone), included, as 2026-10-01."),
]
End = Annotated[str, Query(alias="to", description="Last day (of the billing zone), not included.")]
PeriodName = Annotated[
    str,
    Query(
        alias="period",
        description="Instead of from and to: 2026-10, 2026-Q4, 2026, FY2027 or FY2027-Q1.",
    ),
]


@dataclass(slots=True)
class ReadContext:
    """What reading routes need."""

    database: Database
    clock: Callable[[], int]
    keys: Keys

    @property
    def now_ms(self) -> int:
        """The current instant."""
        return self.clock()

    def database_for(self, reader: Principal) -> Database:
        """The database, under row-level security where the reader is a viewer."""
        return self.database if reader.owner is None else self.database.as_viewer(reader.owner)

    @contextmanager
    def connection(self, reader: Principal) -> Iterator[Connection]:
        """A snapshot of what the reader may see."""
        with self.database_for(reader).transaction(read_only=True) as connection:
            yield connection


def require_reader(keys: Keys, *, fleet: bool = False, admin: bool = False) -> Any:
    """A dependency: the reader behind the request, who may see the entire fleet, or is an admin, if
    that is needed.
    """

    def reader(request: Request) -> Principal:
        principal = keys.person(request)
        if fleet:
            principal.require_fleet()
        if admin:
            principal.require_admin()
        return principal

    return Depends(reader)


def as_http_error(error: Exception) -> HTTPException | None:
    """The HTTP answer to an error that a reading route may raise; None for a bug."""
    retry = {"Retry-After": RETRY_AFTER_SECONDS}
    if isinstance(error, Denied):
        return HTTPException(
            error.status,
            str(error),
            {"WWW-Authenticate": "Bearer"} if error.status == 401 else None,
        )
    if isinstance(error, ReadRefused):
        return HTTPException(error.status, str(error), {"Retry-After": str(error.seconds)})
    if isinstance(error, TooManyLines):
        return HTTPException(422, str(error))
    if isinstance(error, UnknownPool):
        return HTTPException(404, str(error))
    if isinstance(error, KeysUnavailable | NoAdvice):
        return HTTPException(503, str(error), retry)
    if isinstance(getattr(error, "orig", error), psycopg.errors.InsufficientPrivilege):
        return HTTPException(
            403, "this token sees one owner's part only, and this answer needs more"
        )
    if isinstance(error, StorageError | psycopg.OperationalError):
        return HTTPException(503, UNAVAILABLE, retry)
    if isinstance(error, ValueError):
        return HTTPException(422, str(error))
    return None


class LedgerRoute(APIRoute):
    """A route whose errors become HTTP answers (`as_http_error`)."""

    def get_route_handler(self) -> Handler:
        """The handler with errors translated."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await self.answer(request, handler)
            except Exception as error:
                answer = self.translate(error)
                if answer is None:
                    raise
                raise answer from error

        return handle

    async def answer(self, request: Request, handler: Handler) -> Response:
        """The answer of the handler."""
        return await handler(request)

    def translate(self, error: Exception) -> HTTPException | None:
        """The HTTP answer to an error; None to leave it as it is."""
        return None if isinstance(error, HTTPException) else as_http_error(error)


class ReadRoute(LedgerRoute):
    """A route that answers readers from the ledger, within their limits."""

    async def answer(self, request: Request, handler: Handler) -> Response:
        """The answer of the handler in the reader's turn. Raises ReadRefused."""
        return await limits_of(request).answer(request, handler)


def limits_of(request: Request) -> ReaderLimits:
    """The limits of readers of the application."""
    limits: ReaderLimits = request.app.state.reader_limits
    return limits


def requested_days(calendar: Calendar, start: str, end: str, name: str) -> Period:
    """The days of a period by its name, or from and to. Raises ValueError with a sentence."""
    if bool(name) == bool(start or end) or bool(start) != bool(end):
        raise ValueError("give either period, or from and to")
    return calendar.period(name) if name else calendar.date_range(start, end)


def parse_days(start: str, end: str) -> Period:
    """The requested days. Raises ValueError with a sentence."""
    period = date_range(start, end)
    if period.ms > MAX_DAYS * DAY_MS:
        raise ValueError(f"from and to: at most {MAX_DAYS} days can be requested at once")
    return period


def split_names(text: str) -> tuple[str, ...]:
    """Distinct names of a comma-separated parameter, in their order."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def paginate(items: list[dict[str, Any]], limit: int, key: str) -> dict[str, Any]:
    """The first items, and where the next page starts (None: there is none)."""
    shown = items[:limit]
    return {"items": shown, "next": shown[-1][key] if len(items) > limit else None}


def in_pieces(
    pieces: Iterable[str], media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer that is sent piece by piece; it is made before, so that whatever fails is answered
    with an error.

    A slow client holds its compressed text, and neither rows nor a thread.
    """
    packed = Packed(pieces)

    async def sent() -> AsyncIterator[bytes]:
        for piece in packed:
            yield piece

    return StreamingResponse(
        sent(), 200, {**(headers or {}), "Content-Length": str(packed.bytes)}, media_type
    )
