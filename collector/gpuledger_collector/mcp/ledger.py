"""What a tool works with: read-only snapshots of the ledger, who asks, the instant now, and
addresses of pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeVar

from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.export.site import address
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Proof,
    Span,
    Status,
    rest_of,
    shorten_answer,
)
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.database import Connection, Database
from gpuledger_collector.services.rated_period import read_rated_period

STATEMENT_SECONDS = 60
SESSION = (
    f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_SECONDS}s -c"
    " lock_timeout=2s"
)
"""No statement of a tool can write, and none runs for longer than a minute."""
MAX_OFFSET = 1_000_000

Item = TypeVar("Item")
RowModel = TypeVar("RowModel", bound=Model)
TotalModel = TypeVar("TotalModel", bound=Model)


class Reader(Protocol):
    """Who asks: a token's name, and the subtree of a viewer (None: the entire fleet)."""

    @property
    def name(self) -> str:
        """The token's name, for the log."""

    @property
    def owner(self) -> Mapping[str, str] | None:
        """Level -> value of a viewer."""

    def sees(self, owner: Mapping[str, str], team: str = "") -> bool:
        """Whether something of this owner may be seen."""


class Refused(ValueError):
    """A question that cannot be answered; the message names the parameter and what it may be."""


def readers_of(database: Database) -> Database:
    """The database for sessions that cannot write."""
    return database.as_application("gpuledger-mcp", SESSION)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger for one call of a tool.

    `base_url`: address of the collector; empty: links are paths.
    """

    database: Database
    reader: Reader
    now_ms: int
    base_url: str = ""

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One snapshot for all that a tool reads."""
        with self.database.transaction(read_only=True) as connection:
            yield Snapshot(self, connection, calendar_of(connection))

    def link(self, path: str, parameters: Mapping[str, str] | None = None) -> str:
        """The address of a page."""
        return f"{self.base_url.rstrip('/')}{address(path, parameters or {})}"

    def require_fleet(self) -> None:
        """Refuse a viewer. Raises Refused."""
        if self.reader.owner is not None:
            raise Refused(
                "this answer is about the whole fleet, and this token sees one owner's part only"
            )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the ledger."""

    ledger: Ledger
    connection: Connection
    calendar: Calendar

    def period(self, text: str, start: str, end: str) -> Period:
        """The period of the parameters `period`, or `start` and `end`. Raises Refused."""
        return periods.resolve(self.calendar, self.ledger.now_ms, text, start, end)

    def evidence(self, period: Period) -> periods.Evidence:
        """What the ledger knows of a period, and what proves it."""
        rated = read_rated_period(self.connection, period, self.calendar)
        return periods.evidence(rated, self.ledger.now_ms)


@dataclass(frozen=True, slots=True)
class Page:
    """Which rows are asked for. Raises Refused for a cursor that no answer gave."""

    limit: int
    cursor: str = ""
    offset: int = field(init=False)

    def __post_init__(self) -> None:
        is_offset = self.cursor.isascii() and self.cursor.isdigit() and len(self.cursor) <= 7
        if self.cursor and not (is_offset and int(self.cursor) <= MAX_OFFSET):
            raise Refused("cursor: give next_cursor of the previous answer, or leave it out")
        object.__setattr__(self, "offset", int(self.cursor or 0))

    def slice_items(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items of this page."""
        return items[self.offset : self.offset + self.limit]

    def answer(
        self,
        items: Sequence[Any],
        build: Callable[[Any], RowModel],
        *,
        link: str,
        evidence: periods.Evidence | None = None,
        span: Span | None = None,
        proof: Proof | None = None,
        totals: Sequence[TotalModel] = (),
        notices: Sequence[str] = (),
        empty: str = "there is nothing to show",
        next_step: str = "",
        partial: str = "",
    ) -> Answer[RowModel, TotalModel]:
        """The envelope around the rows of this page, with the others as one.

        `span`: the period of estimates.
        """
        shown = [build(item) for item in self.slice_items(items)]
        more = len(items) > self.offset + len(shown)
        reason = partial or ("" if evidence is None else evidence.gap)
        status: Status = "empty" if not items else "partial" if reason else "ok"
        answer = Answer[Any, Any](
            status=status,
            reason=empty if status == "empty" else reason,
            next_step=next_step,
            period=span if evidence is None else evidence.span,
            coverage=None if evidence is None else evidence.coverage,
            proof=proof or (evidence.proof if evidence is not None else Proof(state="open")),
            link=link,
            totals=totals,
            row_count=len(items),
            truncated=more,
            next_cursor=str(self.offset + len(shown)) if more else "",
            notices=notices,
            rows=shown,
        )
        answer = shorten_answer(answer, self.offset)
        left_out = chain(items[: self.offset], items[self.offset + len(answer.rows) :])
        # One after the other: only those of the page are ever held together.
        return answer.model_copy(update={"rest": rest_of(map(build, left_out))})
