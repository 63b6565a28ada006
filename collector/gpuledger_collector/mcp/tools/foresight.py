"""Tools about what is ahead: budgets, where spending ends, and the demand for GPUs.

Forecasts are never billed.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated

import numpy as np
from pydantic import Field

from gpuledger_collector.accounting.budget_status import Ahead, OwnerAhead, Status
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.period import Period as Days
from gpuledger_collector.export.scaling import say_headroom
from gpuledger_collector.export.site import DEMAND
from gpuledger_collector.insight.forecast import Forecast
from gpuledger_collector.insight.pool_outlook import ended_ms
from gpuledger_collector.insight.series import Series
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Money,
    Quantity,
    Span,
    exact_money,
    exact_quantity,
    instant,
    name,
    quantity,
)
from gpuledger_collector.mcp.ledger import Ledger, Page, Refused, Snapshot
from gpuledger_collector.mcp.tools.fleet import ESTIMATED, CountTotal
from gpuledger_collector.mcp.tools.parameters import LIMIT, TEXT_LENGTH, Cursor, Limit
from gpuledger_collector.services.budget_status import standings
from gpuledger_collector.services.forecasts import forecast_pools, largest_pools
from gpuledger_collector.services.scaling_advice import UnknownPool, headroom_by_model
from gpuledger_collector.services.spend_forecasts import forecast_billed_owners
from gpuledger_common.plurals import plural

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
MAX_HOURS = 168


class EndRange(Model):
    """Where an amount ends: with 80 % probability between low and high."""

    low: Money | Quantity
    middle: Money | Quantity
    high: Money | Quantity


class BudgetRow(Model):
    """A budget in its own period, which need not be the month of the bill."""

    budget: str
    owner: Annotated[
        dict[str, str], Field(description="Levels of the owner tree; empty: the whole fleet.")
    ]
    measure: Annotated[
        str, Field(description="What is counted: direct cost, total cost or GPU-hours.")
    ]
    period: Span
    amount: Money | Quantity
    spent: Annotated[
        Money | Quantity | None,
        Field(description="Null where nothing of the period is rated, or a share is not known."),
    ]
    spent_percent: int | None
    elapsed_percent: Annotated[
        int | None, Field(description="Rated part of the period; null: nothing of it is.")
    ]
    rated_until: str | None
    forecast: Annotated[
        EndRange | None, Field(description="At the end of the period; null: too short a history.")
    ]
    runs_out: Annotated[
        str | None,
        Field(description="Day on which the middle forecast spends it; null once it is spent."),
    ]


class SpendRow(Model):
    """Where the spending of an owner ends with this month."""

    owner: str
    currency: str
    forecast: EndRange
    days_of_history: int


class DemandRow(Model):
    """The demand for GPUs of a pool in the coming hours."""

    pool: str
    demand_now: Annotated[
        Quantity | None, Field(description="In the last full hour; null: unknown.")
    ]
    mean: Annotated[Quantity, Field(description="Mean over the hours ahead.")]
    peak: Annotated[Quantity, Field(description="Highest middle forecast of an hour.")]
    peak_at: str | None
    peak_high: Annotated[
        Quantity, Field(description="Exceeded in that hour with 10 % probability.")
    ]
    note: Annotated[str, Field(description="How it was forecast, where that is worth a word.")]


def list_budgets(
    ledger: Ledger, limit: Limit = LIMIT, cursor: Cursor = ""
) -> Answer[BudgetRow, CountTotal]:
    """Budgets in their own periods: what is spent of them, where they end by the forecast, and when
    they run out.

    A budget's period may be a month, a quarter, a year or a range of days: its spending is not that
    of a month's bill.
    """
    page = Page(limit, cursor)
    with ledger.snapshot() as snapshot:
        own = standings(snapshot.connection, ledger.now_ms, ledger.reader)
        return page.answer(
            own,
            lambda status: _budget_row(snapshot, status),
            link=f"{ledger.link('/')}#budgets",
            totals=[CountTotal(count=len(own))],
            empty="no budget is in force",
            next_step="" if own else "budgets are declared: gpuledger apply budgets.toml",
        )


def _budget_row(snapshot: Snapshot, status: Status) -> BudgetRow:
    budget, ahead, running = status.budget, status.ahead, status.ahead_of_run_out

    def amount(micro: int) -> Money | Quantity:
        if budget.is_money:
            return exact_money(micro, budget.currency)
        return exact_quantity(micro, "GPU-hour")

    return BudgetRow(
        budget=name(budget.name),
        owner={level: name(value) for level, value in budget.owner.items()},
        measure=budget.measure_text,
        period=periods.span_of(snapshot.calendar, status.period),
        amount=amount(budget.amount_micro),
        spent=None if status.spend.micro is None else amount(status.spend.micro),
        spent_percent=status.spent_percent,
        elapsed_percent=status.elapsed_percent,
        rated_until=instant(status.known_ms),
        forecast=None if ahead is None else _end_range(ahead, amount),
        runs_out=None
        if running is None or running.run_out_ms is None
        else str(budget.calendar.date_of(running.run_out_ms)),
    )


def forecast_spend(
    ledger: Ledger,
    level: Annotated[
        str, Field(max_length=40, description=f"One of {', '.join(LEVELS)}.")
    ] = "team",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[SpendRow, CountTotal]:
    """Where the direct cost of each owner ends with this month, as a range; highest first.

    Estimates, never billed.
    """
    page = Page(limit, cursor)
    if level not in LEVELS:
        raise Refused(f"level: give one of {', '.join(LEVELS)}")
    with ledger.snapshot() as snapshot:
        month = snapshot.calendar.month(snapshot.calendar.month_of(ledger.now_ms))
        rows = forecast_billed_owners(snapshot.connection, level, ledger.now_ms, ledger.reader)
        return page.answer(
            rows,
            _spend_row,
            link=ledger.link("/"),
            evidence=snapshot.evidence(month),
            proof=ESTIMATED,
            totals=[CountTotal(count=len(rows))],
            empty="nobody has enough history of spending for a forecast",
        )


def _spend_row(item: OwnerAhead) -> SpendRow:
    return SpendRow(
        owner=name(item.owner),
        currency=item.currency,
        forecast=_end_range(item.ahead, lambda micro: exact_money(micro, item.currency)),
        days_of_history=item.ahead.days_of_history,
    )


def _end_range(ahead: Ahead, amount: Callable[[int], Money | Quantity]) -> EndRange:
    return EndRange(
        low=amount(ahead.low_micro),
        middle=amount(ahead.middle_micro),
        high=amount(ahead.high_micro),
    )


def forecast_demand(
    ledger: Ledger,
    pool: Annotated[
        str,
        Field(max_length=TEXT_LENGTH, description="Name of a pool; empty: those of most demand."),
    ] = "",
    hours: Annotated[int, Field(ge=1, le=MAX_HOURS, description="How many hours ahead.")] = 24,
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[DemandRow, CountTotal]:
    """How many GPUs each pool will be asked for in the coming hours: mean, peak and when; of a named
    pool of several models, the headroom of each in a notice, the scarcest first.

    Not for one owner's token.
    """
    page = Page(limit, cursor)
    ledger.require_fleet()
    with ledger.snapshot() as snapshot:
        try:
            largest = largest_pools(snapshot.connection, ledger.now_ms, pool or None)
        except UnknownPool:
            raise Refused(
                f"pool: nothing is known of {name(pool)!r}; list_values(dimension=pool) names them"
            ) from None
        models = headroom_by_model(snapshot.connection, ledger.now_ms, pool) if pool else []
    pools = {series.name: series for series in largest.pools}
    ahead = forecast_pools(largest.pools, hours, ledger.now_ms)
    first_ms = ledger.now_ms // HOUR_MS * HOUR_MS
    return page.answer(
        ahead,
        lambda forecast: _demand_row(forecast, pools[forecast.series], ledger.now_ms),
        link=ledger.link(DEMAND),
        span=periods.span_of(snapshot.calendar, Days(first_ms, first_ms + hours * HOUR_MS)),
        proof=ESTIMATED,
        totals=[CountTotal(count=len(ahead))],
        notices=[
            *_left_out_notices(largest.left_out),
            *(f"{name(model.model)}: {say_headroom(model)}" for model in models),
        ],
        empty="no demand is known yet",
    )


def _left_out_notices(left_out: int) -> list[str]:
    """The sentence about pools that are not forecast."""
    if not left_out:
        return []
    return [f"{plural(left_out, 'pool')} of less demand not forecast; pool=NAME asks for one"]


def _demand_row(forecast: Forecast, past: Series, now_ms: int) -> DemandRow:
    middle = forecast.values[:, forecast.quantiles.index(MIDDLE)]
    peak = int(np.argmax(middle))
    last = float(past.values[-1])
    return DemandRow(
        pool=name(forecast.series),
        demand_now=_gpus(last) if np.isfinite(last) and ended_ms(past, now_ms) is None else None,
        mean=_gpus(float(forecast.mean.mean())),
        peak=_gpus(float(middle[peak])),
        peak_at=instant(int(forecast.at_ms[peak])),
        peak_high=_gpus(float(forecast.values[peak, forecast.quantiles.index(HIGH)])),
        note=forecast.note or "",
    )


def _gpus(value: float) -> Quantity:
    """An estimate of GPUs with a decimal."""
    gpus = quantity(Decimal(str(round(value, 1))), "GPU")
    assert gpus is not None
    return gpus
