"""The plot of a pool's back-test: wait against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from gpuledger_collector.export.plots import draw_line, draw_plot, label, number, path, short


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
    width, height, left, bottom, top_edge, lowest = 720, 300, 60, 34, 14, 0.01
    costs = [cost for _, cost, _ in points]
    low, high = min(costs), max(costs)
    spread = high - low or high or 1.0  # a pool that nobody used costs nothing under any policy
    low, high = low - 0.06 * spread, high + 0.16 * spread
    most = 10.0 ** math.ceil(math.log10(max([10 * lowest, *(wait for _, _, wait in points)])))

    def point_at(cost: float, wait: float) -> tuple[float, float]:
        share = math.log(max(wait, lowest) / lowest) / math.log(most / lowest)
        place = (cost - low) / (high - low)
        return left + (width - left - 8) * place, height - bottom - (
            height - bottom - top_edge
        ) * min(share, 1.0)

    body: list[Markup] = []
    decade = lowest
    while decade <= most * 1.001:
        _, y = point_at(low, decade)
        body += [draw_line("grid", left, y, width, y), label(left - 6, y + 4, f"{decade:g}", "end")]
        decade *= 10
    for part in (0.1, 0.5, 0.9):
        body.append(
            label(
                left + (width - left) * part,
                height - 18,
                short(low + (high - low) * part),
                "middle",
            )
        )
    body.append(label(width - 4, height - 4, unit, "end"))
    inside = [point_at(cost, wait) for cost, wait in front if low <= cost <= high]
    if len(inside) > 1:
        body.append(Markup('<polyline class="ahead" points="{}"/>').format(path(inside)))
    taken: list[tuple[float, float]] = []
    for name, cost, wait in sorted(points, key=lambda point: point_at(point[1], point[2])[1]):
        x, y = point_at(cost, wait)
        line = y + 4
        while any(abs(line - other) < 13 and abs(x - place) < 170 for place, other in taken):
            line += 1 if y < height / 2 else -1
        taken.append((x, line))
        css = "dot ours" if name == "gpuledger" else "dot"
        body.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(css, number(x), number(y))
        )
        body.append(
            label(x + 8, line, name) if x < width * 0.72 else label(x - 8, line, name, "end")
        )
    return draw_plot(width, height, title, description, body, "chart")
