"""What a month's invoices post to the general ledger: by owner, cost center, and whatever else a
template shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.money import minor_unit
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.postings import SHARED, TIME, InvoiceParts, PostedMonth, Posting
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.services.chargeback import read_chargeback
from gpuledger_collector.storage.billing import periods, reports
from gpuledger_collector.storage.billing.allocation import allocate
from gpuledger_collector.storage.billing.cost_centers import BilledCodes
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

_DIMENSIONS = (*LEVELS, "pool", "model")


def post_month(
    database: Database, name: str, level: str, naming: Sequence[str], now_ms: int
) -> PostedMonth:
    """Post the invoices of a month by these fields; call `refresh` before it."""
    with database.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        period = calendar.month(name)
        closed_ms = {month.name: month.closed_ms for month in periods.list_closed(connection)}.get(
            name
        )
        return PostedMonth(
            name=name,
            first_day=calendar.date_of(period.start_ms),
            last_day=calendar.date_of(period.end_ms - 1),
            closed_on=None if closed_ms is None else calendar.date_of(closed_ms),
            postings=_postings(connection, period, level, naming, now_ms),
        )


def _postings(
    connection: Connection, period: Period, level: str, naming: Sequence[str], now_ms: int
) -> list[Posting]:
    """The invoices of a month, in the order of owners.

    Time that nobody held and usage without a price are posted to nobody.
    """
    rows = read_chargeback(
        connection, period, (level,), now_ms, separate_corrections=False
    ).report.rows
    invoices: dict[tuple[str, str], InvoiceParts] = defaultdict(InvoiceParts)
    for owner, currency, names, micro, gpu_ns in _parts(connection, period, now_ms):
        parts = invoices[owner.level(level) or UNATTRIBUTED, currency]
        parts.add(
            tuple(names[name] for name in naming), micro, gpu_ns, is_shared=names["kind"] == SHARED
        )
    postings = []
    for row in sorted(
        (row for row in rows if row.state == HELD and row.currency), key=lambda row: row.keys
    ):
        parts, currency = invoices[row.keys[0], row.currency or ""], row.currency or ""
        # What is posted is what is invoiced: the cents of the invoice are split over its parts.
        minors = parts.minors(minor_unit(currency), row.cost_minor or 0, row.shared_minor or 0)
        postings += [
            Posting(
                row.keys[0],
                currency,
                dict(zip(naming, cells, strict=True)),
                minor,
                parts.gpu_ns[cells],
            )
            for cells, minor in minors.items()
            if minor or parts.gpu_ns[cells]
        ]
    return postings


def _parts(
    connection: Connection, period: Period, now_ms: int
) -> Iterator[tuple[OwnerPath, str, Mapping[str, str], int, int]]:
    """Each line and share that an owner pays and that has a price: its owner, currency, names,
    micro-units, and GPU-nanoseconds (0 of a share).
    """
    codes = BilledCodes(connection)
    for span in codes.spans(period):
        for line in reports.charged_lines(connection, span, _DIMENSIONS):
            if line.state in PAID_BY_OWNERS and line.currency is not None:
                owner, (pool, model) = (
                    OwnerPath(*line.keys[: len(LEVELS)]),
                    line.keys[len(LEVELS) :],
                )
                kind = TIME if line.state == HELD else line.state
                names = _names(owner, pool, model, kind, codes, span.start_ms)
                yield owner, line.currency, names, line.cost_micro or 0, line.gpu_ns
    for part in allocate(connection, period, LEVELS, now_ms).parts:
        if part.keys[0].startswith("(") and part.keys[0] != UNATTRIBUTED:
            continue
        owner = OwnerPath(*("" if name == UNATTRIBUTED else name for name in part.keys))
        yield (
            owner,
            part.currency,
            _names(owner, "", "", SHARED, codes, part.period.end_ms - 1),
            part.micro,
            0,
        )


def _names(
    owner: OwnerPath, pool: str, model: str, kind: str, codes: BilledCodes, billed_ms: int
) -> Mapping[str, str]:
    own = codes.codes_on(owner, billed_ms)
    return {
        **{level: owner.level(level) for level in LEVELS},
        "pool": pool,
        "model": model,
        "kind": kind,
        "cost_center": own.cost_center,
        "gl_code": own.gl_code,
    }
