"""GET / and /statements: pages for people, rendered without scripts; the numbers are those of the commands.

Reading rates nothing, so a page says up to when the ledger is rated. Who may read is decided as in api.context; a
browser sends the token as the password of HTTP Basic, with any user name.
"""

from __future__ import annotations

import base64
import binascii
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, Report, ReportRow, sum_known
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, UTC_DAYS, Period, format_instant
from gpuledger_collector.accounting.waste import whole_waste
from gpuledger_collector.api.auth.keys import Keys
from gpuledger_collector.api.auth.principal import Denied, Principal, visible
from gpuledger_collector.api.context import RETRY_AFTER_SECONDS, ReadContext, as_http_error
from gpuledger_collector.export import html, plots
from gpuledger_collector.export import statement as forms
from gpuledger_collector.export.chargeback import unbilled_line, waste_line
from gpuledger_collector.services.budget_status import statuses
from gpuledger_collector.services.chargeback import direct_costs_by_team
from gpuledger_collector.services.demand_forecast import forecast_pools, pool_demand
from gpuledger_collector.services.node_health import SILENT_MS, is_silent
from gpuledger_collector.services.statement import NoStatement, monthly_chargeback, read_statement, require_level
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.billing import statements as stored
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import overview, reports, zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.plurals import plural

TREND_DAYS = 30
ANOMALY_DAYS = 7
SHOWN = 6
PAST_HOURS, HOURS_AHEAD = 72, 24
WAIT_SECONDS = 0.02
"""How long a page waits for a forecast."""
NOT_HELD = frozenset({"(unallocated)", "(unavailable)", "(unobserved)", "(stranded)"})
"""Rows of a chargeback for time without a holder."""
BASIC = "Basic "
CHALLENGE = 'Basic realm="GPU Ledger: any user name, your token as the password", charset="UTF-8"'
HEADERS = {"Cache-Control": "no-store"}
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PoolOutlook:
    """Demand of a pool in GPUs: past hours (None: unknown), and low, middle and high of the coming ones."""

    name: str
    past: tuple[float | None, ...]
    ahead: tuple[tuple[float, float, float], ...]
    note: str
    first_ms: int
    """Start of the first past hour."""


@dataclass
class HourlyCache(Generic[T]):
    """A slow value, computed once an hour on a thread, because a page must not wait for it."""

    compute: Callable[[], T]
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[int, T] | None = None
    thread: threading.Thread | None = None

    def get(self, now_ms: int, wait_s: float = WAIT_SECONDS) -> T | None:
        """The latest value, an older one while it is recomputed, None while there is none."""
        hour = now_ms // HOUR_MS
        with self.lock:
            # One thread at a time, however many pages ask; while it runs the older value is shown.
            if (self.value is None or self.value[0] != hour) and (self.thread is None or not self.thread.is_alive()):
                self.thread = threading.Thread(target=self._run, args=(hour,), name="hourly-cache", daemon=True)
                self.thread.start()
            thread = self.thread if self.value is None else None
        if thread is not None:
            thread.join(wait_s)
        return None if self.value is None else self.value[1]

    def _run(self, hour: int) -> None:
        try:
            self.value = (hour, self.compute())
        except Exception as error:  # a page without a forecast is better than no page
            log.warning("the forecast of a page failed: %s", error)


class PageRoute(APIRoute):
    """A route whose answer is a page, also for errors."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with errors as pages."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except NoStatement as error:
                return error_page(404, str(error))
            except Exception as error:
                answer = as_http_error(error)
                if answer is None:
                    raise
                if answer.status_code == 503:
                    log.warning("a page failed: %s", error)
                return error_page(answer.status_code, str(answer.detail))

        return handle


def require_page_reader(keys: Keys) -> Any:
    """A dependency: the reader behind the request of a page, by a bearer token or by HTTP Basic."""

    def reader(request: Request) -> Principal:
        return keys.person(request, bearer_header(request.headers.get("authorization", "")))

    return Depends(reader)


def router(context: ReadContext) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    outlook = HourlyCache(lambda: forecast_outlook(context))
    reader = require_page_reader(context.keys)

    @routes.get("/")
    def home(request: Request, principal: Principal = reader) -> Response:
        """The overview of the fleet, this month and now; for a viewer that of its owner."""
        return page(render_overview(context, outlook, str(request.base_url).rstrip("/"), principal))

    @routes.get("/statements/{level}/{month}")
    def statements(level: str, month: str, owner: str | None = None, principal: Principal = reader) -> Response:
        """Who has a statement in a month, or the statement of an owner whose name cannot be part of a path."""
        if owner is not None:
            return page(render_statement(context, level, owner, month, principal))
        return page(render_statement_index(context, level, month, principal))

    @routes.get("/statements/{level}/{owner:name}/{month}")
    def statement(level: str, owner: str, month: str, principal: Principal = reader) -> Response:
        """The statement of an owner."""
        return page(render_statement(context, level, owner, month, principal))

    return routes


def bearer_header(header: str) -> str:
    """The header as a bearer's: the password of HTTP Basic, which browsers ask for, is the token."""
    if not header.startswith(BASIC):
        return header
    try:
        plain = base64.b64decode(header.removeprefix(BASIC), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    # Any user name: browsers always ask for one.
    return f"Bearer {plain.partition(':')[2]}"


def page(text: str, status: int = 200) -> Response:
    """A page with the headers that keep foreign content out of it."""
    headers = {**HEADERS, "Content-Security-Policy": f"{html.policy()}; frame-ancestors 'none'"}
    return Response(text, status, headers, "text/html; charset=utf-8")


def error_page(status: int, sentence: str) -> Response:
    """A page that says why there is nothing to see, and what to do."""
    response = page(html.render("refused.html", status=status, sentence=sentence, policy=html.policy()), status)
    if status == 401:
        response.headers["WWW-Authenticate"] = CHALLENGE
    if status == 503:
        response.headers["Retry-After"] = RETRY_AFTER_SECONDS
    return response


def render_statement(context: ReadContext, level: str, owner: str, month: str, principal: Principal) -> str:
    """The statement, as the command writes it. Raises Denied when this reader may not see all of that owner."""
    if not principal.sees({level: owner}):
        raise Denied(403, "this token sees another owner's part of the ledger only")
    with context.database.transaction(read_only=True) as connection:
        chargeback = monthly_chargeback(connection, level, month, context.now_ms)
        try:
            with as_viewer(connection, principal.owner):
                return forms.as_html(read_statement(connection, level, owner, month, context.now_ms, chargeback))
        except NoStatement as error:
            if principal.owner is None:
                raise
            # The sentence names other owners, which a viewer must not see.
            raise NoStatement(f"{level} {owner!r} was billed nothing in {month}") from error


def render_statement_index(context: ReadContext, level: str, month: str, principal: Principal) -> str:
    """The owners of a level that were billed in a month and that this reader may see, with links."""
    require_level(level)
    nominal = UTC_DAYS.month(month)
    with context.database.transaction(read_only=True) as connection:
        period = zones.in_zone(connection, nominal)
        with as_viewer(connection, principal.owner):
            owners = [owner for owner in stored.owners(connection, level, period) if principal.sees({level: owner})]
        report = monthly_chargeback(connection, level, month, context.now_ms).report
    return forms.index(level, month, [(owner, html.statement_path(level, owner, month)) for owner in owners], report)


def forecast_outlook(context: ReadContext) -> list[PoolOutlook]:
    """Past and coming demand of each pool; takes seconds."""
    with context.database.connect() as connection:
        pools = {series.name: series for series in pool_demand(connection, context.now_ms) if series.known}
        forecasts = forecast_pools(list(pools.values()), HOURS_AHEAD)
    outlook = []
    for forecast in forecasts:
        series = pools[forecast.series]
        values = series.values[-PAST_HOURS:]
        past = tuple(float(value) if np.isfinite(value) else None for value in values)
        low, middle, high = (forecast.quantiles.index(quantile) for quantile in (0.1, 0.5, 0.9))
        ahead = tuple((float(row[low]), float(row[middle]), float(row[high])) for row in forecast.values)
        first_ms = series.end_ms - (len(past) - 1) * HOUR_MS
        outlook.append(PoolOutlook(forecast.series, past, ahead, forecast.note or "", first_ms))
    return outlook


def render_overview(
    context: ReadContext, outlook: HourlyCache[list[PoolOutlook]], address: str, principal: Principal
) -> str:
    """The overview. Everything about the entire fleet is left out for a reader who sees one owner's part."""
    now_ms = context.now_ms
    sees_fleet = principal.owner is None
    # One snapshot, so that the parts of a page agree with each other; rendering happens after it is released.
    with context.database.transaction(read_only=True) as connection:
        ledger = _ledger_facts(connection, now_ms, principal)
        current = _current_facts(connection, now_ms, principal)
    empty = not ledger["fleet"].nodes and not ledger["has_rows"] and not ledger["months"]
    # Forecasting takes seconds: the page shows the last one, and none while there is none yet.
    pools = outlook.get(now_ms) if sees_fleet and not empty else None
    return html.render(
        "overview.html",
        policy=html.policy(),
        empty=empty,
        whole=sees_fleet,
        reader=principal,
        address=address,
        now=format_instant(now_ms - now_ms % 1000),
        pools=None if pools is None else [_pool_facts(pool) for pool in pools],
        levels=LEVELS,
        **ledger,
        **current,
    )


def _ledger_facts(connection: Connection, now_ms: int, principal: Principal) -> dict[str, Any]:
    """What the overview says about this month's ledger, for the template."""
    calendar = zones.calendar(connection)
    name = calendar.month_of(now_ms)
    month = calendar.month(name)
    today_ms = calendar.day_of(now_ms).start_ms
    trend = Period(calendar.days_before(today_ms, TREND_DAYS), today_ms)
    fleet = overview.fleet(connection, now_ms - SILENT_MS)
    checks = reports.conservation_checks(connection, month)
    report = direct_costs_by_team(connection, month, principal.owner)
    with as_viewer(connection, principal.owner):
        daily = overview.daily_by_team(connection, trend, principal.owner or {})
    rated_ms = max((check.until_ms for check in checks), default=None)
    closed = periods.closed(connection)
    # Whoever sees one owner's part is told of no unallocated time at all.
    has_inventory = principal.owner is not None or reports.has_capacity(connection, month)
    return {
        "month": name,
        "known": None if rated_ms is None else format_instant(rated_ms - rated_ms % 1000),
        "fleet": fleet,
        "gpus": f"{fleet.gpu_micro / MICRO:.1f}".removesuffix(".0"),
        "has_rows": bool(report.rows),
        "spend": [
            _spend(report, total, daily, calendar.days(trend), has_inventory)
            for total in report.totals
            if total.currency is not None
        ],
        "unpriced": [row for row in report.rows if row.currency is None],
        "priced": overview.has_prices(connection),
        "corrected": overview.corrected(connection, month) if principal.owner is None else [],
        "trust": forms.trust(checks),
        "closed": closed[-1] if closed else None,
        "months": stored.months(connection)[:13],
    }


def _current_facts(connection: Connection, now_ms: int, principal: Principal) -> dict[str, Any]:
    """What the overview says about now: findings, budgets and nodes, for the template."""
    with as_viewer(connection, principal.owner):
        idle = visible(findings.named(connection, "idle", now_ms - DAY_MS, now_ms + 1), principal)
        anomalies = visible(
            findings.named(connection, "anomaly", now_ms - ANOMALY_DAYS * DAY_MS, now_ms + 1), principal
        )
        budgets = [status for status in statuses(connection, now_ms) if principal.sees(status.budget.owner)]
    nodes = overview.nodes(connection) if principal.owner is None else []
    ongoing = sorted(
        (finding for finding in idle if finding["resolved_ms"] is None),
        key=lambda finding: -(finding["per_day_micro"] or 0),
    )
    return {
        "idle": [forms.finding_facts(finding) for finding in ongoing[:SHOWN]],
        "idle_count": len(ongoing),
        "idle_per_day": _cost_per_day(ongoing),
        "anomalies": [forms.finding_facts(finding) for finding in anomalies[:SHOWN]],
        "anomaly_days": ANOMALY_DAYS,
        "budgets": [forms.budget_facts(status) for status in budgets],
        "nodes": [_node_facts(node, now_ms) for node in nodes],
    }


def _cost_per_day(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Cost per day of ongoing idle time, by currency, in micro-units."""
    sums: Counter[str] = Counter()
    for row in rows:
        if row["currency"] is not None and row["per_day_micro"] is not None:
            sums[row["currency"]] += row["per_day_micro"]
    return sorted(sums.items())


def _spend(
    report: Report,
    total: ReportRow,
    daily: dict[str, dict[str, dict[int, int]]],
    trend: Sequence[Period],
    has_inventory: bool,
) -> dict[str, Any]:
    """One currency: the rows of the chargeback, each with its trend; time without a holder is marked."""
    currency = total.currency or ""
    own_rows = [row for row in report.rows if row.currency == currency and not row.correction_of]
    corrections = [row for row in report.rows if row.currency == currency and row.correction_of]
    highest = max((row.cost_minor or 0 for row in own_rows), default=0)
    return {
        "currency": currency,
        "total": total,
        "unbilled": unbilled_line(report, total),
        "waste": [waste_line(waste) for waste in whole_waste(own_rows + corrections, has_inventory)],
        "rows": [
            {
                "row": row,
                "owner": row.keys[0],
                "held": row.keys[0] not in NOT_HELD,
                "length": plots.length_bar(float(row.cost_minor or 0), float(highest)),
                "trend": _trend(row.keys[0], daily.get(currency, {}), trend, currency),
            }
            for row in own_rows
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
    """The corrections of a closed month as one row: its cost, and the hours that were added and taken away."""
    return {
        "month": month,
        "added_ns": sum(row.gpu_ns for row in rows if row.gpu_ns > 0),
        "removed_ns": -sum(row.gpu_ns for row in rows if row.gpu_ns < 0),
        "cost_minor": sum_known(row.cost_minor for row in rows),
    }


def _trend(owner: str, teams: dict[str, dict[int, int]], trend: Sequence[Period], currency: str) -> Any:
    days = teams.get("" if owner == UNATTRIBUTED else owner)
    if days is None:
        return ""
    first = min(day for team in teams.values() for day in team)
    values = [days.get(day.start_ms, 0) / MICRO if day.start_ms >= first else None for day in trend]
    known = [value for value in values if value is not None]
    summary = f"{plural(len(known), 'day')}, from {min(known):,.0f} to {max(known):,.0f} {currency} a day"
    return plots.spark(values, f"Spend of {owner} by day", summary, height=36)


def _pool_facts(pool: PoolOutlook) -> dict[str, Any]:
    lows, middles, highs = zip(*pool.ahead, strict=True)
    peak = max(range(len(middles)), key=lambda hour: highs[hour])
    summary = (
        f"Over the next {plural(len(middles), 'hour')} between {min(lows):.0f} and {max(highs):.0f} GPUs with 80 % "
        f"probability; the peak, in {plural(peak + 1, 'hour')}, between {lows[peak]:.0f} and {highs[peak]:.0f}."
    )
    title = f"Demand of pool {pool.name} in GPUs: the last {plural(len(pool.past), 'hour')} and the next {len(middles)}"
    days = plots.dates(pool.first_ms, HOUR_MS, len(pool.past) + len(pool.ahead))
    return {
        "name": pool.name,
        "path": html.pool_path(pool.name),
        "said": summary,
        "plot": plots.spark(pool.past, title, summary, pool.ahead, width=720, height=200, axis=True, days=days),
        "note": pool.note,
        "rows": [(hour + 1, *pool.ahead[hour]) for hour in range(2, len(pool.ahead), 3)],
    }


def _node_facts(node: overview.Node, now_ms: int) -> dict[str, Any]:
    silent = is_silent(node.seen_ms, now_ms)
    return {
        "name": node.name,
        "seen": ago(now_ms - node.seen_ms),
        "gpus": node.accelerators,
        "state": "silent" if silent else node.status,
        "detail": node.detail,
        "well": node.status == "ok" and not silent,
    }


def ago(ms: int) -> str:
    """How long ago, in the largest unit that fits."""
    for size, unit in ((DAY_MS, "day"), (HOUR_MS, "hour"), (60_000, "minute")):
        if ms >= size:
            return f"{plural(ms // size, unit)} ago"
    return "just now"
