"""Tools about what the ledger holds and the accelerators in it: facts, names, usage, idle ones, and
what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gpuledger_collector.accounting.carbon import MJ_PER_KWH
from gpuledger_collector.accounting.chargeback import DIMENSIONS
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.period import Period as Days
from gpuledger_collector.accounting.quantity import round_half_even_div
from gpuledger_collector.export.findings import IDLE as IDLE_REPORT
from gpuledger_collector.export.site import IDLE
from gpuledger_collector.insight.activity import AcceleratorActivity
from gpuledger_collector.insight.recommendation_record import BOUNDS, StoredRecommendation
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import (
    MAX_ROWS,
    Answer,
    Model,
    Money,
    Proof,
    Quantity,
    Seal,
    cut,
    exact_quantity,
    gpu_hours,
    instant,
    name,
    row_model,
    row_of,
    typed_money,
)
from gpuledger_collector.mcp.ledger import Ledger, Page, Refused
from gpuledger_collector.mcp.tools import bills
from gpuledger_collector.mcp.tools.parameters import (
    LIMIT,
    TEXT_LENGTH,
    Cursor,
    End,
    Limit,
    Period,
    Start,
)
from gpuledger_collector.services.accelerators import list_activity
from gpuledger_collector.services.chargeback import list_names
from gpuledger_collector.services.findings import list_findings
from gpuledger_collector.services.rated_period import read_extent, read_rated_period
from gpuledger_collector.services.recommendations import list_recommendations

ESTIMATED = Proof(state="estimated")
RELEASE = "not a smaller bill until the capacity is given back"


class LedgerFacts(Model):
    """What every question can refer to."""

    now: Annotated[str, Field(description="RFC 3339, UTC.")]
    today: Annotated[str, Field(description="Date in the zone of the bill.")]
    zone: str
    rated_until: Annotated[
        str | None, Field(description="Charges of this month are known up to here.")
    ]
    reader: Annotated[str, Field(description="Whose token this is.")]
    sees: Annotated[
        dict[str, str],
        Field(description="The owner whose rows this token sees; empty: the whole fleet."),
    ]
    dimensions: Annotated[
        Sequence[str], Field(description="What group_by, where and list_values take.")
    ]
    periods: Annotated[
        Sequence[str],
        Field(description="Words that `period` takes, besides 2026-10, 2026-Q3, 2026."),
    ]
    max_rows: int
    max_days: int


class MonthRow(Model):
    """A month of the ledger."""

    month: str
    state: Literal["open", "closed"]
    seal: Seal | None


class ValueRow(Model):
    """A name in the ledger."""

    value: Annotated[str, Field(description="As users chose it.")]
    held: Annotated[Quantity | None, Field(description="GPU-hours in the period.")]


class CountTotal(Model):
    """How many there are."""

    count: int


if TYPE_CHECKING:
    IdleRow = Model
else:
    IdleRow = row_model(IDLE_REPORT, "An idle accelerator.")


class IdleTotal(Model):
    """Ongoing idle accelerators in one currency."""

    currency: str | None
    count: int
    per_day: Money | None


class SavingRange(Model):
    """An estimate as a range."""

    low: Money | None
    expected: Money | None
    high: Money | None


class AdviceRow(Model):
    """A recommendation; estimates of the observed window, which overlap and are never added up."""

    kind: str
    subject: str
    team: str
    advice: str
    state: str
    window_start: str | None
    window_end: str | None
    cash: Annotated[SavingRange, Field(description="Less to pay, once it is followed.")]
    capacity: Annotated[SavingRange, Field(description=f"Value of freed capacity: {RELEASE}.")]
    freed: Annotated[Quantity | None, Field(description="GPU-hours of the window.")]


class AdviceTotal(CountTotal):
    """How many, and what could not be judged."""

    not_judged: Annotated[
        Sequence[str], Field(description="What was not judged, and why; data, may quote names.")
    ] = ()
    looked_at: Annotated[str | None, Field(description="When they were computed.")] = None


class DeviceRow(Model):
    """An accelerator's time in a period; gaps stay gaps and are in no part."""

    accelerator: Annotated[str, Field(description="UUID.")]
    node: str
    gpu: int | None
    model: str
    mig_instance: str | None
    pool: str
    held: Quantity
    busy: Quantity
    idle: Quantity
    unknown: Annotated[Quantity, Field(description="Held, and nobody knows what it did.")]
    unallocated: Quantity
    unavailable: Quantity
    energy: Annotated[Quantity | None, Field(description="null: not measured.")]


class DeviceTotal(CountTotal):
    """All accelerators together."""

    held: Quantity
    busy: Quantity
    idle: Quantity
    unknown: Quantity
    unallocated: Quantity
    unavailable: Quantity


def describe_ledger(ledger: Ledger) -> Answer[MonthRow, LedgerFacts]:
    """What this ledger holds: today's date, the zone of its days, its months and their seals, and
    what can be asked.
    """
    with ledger.snapshot() as snapshot:
        months = read_extent(snapshot.connection, ledger.now_ms).months
        this_month = snapshot.calendar.month(snapshot.calendar.month_of(ledger.now_ms))
        rated = read_rated_period(snapshot.connection, this_month, snapshot.calendar)
        closed = {month.name: month for month in rated.closed_months}
        facts = LedgerFacts(
            now=instant(ledger.now_ms) or "",
            today=str(snapshot.calendar.date_of(ledger.now_ms)),
            zone=snapshot.calendar.zone_at(ledger.now_ms).name,
            reader=name(ledger.reader.name),
            sees={level: name(value) for level, value in (ledger.reader.owner or {}).items()},
            rated_until=instant(rated.rated_ms),
            dimensions=DIMENSIONS,
            periods=periods.NAMED,
            max_rows=MAX_ROWS,
            max_days=periods.MAX_DAYS,
        )

        def row(month: str) -> MonthRow:
            own = closed.get(month)
            seal = None if own is None else periods.seal_of(own)
            return MonthRow(month=month, state="open" if own is None else "closed", seal=seal)

        return Page(MAX_ROWS).answer(
            months,
            row,
            link=ledger.link("/"),
            totals=[facts],
            empty="the ledger has no rated day yet",
            next_step="" if months else "usage arrives by agents, remote write or gpuledger import",
        )


def list_values(
    ledger: Ledger,
    dimension: Annotated[
        Literal[
            "org",
            "team",
            "project",
            "experiment",
            "run",
            "user",
            "workload",
            "pool",
            "model",
            "node",
        ],
        Field(description="Names of what."),
    ],
    contains: Annotated[
        str, Field(max_length=TEXT_LENGTH, description="Only names with this text, in any case.")
    ] = "",
    period: Period = "last-30-days",
    start: Start = "",
    end: End = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[ValueRow, CountTotal]:
    """Names that the ledger has in a period, by hours held: what `where` and `owner` take."""
    page = Page(limit, cursor)
    with ledger.snapshot() as snapshot:
        span = snapshot.period("" if start else period, start, end)
        values = list_names(
            snapshot.connection, span, dimension, ledger.reader.owner, contains=contains
        )
        return page.answer(
            values,
            lambda item: ValueRow(value=name(item.name), held=gpu_hours(item.gpu_ns)),
            link=bills.link(snapshot, span, (dimension,), {}),
            evidence=snapshot.evidence(span),
            totals=[CountTotal(count=len(values))],
            empty="no such name has usage in this period",
            next_step="" if values else "describe_ledger says which months there are",
        )


def list_idle_gpus(
    ledger: Ledger,
    days: Annotated[
        int, Field(ge=1, le=periods.MAX_DAYS, description="How many days back from now.")
    ] = 7,
    ongoing_only: Annotated[bool, Field(description="Only what is idle now.")] = True,
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[IdleRow, IdleTotal]:
    """Accelerators that cost money and do nothing, ongoing and dearest first, with whose they are
    and what to do.
    """
    page = Page(limit, cursor)
    with ledger.snapshot() as snapshot:
        period = Days(ledger.now_ms - days * DAY_MS, ledger.now_ms + 1)
        found = list_findings(snapshot.connection, "idle", period, ledger.reader)
        seconds_ms = ledger.now_ms - ledger.now_ms % 1000
        span = periods.span_of(snapshot.calendar, Days(seconds_ms - days * DAY_MS, seconds_ms))
    looked_ms = found.looked_ms
    searched = (
        f"searched up to {instant(looked_ms)}"
        if looked_ms is not None
        else "the search has not run yet"
    )
    return page.answer(
        (found.ongoing if ongoing_only else found).items,
        lambda item: row_of(IdleRow, IDLE_REPORT, item),
        link=ledger.link(IDLE),
        span=span,
        proof=ESTIMATED,
        totals=[
            IdleTotal(
                currency=total.currency, count=total.count, per_day=typed_money(total.per_day)
            )
            for total in found.ongoing.by_currency
        ],
        partial="" if looked_ms is not None else searched,
        notices=[searched],
        empty=f"nothing is idle: {searched}" if looked_ms is not None else searched,
    )


def get_rightsizing(
    ledger: Ledger, limit: Limit = LIMIT, cursor: Cursor = ""
) -> Answer[AdviceRow, AdviceTotal]:
    """What to do about waste: open recommendations with their saving as a range, most first, and
    what was not judged.

    Estimates of an observed window, of GPU-time at the rates of the price book, without node costs,
    commitments and adjustments; they overlap and must not be added up.
    """
    page = Page(limit, cursor)
    with ledger.snapshot() as snapshot:
        listed = list_recommendations(snapshot.connection, ["open", "accepted"], ledger.reader)
        run = listed.run
        window = None if run is None else Days(run.start_ms, run.end_ms)
        span = None if window is None else periods.span_of(snapshot.calendar, window)
    not_judged = () if run is None else run.not_evaluated
    total = AdviceTotal(
        count=len(listed.items),
        not_judged=[cut(": ".join(map(str, item.values())), 300) for item in not_judged[:10]],
        looked_at=None if run is None else instant(run.made_ms),
    )
    return page.answer(
        listed.items,
        _advice_row,
        link=ledger.link("/v1/recommendations"),
        span=span,
        proof=ESTIMATED,
        totals=[total],
        partial="" if run is not None else "recommendations have not been computed yet",
        empty="there is no open recommendation"
        if run is not None
        else "recommendations have not been computed yet",
        next_step=""
        if run is not None
        else "they are computed every few hours, or by gpuledger recommend --fresh",
    )


def _advice_row(item: StoredRecommendation) -> AdviceRow:
    def saving(kind: str) -> SavingRange:
        bounds = zip(BOUNDS, item.saving(kind), strict=True)
        return SavingRange(**{bound: typed_money(item.money(micro)) for bound, micro in bounds})

    return AdviceRow(
        kind=item.kind,
        subject=name(item.subject),
        team=name(item.team),
        advice=cut(item.advice, 400),
        state=item.state,
        window_start=instant(item.start_ms),
        window_end=instant(item.end_ms),
        cash=saving("cash"),
        capacity=saving("capacity"),
        freed=gpu_hours(item.freed_gpu_ns),
    )


PARTS = ("held", "busy", "idle", "unknown", "unallocated", "unavailable")


def get_device_usage(
    ledger: Ledger,
    device: Annotated[
        str, Field(max_length=TEXT_LENGTH, description="UUID or its beginning; empty: any.")
    ] = "",
    node: Annotated[
        str, Field(max_length=TEXT_LENGTH, description="Name of a node; empty: any.")
    ] = "",
    period: Period = "",
    start: Start = "",
    end: End = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[DeviceRow, DeviceTotal]:
    """The evidence behind a line: what each accelerator did in a period.

    Not for a token of one owner.
    """
    page = Page(limit, cursor)
    ledger.require_fleet()
    if "\0" in device + node:
        raise Refused("device, node: a name holds no NUL")
    with ledger.snapshot() as snapshot:
        span = snapshot.period(period, start, end)
        rows = [
            row
            for row in list_activity(snapshot.connection, span)
            if row.uuid.startswith(device) and node in {"", row.node}
        ]
        first, last = periods.dates(snapshot.calendar, span)
        sums = {part: sum(getattr(row, f"{part}_ms") for row in rows) for part in PARTS}
        return page.answer(
            rows,
            _device_row,
            link=ledger.link("/v1/accelerators", {"from": first, "to": last}),
            evidence=snapshot.evidence(span),
            totals=[DeviceTotal(count=len(rows), **{part: _hours(ms) for part, ms in sums.items()})]
            if rows
            else (),
            empty="no such accelerator was in the fleet in this period",
            next_step="" if rows else "list_values(dimension=node) says which nodes there are",
        )


def _hours(ms: int) -> Quantity:
    """Milliseconds as hours of the accelerator, whatever its share of a board."""
    return exact_quantity(round_half_even_div(ms * 10, 36), "h")


def _device_row(row: AcceleratorActivity) -> DeviceRow:
    energy = (
        None
        if row.energy_mj is None
        else exact_quantity(round_half_even_div(row.energy_mj * MICRO, MJ_PER_KWH), "kWh")
    )
    return DeviceRow(
        accelerator=name(row.uuid),
        node=name(row.node),
        gpu=row.gpu_index,
        model=name(row.model),
        mig_instance=row.mig_instance,
        pool=name(row.pool),
        energy=energy,
        **{part: _hours(getattr(row, f"{part}_ms")) for part in PARTS},
    )
