"""The overview: a month of the ledger and the fleet now, as a viewer may see them, in one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.budget_status import Status
from gpuledger_collector.accounting.chargeback import Report
from gpuledger_collector.accounting.closed_verdict import ClosedVerdict
from gpuledger_collector.accounting.closing import CorrectionSum, LaterCorrections
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period
from gpuledger_collector.accounting.period_comparison import BillChange
from gpuledger_collector.accounting.rated_period import RatedPeriod
from gpuledger_collector.accounting.spend_over_time import SpendOverTime
from gpuledger_collector.accounting.spend_series import MOST_DAYS
from gpuledger_collector.insight.findings import IdleRemedies
from gpuledger_collector.insight.last_holder import LastHolder
from gpuledger_collector.insight.nodes import SILENT_MS, Fleet, FleetNode
from gpuledger_collector.services.absence import Absence, explain_absence
from gpuledger_collector.services.budget_status import standings
from gpuledger_collector.services.chargeback import direct_costs_by_team, read_imported_ns
from gpuledger_collector.services.closed_verdict import verdict_of
from gpuledger_collector.services.findings import (
    FindingList,
    IdleHolder,
    Viewer,
    list_findings,
    list_idle_holders,
    list_idle_remedies,
)
from gpuledger_collector.services.last_holders import find_last_holders
from gpuledger_collector.services.period_comparison import read_bill_change
from gpuledger_collector.services.rated_period import read_rated_period
from gpuledger_collector.services.spend_series import read_spend
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.billing import declarations, periods, reports
from gpuledger_collector.storage.health import first_heard
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

TREND_DAYS = 30
ANOMALY_DAYS = 7


@dataclass(frozen=True, slots=True)
class Overview:
    """What the overview shows; of whoever sees one owner's part everything about the entire fleet
    is left out.

    `nothing` says why a period has no amount: in a few words, and in a sentence with what to do.
    `first_heard`: nodes that reported for the first time within a day.
    """

    rated: RatedPeriod
    fleet: Fleet
    direct: Report
    spend: SpendOverTime | None
    bill_change: BillChange | None
    """Against the period before; None: there is nothing whole to compare."""
    trend: Sequence[Period]
    costs_by_day: Mapping[str, Mapping[str, Mapping[int, int]]]
    has_inventory: bool
    imported_ns: Mapping[str, int]
    """By currency, the time that was imported as counts of GPUs."""
    has_shares: bool
    nothing: tuple[str, str] | None
    absence: Absence | None
    """What of the question explains that."""
    corrections: Sequence[CorrectionSum]
    later_corrections: Sequence[LaterCorrections]
    """Those of days of closed months in a range that is none."""
    verdict: ClosedVerdict | None
    """Where the period is a closed month."""
    last_closed: ClosedVerdict | None
    """Of the last closed month, whichever is asked about; None: none is closed."""
    idle: FindingList
    idle_remedies: IdleRemedies
    idle_holders: Sequence[IdleHolder]
    anomalies: FindingList
    budgets: Sequence[Status]
    nodes: Sequence[FleetNode]
    first_heard: Sequence[str]
    last_holders: Mapping[str, LastHolder]
    """By UUID, who held a GPU last since it is sick."""

    @property
    def is_idle_known(self) -> bool:
        """Whether a search has seen what nodes report now."""
        return self.idle.looked_ms is not None and self.fleet.reports


def read_overview(
    connection: Connection, period: Period, viewer: Viewer, shown: Viewer, now_ms: int
) -> Overview:
    """Read the overview of a period and of now, with the rights of a viewer; `shown` narrows it
    further.
    """
    rated = read_rated_period(connection, period)
    calendar, owner = rated.calendar, shown.owner
    last_ms = min(calendar.day_of(now_ms).start_ms, period.end_ms)
    trend = Period(calendar.days_before(last_ms, TREND_DAYS), last_ms)
    direct = direct_costs_by_team(connection, period, owner)
    with as_viewer(connection, viewer.owner):
        costs_by_day = overview.daily_by_team(connection, trend, owner or {})
    day, week = (Period(now_ms - days * DAY_MS, now_ms + 1) for days in (1, ANOMALY_DAYS))
    idle = list_findings(connection, "idle", day, viewer, shown)
    remedies = list_idle_remedies(connection, idle, now_ms)
    verdict = verdict_of(connection, rated, viewer.owner, owner)
    last_closed = verdict
    if verdict is None and rated.closed_months:
        last = read_rated_period(connection, rated.closed_months[-1].period, calendar)
        last_closed = verdict_of(connection, last, viewer.owner, owner)
    absence = (
        None
        if direct.rows
        else explain_absence(
            connection,
            period,
            calendar,
            now_ms,
            owner,
            viewer.owner,
            is_rated=rated.rated_ms is not None,
        )
    )
    fleet = overview.fleet(connection, now_ms - SILENT_MS)
    return Overview(
        rated=rated,
        fleet=fleet,
        direct=direct,
        spend=(
            read_spend(connection, period, "team", now_ms, owner)
            if period.ms <= MOST_DAYS * DAY_MS
            else None
        ),
        bill_change=(
            read_bill_change(connection, calendar, period, now_ms, viewer, shown)
            if direct.rows and period.ms <= MOST_DAYS * DAY_MS
            else None
        ),
        trend=calendar.days(trend),
        costs_by_day=costs_by_day,
        # Whoever sees one owner's part is told of no unallocated time at all.
        has_inventory=owner is not None or reports.has_capacity(connection, period),
        imported_ns=read_imported_ns(connection, period, rated.checks, owner),
        has_shares=any(
            declarations.SHARED_COSTS.in_force(connection, at)
            for at in periods.declarations_at(connection, calendar, period).values()
        ),
        nothing=None if direct.rows else _nothing(connection, rated, absence),
        absence=absence,
        corrections=overview.corrections(connection, period) if owner is None else [],
        later_corrections=(
            _later_corrections(connection, period, calendar)
            if owner is None and verdict is None
            else []
        ),
        verdict=verdict,
        last_closed=last_closed,
        idle=idle,
        idle_remedies=remedies,
        idle_holders=list_idle_holders(idle, remedies),
        anomalies=list_findings(connection, "anomaly", week, viewer, shown),
        budgets=standings(connection, now_ms, viewer, shown),
        nodes=overview.nodes(connection, now_ms - SILENT_MS) if owner is None else [],
        first_heard=first_heard(connection, now_ms - DAY_MS) if owner is None else [],
        last_holders=find_last_holders(connection, fleet.causes) if owner is None else {},
    )


def _later_corrections(
    connection: Connection, period: Period, calendar: Calendar
) -> list[LaterCorrections]:
    """Corrections of a period that later months bill, by month and currency."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for booked_ms, part in overview.corrections_by_booked_day(connection, period):
        key = calendar.month_of(booked_ms), part.currency
        lines, micro = sums.get(key, (0, 0))
        sums[key] = lines + part.lines, micro + part.micro
    return [
        LaterCorrections(month=month, currency=currency, lines=lines, micro=micro)
        for (month, currency), (lines, micro) in sums.items()
    ]


def _nothing(
    connection: Connection, rated: RatedPeriod, absence: Absence | None
) -> tuple[str, str]:
    if not overview.has_prices(connection):
        return "no prices yet", "There are no prices yet: gpuledger import prices prices.csv."
    if absence is not None:
        return absence.short, absence.sentence
    if rated.rated_ms is not None:
        return (
            "nothing was used",
            "Nothing was charged in this period: it is rated, and none of its time was used.",
        )
    return (
        "nothing is rated yet",
        "Nothing of it is rated yet: rating starts a minute after the first evidence.",
    )
