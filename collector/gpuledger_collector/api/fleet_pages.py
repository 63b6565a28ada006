"""GET /demand and /trust: the demand of every pool with its forecast, and the proof that nothing
was lost.

Both are about the entire fleet.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from gpuledger_collector.accounting.state_words import explained
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import (
    HourlyCache,
    PageRoute,
    View,
    csv_file,
    file_name,
    page,
    require_view,
)
from gpuledger_collector.api.pages import being_forecast, ended_pools, pool_facts
from gpuledger_collector.export import html, proof
from gpuledger_collector.export.forecasts import DEMAND_HOURS
from gpuledger_collector.export.site import DEMAND, TRUST, pool_path
from gpuledger_collector.insight.forecast_history import ForecastRecord
from gpuledger_collector.insight.pool_outlook import Outlook
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.forecasts import MOST_POOLS, forecast_records
from gpuledger_collector.services.month_proof import keep_results, read_trust


def router(context: ReadContext, outlook: HourlyCache[Outlook]) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys, fleet=True)

    @routes.get(DEMAND)
    def demand(view: View = wanted) -> Response:
        """The demand of every pool, and its forecast."""
        return demand_page(context, outlook, view)

    @routes.get(TRUST)
    def trust(view: View = wanted) -> Response:
        """The proof of a period."""
        return trust_page(context, view)

    return routes


def demand_page(context: ReadContext, outlook: HourlyCache[Outlook], view: View) -> Response:
    """Past and coming demand of every pool, and how good the forecasts were."""
    now_ms = context.now_ms
    # Read as the reader, so that a viewer is refused even if the check of its role were forgotten.
    with context.connection(view.reader) as connection:
        records = forecast_records(connection, "pool")
        pools = outlook.get(now_ms)
        site = view.site(
            connection, DEMAND, now_ms, has_csv=pools is not None, periods=(), is_filtered=False
        )
    if view.wants_csv:
        return csv_file(DEMAND_HOURS.csv_rows(pools.hours if pools else ()), "demand")
    if pools is None:
        site = being_forecast(site)
    current = {pool.name for pool in pools.pools} if pools else set()

    def is_gone(record: ForecastRecord) -> bool:
        return record.series not in current

    text = html.render(
        "demand.html",
        site=site,
        pools=None if pools is None else [pool_facts(pool) for pool in pools.pools],
        pools_left_out=0 if pools is None else pools.left_out,
        ended=ended_pools(pools),
        records=[_accuracy(record) for record in sorted(records, key=is_gone)[:MOST_POOLS]],
        records_left_out=max(len(records) - MOST_POOLS, 0),
    )
    return page(text, site=site)


def _accuracy(record: ForecastRecord) -> dict[str, object]:
    return {
        "pool": record.series,
        "path": pool_path(record.series),
        "forecasts": record.forecasts,
        "hours": record.hours,
        "inside": html.UNKNOWN if record.inside is None else html.percent(record.inside),
        "skill": html.UNKNOWN if record.skill is None else f"{100 * record.skill:+.0f} %",
    }


def trust_page(context: ReadContext, view: View) -> Response:
    """Where every GPU-hour of a period went, day by day, and what is closed."""
    now_ms = context.now_ms
    with context.connection(view.reader) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        period = view.period(calendar, calendar.month(month), now_ms)
        found = read_trust(connection, period, now_ms)
        site = view.site(connection, TRUST, now_ms, has_csv=True)
    keep_results(context.database, found.results)
    name, sheet, days = view.filters.range_name or month, found.sheet, found.sheet.dated_days
    if view.wants_csv:
        return csv_file(proof.DAYS.csv_rows(days), "trust", file_name(name))
    text = html.render(
        "trust.html",
        site=site,
        period=name,
        options=view.filters.range_options or f"--period {month}",
        part_text=explained,
        rows=proof.table(sheet),
        currencies=sheet.currencies,
        doubts=proof.doubts(sheet),
        has_capacity=any(day.capacity_ns for day in sheet.days),
        is_proved=proof.is_proved(sheet) and sheet.holds,
        days=days,
        coverage=sheet.coverage,
        closed=list(reversed(found.closed_months)),
        corrected=found.corrections,
    )
    return page(text, site=site)
