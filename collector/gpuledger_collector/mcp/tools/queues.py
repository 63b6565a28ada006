"""The tool about queues of Kubernetes schedulers: who waited beside unused quota."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gpuledger_collector.export.scheduler_queues import NOTHING_KNOWN, QUEUE_TIMES, say_remedy
from gpuledger_collector.export.site import QUEUES
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Quantity,
    cut,
    gpu_hours,
    row_model,
    row_of,
)
from gpuledger_collector.mcp.ledger import Ledger, Page, Refused
from gpuledger_collector.mcp.tools.fleet import ESTIMATED
from gpuledger_collector.mcp.tools.parameters import (
    LIMIT,
    TEXT_LENGTH,
    Cursor,
    End,
    Limit,
    Period,
    Start,
)
from gpuledger_collector.services.scheduler_queues import read_queue_times

if TYPE_CHECKING:
    QueueRow = Model
else:
    QueueRow = row_model(QUEUE_TIMES, "A queue's GPU-time in a period.")


class QueueTotal(Model):
    """All queues together; null: known of none."""

    count: int
    reserved: Quantity | None
    used: Quantity | None
    borrowed: Quantity | None
    unused: Quantity | None
    waited: Quantity | None
    waited_beside_unused: Quantity | None
    evictions: int
    lost: Quantity | None


def list_queues(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    queue: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH,
            description="Only queues with these words in their names, in any case; empty: all.",
        ),
    ] = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[QueueRow, QueueTotal]:
    """Queues of Kubernetes schedulers: quota, used, borrowed, lent, unused, waited for and lost, those
    that waited beside unused quota first.

    Not for a token of one owner. Quotas count requests and are never billed.
    """
    page = Page(limit, cursor)
    ledger.require_fleet()
    if "\0" in queue:
        raise Refused("queue: a name holds no NUL")
    with ledger.snapshot() as snapshot:
        span = snapshot.period(period, start, end)
        times = read_queue_times(snapshot.connection, span, queue)
        first, after = periods.dates(snapshot.calendar, span)
        sums = times.sums
        return page.answer(
            times.items,
            lambda item: row_of(QueueRow, QUEUE_TIMES, item),
            link=ledger.link(QUEUES, {"from": first, "to": after, "q": queue}),
            span=periods.span_of(snapshot.calendar, span),
            proof=ESTIMATED,
            totals=[
                QueueTotal(
                    count=len(times.items),
                    reserved=gpu_hours(sums.reserved_ns),
                    used=gpu_hours(sums.used_ns),
                    borrowed=gpu_hours(sums.borrowed_ns),
                    unused=gpu_hours(sums.unused_ns),
                    waited=gpu_hours(sums.waiting_ns),
                    waited_beside_unused=gpu_hours(sums.beside_unused_ns),
                    evictions=sums.evictions,
                    lost=gpu_hours(sums.lost_ns),
                )
            ]
            if times.items
            else (),
            notices=[cut(text, 300) for text in map(say_remedy, times.items[:3]) if text],
            empty=NOTHING_KNOWN if not times.listed else "no queue has these words in its names",
        )
