"""GET /spend: spend over time, with its budgets and its forecast, and where each dollar of capacity
went; as a page and as CSV.

The rows are those of the chargeback of the same range. A bar leads to its day, a group in it to
that team's view of the day, and that to the jobs and their receipts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period, parse_instant
from gpuledger_collector.accounting.spend_over_time import CurrencySpend, SpendOverTime
from gpuledger_collector.accounting.spend_series import GROUPINGS, HOUR
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import Narrowing
from gpuledger_collector.api.page_routes import PageRoute, View, csv_file, page, require_view
from gpuledger_collector.export import html, spend
from gpuledger_collector.export import statement as forms
from gpuledger_collector.export.fleet_map import hour_name
from gpuledger_collector.export.list_form import list_form
from gpuledger_collector.export.site import FLEET, Link, Site, address
from gpuledger_collector.services.absence import explain_absence
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.hour_jobs import HourJobs, find_hour, list_hour_jobs
from gpuledger_collector.services.owner_names import list_teams
from gpuledger_collector.services.rated_period import read_extent
from gpuledger_collector.services.runs import RunList, list_runs
from gpuledger_collector.services.spend_series import list_spend, read_spend

MOST_ROWS, MOST_JOBS, MOST_MONTHS = 50, 20, 13
DAYS = (1, 7, 30, 90)
"""Ranges up to now that are offered."""
BELOW = {"team": "project", "project": "model"}
"""By what a group of this dimension is looked at."""


@dataclass(frozen=True, slots=True)
class AskedRange:
    """A range as an address names it: `from` with `to`, or `days`, or `period`, of which the first
    counts, as on every page; without any, this month.
    """

    start: str
    end: str
    days: int | None

    def resolve(self, calendar: Calendar, name: str, now_ms: int) -> Period:
        """The days in the billing zone. Raises ValueError with a sentence."""
        if self.start or self.end:
            if not (self.start and self.end):
                raise ValueError("give both from and to: from=2026-10-01&to=2026-11-01")
            return calendar.date_range(self.start, self.end)
        if self.days is not None:
            return calendar.last_days(now_ms, self.days)
        if name:
            return calendar.period(name)
        return calendar.month(calendar.month_of(now_ms))

    def parameters(self) -> dict[str, str]:
        """As parameters of an address."""
        days = "" if self.days is None else str(self.days)
        return {"from": self.start, "to": self.end, "days": days}


def router(context: ReadContext) -> APIRouter:
    """The page."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys)

    @routes.get(spend.SPEND)
    def spend_over_time(
        by: str = "",
        start: Annotated[str, Query(alias="from")] = "",
        end: Annotated[str, Query(alias="to")] = "",
        days: Annotated[str, Query(pattern="^([1-9][0-9]{0,4})?$")] = "",
        at: str = "",
        view: View = wanted,
    ) -> Response:
        """Spend over time by team, project, model, pool or state; `at`: with the jobs of the hour
        that holds this instant, where the range is shown by hours.
        """
        asked = AskedRange(start, end, int(days) if days else None)
        return spend_page(context, view, asked, by, at)

    return routes


def spend_page(
    context: ReadContext, view: View, asked: AskedRange, by: str = "", at: str = ""
) -> Response:
    """The page, or every group in every bucket as CSV."""
    now_ms = context.now_ms
    at_ms = parse_instant(at) if at else None
    by = by or ("project" if "team" in (view.owner or {}) else "team")
    with context.database.transaction(read_only=True) as connection:
        extent = read_extent(connection, now_ms)
        calendar = calendar_of(connection)
        period = asked.resolve(calendar, view.filters.period, now_ms)
        if view.wants_csv:
            amounts = list_spend(connection, period, by, now_ms, view.owner)
            first, last = days_of(calendar, period)
            return csv_file(spend.AMOUNTS.csv_rows(amounts), "spend", by, first, last)
        found = read_spend(connection, period, by, now_ms, view.owner)
        jobs, hour_jobs = None, None
        if (hour := find_hour(found, at_ms)) is not None:
            whose = (view.owner, view.reader.owner)
            hour_jobs = list_hour_jobs(connection, found, hour, *whose, MOST_JOBS)
        elif view.owner is not None or found.step == HOUR:
            jobs = list_runs(connection, period, view.owner or {}, view.reader.owner, top=MOST_JOBS)
        absence = None
        if not found.currencies and not found.unpriced_ns:
            absence = explain_absence(
                connection,
                period,
                calendar,
                now_ms,
                view.owner,
                view.reader.owner,
                is_rated=found.rated_ms is not None,
            )
        teams = list_teams(connection, view.reader.owner)
    site = view.frame(
        extent,
        spend.SPEND,
        now_ms,
        has_csv=True,
        periods=(),
        extra={"by": by, **asked.parameters(), "at": "" if hour_jobs is None else at},
    )
    links = SpendLinks(view, asked, found)
    first, after = days_of(calendar, period)
    form = list_form(
        site,
        Narrowing(),
        {},
        {},
        {"by": (by, {name: f"by {name}" for name in GROUPINGS})},
        teams=teams,
        search="",
    )
    text = html.render(
        "spend.html",
        site=site,
        **_range_facts(found, now_ms),
        form=replace(form, first=first, after=after),
        absence=absence,
        group_links=links.groups(),
        range_links=links.ranges(extent.months[:MOST_MONTHS], calendar.month_of(now_ms)),
        currencies=[_currency_facts(found, each, links) for each in found.currencies],
        jobs=None if jobs is None else _job_facts(jobs),
        hour=None if hour_jobs is None else _hour_facts(hour_jobs, calendar, site),
        job_filter=view.filters.parameters(),
    )
    return page(text, site=site)


def days_of(calendar: Calendar, period: Period) -> tuple[str, str]:
    """The first day of a range and the one after its last."""
    first, after = (calendar.date_of(at_ms) for at_ms in (period.start_ms, period.end_ms))
    return first.isoformat(), after.isoformat()


@dataclass(frozen=True, slots=True)
class SpendLinks:
    """Where the parts of a chart of spend lead."""

    view: View
    asked: AskedRange
    found: SpendOverTime

    def of_part(self, at: int, name: str | None) -> str:
        """A bucket (less than 0: the range), narrowed to one group where it has an owner's name."""
        found = self.found
        by = found.by
        # With the reader's own levels: a project alone would lead to statements of the project,
        # which are not the team's to see.
        owner = {**(self.view.reader.owner or {}), **self.view.filters.owner}
        if name is not None and by in BELOW:
            owner[by] = name or UNATTRIBUTED
            by = BELOW[by]
        bucket = found.buckets[at] if at >= 0 else found.period
        if found.step == HOUR and at >= 0:
            bucket = found.calendar.day_of(bucket.start_ms)
        first, after = days_of(found.calendar, bucket)
        parameters = {**owner, "by": by, "from": first, "to": after}
        if found.step != HOUR or at < 0:
            return address(spend.SPEND, parameters) + ("#jobs" if found.step == HOUR else "")
        hour = hour_name(found.buckets[at].start_ms)
        return address(spend.SPEND, {**parameters, "at": hour}) + "#jobs"

    def of_period(self, period: Period) -> str:
        """The same in another period; empty: it is this one."""
        if period == self.found.period:
            return ""
        first, after = days_of(self.found.calendar, period)
        owner = self.view.filters.owner
        return address(spend.SPEND, {**owner, "by": self.found.by, "from": first, "to": after})

    def groups(self) -> list[Link]:
        """The same by other dimensions."""
        same = {**self.view.filters.parameters(), **self.asked.parameters()}
        return [
            Link(by, address(spend.SPEND, {**same, "by": by}), by == self.found.by)
            for by in GROUPINGS
        ]

    def ranges(self, months: Sequence[str], month: str) -> list[Link]:
        """The same of other ranges."""
        owner = {**self.view.filters.owner, "by": self.found.by}
        shown = self.view.filters.period or (
            "" if self.asked.start or self.asked.days is not None else month
        )
        days = [
            Link(
                "today and yesterday" if count == 1 else f"{count} days",
                address(spend.SPEND, {**owner, "days": str(count)}),
                self.asked.days == count,
            )
            for count in DAYS
        ]
        return days + [
            Link(name, address(spend.SPEND, {**owner, "period": name}), name == shown)
            for name in dict.fromkeys([month, *months])
        ]


def _range_facts(found: SpendOverTime, now_ms: int) -> dict[str, Any]:
    calendar, period = found.calendar, found.period
    first, after = days_of(calendar, period)
    return {
        "by": found.by,
        "step": found.step,
        "first": first,
        "after": after,
        "named": spend.name_range(calendar, period),
        "zone": calendar.zone_at(period.start_ms).name,
        "is_over": period.end_ms <= now_ms,
        "rated_ms": found.rated_ms,
        "unpriced_ns": found.unpriced_ns,
        "notes": found.notes,
        "has_inventory": found.has_inventory,
    }


def _currency_facts(
    found: SpendOverTime, each: CurrencySpend, links: SpendLinks
) -> Mapping[str, Any]:
    """One currency: its charts, its table, its budgets and its flow."""
    total = each.total
    return {
        "currency": each.currency,
        "bars": spend.bars(found, each, links.of_part),
        "running": spend.running_total(found, each),
        "ahead": each.standing.ahead,
        "legend": spend.legend(found, each),
        "rows": spend.row_facts(found, each, links.of_part, MOST_ROWS),
        "steps": spend.step_facts(found, each, links.of_part, MOST_ROWS),
        "total": total,
        "has_shares": total.shared is not None,
        "budgets": [
            (forms.budget_facts(status), links.of_period(status.period)) for status in each.budgets
        ],
        "flow": None if each.flow is None else spend.flow_facts(each.flow),
    }


def _hour_facts(jobs: HourJobs, calendar: Calendar, site: Site) -> Mapping[str, Any]:
    """The jobs of an hour, with where the whole day and the fleet of that hour are."""
    start_ms = jobs.hour.start_ms
    at_ms = start_ms - start_ms % HOUR_MS
    return {
        "name": spend.name_hour(jobs.hour, calendar),
        "rows": jobs.items,
        "others": jobs.others,
        "others_ns": jobs.others_gpu_ns,
        "others_cost": jobs.others_cost,
        "day_path": site.with_filters(at="") + "#jobs",
        "fleet_path": address(FLEET, {"at": hour_name(at_ms), "color": "owner"})
        if site.sees_fleet
        else "",
    }


def _job_facts(jobs: RunList) -> Mapping[str, Any]:
    return {
        "rows": [item.run for item in jobs.items],
        "count": jobs.workloads,
        "left_out": len(jobs.others),
    }
