"""GET /fleet and /fleet/gpu: the fleet as a map, now or in an hour of the past, and the receipt of
one GPU's time.

Every choice is part of the address. Without scripts there are links to the hours and days beside,
and a form; with them a slider exchanges the picture.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from gpuledger_collector.accounting.gpu_receipt import GpuReceipt
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    Calendar,
    Period,
    format_instant,
    parse_instant,
)
from gpuledger_collector.api.context import ReadContext, requested_days
from gpuledger_collector.api.page_routes import (
    NoPage,
    PageRoute,
    View,
    csv_file,
    page,
    require_view,
)
from gpuledger_collector.export import fleet_map as pictures
from gpuledger_collector.export import gpu_receipt as receipts
from gpuledger_collector.export import html
from gpuledger_collector.export.fleet_map import MapAddress, hour_name, parse_pool
from gpuledger_collector.export.free_gpus import say_fullest
from gpuledger_collector.export.site import FLEET, Site, gpu_path
from gpuledger_collector.insight.fleet_map import ColorBy, FleetMap, Grain
from gpuledger_collector.insight.gpu_health import judge_gpu
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.fleet_map import MapQuestion, read_fleet_map
from gpuledger_collector.services.free_gpus import read_fullest_hour
from gpuledger_collector.services.gpu_receipt import UnknownGpu, read_gpu_receipt
from gpuledger_collector.services.last_holders import find_last_holders
from gpuledger_common.plurals import plural

WEEK_MS = 7 * DAY_MS
RECEIPT_DAYS = 7
SLIDER = "scrubber"
"""Id of the slider."""
LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}")
"""An instant as a form writes it: without a zone, which is UTC."""


def router(context: ReadContext) -> APIRouter:
    """The page."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    wanted = require_view(context.keys, fleet=True)

    @routes.get(FLEET)
    def fleet(
        at: str = "",
        color: str = "",
        by: str = "",
        pool: str = "",
        node: str = "",
        view: View = wanted,
        trigger: Annotated[str, Header(alias="HX-Trigger")] = "",
    ) -> Response:
        """The map in the hour of `at`, by default now."""
        here = MapAddress(
            _parse_hour(at), _parse_color(color), _parse_grain(by), parse_pool(pool), node or None
        )
        answer = fleet_page(context, here, view)
        # Where a part of the page is exchanged, the address is that of the hour all the same; one
        # for each step of the slider would bury the page that the reader came from.
        answer.headers["HX-Replace-Url" if trigger == SLIDER else "HX-Push-Url"] = here.path
        return answer

    @routes.get(f"{FLEET}/gpu/{{gpu:name}}")
    def gpu(
        gpu: str,
        uuid: str = "",
        start: Annotated[str, Query(alias="from")] = "",
        end: Annotated[str, Query(alias="to")] = "",
        view: View = wanted,
    ) -> Response:
        """The receipt of a GPU: of `period`, of the days from and to, or of the last seven days;
        `uuid`: of one whose UUID cannot be part of a path.
        """
        return gpu_page(context, gpu or uuid, start, end, view)

    return routes


def gpu_page(context: ReadContext, uuid: str, start: str, end: str, view: View) -> Response:
    """The receipt, or its lines as CSV. Raises Denied for a reader who sees one owner's part."""
    view.reader.require_fleet()
    now_ms = context.now_ms
    with context.connection(view.reader) as connection:
        calendar = calendar_of(connection)
        period = _receipt_days(calendar, start, end, view.filters.period, now_ms)
        try:
            receipt = read_gpu_receipt(connection, uuid, period)
        except UnknownGpu as error:
            raise NoPage(str(error)) from error
        days = _dates_of(calendar, period)
        path, _, is_dots = gpu_path(uuid).partition("?")
        site = view.site(
            connection,
            path,
            now_ms,
            has_csv=True,
            is_filtered=False,
            periods=(),
            extra={**days, **({"uuid": uuid} if is_dots else {})},
        )
    if view.wants_csv:
        return csv_file(receipts.csv_rows(receipt), "gpu", days["from"])
    text = html.render(
        "gpu.html",
        site=site,
        receipt=receipt,
        part=receipt.parts[0],
        health=judge_gpu(receipt.parts, now_ms),
        days=days,
        steps=_receipt_steps(calendar, site, receipt, now_ms),
        states=receipts.state_rows(receipt),
        drawn=receipts.picture(receipt, calendar),
        columns=[column for column in receipts.GPU_RECEIPT.columns if column.in_table],
        fleet_path=FLEET,
    )
    return page(text, site=site)


def _receipt_days(calendar: Calendar, start: str, end: str, name: str, now_ms: int) -> Period:
    """The days that an address names; none: seven, today the last. Raises ValueError."""
    if start or end or name:
        return requested_days(calendar, start, end, name)
    day = calendar.day_of(now_ms)
    return Period(calendar.days_before(day.start_ms, RECEIPT_DAYS - 1), day.end_ms)


def _dates_of(calendar: Calendar, period: Period) -> dict[str, str]:
    return {
        "from": calendar.date_of(period.start_ms).isoformat(),
        "to": calendar.date_of(period.end_ms).isoformat(),
    }


def _receipt_steps(
    calendar: Calendar, site: Site, receipt: GpuReceipt, now_ms: int
) -> list[tuple[str, str]]:
    """Links to the days before and after, and to a day, a week and a month."""
    today, period = calendar.day_of(now_ms), receipt.period
    count = len(calendar.days(period))
    last = min(period.end_ms, today.end_ms)

    def days(start_ms: int, end_ms: int) -> str:
        return site.with_filters(**_dates_of(calendar, Period(start_ms, end_ms)))

    before = Period(calendar.days_before(period.start_ms, count), period.start_ms)
    steps = []
    if receipt.first_ms < period.start_ms:
        steps.append((f"{plural(count, 'day')} before", days(before.start_ms, before.end_ms)))
    if period.end_ms < today.end_ms:
        after_ms = calendar.days_before(period.end_ms, -count)
        steps.append((f"{plural(count, 'day')} later", days(period.end_ms, after_ms)))
    for wanted, name in ((1, "one day"), (7, "7 days"), (30, "30 days")):
        if wanted != count:
            steps.append((name, days(calendar.days_before(last, wanted), last)))
    return steps


def _parse_hour(text: str) -> int | None:
    if not text:
        return None
    at_ms = parse_instant(f"{text}Z" if LOCAL.fullmatch(text) else text)
    return at_ms - at_ms % HOUR_MS


def _parse_color(text: str) -> ColorBy:
    if text and text not in set(ColorBy):
        raise ValueError(f"color: {text!r} is none of {', '.join(ColorBy)}")
    return ColorBy(text or ColorBy.STATE)


def _parse_grain(text: str) -> str:
    if text and text not in set(Grain):
        raise ValueError(f"by: {text!r} is none of {', '.join(Grain)}")
    return text


def fleet_page(context: ReadContext, here: MapAddress, view: View) -> Response:
    """The map, or its accelerators as CSV. Raises Denied for a reader who sees one owner's part."""
    view.reader.require_fleet()
    now_ms = context.now_ms
    asked = MapQuestion(
        at_ms=here.at_ms,
        color=here.color,
        grain=Grain(here.by) if here.by else None,
        pool=here.pool,
        node=here.node,
        with_holders=view.wants_csv,
    )
    with context.connection(view.reader) as connection:
        fleet = read_fleet_map(connection, asked, now_ms)
        troubles = pictures.trouble_rows(fleet, here)
        sick = [item for row in troubles for item in row.sick]
        last_holders = {} if view.wants_csv else find_last_holders(connection, sick)
        fullest = None
        if here.at_ms is None and here.node is None and not view.wants_csv:
            fullest = read_fullest_hour(connection, now_ms, here.parameters["pool"])
        site = view.site(
            connection,
            FLEET,
            now_ms,
            has_csv=True,
            is_filtered=False,
            periods=(),
            extra=here.parameters,
            live_path="" if here.at_ms is not None else here.live_path,
            may_be_live=True,
        )
    if view.wants_csv:
        name = "now" if here.at_ms is None else hour_name(here.at_ms)
        rows = pictures.FLEET_MAP.csv_rows(pictures.map_rows(fleet))
        return csv_file(rows, "fleet", name.replace(":", ""))
    text = html.render(
        "fleet.html",
        site=site,
        fleet=fleet,
        here=here,
        path=FLEET,
        title="Now" if here.at_ms is None else pictures.hour_text(here.at_ms),
        steps=_steps(here, fleet.first_ms, now_ms),
        slider=_slider(here, now_ms),
        colors=list(ColorBy),
        grains=list(Grain),
        legend=pictures.legend(fleet),
        troubles=troubles,
        last_holders=last_holders,
        fullest="" if fullest is None else say_fullest(fullest, site.calendar),
        fullest_path=""
        if fullest is None
        else here.with_changes(at=hour_name(fullest.at_ms - fullest.at_ms % HOUR_MS)),
        first=None
        if fleet.first_ms is None
        else pictures.hour_text(fleet.first_ms - fleet.first_ms % HOUR_MS),
        **_picture_facts(fleet, here),
    )
    return page(text, site=site)


def _picture_facts(fleet: FleetMap, here: MapAddress) -> dict[str, object]:
    """The picture and its table, by what is drawn."""
    rows: list[pictures.GroupRow] = []
    others: pictures.GroupRow | None = None
    if fleet.grain is not Grain.GPU:
        groups = fleet.nodes if fleet.grain is Grain.NODE else fleet.pools
        rows, others = pictures.group_rows(fleet, groups, here)
    return {
        "nodes": pictures.node_pictures(fleet, here) if fleet.grain is Grain.GPU else [],
        "blocks": pictures.block_pictures(fleet, here) if fleet.grain is Grain.NODE else [],
        "pools": pictures.pool_pictures(fleet, here) if fleet.grain is Grain.POOL else [],
        "rows": rows,
        "others": others,
        "columns": [column for column in pictures.FLEET_MAP.columns if column.in_table],
        "map_rows": list(pictures.map_rows(fleet))[: pictures.MOST_ROWS]
        if fleet.grain is Grain.GPU
        else [],
    }


def _steps(here: MapAddress, first_ms: int | None, now_ms: int) -> list[tuple[str, str]]:
    """Links to the hours and days beside; none to before the first accelerator, or to the future."""
    this_ms = now_ms - now_ms % HOUR_MS
    at_ms = this_ms + HOUR_MS if here.at_ms is None else here.at_ms
    wanted = [
        ("a day before", at_ms - DAY_MS),
        ("an hour before", at_ms - HOUR_MS),
        ("an hour later", at_ms + HOUR_MS),
        ("a day later", at_ms + DAY_MS),
    ]
    since_ms = this_ms if first_ms is None else first_ms - first_ms % HOUR_MS
    steps = [
        (name, here.with_changes(at=hour_name(ms)))
        for name, ms in wanted
        if since_ms <= ms <= this_ms
    ]
    return [*steps, *([] if here.at_ms is None else [("now", here.with_changes(at=""))])]


def _slider(here: MapAddress, now_ms: int) -> dict[str, object]:
    """The hours of a week, in unix seconds: the last one, or the one around an older hour."""
    last_ms = now_ms - now_ms % HOUR_MS
    at_ms = last_ms if here.at_ms is None else here.at_ms
    if at_ms < last_ms - WEEK_MS:
        last_ms = at_ms + WEEK_MS // 2
    first_ms = last_ms - WEEK_MS + HOUR_MS
    return {
        "first_s": first_ms // 1000,
        "last_s": last_ms // 1000,
        "at_s": at_ms // 1000,
        "step_s": HOUR_MS // 1000,
        "first": _form_instant(first_ms),
        "last": _form_instant(last_ms),
        "at": "" if here.at_ms is None else _form_instant(here.at_ms),
        "first_text": format_instant(first_ms)[:10],
        "last_text": format_instant(last_ms)[:10],
        "path": here.with_changes(at=""),
    }


def _form_instant(at_ms: int) -> str:
    return format_instant(at_ms)[:16]
