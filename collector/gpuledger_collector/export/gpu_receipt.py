"""The receipt of one GPU's time as people see it: a square for each hour, its lines as a table and
as CSV.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from markupsafe import Markup

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.gpu_receipt import GpuHour, GpuLine, GpuReceipt
from gpuledger_collector.accounting.period import HOUR_MS, Calendar
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.fleet_map import CLASSES, Ink, draw_group, draw_link, hour_name
from gpuledger_collector.export.plots import label
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.site import FLEET, address
from gpuledger_common.instants import to_datetime

SIDE, GAP, LEFT, TOP = 22, 3, 78, 16


def _hours(gpu_ns: int) -> str:
    return str(hours_decimal([gpu_ns], 6)[0])


def _owner_of(line: GpuLine) -> str:
    """The team that pays; time without a holder has its state's name."""
    if line.owner is None:
        return f"({line.state})"
    return line.owner.team or UNATTRIBUTED


def _known(line: GpuLine, gpu_ns: int | None) -> str | None:
    return None if line.owner is None or gpu_ns is None else _hours(gpu_ns)


GPU_RECEIPT = Report[GpuLine](
    "gpu",
    (
        Column("uuid", lambda line: line.uuid, in_table=False),
        Column("team", _owner_of),
        Column("workload", lambda line: line.workload, in_table=False),
        Column("workload_name", lambda line: line.name, heading="job"),
        Column("user", lambda line: line.user),
        Column("state", lambda line: line.state),
        Column("start", lambda line: line.start_ms, Kind.INSTANT, heading="from"),
        Column("end", lambda line: line.end_ms, Kind.INSTANT, heading="to"),
        Column("gpu_hours", lambda line: _hours(line.gpu_ns), Kind.HOURS, heading="GPU-hours"),
        Column("gpu_hours_busy", lambda line: _known(line, line.known_busy_ns), Kind.HOURS),
        Column("gpu_hours_idle", lambda line: _known(line, line.known_idle_ns), Kind.HOURS),
        Column(
            "rate",
            lambda line: None if line.rate is None else f"{line.rate.normalize():f}",
            Kind.DECIMAL,
            heading="price an hour",
        ),
        Column("commitment", lambda line: line.commitment),
        Column("cost", lambda line: line.cost, Kind.MONEY),
        Column("currency", lambda line: line.currency),
        Column("correction_of", lambda line: line.correction_of),
    ),
)
"""What one GPU's time was charged as: the rows add up to its capacity, and to its cost."""


@dataclass(frozen=True, slots=True)
class StateRow:
    """A state of the drawn hours: the class of its color, and its GPU-hours."""

    css: str
    name: str
    gpu_hours: Decimal


def state_rows(receipt: GpuReceipt) -> list[StateRow]:
    """States of the hours, which add up to the rounded total."""
    sums = receipt.hour_sums
    hours = hours_decimal(list(sums.values()), 2)
    return [
        StateRow(f"m-{CLASSES[name]}", name, gpu_hours)
        for name, gpu_hours in zip(sums, hours, strict=True)
    ]


def picture(receipt: GpuReceipt, calendar: Calendar) -> Markup:
    """A row for each day and a square for each hour, stacked by what the GPU did; an hour leads to
    the map of the fleet.
    """
    ink, links, rows = Ink(), [], list(receipt.days)
    # A slice fills its squares as a board does.
    whole = max((sum(hour.states.values()) for hour in receipt.hours), default=1)
    by_day: dict[int, list[GpuHour]] = {day.start_ms: [] for day in rows}
    for hour in receipt.hours:
        by_day[calendar.day_of(hour.at_ms).start_ms].append(hour)
    columns = max(-(-day.ms // HOUR_MS) for day in rows)
    for row, day in enumerate(rows):
        y = TOP + row * (SIDE + GAP)
        links.append(label(0, y + SIDE / 2 + 4, day_text(calendar, day.start_ms)))
        for hour in by_day[day.start_ms]:
            x = LEFT + (hour.at_ms - day.start_ms) // HOUR_MS * (SIDE + GAP)
            _stack(ink, hour, x, y, whole)
            path = address(FLEET, {"at": hour_name(hour.at_ms - hour.at_ms % HOUR_MS)})
            shape = f"M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z"
            links.append(draw_link(path, hour_words(hour), shape, is_reached=False))
    heads = [
        label(LEFT + at * (SIDE + GAP) + SIDE / 2, 10, str(at), "middle")
        for at in range(0, columns, 3)
    ]
    words = f"GPU-hours by state: {', '.join(f'{row.name} {row.gpu_hours}' for row in state_rows(receipt))}"
    size = LEFT + columns * (SIDE + GAP), TOP + len(rows) * (SIDE + GAP)
    return draw_group(*size, words, (*heads, ink.paths(), *links))


def _stack(ink: Ink, hour: GpuHour, x: float, y: float, whole: int) -> None:
    bottom = y + SIDE
    for name in CLASSES:
        if gpu_ns := hour.states.get(name, 0):
            height = SIDE * gpu_ns / whole
            bottom -= height
            ink.add(f"m-{CLASSES[name]}", x, bottom, SIDE, height)


def hour_words(hour: GpuHour) -> str:
    """An hour in words: `4 Nov, 05:00 UTC: busy 0.67, idle 0.33`, in GPU-hours."""
    at = to_datetime(hour.at_ms)
    hours = hours_decimal(list(hour.states.values()), 2)
    named = zip(hour.states, hours, strict=True)
    return f"{at.day} {at:%b, %H:%M} UTC: " + ", ".join(
        f"{name} {gpu_hours}" for name, gpu_hours in named
    )


def day_text(calendar: Calendar, at_ms: int) -> str:
    """A day beside its hours: `Tue 4 Nov`."""
    day = calendar.date_of(at_ms)
    return f"{day:%a} {day.day} {day:%b}"


def csv_rows(receipt: GpuReceipt) -> Iterable[list[str]]:
    """The lines as a file."""
    return GPU_RECEIPT.csv_rows(receipt.lines)
