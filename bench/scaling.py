"""Capacity policies on the open traces: wait against cost, at two delays and two budgets.

The same back-test as `gpuledger scale backtest`: ten days of history, the rest judged, GPUs fractional. Cut is how much
less demand waited than under the rival. `tuned`: the best of 144 reactive settings on the history within the budget,
fixed; `daily`: the same, chosen anew each day (what is left beyond it is the forecast's); `hindsight`: the best on the
judged part itself. `--picture=FILE.svg` draws wait against cost for two traces.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from bench._traces import five_minutes, folder
from gpuledger_collector.insight.backtest import Question, backtest_scaling
from gpuledger_collector.insight.series import Series

STEP = 300_000
MINUTE = 60_000
CAPS = (1.1, 1.25)
DELAYS = (5, 10)
FRONTIER = (1.02, 1.05, 1.1, 1.15, 1.25, 1.4)
DRAWN = ("helios_cluster", "taxi_diurnal")
COLOURS = {"reactive-tuned": "#b25d00", "gpuledger": "#0b6e4f", "hpa-default": "#7a3e9d", "static-peak": "#555555",
           "reactive-plain": "#b00020", "oracle": "#1f5fbf"}  # fmt: skip


def judged(demand, delay_minutes, cap):
    done = backtest_scaling(Series("demand", 0, STEP, demand.astype(float)), Question(delay_minutes * MINUTE, cap))
    return {verdict.policy: verdict.outcome for verdict in done.verdicts}, done


def cut(ours, rival):
    """Less wait in percent; None where the rival did not wait for a tenth of a GPU-hour and neither did we."""
    if rival < 0.1:
        return None if ours < 0.1 else -100.0
    return 100 * (1 - ours / rival)


def table(traces):
    print("| trace | delay | budget | ours: wait @ cost | actions/day | tuned: wait @ cost | actions/day "
          "| cut | cut daily | cut hindsight | days ahead |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    cuts, harmful, busy, seconds = {}, [], [], []
    for name, (demand, _) in traces.items():
        for delay in DELAYS:
            for cap in CAPS:
                started = time.process_time()
                found, done = judged(demand, delay, cap)
                seconds.append(time.process_time() - started)
                ours, tuned = found["gpuledger"], found["reactive-tuned"]
                each = [cut(ours.wait, found[f"reactive-{rival}"].wait) for rival in ("tuned", "daily", "hindsight")]
                shown = " | ".join("both 0" if value is None else f"{value:.0f} %" for value in each)
                days = done.judged.sum() / 288
                ahead = f"{done.predictive_days}/{done.judged_days}"
                print(f"| {name} | {delay} | {cap} | {ours.wait:.1f} @ {ours.capacity / ours.demand:.3f} "
                      f"| {ours.actions / days:.0f} | {tuned.wait:.1f} @ {tuned.capacity / tuned.demand:.3f} "
                      f"| {tuned.actions / days:.0f} | {shown} | {ahead} |")  # fmt: skip
                cuts.setdefault(cap, []).append(each)
                where = f"{name} {delay} min {cap}"
                if ours.wait > 1.05 * tuned.wait + 0.1 or ours.capacity > max(1.02 * tuned.capacity, cap * ours.demand):
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
    print(f"\nharmful (wait > 1.05 x tuned): {', '.join(harmful) or 'none'}")
    print(f"busier (actions > 1.25 x tuned): {', '.join(busy) or 'none'}")
    print(f"median {statistics.median(seconds):.1f} s of CPU per back-test of {len(traces)} traces")


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
            print(f"| {name} | {delay} | {hpa.wait:.1f} @ {ratio:.2f} | {ours.wait:.1f} @ {cost:.2f} "
                  f"| {'both 0' if value is None else f'{value:.0f} %'} |")  # fmt: skip
    print(f"\nmedian cut against the defaults: {statistics.median(cuts):.0f} %")


def picture(traces, path):
    """Wait (log, GPU-hours per 1,000 of demand) against cost (x demand), one panel per trace, 10 min delay."""
    head = 'xmlns="http://www.w3.org/2000/svg" width="960" height="420" font-family="sans-serif" font-size="12"'
    parts = [f"<svg {head}>",
             '<rect width="960" height="420" fill="#ffffff"/>']  # fmt: skip
    for number, name in enumerate(DRAWN):
        demand = traces[name][0]
        points = {policy: [] for policy in COLOURS}
        for cap in FRONTIER:
            found, _ = judged(demand, 10, cap)
            for policy, kept in points.items():
                outcome = found[policy]
                kept.append((outcome.capacity / outcome.demand, max(1000 * outcome.wait / outcome.demand, 0.005)))
        parts += panel(60 + 470 * number, name, points)
    parts.append("</svg>")
    Path(path).write_text("\n".join(parts) + "\n")


def panel(left, name, points):
    def x(cost):
        return left + 390 * (min(cost, 1.8) - 0.95) / 0.85

    def y(wait):
        return 360 - 310 * (np.log10(wait) + 2.5) / 5

    out = [f'<text x="{left}" y="24" font-size="15">{name}, 10 min delay</text>',
           f'<rect x="{left}" y="40" width="390" height="320" fill="none" stroke="#999"/>',
           f'<text x="{left + 130}" y="400">capacity / demand</text>']  # fmt: skip
    for cost in (1.0, 1.2, 1.4, 1.6, 1.8):
        out.append(f'<text x="{x(cost) - 9:.0f}" y="376">{cost}</text>')
    for power in (-2, -1, 0, 1, 2):
        out.append(
            f'<line x1="{left}" x2="{left + 390}" y1="{y(10.0**power):.0f}" y2="{y(10.0**power):.0f}" stroke="#eee"/>'
        )
        out.append(f'<text x="{left - 36}" y="{y(10.0**power) + 4:.0f}">{10.0**power:g}</text>')
    for row, (policy, kept) in enumerate(points.items()):
        colour = COLOURS[policy]
        if policy in ("gpuledger", "reactive-tuned"):
            line = " ".join(f"{x(cost):.1f},{y(wait):.1f}" for cost, wait in sorted(kept))
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(cost):.1f}" cy="{y(wait):.1f}" r="4" fill="{colour}"/>' for cost, wait in kept]
        out.append(f'<text x="{left + 270}" y="{60 + 16 * row}" fill="{colour}">{policy}</text>')
    out.append(f'<text x="{left + 6}" y="56" fill="#666">wait per 1,000 GPU-hours</text>')
    return out


def main() -> int:
    traces = five_minutes(folder())
    asked = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--picture=")]
    if asked:
        picture(traces, asked[0])
        return 0
    table(traces)
    against_defaults(traces)
    return 0


if __name__ == "__main__":
    sys.exit(main())
