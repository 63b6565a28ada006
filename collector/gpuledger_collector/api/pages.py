"""GET / and /statements: the fleet now, who pays in a month, and the statement of one owner, as
pages and as CSV.

The numbers are those of the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, Report, ReportRow, sum_known
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, UTC_DAYS, Period, format_instant
from gpuledger_collector.accounting.waste import whole_waste
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import (
    ANOTHER_OWNER,
    HourlyCache,
    PageRoute,
    View,
    csv_file,
    page,
    require_view,
)
from gpuledger_collector.export import html, plots
from gpuledger_collector.export import statement as forms
from gpuledger_collector.export.chargeback import csv_rows, unbilled_line, waste_line
from gpuledger_collector.export.findings import counted, lasting
from gpuledger_collector.export.shortened import is_rest, shortened
from gpuledger_collector.export.site import Filters, Site, pool_path, statement_path
from gpuledger_collector.insight.nodes import INVENTORY, SILENT_MS, UNINSTALLED, is_silent
from gpuledger_collector.services import new_nodes
from gpuledger_collector.services.budget_status import standings
from gpuledger_collector.services.chargeback import (
    direct_costs_by_team,
    notices,
    read_chargeback,
    read_owner_chargeback,
)
from gpuledger_collector.services.findings import list_findings
from gpuledger_collector.services.forecasts import forecast_pools, largest_pools
from gpuledger_collector.services.statement import (
    NoStatement,
    monthly_chargeback,
    read_statement,
    require_level,
)
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.billing import declarations, month_proofs, periods, reports
from gpuledger_collector.storage.billing import statements as stored
from gpuledger_collector.storage.health import first_heard
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer
from gpuledger_common.plurals import plural

TREND_DAYS = 30
ANOMALY_DAYS = 7
SHOWN = 6
PAST_HOURS, HOURS_AHEAD = 72, 24


@dataclass(frozen=True, slots=True)
class PoolOutlook:
    """Demand of a pool in GPUs: past hours (None: unknown), and low, middle and high of the coming
    ones.
    """

    name: str
    past: tuple[float | None, ...]
    ahead: tuple[tuple[float, float, float], ...]
    note: str
    first_ms: int
    """Start of the first past hour."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Demand of the largest pools, by name, and how many others there are."""

    pools: tuple[PoolOutlook, ...] = ()
    left_out: int = 0


def router(context: ReadContext, outlook: HourlyCache[Outlook]) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys)

    @routes.get("/")
    def home(request: Request, view: View = wanted) -> Response:
        """The overview of the fleet, of a month and of now; for a viewer, or of one owner, that
        part of it.
        """
        return overview_page(context, outlook, str(request.base_url).rstrip("/"), view)

    @routes.get("/statements")
    def newest(view: View = wanted) -> Response:
        """The statements of this month."""
        with context.database.transaction(read_only=True) as connection:
            return RedirectResponse(
                view.site(connection, "/statements", context.now_ms).links[1].path, 303
            )

    @routes.get("/statements/{level}/{month}")
    def statements(
        level: str, month: str, owner: str | None = None, view: View = wanted
    ) -> Response:
        """Who pays in a month, or the statement of an owner whose name cannot be part of a path."""
        if owner is not None:
            return statement_page(context, level, owner, month, view)
        return month_page(context, level, month, view)

    @routes.get("/statements/{level}/{owner:name}/{month}")
    def statement(level: str, owner: str, month: str, view: View = wanted) -> Response:
        """The statement of an owner."""
        return statement_page(context, level, owner, month, view)

    return routes


def statement_page(
    context: ReadContext, level: str, owner: str, month: str, view: View
) -> Response:
    """The statement, as the command writes it; as CSV what the owner pays by job.

    Raises Denied when this reader may not see all of that owner.
    """
    reader = view.reader
    if not reader.sees({level: owner}):
        raise Denied(403, ANOTHER_OWNER)
    with context.database.transaction(read_only=True) as connection:
        chargeback = monthly_chargeback(connection, level, month, context.now_ms, owner)
        if view.wants_csv:
            period = zones.in_zone(connection, UTC_DAYS.month(month))
            by = (level, "workload")
            report = read_chargeback(connection, period, by, context.now_ms, reader.owner).report
            rows = tuple(row for row in report.rows if row.keys[0] == owner)
            return csv_file(csv_rows(replace(report, rows=rows)), "statement", month)
        narrowed = replace(view, filters=Filters(month, {level: owner}))
        path, _, is_dots = statement_path(level, owner, month).partition("?")
        extra = {"owner": owner} if is_dots else {}
        site = narrowed.site(
            connection,
            path,
            context.now_ms,
            has_csv=True,
            periods=(),
            extra=extra,
            is_filtered=False,
        )
        try:
            with as_viewer(connection, reader.owner):
                reading = (connection, level, owner, month, context.now_ms, chargeback)
                statement = read_statement(*reading, may_be_empty=True)
        except NoStatement as error:
            if reader.owner is None:
                raise
            # The sentence names other owners, which a viewer must not see.
            raise NoStatement(f"{level} {owner!r} was billed nothing in {month}") from error
    return page(forms.as_html(statement, site), site=site)


def month_page(context: ReadContext, level: str, month: str, view: View) -> Response:
    """Who pays in a month, by a level: the rows of the chargeback that this reader may see."""
    require_level(level)
    nominal = UTC_DAYS.month(month)
    reader = view.reader
    with context.database.transaction(read_only=True) as connection:
        period = zones.in_zone(connection, nominal)
        report = _month_report(connection, period, level, context.now_ms, reader)
        if view.wants_csv:
            # A notice may name other owners, which a viewer must not see.
            said = (
                notices(connection, period, context.now_ms, report) if reader.owner is None else []
            )
            return csv_file(csv_rows(report, said), level, month)
        narrowed = replace(view, filters=replace(view.filters, period=month))
        path = f"/statements/{level}/{month}"
        site = narrowed.site(
            connection, path, context.now_ms, has_csv=True, is_filtered=False, periods=()
        )
        months = stored.months(connection)
    return page(forms.index(level, month, report, site, months), site=site)


def _month_report(
    connection: Connection, period: Period, level: str, now_ms: int, reader: Principal
) -> Report:
    """Who pays by a level; for a viewer its own rows of that, so that their cents are those of the
    invoice.
    """
    if reader.owner is None:
        return read_chargeback(connection, period, (level,), now_ms).report
    if set(reader.owner) != {level}:
        return Report((level,), (), ())
    return read_owner_chargeback(connection, period, level, reader.owner[level], now_ms).report


def forecast_outlook(context: ReadContext) -> Outlook:
    """Past and coming demand of the largest pools; takes seconds."""
    with context.database.connect() as connection:
        largest = largest_pools(connection, context.now_ms)
    pools = {series.name: series for series in largest.pools}
    outlook = []
    for forecast in forecast_pools(largest.pools, HOURS_AHEAD):
        series = pools[forecast.series]
        values = series.values[-PAST_HOURS:]
        past = tuple(float(value) if np.isfinite(value) else None for value in values)
        low, middle, high = (forecast.quantiles.index(quantile) for quantile in (0.1, 0.5, 0.9))
        ahead = tuple(
            (float(row[low]), float(row[middle]), float(row[high])) for row in forecast.values
        )
        first_ms = series.end_ms - (len(past) - 1) * HOUR_MS
        outlook.append(PoolOutlook(forecast.series, past, ahead, forecast.note or "", first_ms))
    return Outlook(tuple(outlook), largest.left_out)


def overview_page(
    context: ReadContext, outlook: HourlyCache[Outlook], address: str, view: View
) -> Response:
    """The overview.

    Everything about the entire fleet is left out where one owner's part is shown.
    """
    now_ms = context.now_ms
    shows_fleet = view.owner is None
    # One snapshot, so that the parts of a page agree with each other; rendering happens after it is
    # released.
    with context.database.transaction(read_only=True) as connection:
        ledger = _ledger_facts(connection, now_ms, view)
        is_open = context.keys.lets_anybody_report
        current = _current_facts(
            connection, now_ms, view, reports=ledger["fleet"].reports, is_open=is_open
        )
        site = view.site(connection, "/", now_ms)
    empty = not ledger["fleet"].nodes and not ledger["has_rows"] and not site.periods
    # Forecasting takes seconds: the page shows the last one, and none while there is none yet.
    pools = outlook.get(now_ms) if shows_fleet and not empty else None
    if shows_fleet and not empty and pools is None:
        site = being_forecast(site)
    text = html.render(
        "overview.html",
        site=site,
        empty=empty,
        whole=shows_fleet,
        owner="/".join((view.reader.owner or {}).values()),
        collector=address,
        now=format_instant(now_ms - now_ms % 1000),
        pools=None if pools is None else [pool_facts(pool) for pool in pools.pools],
        pools_left_out=0 if pools is None else pools.left_out,
        **ledger,
        **current,
    )
    return page(text, site=site)


def being_forecast(site: Site) -> Site:
    """The frame of a page that waits for a forecast."""
    return replace(site, being_made=site.being_made or "The forecast is being computed", seconds=5)


def _ledger_facts(connection: Connection, now_ms: int, view: View) -> dict[str, Any]:
    """What the overview says about a month of the ledger, for the template."""
    calendar = zones.calendar(connection)
    month = calendar.month_of(now_ms)
    name = view.filters.period or month
    period = view.period(calendar, calendar.month(month))
    last_ms = min(calendar.day_of(now_ms).start_ms, period.end_ms)
    trend = Period(calendar.days_before(last_ms, TREND_DAYS), last_ms)
    fleet = overview.fleet(connection, now_ms - SILENT_MS)
    checks, proof = month_proofs.checks_and_proof(connection, period, calendar)
    report = direct_costs_by_team(connection, period, view.owner)
    with as_viewer(connection, view.reader.owner):
        daily = overview.daily_by_team(connection, trend, view.owner or {})
    rated_ms = max((check.until_ms for check in checks), default=None)
    closed = periods.closed(connection)
    # Whoever sees one owner's part is told of no unallocated time at all.
    has_inventory = view.owner is not None or reports.has_capacity(connection, period)
    return {
        "month": name,
        "is_over": period.end_ms <= now_ms,
        "statement_month": calendar.month_of(max(min(now_ms, period.end_ms - 1), period.start_ms)),
        "zone": calendar.zone_at(period.start_ms).name,
        "known": None if rated_ms is None else format_instant(rated_ms - rated_ms % 1000),
        "fleet": fleet,
        "gpus": html.gpus(fleet.gpu_micro / MICRO),
        "has_rows": bool(report.rows),
        "spend": [
            _spend(report, total, daily, calendar.days(trend), has_inventory)
            for total in report.totals
            if total.currency is not None
        ],
        "unpriced_ns": sum(row.gpu_ns for row in report.rows if row.currency is None),
        "has_shares": any(
            declarations.SHARED_COSTS.in_force(connection, at)
            for at in periods.declarations_at(connection, calendar, period).values()
        ),
        "nothing": None if report.rows else _nothing(connection, period, view, rated_ms),
        "corrected": overview.corrected(connection, period) if view.owner is None else [],
        "trust": forms.trust(checks, proof),
        "closed": closed[-1] if closed else None,
    }


def _nothing(
    connection: Connection, period: Period, view: View, rated_ms: int | None
) -> tuple[str, str]:
    """Say why a period has no amount: in a few words, and in a sentence with what to do."""
    calendar = zones.calendar(connection)
    if not overview.has_prices(connection):
        return "no prices yet", "There are no prices yet: gpuledger import prices prices.csv."
    if view.owner and not overview.is_owner(connection, view.owner):
        named = ", ".join(f"{level} {name}" for level, name in view.owner.items())
        return "nobody has this name", f"Nothing was ever charged to {named}: is the name right?"
    if rated_ms is not None:
        return (
            "nothing was used",
            "Nothing was charged in this period: it is rated, and none of its time was used.",
        )
    first_ms = overview.first_rated_ms(connection)
    if first_ms is not None and period.end_ms <= first_ms:
        began = calendar.date_of(first_ms)
        return (
            f"before {began}",
            f"The ledger begins on {began}: nothing is known of the time before.",
        )
    return (
        "nothing is rated yet",
        "Nothing of it is rated yet: rating starts a minute after the first evidence.",
    )


def _current_facts(
    connection: Connection, now_ms: int, view: View, *, reports: bool, is_open: bool
) -> dict[str, Any]:
    """What the overview says about now: findings, budgets and nodes, for the template.

    `reports`: whether a node does; `is_open`: whether any agent may, without a token.
    """
    scope = view.scope
    idle = list_findings(
        connection, "idle", Period(now_ms - DAY_MS, now_ms + 1), view.reader, scope
    )
    month = Period(now_ms - ANOMALY_DAYS * DAY_MS, now_ms + 1)
    anomalies = list_findings(connection, "anomaly", month, view.reader, scope)
    with as_viewer(connection, view.reader.owner):
        budgets = [
            status for status in standings(connection, now_ms) if scope.sees(status.budget.owner)
        ]
    nodes = overview.nodes(connection) if view.owner is None else []
    heard = first_heard(connection, now_ms - DAY_MS) if view.owner is None and is_open else []
    ongoing = idle.ongoing.dearest_first()
    is_known = idle.looked_ms is not None and reports
    return {
        "idle": [forms.finding_facts(item) for item in ongoing.items[:SHOWN]],
        "idle_count": counted(ongoing.items) if ongoing.items or is_known else None,
        "idle_left_out": len(ongoing.items) - SHOWN,
        "idle_per_day": ongoing.per_day,
        "anomalies": [forms.finding_facts(item) for item in anomalies.items[:SHOWN]],
        "anomaly_days": ANOMALY_DAYS,
        "budgets": [forms.budget_facts(status) for status in budgets],
        "nodes": [_node_facts(node, now_ms) for node in nodes],
        "first_heard": new_nodes.sentence(heard) if heard else "",
        "first_heard_cure": new_nodes.CURE,
    }


def _spend(
    report: Report,
    total: ReportRow,
    daily: dict[str, dict[str, dict[int, int]]],
    trend: Sequence[Period],
    has_inventory: bool,
) -> dict[str, Any]:
    """One currency: the rows of the chargeback, each with its trend; time without a holder is
    marked.
    """
    currency = total.currency or ""
    own_rows = [row for row in report.rows if row.currency == currency and not row.correction_of]
    # Whoever may choose tags may invent teams by the thousand: the page lists the dearest.
    shown = shortened(replace(report, rows=tuple(own_rows))).rows
    corrections = [row for row in report.rows if row.currency == currency and row.correction_of]
    highest = max((row.cost_minor or 0 for row in own_rows), default=0)
    return {
        "currency": currency,
        "total": total,
        "unbilled": unbilled_line(report, total),
        "waste": [
            waste_line(waste) for waste in whole_waste(own_rows + corrections, has_inventory)
        ],
        "rows": [
            {
                "row": row,
                "owner": row.keys[0],
                "held": forms.is_owner(row.keys[0]),
                "is_rest": is_rest(row),
                "length": plots.length_bar(float(row.cost_minor or 0), float(highest)),
                "trend": _trend(row.keys[0], daily.get(currency, {}), trend, currency),
            }
            for row in shown
        ],
        "corrections": [
            _correction(month, [row for row in corrections if row.correction_of == month])
            for month in sorted({row.correction_of for row in corrections})
        ],
        # Of the month's own time: corrections move the hours of other months.
        "gpu_ns": sum(row.gpu_ns for row in own_rows),
        "idle_ns": sum_known(row.idle_ns for row in own_rows),
    }


def _correction(month: str, rows: Sequence[ReportRow]) -> dict[str, Any]:
    """The corrections of a closed month as one row: its cost, and the hours that were added and
    taken away.
    """
    return {
        "month": month,
        "added_ns": sum(row.gpu_ns for row in rows if row.gpu_ns > 0),
        "removed_ns": -sum(row.gpu_ns for row in rows if row.gpu_ns < 0),
        "cost_minor": sum_known(row.cost_minor for row in rows),
    }


def _trend(
    owner: str, teams: dict[str, dict[int, int]], trend: Sequence[Period], currency: str
) -> Any:
    days = teams.get("" if owner == UNATTRIBUTED else owner)
    if days is None:
        return ""
    first = min(day for team in teams.values() for day in team)
    values = [days.get(day.start_ms, 0) / MICRO if day.start_ms >= first else None for day in trend]
    known = [value for value in values if value is not None]
    summary = (
        f"{plural(len(known), 'day')}, from {min(known):,.0f} to {max(known):,.0f} {currency} a day"
    )
    return plots.spark(values, f"Spend of {owner} by day", summary, height=36)


def pool_facts(pool: PoolOutlook) -> dict[str, Any]:
    """A pool's demand and forecast for the templates."""
    lows, middles, highs = zip(*pool.ahead, strict=True)
    peak = max(range(len(middles)), key=lambda hour: highs[hour])
    summary = (
        f"Over the next {plural(len(middles), 'hour')} between {min(lows):.0f} and {max(highs):.0f}"
        f" GPUs with 80 % probability; the peak, in {plural(peak + 1, 'hour')}, between"
        f" {lows[peak]:.0f} and {highs[peak]:.0f}."
    )
    title = (
        f"Demand of pool {pool.name} in GPUs: the last {plural(len(pool.past), 'hour')} and the"
        f" next {len(middles)}"
    )
    days = plots.dates(pool.first_ms, HOUR_MS, len(pool.past) + len(pool.ahead))
    return {
        "name": pool.name,
        "path": pool_path(pool.name),
        "said": summary,
        "plot": plots.spark(
            pool.past, title, summary, pool.ahead, width=720, height=200, axis=True, days=days
        ),
        "note": pool.note,
        "rows": [(hour + 1, *pool.ahead[hour]) for hour in range(2, len(pool.ahead), 3)],
    }


def _node_facts(node: overview.Node, now_ms: int) -> dict[str, Any]:
    silent = node.status not in {INVENTORY, UNINSTALLED} and is_silent(node.seen_ms, now_ms)
    return {
        "name": node.name,
        "seen": f"{lasting(now_ms - node.seen_ms)} ago",
        "gpus": html.gpus(node.gpu_micro / MICRO),
        "slices": node.slices,
        "state": "silent" if silent else node.status,
        "detail": node.detail,
        "well": node.status == "ok" and not silent,
    }
