"""GET /idle, /anomalies and /jobs: findings and jobs as pages and as CSV, narrowed by period and
owner.

The rows are those of `gpuledger idle`, `gpuledger anomalies` and `gpuledger runs`, as the jobs have
stored them.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from gpuledger_collector.accounting.period import DAY_MS, Period, format_instant
from gpuledger_collector.api.auth.principal import Denied
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import (
    NoPage,
    PageRoute,
    View,
    csv_file,
    page,
    require_view,
)
from gpuledger_collector.export import findings as reports
from gpuledger_collector.export import html
from gpuledger_collector.export.runs import (
    GPU_TIME_ONLY,
    RUNS,
    UNITS,
    as_html,
    receipt_csv,
)
from gpuledger_collector.export.site import ANOMALIES, IDLE, JOBS, address, job_path
from gpuledger_collector.insight.notifications.finding_rules import reclaim_command
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.findings import list_findings, list_idle_workloads
from gpuledger_collector.services.nodes import read_fleet
from gpuledger_collector.services.runs import (
    ChargedToOthers,
    NothingCharged,
    NotOneWorkload,
    list_runs,
    read_job,
)
from gpuledger_common.plurals import plural

SHOWN = 100
"""Rows of a page; CSV has all of them."""
ANOMALY_DAYS = 30
ORDERS = {"cost": "dearest first", "waste": "most idle cost first", "newest": "newest first"}


def router(context: ReadContext) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys)

    @routes.get(IDLE)
    def idle(view: View = wanted) -> Response:
        """Idle GPUs now, or of a period."""
        return idle_page(context, view)

    @routes.get(ANOMALIES)
    def anomalies(view: View = wanted) -> Response:
        """Unusual spending of the last days, or of a period."""
        return anomalies_page(context, view)

    @routes.get(JOBS)
    def jobs(name: str = "", sort: str = "cost", view: View = wanted) -> Response:
        """Jobs that were charged in a period; `name`: those of one name."""
        return jobs_page(context, view, name, sort)

    @routes.get("/jobs/{job:name}")
    def job(job: str, key: str = "", view: View = wanted) -> Response:
        """The receipt of a job, by its key, its id at the scheduler or its name."""
        return job_page(context, view, job or key)

    return routes


def idle_page(context: ReadContext, view: View) -> Response:
    """Idle GPUs with what they cost and the command that gives each back.

    Without a period: what is idle now.
    """
    now_ms = context.now_ms
    is_now = not view.filters.period
    with context.database.transaction(read_only=True) as connection:
        # Ends are not included: one millisecond is what is ongoing at this instant.
        span = view.period(calendar_of(connection), Period(now_ms, now_ms + 1))
        found = list_findings(connection, "idle", span, view.reader, view.scope)
        found = found.ongoing if is_now else found
        if view.wants_csv:
            return csv_file(reports.IDLE.csv_rows(found.items), "idle", view.filters.period)
        # Beyond the rights of a viewer, and shown for what it sees alone.
        workloads = list_idle_workloads(connection, now_ms)
        fleet = read_fleet(connection, now_ms)
        site = view.site(connection, IDLE, now_ms, default_period="now", has_csv=True)
    shown = []
    for item in found.items[:SHOWN]:
        workload = workloads.get(item.workload_id or 0) if item.is_ongoing else None
        command = "" if workload is None else reclaim_command(workload)
        is_partly_busy = workload is not None and not workload.is_entirely_idle
        shown.append(reports.idle_facts(item, now_ms, command, is_partly_busy))
    text = html.render(
        "idle.html",
        site=site,
        now=format_instant(now_ms - now_ms % 1000),
        is_now=is_now,
        is_known=found.looked_ms is not None and (bool(found.items) or not is_now or fleet.reports),
        silent=reports.silent_text(fleet.silent, fleet.nodes, view.owner is None) if is_now else "",
        looked=(
            None
            if found.looked_ms is None
            else format_instant(found.looked_ms - found.looked_ms % 1000)
        ),
        rows=shown,
        left_out=len(found.items) - len(shown),
        count=len(found.items),
        counted=reports.count_gpus(found.items) if is_now else plural(len(found.items), "finding"),
        ongoing=len(found.ongoing.items),
        so_far=found.costs,
        per_day=found.per_day,
        unpriced=found.unpriced_count,
    )
    return page(text, site=site)


def anomalies_page(context: ReadContext, view: View) -> Response:
    """Unusual spending, each episode with its cause and the jobs that moved it."""
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        span = view.period(
            calendar_of(connection), Period(now_ms - ANOMALY_DAYS * DAY_MS, now_ms + 1)
        )
        found = list_findings(connection, "anomaly", span, view.reader, view.scope)
        site = view.site(
            connection, ANOMALIES, now_ms, default_period=f"last {ANOMALY_DAYS} days", has_csv=True
        )
    if view.wants_csv:
        return csv_file(reports.ANOMALIES.csv_rows(found.items), "anomalies", view.filters.period)
    text = html.render(
        "anomalies.html",
        site=site,
        now=format_instant(now_ms - now_ms % 1000),
        looked=(
            None
            if found.looked_ms is None
            else format_instant(found.looked_ms - found.looked_ms % 1000)
        ),
        rows=[reports.anomaly_facts(item) for item in found.items[:SHOWN]],
        left_out=max(len(found.items) - SHOWN, 0),
        count=len(found.items),
        ongoing=len(found.ongoing.items),
    )
    return page(text, site=site)


def jobs_page(context: ReadContext, view: View, name: str, order: str) -> Response:
    """Jobs of a period with what they held, what of it was idle, and what they cost."""
    if order not in ORDERS:
        raise ValueError(f"sort: {order!r} is none of {', '.join(ORDERS)}")
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        span = view.period(calendar, calendar.month(month))
        charged = list_runs(
            connection,
            span,
            view.owner or {},
            view.reader.owner,
            name=name or None,
            order=order,
            top=None if view.wants_csv else SHOWN,
        )
        site = view.site(
            connection,
            JOBS,
            now_ms,
            has_csv=True,
            extra={"name": name, "sort": "" if order == "cost" else order},
        )
    if view.wants_csv:
        return csv_file(RUNS.csv_rows(charged.items), "jobs", view.filters.period or month)
    text = html.render(
        "jobs.html",
        site=site,
        now=format_instant(now_ms - now_ms % 1000),
        name=name,
        period=view.filters.period or month,
        rows=[(item.run, item.unit) for item in charged.items],
        left_out=len(charged.others),
        left_ns=charged.others_gpu_ns,
        left_costs=charged.others_cost,
        count=charged.workloads,
        orders=[
            (text, site.with_filters(sort="" if key == "cost" else key), key == order)
            for key, text in ORDERS.items()
        ],
        with_units=any(item.unit for item in charged.items),
        unit_names=UNITS,
        notice=GPU_TIME_ONLY,
    )
    return page(text, site=site)


def job_page(context: ReadContext, view: View, name: str) -> Response:
    """The receipt of a job; of several of one name their list. Raises NoPage, Denied."""
    with context.database.transaction(read_only=True) as connection:
        now_ms = context.now_ms
        try:
            report = read_job(connection, name, view.reader.owner, now_ms)
        except NotOneWorkload as error:
            if error.count:
                filters = {**view.filters.parameters(), "name": name}
                return RedirectResponse(address(JOBS, filters), 303)
            raise NoPage(
                f"No job has the key, the id or the name {name!r}, or nothing is charged for it"
                " yet."
            ) from error
        except ChargedToOthers as error:
            raise Denied(
                403,
                "a part of this job is charged to others, and this token sees one owner's part"
                " only",
            ) from error
        except NothingCharged as error:
            raise NoPage(
                f"Nothing is charged for {error} yet: rating follows a minute after its evidence."
            ) from error
        key = report.key
        path, _, is_dots = job_path(key).partition("?")
        narrowed = replace(
            view, filters=replace(view.filters, owner={"team": report.team} if report.team else {})
        )
        extra = {"key": key} if is_dots else {}
        site = narrowed.site(
            connection, path, now_ms, has_csv=True, is_filtered=False, periods=(), extra=extra
        )
    if view.wants_csv:
        return csv_file(receipt_csv(report), "job")
    return page(as_html(report, site), site=site)
