"""Tools about a period's cost: what was spent, what of it was wasted, and one number for
efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from gpuledger_collector.accounting.chargeback import ReportRow, sum_known
from gpuledger_collector.accounting.money import parse_amount
from gpuledger_collector.accounting.usage import HELD, UNOBSERVED
from gpuledger_collector.accounting.waste import WholeWaste
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Money,
    Quantity,
    gpu_hours,
    micro_money,
    money,
    names,
    quantity,
    ratio,
)
from gpuledger_collector.mcp.ledger import Ledger, Page
from gpuledger_collector.mcp.tools import bills
from gpuledger_collector.mcp.tools.parameters import (
    LIMIT,
    Cursor,
    End,
    GroupBy,
    Limit,
    Period,
    Start,
    Where,
    conditions,
    dimensions,
)

UNPRICED = "`gpuledger prices set` gives these hours a price; until then their cost is unknown"

Names = Annotated[
    dict[str, str],
    Field(
        description=(
            "Names by dimension, as users chose them; those in parentheses are the ledger's own"
            " rows. With a workload also workload_name and workload_user."
        )
    ),
]


class Costs(Model):
    """Amounts of the chargeback in one currency; null: usage without a price."""

    currency: str | None
    cost: Annotated[Money | None, Field(description="Direct cost.")]
    cost_shared: Annotated[Money | None, Field(description="Shares of common costs.")]
    cost_total: Annotated[Money | None, Field(description="Direct cost and shares.")]
    cost_held_idle: Annotated[Money | None, Field(description="Of it, held idle.")]
    held: Annotated[Quantity | None, Field(description="GPU-hours, also of time that nobody held.")]
    energy: Quantity | None


class CostTotal(Costs):
    """A currency's total: the sum of all rows as printed."""

    cost_exact: Annotated[Money | None, Field(description="Direct cost to the micro-unit.")]


class CostRow(Costs):
    """A row of the chargeback."""

    names: Names
    state: Annotated[str, Field(description="held, or why nobody held it.")]
    billed: Annotated[bool | None, Field(description="Whether an owner pays it.")]
    correction_of: Annotated[
        str, Field(description="Closed month that this row corrects; empty: none.")
    ]


class WasteTotal(Model):
    """A currency's waste."""

    currency: str
    waste: Money | None
    cost: Annotated[Money | None, Field(description="The whole cost that it is part of.")]
    held_idle: Money | None = None
    unallocated: Money | None = None
    stranded: Annotated[Money | None, Field(description="Outside every MIG slice.")] = None
    commitment_unused: Money | None = None
    unknown: Annotated[
        Quantity | None, Field(description="Time of which nobody knows what it did; not counted.")
    ]


class WasteRow(Model):
    """Waste of one group."""

    names: Names
    state: str
    waste: Money | None
    cost: Money | None
    used: Annotated[Money | None, Field(description="Cost less waste.")]
    time: Annotated[Quantity | None, Field(description="Allocated GPU-hours.")]
    idle_time: Annotated[Quantity | None, Field(description="Held idle; null: activity unknown.")]


class EfficiencyTotal(Model):
    """Efficiency of all rows of a currency."""

    currency: str
    efficiency: Annotated[
        str | None,
        Field(description="0 to 1: cost_used / cost_allocated; null where activity is unknown."),
    ]
    cost_used: Money | None
    cost_allocated: Money | None
    is_exact: Annotated[
        bool,
        Field(
            description=(
                "False: of some time the activity is unknown; held, it counts as used, else as"
                " unused."
            )
        ),
    ]
    unknown: Annotated[Quantity | None, Field(description="That time.")]


class EfficiencyRow(EfficiencyTotal):
    """Efficiency of one group."""

    names: Names
    state: str


def get_cost(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    group_by: GroupBy = "team",
    where: Where = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[CostRow, CostTotal]:
    """What was spent in a period, by owner or place, dearest first: the rows of the chargeback."""
    page, by, wanted = Page(limit, cursor), dimensions(group_by), conditions(where)
    with ledger.snapshot() as snapshot:
        span = snapshot.period(period, start, end)
        bill = bills.read(snapshot, span, by, wanted)
        called = bills.workload_names(
            snapshot, bill.report.by, (row.keys for row in page.slice_items(bill.report.rows))
        )
        return page.answer(
            bill.report.rows,
            lambda row: _cost_row(row, names(bill.report.by, row.keys, called)),
            link=bills.link(snapshot, span, by, wanted),
            evidence=snapshot.evidence(span),
            totals=[
                CostTotal(cost_exact=micro_money(total.cost_micro, total.currency), **_costs(total))
                for total in bill.report.totals
            ],
            notices=bill.notices,
            empty=bills.NO_ROWS,
            next_step=_next_step(bill.report.rows, group_by),
        )


def _costs(row: ReportRow) -> dict[str, Any]:
    return {
        "currency": row.currency,
        "cost": money(row.cost_minor, row.currency),
        "cost_shared": money(row.shared_minor, row.currency),
        "cost_total": money(row.total_minor, row.currency),
        "cost_held_idle": money(row.cost_held_idle_minor, row.currency),
        "held": quantity(row.gpu_hours, "GPU-hour"),
        "energy": quantity(row.energy_kwh, "kWh"),
    }


def _cost_row(row: ReportRow, cells: dict[str, str]) -> CostRow:
    return CostRow(
        names=cells,
        state=row.state or HELD,
        billed=row.is_billed,
        correction_of=row.correction_of,
        **_costs(row),
    )


def _next_step(rows: Sequence[ReportRow], dimension: str) -> str:
    if not rows:
        return (
            "describe_ledger says which months there are;"
            f" list_values(dimension={dimension.split(',')[0]}) names"
        )
    if any(row.currency is None for row in rows):
        return UNPRICED
    return ""


def get_gpu_waste(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    group_by: GroupBy = "team",
    where: Where = "",
    min_waste: Annotated[
        str,
        Field(
            max_length=20,
            description="Rows of at least this amount, as 100 or 99.50, in their currency.",
        ),
    ] = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[WasteRow, WasteTotal]:
    """What was paid for and did nothing, most first: held idle, unallocated, stranded, unused
    commitments.

    Idle is time without activity as the agent measures it; time of unknown activity is not counted
    and is named.
    """
    page, by, wanted = Page(limit, cursor), dimensions(group_by), conditions(where)
    least = _amount(min_waste) if min_waste else 1
    with ledger.snapshot() as snapshot:
        span = snapshot.period(period, start, end)
        bill = bills.read(snapshot, span, by, wanted)
        rows = [row for row in bill.report.rows if row.waste_micro and row.waste_micro >= least]
        rows.sort(key=lambda row: (-(row.waste_micro or 0), row.keys))
        called = bills.workload_names(
            snapshot, bill.report.by, (row.keys for row in page.slice_items(rows))
        )
        return page.answer(
            rows,
            lambda row: _waste_row(row, names(bill.report.by, row.keys, called)),
            link=bills.link(snapshot, span, by, wanted),
            evidence=snapshot.evidence(span),
            totals=[_waste_total(waste) for waste in bill.waste],
            notices=bill.notices,
            empty=bills.NO_ROWS if not bill.report.rows else "no waste of that size is known here",
            next_step=(
                "list_idle_gpus shows what is idle now; get_rightsizing shows what to do about it"
                if rows
                else ""
            ),
        )


def _amount(text: str) -> int:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise ValueError(f"min_waste: {error}") from None


def _waste_row(row: ReportRow, cells: dict[str, str]) -> WasteRow:
    borne = row.effective_minor
    used = None if borne is None or row.waste_minor is None else borne - row.waste_minor
    return WasteRow(
        names=cells,
        state=row.state or HELD,
        waste=money(row.waste_minor, row.currency),
        cost=money(borne, row.currency),
        used=money(used, row.currency),
        time=quantity(row.gpu_hours, "GPU-hour"),
        idle_time=quantity(row.gpu_hours_held_idle, "GPU-hour"),
    )


def _waste_total(waste: WholeWaste) -> WasteTotal:
    parts = {label: money(minor, waste.currency) for label, minor in waste.parts}
    return WasteTotal(
        currency=waste.currency,
        waste=money(waste.minor, waste.currency),
        cost=money(waste.cost_minor, waste.currency),
        unknown=gpu_hours(waste.unknown_ns),
        **parts,
    )


def get_efficiency(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    group_by: GroupBy = "team",
    where: Where = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[EfficiencyRow, EfficiencyTotal]:
    """One number for efficiency: the cost of used time over the cost of allocated time, dearest
    first.

    The total also holds what nobody held, so it is the efficiency of the fleet; both parts of each
    ratio are given.
    """
    page, by, wanted = Page(limit, cursor), dimensions(group_by), conditions(where)
    with ledger.snapshot() as snapshot:
        span = snapshot.period(period, start, end)
        bill = bills.read(snapshot, span, by, wanted)
        priced = [row for row in bill.report.rows if row.currency is not None]
        called = bills.workload_names(
            snapshot, bill.report.by, (row.keys for row in page.slice_items(priced))
        )
        return page.answer(
            priced,
            lambda row: EfficiencyRow(
                names=names(bill.report.by, row.keys, called),
                state=row.state or HELD,
                **_efficiency(row.currency or "", [row]),
            ),
            link=bills.link(snapshot, span, by, wanted),
            evidence=snapshot.evidence(span),
            totals=[
                EfficiencyTotal(
                    **_efficiency(currency, [row for row in priced if row.currency == currency])
                )
                for currency in dict.fromkeys(row.currency or "" for row in priced)
            ],
            notices=bill.notices,
            empty=(
                bills.NO_ROWS
                if not bill.report.rows
                else "nothing here has a price, so there is no cost to compare"
            ),
            next_step=_next_step(bill.report.rows, group_by),
        )


def _efficiency(currency: str, rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Held time less its idle part, of the whole cost; held time of unknown activity counts as
    used.
    """
    allocated = sum_known(row.effective_minor for row in rows)
    held = [row for row in rows if row.state == HELD and row.effective_minor is not None]
    is_unknown = all(row.waste_minor is None for row in held) and bool(held)
    used = (
        None
        if is_unknown
        else sum((row.effective_minor or 0) - (row.waste_minor or 0) for row in held)
    )
    # A correction takes back or adds time of an earlier month: none of it is time of this one.
    unknown_ns = sum(
        row.gpu_ns if row.state == UNOBSERVED else row.unknown_ns
        for row in rows
        if not row.correction_of
    )
    return {
        "currency": currency,
        "efficiency": None if used is None or allocated is None else ratio(used, allocated),
        "cost_used": money(used, currency),
        "cost_allocated": money(allocated, currency),
        "is_exact": not unknown_ns,
        "unknown": gpu_hours(unknown_ns),
    }
