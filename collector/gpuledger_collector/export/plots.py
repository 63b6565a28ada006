"""Small plots as inline SVG: no script, nothing fetched, colors by CSS variables of the page
(templates/style.css).

Each plot has a title and a description that say in words what it shows; the page has the numbers in
a table as well. What is not known is a gap or a hatched bar, never a zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_common.escapes import escape_text
from gpuledger_common.instants import to_datetime

HEADROOM = 1.08
MAX_DATES = 6
"""Under an axis: what a phone has room for."""
TICKS = 4
"""Steps of an axis, about."""
DATES_HEIGHT = 26


Mark = tuple[float, float, str]
"""A place of a plot, and what it says there."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar: its label, and its layers from the bottom in the order of the plot's names; None: not
    known at all.
    """

    label: str
    layers: tuple[float, ...] | None


def draw_plot(
    width: int,
    height: int,
    title: str,
    description: str,
    body: Sequence[Markup],
    kind: str,
    marks: Sequence[Mark] = (),
) -> Markup:
    """A plot of these parts, with its title and what it says in words.

    `marks` are what it answers to the pointer and the arrow keys, from left to right; where its
    parts have titles it needs none (assets/charts.js).
    """
    title, description = escape_text(title), escape_text(description)
    points = json.dumps([(round(x, 1), round(y, 1), escape_text(text)) for x, y, text in marks])
    return Markup(
        '<svg class="plot {kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{title}:'
        ' {description}"{marks} '
        'xmlns="http://www.w3.org/2000/svg"><title>{title}</title><desc>{description}</desc>{body}</svg>'
    ).format(
        kind=kind,
        width=width,
        height=height,
        title=title,
        description=description,
        marks=Markup(' data-marks="{}"').format(points) if marks else "",
        body=Markup("").join(body),
    )


def _rect(css: str, x: float, y: float, width: float, height: float, title: str = "") -> Markup:
    inner = Markup("<title>{}</title>").format(escape_text(title)) if title else Markup("")
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}">{}</rect>').format(
        css, number(x), number(y), number(width), number(height), inner
    )


def label(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    """A word or number at a place."""
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        number(x), number(y), anchor, escape_text(text)
    )


def draw_line(css: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A straight line."""
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
        css, number(x1), number(y1), number(x2), number(y2)
    )


def number(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def nice_top(value: float) -> float:
    """The next of 1, 2, 2.5, 5 x a power of ten at or above a positive value: an axis that people
    can read.
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def axis_values(low: float, high: float) -> list[float]:
    """Round values from at or below `low` to at or above `high`, zero among them."""
    low, high = min(low, 0.0), max(high, 0.0)
    step = nice_top((high - low or 1.0) / TICKS)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    return [at * step for at in range(first, last + 1)]


def short(value: float) -> str:
    """A number for an axis: 1,500 is `1.5k`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def dates(first_ms: int, step_ms: int, steps: int) -> list[tuple[int, str]]:
    """The steps in which days (UTC) begin, with their dates, thinned out to MAX_DATES."""
    starts = [at for at in range(steps) if (first_ms + at * step_ms) % DAY_MS < step_ms]
    every = max(1, math.ceil(len(starts) / MAX_DATES))
    days = ((at, to_datetime(first_ms + at * step_ms)) for at in starts[::every])
    return [(at, f"{day.day} {day:%b}") for at, day in days]


def hours(first_ms: int, steps: int) -> list[str]:
    """What each hour from an instant on is called: `25 Nov, 14:00`, in UTC."""
    instants = (to_datetime(first_ms + at * HOUR_MS) for at in range(steps))
    return [f"{at.day} {at:%b, %H:%M}" for at in instants]


def draw_date(x: float, top: float, height: float, width: float, date: str) -> Markup:
    """A date under its place of an axis, and its line from `top` down; one at the right edge stays
    inside.
    """
    line = draw_line("grid", x, top, x, height - DATES_HEIGHT)
    inside = x < width - 32
    return line + label(x if inside else width, height - 5, date, "middle" if inside else "end")


def stacked_bars(
    stacks: Sequence[Stack],
    names: Sequence[str],
    title: str,
    description: str,
    unit: str,
    width: int = 720,
) -> Markup:
    """Bars side by side. `names` are the CSS classes and words of the layers, from the bottom."""
    height, left, bottom, top_edge = 200, 44, 24, 12
    sums = [sum(stack.layers) for stack in stacks if stack.layers is not None]
    ticks = axis_values(0.0, max(sums, default=0.0))
    top = ticks[-1]
    floor, room = height - bottom, height - bottom - top_edge
    body: list[Markup] = []
    for tick in ticks:
        y = floor - room * tick / top
        body += [draw_line("grid", left, y, width, y), label(left - 6, y + 4, short(tick), "end")]
    slot = (width - left) / max(len(stacks), 1)
    bar = max(slot * 0.72, 1.0)
    every = max(1, math.ceil(len(stacks) * 44 / (width - left)))
    for at, stack in enumerate(stacks):
        x = left + slot * at + (slot - bar) / 2
        if at % every == 0:
            body.append(label(x + bar / 2, height - 6, stack.label, "middle"))
        if stack.layers is None:
            continue
        y = floor
        for name, value in zip(names, stack.layers, strict=True):
            size = room * max(value, 0.0) / top
            if size > 0:
                y -= size
                body.append(
                    _rect(
                        f"fill-{name}",
                        x,
                        y,
                        bar,
                        size,
                        f"{stack.label}: {name} {value:,.1f} {unit}",
                    )
                )
    return draw_plot(width, height, title, description, body, "bars")


def spark(
    values: Sequence[float | None],
    title: str,
    description: str,
    band: Sequence[tuple[float, float, float]] = (),
    width: int = 240,
    height: int = 48,
    axis: bool = False,
    days: Sequence[tuple[int, str]] = (),
    limit: tuple[float, str] | None = None,
    steps_named: Sequence[str] = (),
) -> Markup:
    """A line of the past (None: a gap), then low, middle and high of what is to come as a band
    around a dashed line.

    `days`: dates to stand under an axis, by position (`dates`); `limit`: a level that is not
    passed, and its name; `steps_named`: what each position is called where the plot is asked.
    """
    known = [value for value in values if value is not None]
    levels = [] if limit is None else [limit[0]]
    top = max([*known, *(high for _, _, high in band), *levels, 0.0]) * HEADROOM or 1.0
    ticks = axis_values(0.0, top) if axis else []
    top = ticks[-1] if axis else top
    left, bottom = (54, DATES_HEIGHT if days else 6) if axis else (2, 2)
    room = height - bottom - (14 if axis else 6)
    steps = max(len(values) + len(band) - 1, 1)

    def point_at(index: float, value: float) -> tuple[float, float]:
        return (
            left + (width - left - 4) * index / steps,
            height - bottom - room * max(value, 0.0) / top,
        )

    body: list[Markup] = []
    if axis:
        for tick in ticks:
            _, y = point_at(0, tick)
            body += [
                draw_line("grid", left, y, width, y),
                label(left - 6, y + 4, short(tick), "end"),
            ]
        body += [draw_date(point_at(index, 0)[0], 14, height, width, date) for index, date in days]
    if band:
        start = len(values)
        upper = [point_at(start + i, high) for i, (_, _, high) in enumerate(band)]
        lower = [point_at(start + i, low) for i, (low, _, _) in enumerate(band)]
        middle = [point_at(start + i, value) for i, (_, value, _) in enumerate(band)]
        if known and values[-1] is not None:
            joint = point_at(start - 1, values[-1])
            upper, lower, middle = [joint, *upper], [joint, *lower], [joint, *middle]
        body.append(
            Markup('<polygon class="band" points="{}"/>').format(path([*upper, *reversed(lower)]))
        )
        body.append(Markup('<polyline class="ahead" points="{}"/>').format(path(middle)))
    for run in _runs(values):
        points = [point_at(index, value) for index, value in run]
        if len(points) == 1:
            body.append(
                Markup('<circle class="dot" cx="{}" cy="{}" r="2"/>').format(
                    *map(number, points[0])
                )
            )
        else:
            body.append(Markup('<polyline class="line" points="{}"/>').format(path(points)))
    if limit is not None:
        y = point_at(0, limit[0])[1]
        body += [draw_line("limit", left, y, width, y), label(left + 4, y - 5, limit[1])]
    marks = _marks(values, band, steps_named, point_at)
    return draw_plot(width, height, title, description, body, "chart" if axis else "spark", marks)


def _marks(
    values: Sequence[float | None],
    band: Sequence[tuple[float, float, float]],
    steps_named: Sequence[str],
    point_at: Callable[[float, float], tuple[float, float]],
) -> list[Mark]:
    """What each named step says: its value, or the range and the middle of what is to come."""
    marks = []
    for index, name in enumerate(steps_named):
        if index >= len(values):
            low, middle, high = band[index - len(values)]
            text = f"{low:,.1f} to {high:,.1f}, likely {middle:,.1f}"
            marks.append((*point_at(index, middle), f"{name}: {text}"))
        elif (value := values[index]) is None:
            marks.append((*point_at(index, 0), f"{name}: not known"))
        else:
            marks.append((*point_at(index, value), f"{name}: {value:,.1f}"))
    return marks


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Usage intervals without a gap, with their positions."""
    runs: list[list[tuple[int, float]]] = []
    gap = True
    for index, value in enumerate(values):
        if value is not None:
            if gap:
                runs.append([])
            runs[-1].append((index, value))
        gap = value is None
    return runs


def path(points: Sequence[tuple[float, float]]) -> str:
    """Coordinates of a line."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def budget_bar(
    spent: float,
    amount: float,
    elapsed: float,
    ahead: tuple[float, float, float] | None,
    title: str,
    description: str,
) -> Markup:
    """What is spent of a budget, the band of its end, the amount of the budget, and how much of the
    time has passed.
    """
    width, height = 320, 30
    top = max(amount, spent, *(ahead or (0.0,))) * 1.02 or 1.0

    def x(value: float) -> float:
        return width * max(value, 0.0) / top

    body = [_rect("track", 0, 4, width, 16)]
    if ahead is not None:
        body.append(_rect("band", x(ahead[0]), 4, max(x(ahead[2]) - x(ahead[0]), 2), 16))
    body.append(_rect("fill-over" if spent >= amount else "fill-busy", 0, 4, x(spent), 16))
    if ahead is not None:
        body.append(draw_line("ahead", x(ahead[1]), 4, x(ahead[1]), 20))
    body.append(draw_line("limit", x(amount), 0, x(amount), 24))
    body.append(_rect("time", 0, 25, x(amount) * min(elapsed, 1.0), 3))
    return draw_plot(width, height, title, description, body, "budget")


def share_bar(parts: Sequence[tuple[str, float]], title: str, description: str) -> Markup:
    """One bar cut into named parts (CSS classes) of a whole."""
    width, height = 720, 26
    whole = sum(max(value, 0.0) for _, value in parts) or 1.0
    body, x = [_rect("track", 0, 0, width, height)], 0.0
    for name, value in parts:
        size = width * max(value, 0.0) / whole
        if size > 0:
            body.append(
                _rect(f"fill-{name}", x, 0, size, height, f"{name} {100 * value / whole:.1f} %")
            )
        x += size
    return draw_plot(width, height, title, description, body, "share")


def length_bar(value: float, most: float) -> Markup:
    """A bar behind a number of a table: decoration, hidden from those who listen, since the number
    stands there.
    """
    width = 100 * max(value, 0.0) / most if most > 0 else 0.0
    return Markup(
        '<svg class="length" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"'
        ' focusable="false"><rect class="track" width="100" height="6"/><rect class="fill-busy"'
        ' width="{}" height="6"/></svg>'
    ).format(number(width))
