"""GET /models: what shared model servers cost, what a million of their tokens cost, and who asked;
as a page and as CSV.

The rows of the CSV are those of `gpuledger inference list`.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import Search
from gpuledger_collector.api.page_routes import (
    LAST_DAYS,
    PageRoute,
    View,
    csv_file,
    file_name,
    page,
    require_view,
)
from gpuledger_collector.export import html
from gpuledger_collector.export.inference import INFERENCE
from gpuledger_collector.export.list_form import list_form
from gpuledger_collector.export.model_servers import server_facts
from gpuledger_collector.export.site import MODELS, address
from gpuledger_collector.export.spend import name_range
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.model_servers import read_model_servers


def router(context: ReadContext) -> APIRouter:
    """The page."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys)

    @routes.get(MODELS)
    def models(q: str = "", view: View = wanted) -> Response:
        """Shared model servers of a range, by default this month; `q`: names of one."""
        return models_page(context, view, q)

    return routes


def models_page(context: ReadContext, view: View, words: str) -> Response:
    """Each server with its prices, its tenants by day, and what moves nothing."""
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        period = view.period(calendar, calendar.month(month), now_ms)
        answer = read_model_servers(connection, period, view.reader.owner, view.owner, words)
        site = view.site(
            connection,
            MODELS,
            now_ms,
            ranges=LAST_DAYS,
            has_csv=True,
            extra={"q": words},
        )
    if view.wants_csv:
        range_name = view.filters.range_name or month
        return csv_file(INFERENCE.csv_rows(answer.lines), "models", file_name(range_name))

    def link(day: Period, tenant: str) -> str:
        return _day_path(view, calendar, day, tenant or words)

    text = html.render(
        "models.html",
        site=site,
        named=name_range(calendar, period),
        options=view.filters.range_options or f"--period {month}",
        form=list_form(site, Search(words), {}, {}, search="server, model, tenant"),
        servers=[server_facts(server, calendar, link) for server in answer.servers],
        notes=answer.notes,
        listed=answer.listed,
    )
    return page(text, site=site)


def _day_path(view: View, calendar: Calendar, day: Period, words: str) -> str:
    """The page of one day, searched for these words."""
    first, after = (str(calendar.date_of(at_ms)) for at_ms in (day.start_ms, day.end_ms))
    return address(MODELS, {**view.filters.owner, "q": words, "from": first, "to": after})
