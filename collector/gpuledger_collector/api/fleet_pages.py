"""GET /demand and /trust: the demand of every pool with its forecast, which GPUs are free by model,
and the proof that nothing was lost.

Both are about the entire fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from gpuledger_collector.accounting.reconciliation import DatedCheck
from gpuledger_collector.accounting.state_words import explained
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import WHOLE, Narrowing, read_narrowing, require_choice
from gpuledger_collector.api.page_routes import (
    LAST_DAYS,
    HourlyCache,
    PageRoute,
    View,
    csv_file,
    file_name,
    page,
    require_view,
)
from gpuledger_collector.api.pages import being_forecast, ended_pools, pool_facts
from gpuledger_collector.export import free_gpus, html, proof
from gpuledger_collector.export.fleet_map import pool_choice
from gpuledger_collector.export.forecasts import DEMAND_HOURS
from gpuledger_collector.export.list_form import LABELS, Choice, ListForm, list_form
from gpuledger_collector.export.site import DEMAND, TRUST, Site, address, pool_path
from gpuledger_collector.insight.forecast_history import ForecastRecord
from gpuledger_collector.insight.free_gpus import FreeModel
from gpuledger_collector.insight.pool_outlook import Outlook
from gpuledger_collector.services.absence import explain_absence
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.forecasts import MOST_POOLS, forecast_records, stored_outlook
from gpuledger_collector.services.free_gpus import read_free_gpus, read_fullest_hour
from gpuledger_collector.services.month_proof import keep_results, read_trust

DAY_STATES: Mapping[str, tuple[str, Callable[[DatedCheck], bool]]] = {
    "": ("every day", lambda _: True),
    "wrong": ("days that do not add up", lambda day: not day.check.holds),
    "unobserved": (
        "days with unobserved time",
        lambda day: day.check.observed_ns < day.check.capacity_ns,
    ),
}


def router(context: ReadContext, outlook: HourlyCache[Outlook]) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys, fleet=True)
    narrowed = Depends(read_narrowing)

    @routes.get(DEMAND)
    def demand(
        gpus: Annotated[str, Query(pattern="^([1-9][0-9]{0,5})?$")] = "",
        by: str = "",
        narrowing: Narrowing = narrowed,
        view: View = wanted,
    ) -> Response:
        """The demand of every pool, or of those that the address names, and its forecast; which GPUs
        are free, by model, and in how many hours so many were at once. `by=model`: that as CSV.
        """
        return demand_page(context, outlook, view, narrowing, int(gpus) if gpus else None, by)

    @routes.get(TRUST)
    def trust(narrowing: Narrowing = narrowed, view: View = wanted) -> Response:
        """The proof of a period; `state`: of its days only those that do not add up, say."""
        return trust_page(context, view, narrowing)

    return routes


def demand_page(
    context: ReadContext,
    outlook: HourlyCache[Outlook],
    view: View,
    narrowing: Narrowing = WHOLE,
    wanted: int | None = None,
    by: str = "",
) -> Response:
    """Past and coming demand of every pool, how good the forecasts were, and which GPUs are free."""
    require_choice("by", by, ("", "model"))
    now_ms = context.now_ms
    is_demand_csv = view.wants_csv and by != "model"
    # Read as the reader, so that a viewer is refused even if the check of its role were forgotten.
    with context.connection(view.reader) as connection:
        models = (
            []
            if is_demand_csv
            else read_free_gpus(connection, now_ms, wanted, narrowing.pool, narrowing.q)
        )
        free = [item for item in models if narrowing.model in {"", free_gpus.name_model(item)}]
        if view.wants_csv and not is_demand_csv:
            return csv_file(free_gpus.FREE_MODELS.csv_rows(free), "free-gpus")
        fullest = read_fullest_hour(
            connection, now_ms, narrowing.pool, narrowing.q, narrowing.model
        )
        every_record = forecast_records(connection, "pool")
        whole = outlook.get(now_ms)
        shown = stored_outlook(connection, now_ms) if whole is None else whole
        site = view.site(
            connection,
            DEMAND,
            now_ms,
            has_csv=whole is not None,
            periods=(),
            is_filtered=False,
            extra={
                "pool": narrowing.pool,
                "q": narrowing.q,
                "model": narrowing.model,
                "gpus": str(wanted or ""),
            },
        )
    records = [record for record in every_record if _admits(narrowing, record.series)]
    pools = None if shown is None else shown.only(lambda name: _admits(narrowing, name))
    if is_demand_csv:
        return csv_file(DEMAND_HOURS.csv_rows(pools.hours if pools and whole else ()), "demand")
    if whole is None:
        site = being_forecast(site)
    current = {pool.name for pool in pools.pools} if pools else set()

    def is_gone(record: ForecastRecord) -> bool:
        return record.series not in current

    zone = site.calendar.zone_at(now_ms).name
    text = html.render(
        "demand.html",
        site=site,
        pools=None if pools is None else [pool_facts(pool) for pool in pools.pools],
        pools_left_out=0 if pools is None else pools.left_out,
        ended=ended_pools(pools),
        stored_ms=None if pools is None else pools.stored_ms,
        records=[_accuracy(record) for record in sorted(records, key=is_gone)[:MOST_POOLS]],
        records_left_out=max(len(records) - MOST_POOLS, 0),
        form=_demand_form(site, narrowing, every_record, shown, models, wanted),
        free=[_free_facts(item, site, narrowing.model, zone) for item in free],
        tomorrow=free_gpus.say_tomorrow(free, zone),
        fullest="" if fullest is None else free_gpus.say_fullest(fullest, site.calendar),
        unlisted=free_gpus.say_unlisted([item.now for item in free]),
        counts=sorted({gpus for item in free for gpus in item.at_once if item.week_of(gpus)}),
        zone=zone,
        free_csv=address(DEMAND, {**site.extra, "by": "model", "format": "csv"}),
    )
    return page(text, site=site)


def _admits(narrowing: Narrowing, pool: str) -> bool:
    name = pool_choice(pool)
    return narrowing.pool in {"", name} and narrowing.q.casefold() in name.casefold()


def _demand_form(
    site: Site,
    narrowing: Narrowing,
    records: Sequence[ForecastRecord],
    outlook: Outlook | None,
    models: Sequence[FreeModel],
    wanted: int | None,
) -> ListForm:
    names = {record.series for record in records}
    if outlook is not None:
        names |= {pool.name for pool in outlook.pools} | {name for name, _ in outlook.ended}
    asked = Narrowing(pool=narrowing.pool, q=narrowing.q)
    pools = sorted(map(pool_choice, names))
    names_of_models = {name: name for name in map(free_gpus.name_model, models)}
    if narrowing.model:
        names_of_models.setdefault(narrowing.model, narrowing.model)
    form = list_form(
        site,
        asked,
        {"pool": pools},
        {},
        {"model": (narrowing.model, {"": "any", **names_of_models})},
        search="pool",
        has_range=False,
        labels=LABELS,
    )
    gpus = Choice("gpus", "GPUs at once", str(wanted or ""), (), is_typed=True)
    return replace(form, choices=[*form.choices, gpus])


def _free_facts(item: FreeModel, site: Site, model: str, zone: str) -> dict[str, object]:
    name = free_gpus.name_model(item)
    is_asked = name == model
    shown = [item.asked] if item.asked else item.usual
    return {
        "item": item,
        "name": name,
        "path": address(DEMAND, {**site.extra, "model": name}) + "#free",
        "idle_path": address("/idle", {"model": item.now.model}),
        "sentences": [
            free_gpus.say_availability(item, at_once, zone)
            for at_once in (shown if item.asked or is_asked else shown[-1:])
        ],
        "enough": {gpus: week for gpus in item.at_once if (week := item.week_of(gpus)) is not None},
        "shown": [at_once.gpus for at_once in shown] if is_asked else (),
        "clocks": [
            (clock, [free_gpus.say_hours(at_once.by_clock[clock]) for at_once in shown])
            for clock in shown[0].by_clock
        ]
        if is_asked
        else (),
    }


def _accuracy(record: ForecastRecord) -> dict[str, object]:
    return {
        "pool": record.series,
        "path": pool_path(record.series),
        "forecasts": record.forecasts,
        "hours": record.hours,
        "inside": html.UNKNOWN if record.inside is None else html.percent(record.inside),
        "skill": html.UNKNOWN if record.skill is None else f"{100 * record.skill:+.0f} %",
    }


def trust_page(context: ReadContext, view: View, narrowing: Narrowing = WHOLE) -> Response:
    """Where every GPU-hour of a period went, day by day, and what is closed."""
    require_choice("state", narrowing.state, DAY_STATES)
    now_ms = context.now_ms
    with context.connection(view.reader) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        period = view.period(calendar, calendar.month(month), now_ms)
        trust = read_trust(connection, period, now_ms)
        site = view.site(
            connection,
            TRUST,
            now_ms,
            ranges=LAST_DAYS,
            has_csv=True,
            extra={"state": narrowing.state},
        )
        absence = None
        if not trust.sheet.days:
            absence = explain_absence(connection, period, calendar, now_ms, None)
    keep_results(context.database, trust.results)
    name, sheet, dated = view.filters.range_name or month, trust.sheet, trust.sheet.dated_days
    days = [day for day in dated if DAY_STATES[narrowing.state][1](day)]
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
        dated=len(dated),
        absence=absence,
        form=list_form(
            site,
            Narrowing(),
            {},
            {},
            {"state": (narrowing.state, {key: text for key, (text, _) in DAY_STATES.items()})},
            search="",
            labels={"state": "days"},
        ),
        coverage=sheet.coverage,
        closed=list(reversed(trust.closed_months)),
        corrected=trust.corrections,
        verdict=trust.verdict,
    )
    return page(text, site=site)
