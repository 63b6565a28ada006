"""GET /demand and /trust: the demand of every pool with its forecast, and the proof that nothing
was lost.

Both are about the entire fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response

from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.reconciliation import DayCheck
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import (
    HourlyCache,
    PageRoute,
    View,
    csv_file,
    page,
    require_view,
)
from gpuledger_collector.api.pages import (
    Outlook,
    PoolOutlook,
    being_forecast,
    pool_facts,
)
from gpuledger_collector.export import html, proof
from gpuledger_collector.export.cells import csv_of, names
from gpuledger_collector.export.site import DEMAND, TRUST, pool_path
from gpuledger_collector.insight.forecast_history import ForecastRecord
from gpuledger_collector.services.forecasts import MOST_POOLS, forecast_records
from gpuledger_collector.services.month_proof import keep_results, results_of
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import zones

DEMAND_COLUMNS = names("pool at demand low likely high")
DAY_COLUMNS = names("day rated_until capacity_gpu_hours observed_gpu_hours observed_percent holds")
PARTS = {
    "owners": "held by owners",
    "unallocated": "held by nobody",
    "unavailable": "broken, draining or in maintenance",
    "unobserved": "not observed",
    "stranded": "outside every MIG slice",
    "commitment_unused": "commitments that nobody used",
}


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
        listed = outlook_rows(pools.pools if pools else ())
        return csv_file(csv_of(DEMAND_COLUMNS, listed, DEMAND_COLUMNS[2:]), "demand")
    if pools is None:
        site = being_forecast(site)
    current = {pool.name for pool in pools.pools} if pools else set()

    def is_gone(record: ForecastRecord) -> bool:
        return record.series not in current

    text = html.render(
        "demand.html",
        site=site,
        now=format_instant(now_ms - now_ms % 1000),
        pools=None if pools is None else [pool_facts(pool) for pool in pools.pools],
        pools_left_out=0 if pools is None else pools.left_out,
        records=[_accuracy(record) for record in sorted(records, key=is_gone)[:MOST_POOLS]],
        records_left_out=max(len(records) - MOST_POOLS, 0),
    )
    return page(text, site=site)


def outlook_rows(pools: Sequence[PoolOutlook]) -> list[Mapping[str, object]]:
    """Each hour of each pool: its demand where it is past and known, else what is forecast."""
    rows: list[Mapping[str, object]] = []
    for pool in pools:
        hours = [(value, None) for value in pool.past] + [(None, band) for band in pool.ahead]
        for index, (value, band) in enumerate(hours):
            cells = [value, *(band or (None, None, None))]
            texts = ["" if cell is None else f"{cell:.3f}" for cell in cells]
            at = format_instant(pool.first_ms + index * HOUR_MS)
            rows.append(dict(zip(DEMAND_COLUMNS, (pool.name, at, *texts), strict=True)))
    return rows


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
        calendar = zones.calendar(connection)
        month = calendar.month_of(now_ms)
        period = view.period(calendar, calendar.month(month))
        sheet = reconcile(connection, period, anew=False)
        results = results_of(connection, sheet, now_ms)
        closed = periods.closed(connection)
        corrected = overview.corrected(connection, period)
        site = view.site(connection, TRUST, now_ms, has_csv=True)
    keep_results(context.database, results)
    name = view.filters.period or month
    days = [_day(day, sheet.calendar.date_of(day.day_ms).isoformat()) for day in sheet.days]
    if view.wants_csv:
        return csv_file(csv_of(DAY_COLUMNS, days, DAY_COLUMNS[2:5]), "trust", name)
    text = html.render(
        "trust.html",
        site=site,
        now=format_instant(now_ms - now_ms % 1000),
        period=name,
        parts_named=PARTS,
        rows=proof.table(sheet),
        currencies=sheet.currencies,
        doubts=proof.doubts(sheet),
        has_capacity=any(day.capacity_ns for day in sheet.days),
        is_proved=proof.is_proved(sheet) and sheet.holds,
        days=days,
        coverage=sheet.coverage,
        closed=list(reversed(closed)),
        corrected=corrected,
    )
    return page(text, site=site)


def _day(day: DayCheck, date: str) -> dict[str, object]:
    capacity, observed = hours_decimal([day.capacity_ns, day.observed_ns], 6)
    percent = (
        "" if not day.capacity_ns else f"{day.observed_ns * 10_000 // day.capacity_ns / 100:.2f}"
    )
    cells = (
        date,
        format_instant(day.until_ms),
        capacity,
        observed,
        percent,
        "yes" if day.holds else "no",
    )
    return dict(zip(DAY_COLUMNS, cells, strict=True))
