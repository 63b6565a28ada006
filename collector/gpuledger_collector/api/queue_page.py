"""GET /queues: queues of Kubernetes schedulers, who waits beside unused quota, their quotas with
dates, and who was stopped; as a page and as CSV.

The rows of the CSV are those of `gpuledger queues list`, `queues quotas` and `queues evictions`. A
queue belongs to no owner, so the page is about the entire fleet.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import Search, require_choice
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
from gpuledger_collector.export.list_form import list_form
from gpuledger_collector.export.scheduler_queues import (
    EVICTIONS,
    NOTHING_KNOWN,
    QUEUE_TIMES,
    QUOTAS,
    say_remedy,
)
from gpuledger_collector.export.site import QUEUES
from gpuledger_collector.export.spend import name_range
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.scheduler_queues import (
    list_evictions,
    list_quotas,
    read_queue_times,
)

SHOWN = 100
"""Rows of a table of the page; CSV has all of them."""
MOST_REMEDIES = 5
"""Queues of which is said what would have served what waited; CSV names whose quota was unused."""
LISTS = ("", "quotas", "evictions")
"""What `by` names for CSV: the hours of queues, their quotas, evictions."""


def router(context: ReadContext) -> APIRouter:
    """The page."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys, fleet=True)

    @routes.get(QUEUES)
    def queues(q: str = "", by: str = "", view: View = wanted) -> Response:
        """Queues of a range, by default this month; `q`: those with these words in their names.
        `by=quotas` and `by=evictions`: those as CSV.
        """
        return queues_page(context, view, q, by)

    return routes


def queues_page(context: ReadContext, view: View, words: str, by: str = "") -> Response:
    """Queues, those that waited beside unused quota first; quotas with dates; evictions."""
    require_choice("by", by, LISTS)
    now_ms = context.now_ms
    # Read as the reader, so that a viewer is refused even if the check of its role were forgotten.
    with context.connection(view.reader) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        period = view.period(calendar, calendar.month(month), now_ms)
        times = read_queue_times(connection, period, words)
        quotas = list_quotas(connection, period, words)
        evictions = list_evictions(connection, period, words)
        site = view.site(
            connection,
            QUEUES,
            now_ms,
            ranges=LAST_DAYS,
            has_csv=True,
            extra={"q": words},
        )
    if view.wants_csv:
        rows = {
            "": QUEUE_TIMES.csv_rows(times.items),
            "quotas": QUOTAS.csv_rows(quotas),
            "evictions": EVICTIONS.csv_rows(evictions),
        }[by]
        range_name = view.filters.range_name or month
        return csv_file(rows, "queues", by, file_name(range_name))
    text = html.render(
        "queues.html",
        site=site,
        named=name_range(calendar, period),
        options=view.filters.range_options or f"--period {month}",
        form=list_form(site, Search(words), {}, {}, search="queue, cohort, workload"),
        sums=times.sums,
        listed=times.listed,
        rows=times.items[:SHOWN],
        remedies=list(filter(None, map(say_remedy, times.items[:MOST_REMEDIES]))),
        rows_left_out=max(len(times.items) - SHOWN, 0),
        quotas=quotas[:SHOWN],
        quotas_left_out=max(len(quotas) - SHOWN, 0),
        quotas_csv=site.with_filters(format="csv", by="quotas"),
        evictions=evictions[:SHOWN],
        evictions_left_out=max(len(evictions) - SHOWN, 0),
        evictions_csv=site.with_filters(format="csv", by="evictions"),
        nothing=NOTHING_KNOWN,
    )
    return page(text, site=site)
