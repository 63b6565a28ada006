"""GET /idle, /anomalies and /jobs: findings and jobs as pages and as CSV, narrowed by period and
owner.

The rows are those of `gpuledger idle`, `gpuledger anomalies` and `gpuledger runs`, as the jobs have
stored them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse

from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period
from gpuledger_collector.api.auth.principal import Denied
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import WHOLE, Narrowing, read_narrowing, require_choice
from gpuledger_collector.api.page_routes import (
    LAST_DAYS,
    NoPage,
    PageRoute,
    View,
    csv_file,
    file_name,
    page,
    require_view,
)
from gpuledger_collector.export import findings as reports
from gpuledger_collector.export import html
from gpuledger_collector.export.free_gpus import say_unlisted
from gpuledger_collector.export.list_form import list_form
from gpuledger_collector.export.runs import (
    GPU_TIME_ONLY,
    RUNS,
    UNITS,
    as_html,
    group_facts,
    receipt_csv,
)
from gpuledger_collector.export.site import ANOMALIES, IDLE, JOBS, LIVE, address, job_path
from gpuledger_collector.insight.findings import NO_REMEDY, FindingGroup
from gpuledger_collector.services.absence import Absence, explain_absence
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.database import Connection
from gpuledger_collector.services.findings import (
    FindingList,
    list_findings,
    list_idle_remedies,
)
from gpuledger_collector.services.free_gpus import count_free_now
from gpuledger_collector.services.nodes import count_nodes
from gpuledger_collector.services.owner_names import list_teams
from gpuledger_collector.services.rated_period import read_rated_period
from gpuledger_collector.services.runs import (
    ChargedToOthers,
    NothingCharged,
    NotOneWorkload,
    list_run_places,
    list_runs,
    read_job,
)
from gpuledger_collector.services.small_anomalies import find_collected

SHOWN = 100
"""Rows of a page; CSV has all of them."""
ANOMALY_DAYS = 30
STATES = reports.STATES
GROUPINGS = {
    "model": "free ones by model",
    "node": "free ones by node",
    "none": "each GPU by itself",
}
ANOMALY_GROUPINGS = {
    "none": "each episode",
    "team": "by team",
    "state": "by kind",
    "day": "by day",
}
JOB_GROUPINGS = {
    "none": "each job",
    "team": "by team",
    "user": "by user",
    "model": "by GPU model",
    "state": "by state",
    "day": "by day",
}
SPLIT_BY = {"team", "model"}
"""Of which a job may have several: each has its part of it."""
ORDERS = {
    "cost": "dearest first",
    "waste": "most idle cost first",
    "price": "dearest an hour first",
    "newest": "newest first",
    "unknown": "most hours without a reading first",
}


def router(context: ReadContext) -> APIRouter:
    """The pages."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys)
    narrowed = Depends(read_narrowing)

    @routes.get(IDLE)
    def idle(by: str = "", narrowing: Narrowing = narrowed, view: View = wanted) -> Response:
        """Idle GPUs now, or of a range; free ones in groups, or one by one (`by=none`)."""
        return idle_page(context, view, narrowing, by or "model")

    @routes.get(ANOMALIES)
    def anomalies(by: str = "", narrowing: Narrowing = narrowed, view: View = wanted) -> Response:
        """Unusual spending of the last days, or of a range; one by one, or in groups."""
        return anomalies_page(context, view, narrowing, by or "none")

    @routes.get(JOBS)
    def jobs(
        name: str = "",
        sort: str = "cost",
        by: str = "",
        narrowing: Narrowing = narrowed,
        view: View = wanted,
    ) -> Response:
        """Jobs that were charged in a range, one by one or in groups; `name`: those of one name."""
        return jobs_page(context, view, narrowing, name, sort or "cost", by or "none")

    @routes.get("/jobs/{job:name}")
    def job(job: str, key: str = "", view: View = wanted) -> Response:
        """The receipt of a job, by its key, its id at the scheduler or its name."""
        return job_page(context, view, job or key)

    return routes


def idle_page(context: ReadContext, view: View, narrowing: Narrowing, by: str) -> Response:
    """Idle GPUs with what they cost and the command that gives each back; held ones first, what to
    act on before the rest, free ones in groups.

    Without a range: what is idle now.
    """
    require_choice("by", by, GROUPINGS)
    now_ms = context.now_ms
    is_now = not view.filters.range_name
    place = {"pool": narrowing.pool, "node": narrowing.node}
    with context.database.transaction(read_only=True) as connection:
        # Ends are not included: one millisecond is what is ongoing at this instant.
        calendar = calendar_of(connection)
        span = view.period(calendar, Period(now_ms, now_ms + 1), now_ms)
        listed = list_findings(connection, "idle", span, view.reader, view.scope)
        listed = listed.ongoing if is_now else listed
        found = listed.only(narrowing.of_findings.admits)
        if view.wants_csv:
            return csv_file(
                reports.IDLE.csv_rows(found.items), "idle", file_name(view.filters.range_name)
            )
        remedies = list_idle_remedies(connection, found, now_ms)
        counts = count_nodes(connection, now_ms)
        absence = None if listed.items else _explain(connection, view, span, calendar, now_ms)
        teams = list_teams(connection, view.reader.owner)
        # About the entire fleet as it is now, so no part of it is compared.
        compares = is_now and view.owner is None and narrowing == WHOLE
        unlisted = say_unlisted(count_free_now(connection, now_ms)) if compares else ""
        site = view.site(
            connection,
            IDLE,
            now_ms,
            default_period="now",
            ranges=LAST_DAYS,
            has_csv=True,
            extra={**narrowing.parameters(), "by": "" if by == "model" else by},
            live_path=address(LIVE, {**view.filters.owner, **place}) if is_now else "",
            may_be_live=True,
        )
    free = () if by == "none" else found.free_by("node" if by == "node" else "model")
    rows = (found if by == "none" else found.held).to_act_on_first(remedies)
    shown = [
        reports.idle_facts(item, now_ms, remedies.get(item.key, NO_REMEDY))
        for item in rows.items[:SHOWN]
    ]
    text = html.render(
        "idle.html",
        site=site,
        is_now=is_now,
        is_known=listed.looked_ms is not None
        and (bool(listed.items) or not is_now or counts.reports),
        silent=reports.silent_text(counts.silent, counts.nodes, view.owner is None)
        if is_now
        else "",
        looked_ms=found.looked_ms,
        rows=shown,
        free=[reports.free_facts(group, by) for group in free[:SHOWN]],
        unlisted=unlisted,
        by=by,
        form=list_form(
            site,
            narrowing,
            {**listed.choices(), "username": []},
            STATES,
            {"by": (by, GROUPINGS)},
            teams=teams,
        ),
        absence=absence,
        listed=len(listed.items),
        left_out=len(rows.items) - len(shown) + max(len(free) - SHOWN, 0),
        count=len(found.items),
        counted=reports.count_gpus(found.items),
        ongoing=len(found.ongoing.items),
        so_far=found.costs,
        per_day=found.per_day,
        unpriced=found.unpriced_count,
    )
    return page(text, site=site)


def _explain(
    connection: Connection, view: View, span: Period, calendar: Calendar, now_ms: int
) -> Absence | None:
    """Why a list of findings is empty: what the question itself explains of it."""
    return explain_absence(
        connection, span, calendar, now_ms, view.owner, view.reader.owner, is_rated=False
    )


def anomalies_page(context: ReadContext, view: View, narrowing: Narrowing, by: str) -> Response:
    """Unusual spending, each episode with its cause and the jobs that moved it; or in groups."""
    require_choice("by", by, ANOMALY_GROUPINGS)
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        calendar = calendar_of(connection)
        span = view.period(calendar, Period(now_ms - ANOMALY_DAYS * DAY_MS, now_ms + 1), now_ms)
        listed = list_findings(connection, "anomaly", span, view.reader, view.scope)
        found = listed.only(narrowing.of_findings.admits)
        site = view.site(
            connection,
            ANOMALIES,
            now_ms,
            default_period=f"last {ANOMALY_DAYS} days",
            ranges=LAST_DAYS[:1],
            has_csv=True,
            extra={**narrowing.parameters(), "by": "" if by == "none" else by},
        )
        absence = None if listed.items else _explain(connection, view, span, calendar, now_ms)
        teams = list_teams(connection, view.reader.owner)
        shown = found.items[:SHOWN] if by == "none" and not view.wants_csv else ()
        collected = find_collected(connection, shown, now_ms)
    if view.wants_csv:
        return csv_file(
            reports.ANOMALIES.csv_rows(found.items), "anomalies", file_name(view.filters.range_name)
        )
    text = html.render(
        "anomalies.html",
        site=site,
        looked_ms=found.looked_ms,
        form=list_form(
            site,
            narrowing,
            {"state": listed.choices()["state"], "username": []},
            reports.PRICE_CAUSES,
            {"by": (by, ANOMALY_GROUPINGS)},
            teams=teams,
            search="team, job",
        ),
        absence=absence,
        by=by,
        groups=[reports.group_facts(group, by, site) for group in _groups(found, by, calendar)],
        listed=len(listed.items),
        rows=[
            reports.anomaly_facts(
                item, found.count_acknowledged(item), is_collected=item.key in collected
            )
            for item in shown
        ],
        left_out=max(len(found.items) - SHOWN, 0) if by == "none" else 0,
        count=len(found.items),
        ongoing=len(found.ongoing.items),
    )
    return page(text, site=site)


def _groups(found: FindingList, by: str, calendar: Calendar) -> Sequence[FindingGroup]:
    if by == "day":
        return found.by_day(calendar)
    return found.groups("team" if by == "team" else "state") if by != "none" else ()


def jobs_page(
    context: ReadContext, view: View, narrowing: Narrowing, name: str, order: str, by: str
) -> Response:
    """Jobs of a period with what they held, what of it was idle, and what they cost; or in groups."""
    require_choice("sort", order, ORDERS)
    require_choice("by", by, JOB_GROUPINGS)
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        calendar = calendar_of(connection)
        month = calendar.month_of(now_ms)
        span = view.period(calendar, calendar.month(month), now_ms)
        charged = list_runs(
            connection,
            span,
            view.owner or {},
            view.reader.owner,
            name=name or None,
            order=order,
            top=None if view.wants_csv else SHOWN if by == "none" else 0,
            wanted=narrowing.of_runs,
            with_states=not view.wants_csv,
            split_by=by if by in SPLIT_BY and not view.wants_csv else "",
        )
        if view.wants_csv:
            range_name = view.filters.range_name or month
            return csv_file(RUNS.csv_rows(charged.items), "jobs", file_name(range_name))
        absence = None
        if not charged.items and not any(narrowing.parameters().values()):
            absence = explain_absence(
                connection,
                span,
                calendar,
                now_ms,
                view.owner,
                view.reader.owner,
                is_rated=read_rated_period(connection, span).rated_ms is not None,
            )
        places = list_run_places(connection, span, view.owner or {}, view.reader.owner)
        places["state"] = sorted(set(charged.states.values()))
        places["username"] = []  # too many to choose from: a group leads to its user
        teams = list_teams(connection, view.reader.owner)
        site = view.site(
            connection,
            JOBS,
            now_ms,
            ranges=LAST_DAYS,
            has_csv=True,
            extra={
                "name": name,
                "sort": "" if order == "cost" else order,
                "by": "" if by == "none" else by,
                **narrowing.parameters(),
            },
        )
    groups = charged.groups(by, calendar, SHOWN) if by != "none" else None
    rest = charged if groups is None else groups
    text = html.render(
        "jobs.html",
        site=site,
        name=name,
        period=view.filters.range_name or month,
        options=view.filters.range_options or f"--period {month}",
        form=list_form(
            site,
            narrowing,
            places,
            {},
            {"by": (by, JOB_GROUPINGS), "sort": (order, ORDERS)},
            teams=teams,
            search="name, id, user",
        ),
        by=by,
        groups=[group_facts(group, by, site) for group in groups.items] if groups else [],
        states=charged.states,
        is_narrowed=any(narrowing.parameters().values()),
        absence=absence,
        rows=[(item.run, item.unit) for item in charged.items],
        left_out=len(rest.others),
        left_ns=rest.others_gpu_ns,
        left_costs=rest.others_cost,
        count=charged.workloads,
        orders=[
            (text, site.with_filters(sort="" if key == "cost" else key), key == order)
            for key, text in ORDERS.items()
        ],
        with_units=any(item.unit for item in charged.items),
        with_unknown=order == "unknown",
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
