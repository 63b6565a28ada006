"""The plot of a pool's back-test: wait against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpuledger_collector.export.plots import (
    draw_line,
    draw_plot,
    label,
    nice_top,
    number,
    path,
)

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 330, 66, 58, 40
LOWEST = 0.01
"""The wait of the lowest line, in GPU-hours; smaller values lie on it."""
LETTER, LINE = 13.5, 26
"""Room of a letter and of a line where letters are largest: on a phone."""
RADIUS = 4


def ticks(low: float, high: float, most: int = 6) -> list[tuple[float, str]]:
    """Round values inside a range with their texts, in steps of 1, 2, 2.5 or 5 times a power of
    ten.
    """
    step = nice_top((high - low) / most)
    values = [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(value, _tick_text(value, step)) for value in values]


def _tick_text(value: float, step: float) -> str:
    """With as many digits as a step has, in thousands or millions where steps are large enough."""
    size, unit = next(
        (each for each in ((1e6, "M"), (1e3, "k")) if step >= each[0] / 10 and value >= each[0]),
        (1.0, ""),
    )
    return f"{value / size:,.10g}{unit}"


@dataclass(frozen=True, slots=True)
class _Box:
    """Room that is taken."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def place_labels(points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Where the words of points begin (x, baseline, anchor), so that none lies upon another one or
    on a point: beside its point, else as near above or below it as there is room.
    """
    taken = [
        _Box(x - RADIUS - 1, y - RADIUS - 1, x + RADIUS + 1, y + RADIUS + 1) for x, y, _ in points
    ]
    placed = []
    for x, y, name in points:
        size = LETTER * len(name)
        steps = sorted(range(-12, 13), key=abs)
        spots = [
            (start, y + LINE / 2 * step)
            for step in steps
            for start in (x + 2 * RADIUS, x - 2 * RADIUS - size, x - size / 2)
        ]
        for start, middle in spots:
            box = _Box(start, middle - LINE / 2, start + size, middle + LINE / 2)
            is_inside = box.left >= LEFT and box.right <= WIDTH and box.top >= TOP - 12
            if is_inside and box.bottom <= HEIGHT - BOTTOM and not any(map(box.overlaps, taken)):
                break
        taken.append(box)
        # A word that ends at its point does so whatever the size of its letters is.
        anchor, at = ("end", box.right) if box.right <= x else ("start", box.left)
        placed.append((at, middle + 5, anchor))
    return placed


def frontier(
    points: Sequence[tuple[str, float, float]],
    front: Sequence[tuple[float, float]],
    unit: str,
    title: str,
    description: str,
) -> Markup:
    """Wait over cost: named points (name, cost, wait in GPU-hours) and the front of undominated
    settings.

    The wait axis is logarithmic and starts at a hundredth of a GPU-hour; smaller values lie on its
    lowest line.
    """
    costs = [cost for _, cost, _ in points]
    low, high = min(costs), max(costs)
    spread = high - low or high or 1.0  # a pool that nobody used costs nothing under any policy
    low, high = low - 0.06 * spread, high + 0.1 * spread
    most = 10.0 ** math.ceil(math.log10(max([10 * LOWEST, *(wait for _, _, wait in points)])))

    def point_at(cost: float, wait: float) -> tuple[float, float]:
        share = math.log(max(wait, LOWEST) / LOWEST) / math.log(most / LOWEST)
        place = (cost - low) / (high - low)
        return LEFT + (WIDTH - LEFT - 8) * place, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(
            share, 1.0
        )

    body: list[Markup] = [
        label(0, 18, "wait, GPU-hours"),
        label(WIDTH, HEIGHT - 6, unit, "end"),
    ]
    decade = LOWEST
    while decade <= most * 1.001:
        _, y = point_at(low, decade)
        body += [
            draw_line("grid", LEFT, y, WIDTH, y),
            label(LEFT - 6, y + 4, f"{decade:,g}", "end"),
        ]
        decade *= 10
    for value, text in ticks(low, high):
        x, y = point_at(value, LOWEST)
        body += [
            draw_line("grid", x, y, x, y + 6),
            label(min(x, WIDTH - 30), y + 26, text, "middle"),
        ]
    inside = [point_at(cost, wait) for cost, wait in front if low <= cost <= high]
    if len(inside) > 1:
        body.append(Markup('<polyline class="ahead" points="{}"/>').format(path(inside)))
    named = sorted(
        ((*point_at(cost, wait), name) for name, cost, wait in points), key=lambda each: each[1]
    )
    for (x, y, name), (at, base, anchor) in zip(named, place_labels(named), strict=True):
        css = "dot ours" if name == "gpuledger" else "dot"
        body.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="{}"/>').format(
                css, number(x), number(y), RADIUS
            )
        )
        body.append(label(at, base, name, anchor))
    return draw_plot(WIDTH, HEIGHT, title, description, body, "chart")
