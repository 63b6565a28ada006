"""Capacity policies on the open traces: wait against cost, at two delays and two budgets.

The same backtest as `gpuledger scale backtest`: ten days of history, the rest judged, GPUs fractional. Cut is how much
less demand waited than under the rival. `tuned`: the best of 144 reactive settings on the history within the budget,
fixed; `daily`: the same, chosen anew each day (what is left beyond it is the forecast's); `hindsight`: the best on the
judged part itself. `--pictures=DIR` draws wait against cost, one picture per trace with a panel for each delay.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from bench._traces import five_minutes, folder
from gpuledger_collector.insight.backtest import ScalingScenario, backtest_scaling
from gpuledger_collector.insight.series import Series

STEP = 300_000
MINUTE = 60_000
CAPS = (1.1, 1.25)
DELAYS = (5, 10)
FRONTIER = (1.02, 1.05, 1.1, 1.15, 1.25, 1.4)
DRAWN = {
    "helios_cluster": ("Training cluster", "scaling-cluster.svg"),
    "taxi_diurnal": ("Seasonal pool", "scaling-seasonal.svg"),
    "requests_diurnal": ("Requests, summed", "scaling-requests.svg"),
}
COLORS = {
    "static-peak": "#555555",
    "hpa-default": "#7a3e9d",
    "reactive-plain": "#b00020",
    "reactive-tuned": "#b25d00",
    "gpuledger": "#0b6e4f",
    "oracle": "#1f5fbf",
}
WORDS = {
    "static-peak": "static peak",
    "hpa-default": "HPA defaults",
    "reactive-plain": "no headroom",
    "reactive-tuned": "tuned reactive",
    "gpuledger": "gpuledger",
    "oracle": "perfect knowledge",
}


def judged(demand, delay_minutes, cap):
    done = backtest_scaling(
        Series("demand", 0, STEP, demand.astype(float)), ScalingScenario(delay_minutes * MINUTE, cap)
    )
    return {result.policy: result.outcome for result in done.results}, done


def cut(ours, rival):
    """Less wait in percent; None where the rival did not wait for a tenth of a GPU-hour and neither did we."""
    if rival < 0.1:
        return None if ours < 0.1 else -100.0
    return 100 * (1 - ours / rival)


def table(traces):
    print(
        "| trace | delay | budget | ours: wait @ cost | actions/day | tuned: wait @ cost | actions/day "
        "| cut | cut daily | cut hindsight | days ahead |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    cuts, harmful, busy, seconds = {}, [], [], []
    for name, (demand, _) in traces.items():
        for delay in DELAYS:
            for cap in CAPS:
                started = time.process_time()
                outcomes, done = judged(demand, delay, cap)
                seconds.append(time.process_time() - started)
                ours, tuned = outcomes["gpuledger"], outcomes["reactive-tuned"]
                each = [cut(ours.wait, outcomes[f"reactive-{rival}"].wait) for rival in ("tuned", "daily", "hindsight")]
                shown = " | ".join("both 0" if value is None else f"{value:.0f} %" for value in each)
                days = done.judged.sum() / 288
                ahead = f"{done.predictive_days}/{done.judged_days}"
                print(
                    f"| {name} | {delay} | {cap} | {ours.wait:.1f} @ {ours.capacity / ours.demand:.3f} "
                    f"| {ours.actions / days:.0f} | {tuned.wait:.1f} @ {tuned.capacity / tuned.demand:.3f} "
                    f"| {tuned.actions / days:.0f} | {shown} | {ahead} |"
                )
                cuts.setdefault(cap, []).append(each)
                where = f"{name} {delay} min {cap}"
                if ours.wait > 1.05 * tuned.wait + 0.1 or ours.capacity > 1.0205 * tuned.capacity:
                    harmful.append(where)
                if ours.actions > 1.25 * tuned.actions + days:
                    busy.append(where)
    for cap, rows in cuts.items():
        medians = [
            statistics.median(0.0 if value is None else value for value in column) for column in zip(*rows, strict=True)
        ]
        print(
            f"\nmedian cut at {cap}: {medians[0]:.0f} % (tuned), {medians[1]:.0f} % (daily), "
            f"{medians[2]:.0f} % (hindsight)"
        )
    print(f"\nharmful (wait > 1.05 x tuned or cost > 1.02 x tuned): {', '.join(harmful) or 'none'}")
    print(f"busier (actions > 1.25 x tuned): {', '.join(busy) or 'none'}")
    print(f"median {statistics.median(seconds):.1f} s of CPU per backtest of {len(traces)} traces")


def against_defaults(traces):
    print(
        "\n| trace | delay | HPA 65 %, 300 s: wait @ cost | ours at no more cost: wait @ cost | cut |"
        "\n|---|---|---|---|---|"
    )
    cuts = []
    for name, (demand, _) in traces.items():
        for delay in DELAYS:
            first, _ = judged(demand, delay, 1.25)
            hpa = first["hpa-default"]
            ratio = round(hpa.capacity / hpa.demand, 3)
            ours = judged(demand, delay, max(1.01, ratio))[0]["gpuledger"]
            value = cut(ours.wait, hpa.wait)
            cuts.append(0.0 if value is None else value)
            cost = ours.capacity / ours.demand
            print(
                f"| {name} | {delay} | {hpa.wait:.1f} @ {ratio:.2f} | {ours.wait:.1f} @ {cost:.2f} "
                f"| {'both 0' if value is None else f'{value:.0f} %'} |"
            )
    print(f"\nmedian cut against the defaults: {statistics.median(cuts):.0f} %")


def picture(demand, title, path):
    """Wait (log, GPU-hours per 1,000 of demand) against cost (x demand) of every policy, a panel per delay."""
    words = ", ".join(WORDS.values())
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 450" width="960" height="450" role="img" '
        f'aria-label="{title}: wait against cost" font-family="sans-serif" font-size="12">',
        f"<title>{title}: wait against cost</title><desc>Each policy by what it cost and what waited: {words}.</desc>",
        '<rect width="960" height="450" fill="#ffffff"/>',
    ]
    for number, delay in enumerate(DELAYS):
        points = {policy: [] for policy in COLORS}
        for cap in FRONTIER:
            outcomes, _ = judged(demand, delay, cap)
            for policy, kept in points.items():
                outcome = outcomes[policy]
                point = (outcome.capacity / outcome.demand, 1000 * outcome.wait / outcome.demand)
                if point not in kept:
                    kept.append(point)
        parts += panel(64 + 470 * number, f"{title}, {delay} min from order to GPU", points)
    for place, (policy, word) in enumerate(WORDS.items()):
        x = 70 + 145 * place
        parts.append(f'<circle cx="{x}" cy="436" r="5" fill="{COLORS[policy]}"/>')
        parts.append(f'<text x="{x + 10}" y="440" fill="#333">{word}</text>')
    parts.append("</svg>")
    Path(path).write_text("\n".join(parts) + "\n")


DEAREST, LEAST_WAIT, MOST_WAIT = 2.2, 0.005, 400.0


def panel(left, title, points):
    def x(cost):
        return left + 390 * (min(cost, DEAREST) - 0.9) / (DEAREST - 0.9)

    def y(wait):
        span = np.log10(MOST_WAIT / LEAST_WAIT)
        return 360 - 300 * np.log10(min(max(wait, LEAST_WAIT), MOST_WAIT) / LEAST_WAIT) / span

    out = [
        f'<text x="{left}" y="24" font-size="15" fill="#222">{title}</text>',
        f'<rect x="{left}" y="50" width="390" height="320" fill="none" stroke="#999"/>',
        f'<text x="{left + 195}" y="408" text-anchor="middle" fill="#444">cost: capacity / demand</text>',
        f'<text x="{left}" y="44" fill="#444">wait, GPU-hours per 1,000 of demand</text>',
    ]
    for cost in (1.0, 1.2, 1.4, 1.6, 1.8, 2.0):
        out.append(f'<line x1="{x(cost):.0f}" x2="{x(cost):.0f}" y1="50" y2="370" stroke="#eee"/>')
        out.append(f'<text x="{x(cost):.0f}" y="386" text-anchor="middle" fill="#444">{cost}</text>')
    for wait in (LEAST_WAIT, 0.1, 1.0, 10.0, 100.0):
        word = "none" if wait == LEAST_WAIT else f"{wait:g}"
        out.append(f'<line x1="{left}" x2="{left + 390}" y1="{y(wait):.0f}" y2="{y(wait):.0f}" stroke="#eee"/>')
        out.append(f'<text x="{left - 6}" y="{y(wait) + 4:.0f}" text-anchor="end" fill="#444">{word}</text>')
    for policy, kept in points.items():
        color, ordered = COLORS[policy], sorted(kept)
        if len(ordered) > 1:
            line = " ".join(f"{x(cost):.1f},{y(wait):.1f}" for cost, wait in ordered)
            out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        for cost, wait in ordered:
            tooltip = f"{WORDS[policy]}: {cost:.3f} x demand, {wait:.3g} per 1,000 wait"
            out.append(
                f'<circle cx="{x(cost):.1f}" cy="{y(wait):.1f}" r="4" fill="{color}"><title>{tooltip}</title></circle>'
            )
            if cost > DEAREST:
                out.append(
                    f'<text x="{x(cost) - 8:.0f}" y="{y(wait) - 8:.0f}" text-anchor="end" '
                    f'fill="{color}">{cost:.1f} x &#8594;</text>'
                )
    return out


def main() -> int:
    traces = five_minutes(folder())
    asked = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--pictures=")]
    if asked:
        for name, (title, file) in DRAWN.items():
            picture(traces[name][0], title, Path(asked[0]) / file)
        return 0
    table(traces)
    against_defaults(traces)
    return 0


if __name__ == "__main__":
    sys.exit(main())
