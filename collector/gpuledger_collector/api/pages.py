"""GET / and /statements: the fleet now, who pays in a month, and the statement of one owner, as
pages and as CSV.

The numbers are those of the commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from gpuledger_collector.accounting.chargeback import (
    UNATTRIBUTED,
    ReportRow,
    cost_by_payer,
    most_held_idle,
    sum_corrections_by_owner,
    sum_known,
)
from gpuledger_collector.accounting.money import MICRO, Money
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.spend_over_time import SpendOverTime
from gpuledger_collector.accounting.state_words import word_of_unpaid
from gpuledger_collector.accounting.waste import whole_waste
from gpuledger_collector.api.auth.principal import Denied
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import WHOLE, Narrowing, read_narrowing, require_choice
from gpuledger_collector.api.page_routes import (
    ANOTHER_OWNER,
    HourlyCache,
    PageRoute,
    View,
    csv_file,
    page,
    require_view,
)
from gpuledger_collector.api.spend_page import AskedRange, SpendLinks
from gpuledger_collector.export import html, plots, spend
from gpuledger_collector.export import statement as forms
from gpuledger_collector.export.chargeback import csv_rows, say_waste
from gpuledger_collector.export.findings import (
    STATES,
    count_gpus,
    free_facts,
    gpus_and_slices,
    say_whom_to_ask,
)
from gpuledger_collector.export.free_gpus import say_tomorrow
from gpuledger_collector.export.list_form import list_form
from gpuledger_collector.export.shortened import is_rest, shorten_report
from gpuledger_collector.export.site import (
    LIVE,
    Filters,
    Site,
    address,
    job_path,
    month_path,
    pool_path,
    statement_path,
)
from gpuledger_collector.insight.durations import lasting
from gpuledger_collector.insight.findings import NO_REMEDY
from gpuledger_collector.insight.nodes import FleetNode
from gpuledger_collector.insight.pool_outlook import Outlook, PoolOutlook
from gpuledger_collector.services import new_nodes
from gpuledger_collector.services.absence import explain_absence
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.chargeback import notices
from gpuledger_collector.services.closed_verdict import read_closed_verdict
from gpuledger_collector.services.findings import DearestHolders, FindingList, dearest_holders
from gpuledger_collector.services.forecasts import stored_outlook
from gpuledger_collector.services.overview import ANOMALY_DAYS, Overview, read_overview
from gpuledger_collector.services.rated_period import read_extent
from gpuledger_collector.services.statement import (
    narrow_bill,
    read_month,
    read_statement,
    read_statement_jobs,
)
from gpuledger_common.plurals import plural

SHOWN = 6
BILL_STATES = {
    "": "all rows",
    "billed": "billed",
    "not_billed": "nobody pays",
    "corrections": "corrections",
}
SHOWN_HOLDERS = 5
"""Holders of idle GPUs that the first sentence is about."""


def router(context: ReadContext, outlook: HourlyCache[Outlook]) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys)
    narrowed = Depends(read_narrowing)

    @routes.get("/")
    def home(request: Request, view: View = wanted) -> Response:
        """The overview of the fleet, of a month and of now; for a viewer, or of one owner, that
        part of it.
        """
        opens_at = getattr(request.app.state, "opens_at", "")
        if opens_at and not request.query_params:
            return RedirectResponse(address("/", {"period": opens_at}), 303)
        return overview_page(context, outlook, str(request.base_url).rstrip("/"), view)

    @routes.get("/statements")
    def newest(view: View = wanted) -> Response:
        """The statements of this month."""
        with context.database.transaction(read_only=True) as connection:
            site = view.site(connection, "/statements", context.now_ms)
            return RedirectResponse(site.bill_path, 303)

    @routes.get("/statements/{level}")
    def newest_of_level(level: str, view: View = wanted) -> Response:
        """The statements of this month by a level of the owner tree: an address that was cut."""
        with context.database.transaction(read_only=True) as connection:
            month = view.site(connection, "/statements", context.now_ms).month
        return RedirectResponse(month_path(level, month), 303)

    @routes.get("/statements/{level}/{month}")
    def statements(
        level: str,
        month: str,
        owner: str | None = None,
        by: str = "",
        narrowing: Narrowing = narrowed,
        view: View = wanted,
    ) -> Response:
        """Who pays in a month, or the statement of an owner whose name cannot be part of a path.

        Its form asks for another month and level by `period` and `by`.
        """
        if owner is not None:
            return statement_page(context, level, owner, month, view)
        asked = month_path(by or level, view.filters.period or month)
        if asked != month_path(level, month):
            kept = {"q": narrowing.q, "state": narrowing.state}
            return RedirectResponse(address(asked, kept), 303)
        return month_page(context, level, month, view, narrowing)

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
    asked = (level, owner, month, context.now_ms, reader.owner)
    with context.database.transaction(read_only=True) as connection:
        if view.wants_csv:
            return csv_file(csv_rows(read_statement_jobs(connection, *asked)), "statement", month)
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
        statement = read_statement(connection, *asked, may_be_empty=True)
    return page(forms.as_html(statement, site), site=site)


def month_page(
    context: ReadContext, level: str, month: str, view: View, narrowing: Narrowing = WHOLE
) -> Response:
    """Who pays in a month, by a level: the rows of the chargeback that this reader may see."""
    require_choice("state", narrowing.state, BILL_STATES)
    reader, now_ms = view.reader, context.now_ms
    with context.database.transaction(read_only=True) as connection:
        whole = read_month(connection, level, month, now_ms, reader.owner)
        report = narrow_bill(whole, narrowing.q, narrowing.state)
        if view.wants_csv:
            # A notice may name other owners, which a viewer must not see.
            period = calendar_of(connection).month(month)
            said = (
                []
                if reader.owner is not None
                else notices(connection, period, context.now_ms, report)
            )
            return csv_file(csv_rows(report, said), level, month)
        narrowed = replace(view, filters=replace(view.filters, period=month))
        path = f"/statements/{level}/{month}"
        extent = read_extent(connection, now_ms)
        verdict = read_closed_verdict(
            connection, extent.calendar.month(month), extent.calendar, reader.owner
        )
        absence = None
        if not whole.rows:
            period = extent.calendar.month(month)
            absence = explain_absence(connection, period, extent.calendar, now_ms, None)
    extra = {"q": narrowing.q, "state": narrowing.state}
    site = narrowed.frame(
        extent, path, now_ms, has_csv=True, is_filtered=False, periods=(), extra=extra
    )
    months = sorted({month, site.month, *extent.months}, reverse=True)
    form = list_form(
        site,
        Narrowing(q=narrowing.q),
        {},
        {},
        {
            "period": (month, {name: name for name in months}),
            "by": (level, {name: f"by {name}" for name in LEVELS}),
            "state": (narrowing.state, BILL_STATES),
        },
        search="name",
        has_range=False,
    )
    return page(
        forms.index(
            level,
            month,
            report,
            site,
            extent.months,
            form=form,
            row_count=len(whole.rows),
            absence=absence,
            verdict=verdict,
        ),
        site=site,
    )


def overview_page(
    context: ReadContext, outlook: HourlyCache[Outlook], collector: str, view: View
) -> Response:
    """The overview.

    Everything about the entire fleet is left out where one owner's part is shown.
    """
    now_ms = context.now_ms
    shows_fleet = view.owner is None
    # One snapshot, so that the parts of a page agree with each other; rendering happens after it is
    # released.
    with context.database.transaction(read_only=True) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        period = view.period(calendar, calendar.month(month), now_ms)
        found = read_overview(connection, period, view.reader, view.scope, now_ms)
        is_over = period.end_ms <= now_ms
        live_path = "" if is_over else address(LIVE, view.filters.owner)
        site = view.site(connection, "/", now_ms, live_path=live_path, may_be_live=not is_over)
    empty = not found.fleet.nodes and not found.direct.rows and not site.periods
    # Forecasting takes seconds: the page shows the last one, and none while there is none yet.
    pools = outlook.get(now_ms) if shows_fleet and not empty else None
    if shows_fleet and not empty and pools is None:
        site = being_forecast(site)
        with context.connection(view.reader) as connection:
            pools = stored_outlook(connection, now_ms)
    text = html.render(
        "overview.html",
        site=site,
        empty=empty,
        whole=shows_fleet,
        owner="/".join((view.reader.owner or {}).values()),
        collector=collector,
        pools=None if pools is None else [pool_facts(pool) for pool in pools.pools],
        pools_left_out=0 if pools is None else pools.left_out,
        ended=ended_pools(pools),
        tomorrow=say_tomorrow(pools.free if pools else (), calendar.zone_at(now_ms).name),
        stored_ms=None if pools is None else pools.stored_ms,
        **_ledger_facts(found, view, view.filters.range_name or month, now_ms),
        **_current_facts(found, now_ms, is_open=context.keys.lets_anybody_report),
    )
    return page(text, site=site)


def being_forecast(site: Site) -> Site:
    """The frame of a page that waits for a forecast."""
    return replace(site, being_made=site.being_made or "The forecast is being computed", seconds=5)


def _ledger_facts(found: Overview, view: View, month: str, now_ms: int) -> dict[str, Any]:
    """What the overview says about a month of the ledger, for the template."""
    charts = {} if found.spend is None else _spend_charts(found.spend, view)
    rated, calendar, period = found.rated, found.rated.calendar, found.rated.period
    return {
        "month": month,
        "is_over": period.end_ms <= now_ms,
        "statement_month": calendar.month_of(max(min(now_ms, period.end_ms - 1), period.start_ms)),
        "zone": calendar.zone_at(period.start_ms).name,
        "known_ms": rated.rated_ms,
        "fleet": found.fleet,
        "gpus": f"{found.fleet.gpus:,}",
        "spend": [
            _spend(found, total, charts, now_ms)
            for total in found.direct.totals
            if total.currency is not None
        ],
        "bill_changes": (
            {}
            if found.bill_change is None
            else forms.bill_change_facts(found.bill_change, calendar)
        ),
        "unpriced_ns": sum(row.gpu_ns for row in found.direct.rows if row.currency is None),
        "has_shares": found.has_shares,
        "nothing": found.nothing,
        "absence": found.absence,
        "corrected": found.corrections,
        "corrected_later": found.later_corrections,
        "verdict": found.verdict,
        "trust": forms.trust(rated.checks, rated.proof, is_closed=found.verdict is not None),
        "last_closed": found.last_closed,
    }


def _current_facts(found: Overview, now_ms: int, *, is_open: bool) -> dict[str, Any]:
    """What the overview says about now: findings, budgets and nodes, for the template.

    `is_open`: whether any agent may report, without a token.
    """
    ongoing = found.idle.ongoing
    acted_on = ongoing.to_act_on(found.idle_remedies)
    heard = found.first_heard if is_open else ()
    return {
        "idle": [
            forms.finding_facts(item, found.idle_remedies.get(item.key, NO_REMEDY))
            for item in acted_on.items[:SHOWN]
        ],
        "free": [free_facts(group, "model") for group in ongoing.free_by("model")[:SHOWN]],
        "idle_count": count_gpus(ongoing.items) if ongoing.items or found.is_idle_known else None,
        "idle_left_out": len(ongoing.held.items) - len(acted_on.items[:SHOWN]),
        "idle_per_day": ongoing.per_day,
        "idle_parts": _idle_parts(ongoing, acted_on),
        "anomalies": [forms.finding_facts(item) for item in found.anomalies.items[:SHOWN]],
        "anomaly_days": ANOMALY_DAYS,
        "budgets": [forms.budget_facts(status) for status in found.budgets],
        "nodes": [_node_facts(node, now_ms) for node in found.nodes],
        "first_heard": new_nodes.sentence(heard) if heard else "",
        "first_heard_cure": new_nodes.CURE,
        "last_holders": found.last_holders,
    }


def _idle_parts(ongoing: FindingList, acted_on: FindingList) -> list[tuple[str, list[Money]]]:
    """What idle GPUs cost a day: of holders who could give them back, of those who should keep them,
    and of nobody; empty where it is all of one kind.
    """
    acted = {item.key for item in acted_on.items}
    held = {item.key for item in ongoing.held.items}
    kinds = {
        "to be given back": ongoing.only(lambda item: item.key in acted),
        "held for a reason": ongoing.only(lambda item: item.key in held - acted),
        "held by nobody": ongoing.only(lambda item: item.key not in held | acted),
    }
    parts = [(words, own.per_day) for words, own in kinds.items() if own.per_day]
    return parts if len(parts) > 1 else []


def _spend(
    found: Overview, total: ReportRow, charts: Mapping[str, Any], now_ms: int
) -> dict[str, Any]:
    """One currency: the rows of the chargeback, each with its trend; time without a holder is
    marked.
    """
    report, currency = found.direct, total.currency or ""
    daily = found.costs_by_day.get(currency, {})
    own_rows = [row for row in report.rows if row.currency == currency and not row.correction_of]
    # Whoever may choose tags may invent teams by the thousand: the page lists the dearest.
    shown = shorten_report(replace(report, rows=tuple(own_rows))).rows
    corrections = [row for row in report.rows if row.currency == currency and row.correction_of]
    highest = max((row.cost_minor or 0 for row in own_rows), default=0)
    corrected = sum_corrections_by_owner(corrections)
    (waste,) = whole_waste(
        own_rows + corrections, found.has_inventory, imported_ns=found.imported_ns
    )
    paid = cost_by_payer(report, total)
    holders = dearest_holders(found.idle_holders, currency, SHOWN_HOLDERS)
    return {
        "currency": currency,
        "total": total,
        "paid": paid,
        "wasted": None if waste.micro is None else Money(waste.micro, currency),
        "waste": say_waste(waste),
        "most_idle": _most_idle(own_rows, corrected),
        "holders": None if holders is None else _holder_facts(holders, now_ms),
        "free_per_day": next(
            (day for day in found.idle.ongoing.free.per_day if day.currency == currency), None
        ),
        "chart": charts.get(currency),
        "rows": [
            {
                "row": row,
                "owner": row.keys[0],
                "name": row.keys[0] if row.is_billed is not False else word_of_unpaid(row.keys[0]),
                "held": forms.is_owner(row.keys[0]),
                "is_rest": is_rest(row),
                "length": plots.length_bar(float(row.cost_minor or 0), float(highest)),
                "trend": _trend(row.keys[0], daily, found.trend, currency),
            }
            for row in shown
        ],
        "corrected": _corrected_facts(corrected, currency),
        "corrections": [
            _correction(month, [row for row in corrections if row.correction_of == month])
            for month in sorted({row.correction_of for row in corrections})
        ],
        # Of the month's own time: corrections move the hours of other months.
        "gpu_ns": sum(row.gpu_ns for row in own_rows),
        "idle_ns": sum_known(row.idle_ns for row in own_rows),
    }


def _corrected_facts(
    corrected: Mapping[str, tuple[int, int]], currency: str
) -> dict[str, Any] | None:
    """What corrections of closed months add to the statements of teams, largest first: to what they
    pay, and of it to what they held idle.
    """
    moved = sorted(
        ((name, cost, idle) for name, (cost, idle) in corrected.items() if cost or idle),
        key=lambda team: (-max(abs(team[1]), abs(team[2])), team[0]),
    )
    if not moved:
        return None

    def signed(minor: int) -> str:
        return Money.from_minor(minor, currency).signed()

    return {
        "items": [
            {
                "name": name,
                "has_page": forms.is_owner(name),
                "cost": signed(cost),
                "idle": signed(idle) if idle else "",
            }
            for name, cost, idle in moved[:SHOWN]
        ],
        "others": len(moved[SHOWN:]),
    }


def _most_idle(
    rows: Sequence[ReportRow], corrected: Mapping[str, tuple[int, int]]
) -> dict[str, Any] | None:
    """The team whose held idle time costs most, for the template; `corrected` has what its statement
    counts as well: corrections of closed months.
    """
    row = most_held_idle(rows)
    if row is None or row.idle_cost_micro is None or row.currency is None:
        return None
    name = row.keys[0]
    _, idle_minor = corrected.get(name, (0, 0))
    whole = Money.from_minor((row.cost_held_idle_minor or 0) + idle_minor, row.currency)
    return {
        "name": name,
        "has_page": forms.is_owner(name),
        "cost": Money(row.idle_cost_micro, row.currency),
        "idle_ns": row.idle_ns,
        "corrected": Money.from_minor(idle_minor, row.currency) if idle_minor else None,
        "whole": whole,
    }


def _spend_charts(found: SpendOverTime, view: View) -> dict[str, Any]:
    """The chart of spend of each currency, with its legend."""
    links = SpendLinks(view, AskedRange("", "", None), found)
    return {
        each.currency: {
            "bars": spend.bars(found, each, links.of_part),
            "legend": spend.legend(found, each),
            "dearest": spend.dearest_step(found, each, links.of_part),
            "change": spend.say_latest_change(found, each),
            "ahead": each.standing.ahead,
            "step": found.step,
        }
        for each in found.currencies
    }


def _holder_facts(holders: DearestHolders, now_ms: int) -> dict[str, Any]:
    """Who could give GPUs back, for the template."""
    return {
        "per_day": holders.per_day,
        "others": holders.others,
        "items": [
            {
                "name": item.name,
                "path": job_path(item.key) if item.key else "",
                "who": " · ".join(filter(None, (item.team, item.user))),
                "reason": (
                    f"{', '.join(STATES[state] for state in item.states)}:"
                    f" {gpus_and_slices(item.gpus, item.slices)} for"
                    f" {lasting(now_ms - item.since_ms)}"
                ),
                "per_day": item.per_day,
                "command": item.command,
                "ask": say_whom_to_ask(item.user, is_partly_busy=item.is_partly_busy),
            }
            for item in holders.items
        ],
    }


def _correction(month: str, rows: Sequence[ReportRow]) -> dict[str, Any]:
    """The corrections of a closed month as one row: its cost, that of its idle time, and the hours
    that were added and taken away.
    """
    return {
        "month": month,
        "added_ns": sum(row.gpu_ns for row in rows if row.gpu_ns > 0),
        "removed_ns": -sum(row.gpu_ns for row in rows if row.gpu_ns < 0),
        "cost_minor": sum_known(row.cost_minor for row in rows),
        "idle_minor": sum_known(row.cost_held_idle_minor for row in rows),
    }


def _trend(
    owner: str,
    teams: Mapping[str, Mapping[int, int]],
    trend: Sequence[Period],
    currency: str,
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
    past = f"the last {plural(len(pool.past), 'hour')} and " if pool.past else ""
    title = f"Demand of pool {pool.name} in GPUs: {past}the next {plural(len(middles), 'hour')}"
    limit = None
    if pool.capacity is not None:
        limit = (pool.capacity, f"capacity {html.gpus(pool.capacity)}")
        summary += f" The pool has {plural(html.gpus(pool.capacity), 'GPU')}."
    days = plots.dates(pool.first_ms, HOUR_MS, len(pool.past) + len(pool.ahead))
    return {
        "name": pool.name,
        "path": pool_path(pool.name),
        "said": summary,
        "plot": plots.spark(
            pool.past,
            title,
            summary,
            pool.ahead,
            width=720,
            height=200,
            axis=True,
            days=days,
            limit=limit,
            steps_named=plots.hours(pool.first_ms, len(pool.past) + len(pool.ahead)),
        ),
        "note": pool.note,
        "rows": [(hour + 1, *pool.ahead[hour]) for hour in range(2, len(pool.ahead), 3)],
    }


def ended_pools(outlook: Outlook | None) -> Sequence[tuple[str, int]]:
    """Pools whose demand has ended, and since when, for the templates."""
    return () if outlook is None else outlook.ended


def _node_facts(node: FleetNode, now_ms: int) -> dict[str, Any]:
    state = node.state(now_ms)
    if state == "ok" and node.healths:
        state = ", ".join(node.healths)
    return {
        "name": node.name,
        "seen": f"{lasting(now_ms - node.seen_ms)} ago",
        "gpus": f"{node.gpus:,}",
        "slices": node.slices,
        "state": state,
        "detail": node.detail,
        "well": state == "ok",
    }
