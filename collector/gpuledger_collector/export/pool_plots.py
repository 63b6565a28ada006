"""Plots of a pool: actual against forecast demand, and waiting time against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpuledger_collector.export.plots import DATES_HEIGHT, dated, drawn, label, nice_top, number, path, ruled, short


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour: what was wanted, and the band and middle of the forecast of it; None where there is none."""

    actual: float | None
    band: tuple[float, float, float] | None

    @property
    def missed(self) -> bool:
        """Whether it came otherwise than the band said."""
        if self.actual is None or self.band is None:
            return False
        low, _, high = self.band
        return not low - 1e-6 <= self.actual <= high + 1e-6


def _runs(there: Sequence[bool]) -> list[range]:
    """Usage intervals of True."""
    runs: list[range] = []
    for index, is_there in enumerate(there):
        if is_there and runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        elif is_there:
            runs.append(range(index, index + 1))
    return runs


def hits(hours: Sequence[Hour], now: int, title: str, description: str, days: Sequence[tuple[int, str]] = ()) -> Markup:
    """What was wanted as a line over the bands of the forecasts made before; `now`: the first hour that is to come.

    `days`: the hours in which days begin, with their dates (`plots.dates`).
    """
    width, height, left, bottom = 720, 240, 54, DATES_HEIGHT
    values = [value for hour in hours for value in (hour.actual, hour.band and hour.band[2]) if value is not None]
    top = nice_top(max(values, default=1.0))
    room = height - bottom - 14

    def at(index: int, value: float) -> tuple[float, float]:
        return left + (width - left - 4) * index / max(len(hours) - 1, 1), height - bottom - room * max(value, 0) / top

    body: list[Markup] = []
    for part in (0.0, 0.5, 1.0):
        y = height - bottom - room * part
        body += [ruled("grid", left, y, width, y), label(left - 6, y + 4, short(top * part), "end")]
    body += [dated(at(index, 0)[0], 14, height, width, date) for index, date in days]
    for run in _runs([hour.band is not None for hour in hours]):
        bands = [(index, band) for index in run if (band := hours[index].band) is not None]
        upper, lower = ([at(index, band[place]) for index, band in bands] for place in (2, 0))
        body.append(Markup('<polygon class="band" points="{}"/>').format(path([*upper, *reversed(lower)])))
        body.append(
            Markup('<polyline class="ahead" points="{}"/>').format(path([at(index, band[1]) for index, band in bands]))
        )
    for run in _runs([hour.actual is not None for hour in hours]):
        points = [at(index, hours[index].actual or 0.0) for index in run]
        body.append(Markup('<polyline class="line" points="{}"/>').format(path(points)))
    for index, hour in enumerate(hours):
        if hour.missed and hour.actual is not None:
            x, y = at(index, hour.actual)
            body.append(Markup('<circle class="dot" cx="{}" cy="{}" r="3"/>').format(number(x), number(y)))
    if 0 < now < len(hours):
        x, _ = at(now, 0)
        body += [ruled("limit", x, 8, x, height - bottom), label(x + 4, 14, "now")]
    return drawn(width, height, title, description, body, "chart")


def frontier(
    points: Sequence[tuple[str, float, float]],
    front: Sequence[tuple[float, float]],
    unit: str,
    title: str,
    description: str,
) -> Markup:
    """Wait over cost: named points (name, cost, wait in GPU-hours) and the line of settings that nothing beats.

    The wait axis is logarithmic from a hundredth of a GPU-hour on; less stands on its lowest line.
    """
    width, height, left, bottom, top_edge, least = 720, 300, 60, 34, 14, 0.01
    costs = [cost for _, cost, _ in points]
    low, high = min(costs), max(costs)
    low, high = low - 0.06 * (high - low or high), high + 0.16 * (high - low or high)
    most = 10.0 ** math.ceil(math.log10(max([10 * least, *(wait for _, _, wait in points)])))

    def at(cost: float, wait: float) -> tuple[float, float]:
        share = math.log(max(wait, least) / least) / math.log(most / least)
        place = (cost - low) / (high - low)
        return left + (width - left - 8) * place, height - bottom - (height - bottom - top_edge) * min(share, 1.0)

    body: list[Markup] = []
    decade = least
    while decade <= most * 1.001:
        _, y = at(low, decade)
        body += [ruled("grid", left, y, width, y), label(left - 6, y + 4, f"{decade:g}", "end")]
        decade *= 10
    for part in (0.1, 0.5, 0.9):
        body.append(label(left + (width - left) * part, height - 18, short(low + (high - low) * part), "middle"))
    body.append(label(width - 4, height - 4, unit, "end"))
    inside = [at(cost, wait) for cost, wait in front if low <= cost <= high]
    if len(inside) > 1:
        body.append(Markup('<polyline class="ahead" points="{}"/>').format(path(inside)))
    taken: list[tuple[float, float]] = []
    for name, cost, wait in sorted(points, key=lambda point: at(point[1], point[2])[1]):
        x, y = at(cost, wait)
        line = y + 4
        while any(abs(line - other) < 13 and abs(x - place) < 170 for place, other in taken):
            line += 1 if y < height / 2 else -1
        taken.append((x, line))
        css = "dot ours" if name == "gpuledger" else "dot"
        body.append(Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(css, number(x), number(y)))
        body.append(label(x + 8, line, name) if x < width * 0.72 else label(x - 8, line, name, "end"))
    return drawn(width, height, title, description, body, "chart")
