"""Plots of spend over time: bars that are links, what is spent so far with its forecast, and the
flow from capacity to those who pay.

They follow the rules of `plots`: no script, colors by CSS classes, a title and a description in
words, a table with the same numbers on the page. What is not known is marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpuledger_collector.export.plots import (
    MAX_DATES,
    axis_values,
    draw_line,
    draw_plot,
    label,
    number,
    path,
    short,
)
from gpuledger_common.escapes import escape_text

WIDTH, LEFT, RIGHT = 720, 62, 6
FLOW_SCALE = 250
"""Height of the entire capacity in a flow."""
SLOT, GAP = 27, 6
"""Least height of a node of a flow, so that its label has room, and between two."""
NODE_WIDTH = 12
SHORTEST = 22
"""Letters of a label; the table beside a flow has the names in full."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: its CSS class, its size, what it says, and where it leads."""

    css: str
    value: float
    title: str
    link: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bucket: its label (empty: none), its segments (None: not known), what it says (empty: it is
    still to come) and where it leads.
    """

    label: str
    segments: Sequence[Segment] | None
    title: str
    link: str


def draw_linked_plot(
    height: int, title: str, description: str, body: Sequence[Markup], kind: str
) -> Markup:
    """A plot whose parts are links: a group and no image, for an image has no parts."""
    plot = draw_plot(WIDTH, height, title, description, body, kind)
    # A replacement within markup would be escaped.
    return Markup(str(plot).replace('role="img"', 'role="group"', 1))  # noqa: S704 - by draw_plot


@dataclass(frozen=True, slots=True)
class _Scale:
    """The vertical axis of a plot."""

    values: Sequence[float]
    top: float
    floor: float

    def y(self, value: float) -> float:
        share = (value - self.values[0]) / (self.values[-1] - self.values[0])
        return self.floor - (self.floor - self.top) * share

    def draw(self, unit: str) -> list[Markup]:
        """Its lines and numbers, and its unit above them."""
        parts = [label(0, 16, unit)]
        for value in self.values:
            y = self.y(value)
            parts += [
                draw_line("zero" if value == 0 else "grid", LEFT, y, WIDTH, y),
                label(LEFT - 6, y + 4, short(value), "end"),
            ]
        return parts


def draw_bars(bars: Sequence[Bar], title: str, description: str, unit: str) -> Markup:
    """Stacked bars, each of which leads somewhere; what lowers the cost stands below zero."""
    height, top, bottom = 290, 46, 30
    sums = [
        sum(max(segment.value * sign, 0.0) for segment in bar.segments) * sign
        for bar in bars
        if bar.segments is not None
        for sign in (1, -1)
    ]
    scale = _Scale(
        axis_values(min(sums, default=0.0), max(sums, default=1.0)), top, height - bottom
    )
    body = scale.draw(unit)
    slot = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    every = max(1, math.ceil(sum(bool(bar.label) for bar in bars) / MAX_DATES))
    labeled = [at for at, bar in enumerate(bars) if bar.label][::every]
    for at, bar in enumerate(bars):
        x = LEFT + slot * at
        body.append(_draw_bar(bar, x, slot, scale, height - bottom - top))
        if at in labeled:
            middle = x + slot / 2
            anchor = "end" if middle > WIDTH - 40 else "middle"
            body.append(label(WIDTH if anchor == "end" else middle, height - 8, bar.label, anchor))
    return draw_linked_plot(height, title, description, body, "chart spend-bars")


def _draw_bar(bar: Bar, x: float, slot: float, scale: _Scale, room: float) -> Markup:
    """A bucket as a link, and over it its segments, which lead further; those who use a keyboard
    come to them on the page of the bucket.
    """
    if bar.segments is None:
        return _rect("gap", x, scale.top, slot, room, bar.title)
    if not bar.title:
        return Markup("")
    back = _rect("slot", x, scale.top, slot, room)
    parts = [_link(bar.link, back, bar.title)]
    width = max(slot * 0.76, 1.0)
    ends = {1: 0.0, -1: 0.0}
    for segment in bar.segments:
        sign = 1 if segment.value >= 0 else -1
        start, ends[sign] = ends[sign], ends[sign] + segment.value
        low, high = sorted((scale.y(start), scale.y(ends[sign])))
        rect = _rect(segment.css, x + (slot - width) / 2, low, width, max(high - low, 0.2))
        parts.append(_link(segment.link, rect, segment.title, is_reached=False))
    return Markup("").join(parts)


def _rect(css: str, x: float, y: float, width: float, height: float, title: str = "") -> Markup:
    inner = Markup("<title>{}</title>").format(escape_text(title)) if title else Markup("")
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}">{}</rect>').format(
        css, *map(number, (x, y)), *(f"{size:.2f}" for size in (width, height)), inner
    )


def _link(target: str, shape: Markup, title: str, *, is_reached: bool = True) -> Markup:
    """A link around a shape; `is_reached`: by the tabulator key."""
    opened = '<a href="{}">' if is_reached else '<a href="{}" tabindex="-1">'
    return Markup(opened + "<title>{}</title>{}</a>").format(  # noqa: S704 - one of these two
        target, escape_text(title), shape
    )


@dataclass(frozen=True, slots=True)
class Limit:
    """A budget in a plot of what is spent: its amount and its name."""

    value: float
    name: str


def draw_running_total(
    points: Sequence[tuple[float, float]],
    ahead: tuple[float, float, float] | None,
    limits: Sequence[Limit],
    dates: Sequence[tuple[float, str]],
    title: str,
    description: str,
    unit: str,
) -> Markup:
    """What is spent so far (share of the time, amount), the band in which the end lies, and budgets."""
    height, top, bottom, right = 250, 46, 30, WIDTH - RIGHT
    highest = max(
        [value for _, value in points] + [limit.value for limit in limits] + [*(ahead or ())]
    )
    lowest = min([0.0, *(value for _, value in points)])
    scale = _Scale(axis_values(lowest, highest), top, height - bottom)

    def place(share: float, value: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * share, scale.y(value)

    body = scale.draw(unit)
    for share, text in dates:
        x = place(share, 0)[0]
        anchor = "end" if x > WIDTH - 40 else "middle"
        body.append(label(min(x, right), height - 8, text, anchor))
    drawn = [place(share, value) for share, value in points]
    if ahead is not None and drawn:
        low, middle, high = (place(1.0, value) for value in ahead)
        corners = [drawn[-1], high, low]
        body.append(Markup('<polygon class="band" points="{}"/>').format(path(corners)))
        body.append(
            Markup('<polyline class="ahead" points="{}"/>').format(path([drawn[-1], middle]))
        )
    if len(drawn) > 1:
        body.append(Markup('<polyline class="line" points="{}"/>').format(path(drawn)))
    for limit in limits:
        y = scale.y(limit.value)
        body += [draw_line("limit", LEFT, y, right, y), label(LEFT + 4, y - 5, limit.name)]
    return draw_plot(WIDTH, height, title, description, body, "chart")


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A node of a flow: its CSS class, its amount, its words, and how its links go on: number of
    the node in the next column, and amount of each.
    """

    css: str
    value: int
    name: str
    amount: str
    targets: Sequence[tuple[int, int]] = ()
    is_stacked: bool = False
    """Whether its words stand below each other."""


def draw_flow(columns: Sequence[Sequence[FlowNode]], title: str, description: str) -> Markup:
    """Columns of nodes whose heights are their amounts, and bands between them as wide as what
    flows: both ends of a band are equally high, and the bands of a node are as high as the node.
    """
    places: Sequence[float] = (0, 124, 436)
    whole = max(sum(node.value for node in column) for column in columns) or 1
    scale = FLOW_SCALE / whole
    tops = [_place_nodes(column, scale) for column in columns]
    height = max(
        top[-1] + max(column[-1].value * scale, SLOT)
        for top, column in zip(tops, columns, strict=True)
        if column
    )
    bands, nodes = [], []
    for at, column in enumerate(columns):
        taken = [0] * len(columns[at + 1]) if at + 1 < len(columns) else []
        for node, top in zip(column, tops[at], strict=True):
            nodes += _draw_node(node, places[at], top, scale)
            left = 0
            for target, value in node.targets:
                start = (places[at] + NODE_WIDTH, top + left * scale)
                end = (places[at + 1], tops[at + 1][target] + taken[target] * scale)
                bands.append(_draw_band(columns[at + 1][target], node, start, end, value * scale))
                left += value
                taken[target] += value
    return draw_plot(
        WIDTH, math.ceil(height) + 4, title, description, [*bands, *nodes], "chart flow"
    )


def _place_nodes(column: Sequence[FlowNode], scale: float) -> list[float]:
    """Where each node of a column begins; a small one has the room of its label."""
    tops, y = [], 2.0
    for node in column:
        tops.append(y)
        y += max(node.value * scale, SLOT) + GAP
    return tops


def _draw_node(node: FlowNode, x: float, top: float, scale: float) -> list[Markup]:
    """A node with its name and amount beside it; the words of a wide one stand in lines."""
    size = node.value * scale
    y = top + max(min(size / 2, 40.0) + 5, 17.0)
    words = f"{_shorten(node.name)} \n{node.amount}".split("\n")
    lines = [*words[0].split(), words[1]] if node.is_stacked else ["".join(words)]
    texts = [
        label(x + NODE_WIDTH + 7, y + 22 * number_of_line, text)
        for number_of_line, text in enumerate(lines)
    ]
    return [_rect(node.css, x, top, NODE_WIDTH, size), *texts]


def _draw_band(
    target: FlowNode,
    source: FlowNode,
    start: tuple[float, float],
    end: tuple[float, float],
    size: float,
) -> Markup:
    (x0, y0), (x1, y1) = start, end
    half = (x0 + x1) / 2
    # Two decimals: the thinnest bands of a large fleet are still as wide as what they say.
    shape = (
        f"M{x0:.2f} {y0:.2f}C{half:.2f} {y0:.2f} {half:.2f} {y1:.2f} {x1:.2f} {y1:.2f}"
        f"v{size:.2f}C{half:.2f} {y1 + size:.2f} {half:.2f} {y0 + size:.2f} {x0:.2f} {y0 + size:.2f}z"
    )
    title = f"{source.name} to {target.name}"
    return Markup('<path class="flow-band {}" d="{}"><title>{}</title></path>').format(
        source.css, shape, escape_text(title)
    )


def _shorten(name: str) -> str:
    return name if len(name) <= SHORTEST else f"{name[: SHORTEST - 1]}…"


LinkOf = Callable[[int, str | None], str]
"""The address of a bucket (its number), or of one group in it."""
