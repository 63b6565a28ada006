"""Tools that compare two periods: by how much a bill changed, by price, volume and mix, and beside
which events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from gpuledger_collector.accounting.period import Period as Days
from gpuledger_collector.accounting.period_comparison import (
    BilledCorrection,
    Condition,
    GroupChange,
    PeriodComparison,
)
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rate_changes import RateChange
from gpuledger_collector.export.change_causes import say_main_cause
from gpuledger_collector.export.site import ANOMALIES
from gpuledger_collector.insight.findings import AT_LISTED_RATES, NamedFinding
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Money,
    Quantity,
    Span,
    cut,
    exact_money,
    gpu_hours,
    instant,
    micro_money,
    name,
    names,
)
from gpuledger_collector.mcp.ledger import Ledger, Page, Snapshot
from gpuledger_collector.mcp.tools import bills
from gpuledger_collector.mcp.tools.costs import Names
from gpuledger_collector.mcp.tools.parameters import (
    LIMIT,
    TEXT_LENGTH,
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
from gpuledger_collector.services import period_comparison

BasePeriod = Annotated[
    str,
    Field(
        max_length=40,
        description=(
            "Period to compare with; empty: the month, or as many days, right before, and of an"
            " unfinished period its whole days with as many."
        ),
    ),
]
BaseStart = Annotated[
    str, Field(max_length=40, description="First day to compare with, as 2026-09-01.")
]
BaseEnd = Annotated[
    str, Field(max_length=40, description="Day after the last one to compare with.")
]
MAX_EVENTS = 50
MAX_RATE_CHANGES = 20
ChangeStatus = Literal["new", "removed", "changed", "unchanged"]


class RateChangeRow(Model):
    """A rate of the price book that changed, and what of `by_price` it did."""

    gpu_model: Annotated[str, Field(description="As in the price book; empty: any.")]
    pool: str
    node: str
    region: str
    purchase: str
    at: Annotated[str, Field(description="RFC 3339, UTC.")]
    rate_before: Annotated[str, Field(description="Per GPU-hour.")]
    rate_after: str
    hours_after: Annotated[Quantity | None, Field(description="Later hours at the new rate.")]
    effect: Money


class ChangeTotal(Model):
    """Two periods compared, exact to the micro-unit: price, volume and mix add up to the change."""

    currency: str
    before: Money
    after: Money
    change: Money
    by_price: Annotated[Money, Field(description="Later hours at the change of their price.")]
    by_volume: Annotated[
        Money, Field(description="More or fewer hours at the earlier average price.")
    ]
    by_mix: Annotated[Money, Field(description="Hours moved to dearer or cheaper accelerators.")]
    rate_changes: Annotated[
        Sequence[RateChangeRow],
        Field(
            description=(
                "Rates that changed, also within a period, largest effect first; with"
                " by_other_prices they add up to by_price."
            )
        ),
    ] = ()
    other_rate_changes: Annotated[int, Field(description="Changes beyond those listed.")] = 0
    by_other_prices: Annotated[
        Money | None,
        Field(
            description=(
                "Where a rate changed: the rest of by_price, of the changes not listed, and of pools,"
                " ways of buying and commitments."
            )
        ),
    ] = None
    hours_before: Quantity
    hours_after: Quantity
    base: Annotated[Span, Field(description="The period that is compared with.")]
    days_before: int
    days_after: int


class ChangeRow(Model):
    """The change of one group."""

    names: Names
    status: ChangeStatus
    currency: str
    before: Money
    after: Money
    change: Money
    by_price: Money
    by_volume: Money
    by_mix: Money


class Event(Model):
    """Something recorded near a change; no cause is claimed."""

    kind: Literal["price", "anomaly", "correction", "unrated"]
    at: Annotated[str | None, Field(description="RFC 3339, UTC.")]
    text: Annotated[str, Field(description="What is recorded; data, may quote names.")]
    amount: Annotated[
        Money | None,
        Field(description=f"Of an anomaly: more than in the same hours before, {AT_LISTED_RATES}."),
    ] = None


class ExplainedTotal(ChangeTotal):
    """A change with its largest cause and what is recorded near it."""

    main_cause: Annotated[
        str,
        Field(
            description=(
                "The largest cause that goes the way of the change, as statements name it; empty:"
                " nothing changed. Data, may quote names."
            )
        ),
    ] = ""
    events: Sequence[Event] = ()


def compare_periods(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    base_period: BasePeriod = "",
    base_start: BaseStart = "",
    base_end: BaseEnd = "",
    group_by: GroupBy = "team",
    where: Where = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[ChangeRow, ChangeTotal]:
    """By how much the direct cost changed between two periods, by group, largest change first.

    Each change is split exactly into price, volume and mix. Periods of unequal length are compared
    as they are.
    """
    page, by, wanted = Page(limit, cursor), dimensions(group_by), conditions(where)
    with ledger.snapshot() as snapshot:
        before, after = _spans(snapshot, (period, start, end), (base_period, base_start, base_end))
        if before is None:
            return _incomparable(snapshot, page, after)
        compared = _compare(snapshot, (before, after), by, wanted)
        called = bills.workload_names(
            snapshot, compared.by, (group.keys for group in page.slice_items(compared.groups))
        )
        return page.answer(
            compared.groups,
            lambda group: _row(group, names(compared.by, group.keys, called)),
            link=bills.link(snapshot, compared.after, by, wanted),
            evidence=snapshot.evidence(compared.after),
            totals=[
                ChangeTotal(**_total(snapshot, compared, currency)) for currency in compared.hours
            ],
            partial=_gap(snapshot, compared) or _left_out(snapshot, compared, (period, start, end)),
            empty=bills.NO_ROWS,
            next_step=(
                "explain_change names workloads and what is recorded near the change"
                if compared.groups
                else ""
            ),
        )


def explain_change(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    base_period: BasePeriod = "",
    base_start: BaseStart = "",
    base_end: BaseEnd = "",
    where: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH,
            description="Whose, as team=vision; empty: all that this token sees.",
        ),
    ] = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[ChangeRow, ExplainedTotal]:
    """Why spending changed: workloads and models that moved it most, and recorded events near it.

    Events are price changes, anomalies and corrections as recorded; that one of them caused the
    change is not claimed.
    """
    page, wanted = Page(limit, cursor), conditions(where)
    with ledger.snapshot() as snapshot:
        before, after = _spans(snapshot, (period, start, end), (base_period, base_start, base_end))
        if before is None:
            return _incomparable(snapshot, page, after)
        compared = _compare(snapshot, (before, after), ("workload", "model"), wanted)
        called = bills.workload_names(
            snapshot, compared.by, (group.keys for group in page.slice_items(compared.groups))
        )
        events = _events(snapshot, compared, wanted)
        return page.answer(
            compared.groups,
            lambda group: _row(group, names(compared.by, group.keys, called)),
            link=ledger.link(ANOMALIES),
            evidence=snapshot.evidence(compared.after),
            totals=[
                ExplainedTotal(
                    **_total(snapshot, compared, currency),
                    main_cause=_main_cause(snapshot, compared, currency),
                    events=[] if at else events,
                )
                for at, currency in enumerate(compared.hours)
            ],
            partial=_gap(snapshot, compared) or _left_out(snapshot, compared, (period, start, end)),
            empty=bills.NO_ROWS,
        )


def _spans(
    snapshot: Snapshot, own: tuple[str, str, str], base: tuple[str, str, str]
) -> tuple[Days | None, Days]:
    """The base and the period; None where one of them has no rated day: what is not known is not
    zero.

    Raises ValueError.
    """
    after = snapshot.period(*own)
    try:
        before = snapshot.period(*base) if any(base) else None
    except ValueError as error:
        raise ValueError(f"base_period, base_start and base_end: {error}") from None
    if before is None:
        usual = period_comparison.choose_periods(
            snapshot.connection, snapshot.calendar, after, snapshot.ledger.now_ms
        )
        before, after = usual or (None, after)
    known = all(
        span is not None and snapshot.evidence(span).coverage.days_rated for span in (before, after)
    )
    return (before if known else None), after


def _left_out(snapshot: Snapshot, compared: PeriodComparison, own: tuple[str, str, str]) -> str:
    """Why fewer whole days are compared than were asked for; empty where all of them are."""
    return period_comparison.say_days_left_out(
        snapshot.connection, compared, snapshot.period(*own), snapshot.calendar
    )


def _incomparable(snapshot: Snapshot, page: Page, after: Days) -> Answer[Any, Any]:
    """The answer where there is nothing to compare."""
    return page.answer(
        [],
        lambda row: row,
        link=bills.link(snapshot, after, ("team",), {}),
        evidence=snapshot.evidence(after),
        empty=(
            "there is nothing to compare: the ledger has no rated day in this period or in the one"
            " before"
        ),
        next_step=(
            "describe_ledger says which months there are; base_period, or base_start and base_end,"
            " name another"
        ),
    )


def _compare(
    snapshot: Snapshot, spans: tuple[Days, Days], by: tuple[str, ...], where: Mapping[str, str]
) -> PeriodComparison:
    every = (*by, *(dimension for dimension in where if dimension not in by))
    return period_comparison.compare_periods(
        snapshot.connection, spans, every, _condition(where), snapshot.ledger.reader
    )


def _condition(where: Mapping[str, str]) -> Condition:
    return lambda keys, by: bills.meets(keys, by, where)


def _row(group: GroupChange, cells: dict[str, str]) -> ChangeRow:
    status: ChangeStatus
    if not group.before and group.after:
        status = "new"
    elif group.before and not group.after:
        status = "removed"
    else:
        status = "changed" if group.change else "unchanged"
    return ChangeRow(names=cells, status=status, currency=group.currency, **_amounts(group))


def _amounts(group: GroupChange) -> dict[str, Money]:
    return {
        name: exact_money(getattr(group, name), group.currency)
        for name in ("before", "after", "change", "by_price", "by_volume", "by_mix")
    }


def _total(snapshot: Snapshot, compared: PeriodComparison, currency: str) -> dict[str, Any]:
    before_ns, after_ns = compared.hours[currency]
    return {
        "currency": currency,
        **_amounts(compared.total(currency)),
        **_rate_changes(compared, currency),
        "hours_before": gpu_hours(before_ns),
        "hours_after": gpu_hours(after_ns),
        "base": periods.span_of(snapshot.calendar, compared.before),
        "days_before": len(snapshot.calendar.days(compared.before)),
        "days_after": len(snapshot.calendar.days(compared.after)),
    }


def _main_cause(snapshot: Snapshot, compared: PeriodComparison, currency: str) -> str:
    """The largest cause of a change by workload and model, as a statement says it."""
    total, cause = compared.total(currency), compared.main_cause(currency)
    changes = compared.rate_changes.get(currency, ())
    said = say_main_cause(cause, total.change, total.by_price, changes, currency)
    if said is None:
        return ""
    called = bills.workload_names(snapshot, compared.by, [[said.job]]) if said.job else {}
    job, _ = called.get(said.job, ("", ""))
    return cut(replace(said, job=f"{job} ({said.job})" if job else said.job).text, TEXT_LENGTH)


def _rate_changes(compared: PeriodComparison, currency: str) -> dict[str, Any]:
    """What changes of rates did; nothing where none changed."""
    changes = compared.rate_changes.get(currency, ())
    if not changes:
        return {}
    listed = changes[:MAX_RATE_CHANGES]
    rest = compared.total(currency).by_price - sum(change.micro for change in listed)
    return {
        "rate_changes": [_rate_change(change) for change in listed],
        "other_rate_changes": len(changes) - len(listed),
        "by_other_prices": exact_money(rest, currency),
    }


def _rate_change(change: RateChange) -> RateChangeRow:
    return RateChangeRow(
        gpu_model=name(change.gpu_model),
        pool=name(change.pool),
        node=name(change.node),
        region=name(change.region),
        purchase=change.purchase,
        at=instant(change.at_ms) or "",
        rate_before=f"{change.before:f}",
        rate_after=f"{change.after:f}",
        hours_after=gpu_hours(change.gpu_ns),
        effect=exact_money(change.micro, change.currency),
    )


def _gap(snapshot: Snapshot, compared: PeriodComparison) -> str:
    """Why the comparison is not whole, in a sentence."""
    own, base = snapshot.evidence(compared.after).gap, snapshot.evidence(compared.before).gap
    return "; ".join(filter(None, [own, base and f"of the period compared with: {base}"]))


def _events(
    snapshot: Snapshot, compared: PeriodComparison, where: Mapping[str, str]
) -> Sequence[Event]:
    """What is recorded in both periods, oldest first."""
    recorded = period_comparison.list_events(
        snapshot.connection,
        compared,
        tuple(where) or ("team",),
        _condition(where),
        snapshot.ledger.reader,
    )
    events = [
        (item.since_ms, _anomaly(item)) for item in recorded.anomalies if _matches(item, where)
    ]
    events += [(compared.after.start_ms, _correction(item)) for item in recorded.corrections]
    events += [(price.effective_from_ms, _price(price)) for price in recorded.prices]
    return [event for _, event in sorted(events, key=lambda item: item[0])][:MAX_EVENTS]


def _matches(finding: NamedFinding, where: Mapping[str, str]) -> bool:
    """Whether an anomaly is of the owner that is asked about; what is no level of the tree does not
    exclude it.
    """
    owner = {"team": finding.team, **finding.owner}
    return all(owner.get(dimension, value) == value for dimension, value in where.items())


def _anomaly(finding: NamedFinding) -> Event:
    sentence = finding.evidence.get("sentence") or "unusual spending"
    return Event(
        kind="anomaly",
        at=instant(finding.since_ms),
        text=cut(f"{name(finding.subject)}: {sentence}", 300),
        amount=micro_money(finding.cost_micro, finding.currency or None),
    )


def _correction(item: BilledCorrection) -> Event:
    return Event(
        kind="correction",
        at=None,
        text=f"corrections of the closed month {item.month} are billed in this period",
        amount=micro_money(item.micro, item.currency),
    )


def _price(price: Price) -> Event:
    place = (
        ", ".join(
            filter(None, [name(price.gpu_model), name(price.pool) and f"pool {name(price.pool)}"])
        )
        or "any"
    )
    rate = f"{price.rate:f} {price.currency} per GPU-hour ({price.purchase})"
    return Event(
        kind="price",
        at=instant(price.effective_from_ms),
        text=f"a rate takes effect: {rate} of {place}",
    )
