"""Capacity policies judged left out: all constants are chosen on some clusters and shown on another
one.

The same backtest as `gpuledger scale backtest`, on pools of the open traces at 5 minutes: ten days
of history, the rest judged, GPUs fractional, two delays and two budgets. Cut is how much less
demand waited than under `tuned`, the best of 144 reactive settings on the history within the
budget. A family is a cluster (helios, dlrm, openb) or the shapes of serving demand (seasonal).
Every setting of CHOICES is judged on every pool; a family gets, constant by constant, the median of
the tenth that cut most on the *other* families, of those that harmed no pool there. The constants
that ship are chosen so from all families and are shown apart. `daily` is the reactive setting
selected anew each day by the same rules: what is left beyond it is the forecast's.

Nothing is drawn at random, but for the noise on the taxi rides (seed 0). `--pools=helios/` judges
only pools whose name holds this; `--pictures=DIR` draws wait against cost, one picture per pool of
DRAWN with a panel for each delay. `--without` shows instead what each part is worth
(_scaling_without.py), with `--others` on pools that chose nothing; `--without=climate,lot 1+lot 2`
leaves out these, those joined by + at once.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench._scaling_without import chosen_parts, scores_without
from bench._traces import five_minutes, folder, other_five_minutes
from gpuledger_collector.insight.backtest import ScalingScenario, backtest_scaling
from gpuledger_collector.insight.scaling.choice import SelectionRules
from gpuledger_collector.insight.scaling.policies import LOT_UNITS, headroom_unit
from gpuledger_collector.insight.scaling.replay import CandidateReplay
from gpuledger_collector.insight.scaling.simulation import unmet
from gpuledger_collector.insight.series import Series

STEP = 300_000
MINUTE = 60_000
CAPS = (1.1, 1.25)
DELAYS = (5, 10)
FRONTIER = (1.02, 1.05, 1.1, 1.15, 1.25, 1.4)
CHOICES = {
    "window_days": (7, 10, 14, 21, 28),
    "lent_days": (7.0, 14.0),
    "least_lot": LOT_UNITS,
}
"""What each constant may be, in order. A loan must be repaid before the judged three weeks end."""
SHIPPED = {"window_days": 10, "lent_days": 14.0, "least_lot": 0.5}
MOST_WAIT_RATIO, MOST_COST_RATIO, NO_WAIT = 1.0, 1.02, 0.1
"""A policy harms that waits or costs more than these times the tuned one's; less GPU-hours of wait
are none.
"""
DRAWN = {
    "helios/cluster": ("Training cluster", "scaling-cluster.svg"),
    "seasonal/taxi": ("Seasonal pool", "scaling-seasonal.svg"),
    "seasonal/requests": ("Requests, summed", "scaling-requests.svg"),
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


@dataclass(frozen=True)
class Score:
    """Ours on one pool next to the tuned reactive setting: GPU-hours of wait, capacity and capacity
    changes.
    """

    wait: float
    tuned_wait: float
    daily_wait: float
    capacity: float
    tuned_capacity: float
    demand: float
    actions: float
    tuned_actions: float
    days_ahead: int
    days: int

    @property
    def cut(self):
        """Less wait than the tuned setting; 0 where neither waited."""
        return cut(self.wait, self.tuned_wait) or 0.0

    @property
    def harmful(self):
        """Whether the tuned setting would have been better for anybody."""
        waits = self.wait > MOST_WAIT_RATIO * self.tuned_wait + 1e-6
        return waits or self.capacity > MOST_COST_RATIO * self.tuned_capacity


@dataclass(frozen=True)
class Case:
    """One pool at one delay and budget."""

    pool: str
    delay: int
    cap: float

    @property
    def family(self):
        return self.pool.split("/")[0]


def every_setting():
    """All settings of CHOICES, by name of the constant."""
    return [
        dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())
    ]


def allowed_candidates(replay, setting):
    """The forecasts that a setting lets compete."""
    unit = headroom_unit(replay.demand[: replay.first], replay.node)
    return np.array(
        [
            each.predictive and each.lot_gpus >= setting["least_lot"] * unit
            for each in replay.candidates.settings
        ]
    )


def rules_of(setting):
    return SelectionRules(window_days=setting["window_days"], lent_days=setting["lent_days"])


def scores(demand, delay, cap, settings):
    """The score of each setting on one pool; all candidates are replayed once."""
    known = np.ones(len(demand), dtype=bool)
    replay = CandidateReplay(demand, known, STEP, max(1, delay * MINUTE // STEP), 0.0, cap)
    daily, _ = replay.run([replay.schedule(~replay.predictive, SelectionRules())], SelectionRules())
    out = [None] * len(settings)
    for lent in dict.fromkeys(setting["lent_days"] for setting in settings):
        places = [place for place, setting in enumerate(settings) if setting["lent_days"] == lent]
        chosen = [
            replay.schedule(allowed_candidates(replay, settings[place]), rules_of(settings[place]))
            for place in places
        ]
        # Settings with the same choices have the same capacity: it is replayed once.
        kinds = {days.tobytes(): days for days in chosen}
        capacity, _ = replay.run(list(kinds.values()), rules_of(settings[places[0]]))
        of_kind = dict(zip(kinds, capacity.T, strict=True))
        for place, days in zip(places, chosen, strict=True):
            out[place] = score(replay, of_kind[days.tobytes()], daily[:, 0], days)
    return out


def score(replay, ours, daily, chosen):
    judged = slice(replay.first, None)
    tuned, demand = replay.capacity[judged, replay.anchor], replay.demand[judged]
    hours = STEP / 3_600_000
    waits = [
        float(unmet(demand, each).sum() * hours) for each in (ours[judged], tuned, daily[judged])
    ]
    spent = [float(each.sum() * hours) for each in (ours[judged], tuned, demand)]
    actions = [float((np.abs(np.diff(each)) > 1e-9).sum()) for each in (ours[judged], tuned)]
    days = chosen[replay.first // replay.per_day :]
    return Score(*waits, *spent, *actions, int((days != replay.anchor).sum()), len(days))


def choose(settings, table, left_out):
    """Constant by constant the median of the tenth of `settings` that is best on every family but
    `left_out`.

    `table` maps each case to the scores of the settings.
    """
    seen = [case for case in table if case.family != left_out]
    families = dict.fromkeys(case.family for case in seen)
    merits = []
    for place in range(len(settings)):
        cuts = {family: [] for family in families}
        for case in seen:
            cuts[case.family].append(table[case][place].cut)
        harm = sum(table[case][place].harmful for case in seen)
        merits.append(np.mean([np.mean(each) for each in cuts.values()]) - 1000 * harm)
    best = np.argsort(merits, kind="stable")[::-1][: max(1, len(settings) // 10)]
    constants = {}
    for name, values in CHOICES.items():
        places = sorted(values.index(settings[place][name]) for place in best)
        constants[name] = values[places[len(places) // 2]]
    return constants


def judge_left_out(settings, table):
    """The score of each case by constants chosen on the other families, and these constants by
    family.
    """
    families = dict.fromkeys(case.family for case in table)
    chosen = {family: choose(settings, table, family) for family in families}
    return {case: table[case][settings.index(chosen[case.family])] for case in table}, chosen


def judge_policies(demand, delay_minutes, cap):
    done = backtest_scaling(
        Series("demand", 0, STEP, demand.astype(float)),
        ScalingScenario(delay_minutes * MINUTE, cap),
    )
    return {result.policy: result.outcome for result in done.results}, done


def cut(ours, rival):
    """Less wait in percent; None where neither waited."""
    if rival < NO_WAIT:
        return None if ours < NO_WAIT else -100.0
    return 100 * (1 - ours / rival)


def report(results):
    """Print a row for each pool and delay, and the means that the goals speak of."""
    titles = [
        f"{cap}: ours, wait @ cost | tuned | cut | daily | changes | days ahead" for cap in CAPS
    ]
    print(f"| pool | delay | {' | '.join(titles)} |\n|---|---|{'---|' * 6 * len(CAPS)}")
    for pool, delay in dict.fromkeys((case.pool, case.delay) for case in results):
        cells = []
        for cap in CAPS:
            each = results[Case(pool, delay, cap)]
            cells += [
                f"{each.wait:.1f} @ {each.capacity / each.demand:.3f}",
                f"{each.tuned_wait:.1f} @ {each.tuned_capacity / each.demand:.3f}",
                *(percent(cut(wait, each.tuned_wait)) for wait in (each.wait, each.daily_wait)),
                f"{each.actions / max(each.tuned_actions, 1):.2f}",
                f"{each.days_ahead}/{each.days}",
            ]
        print(f"| {pool} | {delay} | {' | '.join(cells)} |")


def percent(value):
    return "both 0" if value is None else f"{value:.0f} %"


GROUPS = {
    "training cluster": lambda case: case.pool == "helios/cluster",
    "short pods": lambda case: case.pool == "openb/short pods",
    "all services": lambda case: case.pool == "dlrm/all",
    "single teams": lambda case: case.family == "helios" and case.pool != "helios/cluster",
    "single services": lambda case: case.family == "dlrm" and case.pool != "dlrm/all",
    "pods by class": lambda case: case.family == "openb" and case.pool != "openb/short pods",
    "taxi": lambda case: case.pool == "seasonal/taxi",
    "requests": lambda case: case.pool.startswith("seasonal/requests"),
    "every pool": bool,
}


def summary(label, results):
    """Print mean cuts by group, and how many cases were harmed."""
    print(
        f"\n| {label}: mean cut | {' | '.join(f'{cap}, {d} min' for cap in CAPS for d in DELAYS)} |"
    )
    print(f"|---|{'---|' * len(CAPS) * len(DELAYS)}")
    for name, belongs in GROUPS.items():
        cells = []
        for cap, delay in itertools.product(CAPS, DELAYS):
            cuts = [
                each.cut
                for case, each in results.items()
                if belongs(case) and (case.cap, case.delay) == (cap, delay)
            ]
            cells.append(f"{np.mean(cuts):.0f} %" if cuts else "")
        print(f"| {name} | {' | '.join(cells)} |")
    waits = [each.wait / each.tuned_wait for each in results.values() if each.tuned_wait >= NO_WAIT]
    costs = [each.capacity / each.tuned_capacity for each in results.values()]
    harmed = [
        f"{case.pool} {case.delay} min {case.cap}" for case, each in results.items() if each.harmful
    ]
    busy = [
        each for each in results.values() if each.actions > 1.25 * each.tuned_actions + each.days
    ]
    print(
        f"\nharmed: {len(harmed)} of {len(results)} ({', '.join(harmed) or 'none'}); most wait",
        end=" ",
    )
    print(
        f"{max(waits, default=0):.3f} x, most cost {max(costs):.4f} x tuned; over 1.25 x its"
        f" changes: {len(busy)}"
    )


def against_defaults(traces):
    print(
        "\n| trace | delay | HPA 65 %, 300 s: wait @ cost | ours at no more cost: wait @ cost | cut"
        " |\n|---|---|---|---|---|"
    )
    cuts = []
    for name, demand in traces.items():
        for delay in DELAYS:
            first, _ = judge_policies(demand, delay, 1.25)
            hpa = first["hpa-default"]
            ratio = round(hpa.capacity / hpa.demand, 3)
            ours = judge_policies(demand, delay, max(1.01, ratio))[0]["gpuledger"]
            value = cut(ours.wait, hpa.wait)
            cuts.append(0.0 if value is None else value)
            cost = ours.capacity / ours.demand
            print(
                f"| {name} | {delay} | {hpa.wait:.1f} @ {ratio:.2f} | {ours.wait:.1f} @ {cost:.2f} "
                f"| {'both 0' if value is None else f'{value:.0f} %'} |"
            )
    print(f"\nmedian cut against the defaults: {np.median(cuts):.0f} %")


def picture(demand, title, path):
    """Wait (log, GPU-hours per 1,000 of demand) against cost (x demand) of every policy, a panel
    per delay.
    """
    words = ", ".join(WORDS.values())
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 450" width="960"'
            f' height="450" role="img" aria-label="{title}: wait against cost"'
            ' font-family="sans-serif" font-size="12">'
        ),
        (
            f"<title>{title}: wait against cost</title><desc>Each policy by what it cost and what"
            f" waited: {words}.</desc>"
        ),
        '<rect width="960" height="450" fill="#ffffff"/>',
    ]
    for number, delay in enumerate(DELAYS):
        points = {policy: [] for policy in COLORS}
        for cap in FRONTIER:
            outcomes, _ = judge_policies(demand, delay, cap)
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
        (
            f'<text x="{left + 195}" y="408" text-anchor="middle" fill="#444">cost: capacity /'
            " demand</text>"
        ),
        f'<text x="{left}" y="44" fill="#444">wait, GPU-hours per 1,000 of demand</text>',
    ]
    for cost in (1.0, 1.2, 1.4, 1.6, 1.8, 2.0):
        out.append(f'<line x1="{x(cost):.0f}" x2="{x(cost):.0f}" y1="50" y2="370" stroke="#eee"/>')
        out.append(
            f'<text x="{x(cost):.0f}" y="386" text-anchor="middle" fill="#444">{cost}</text>'
        )
    for wait in (LEAST_WAIT, 0.1, 1.0, 10.0, 100.0):
        word = "none" if wait == LEAST_WAIT else f"{wait:g}"
        out.append(
            f'<line x1="{left}" x2="{left + 390}" y1="{y(wait):.0f}" y2="{y(wait):.0f}"'
            ' stroke="#eee"/>'
        )
        out.append(
            f'<text x="{left - 6}" y="{y(wait) + 4:.0f}" text-anchor="end"'
            f' fill="#444">{word}</text>'
        )
    for policy, kept in points.items():
        color, ordered = COLORS[policy], sorted(kept)
        if len(ordered) > 1:
            line = " ".join(f"{x(cost):.1f},{y(wait):.1f}" for cost, wait in ordered)
            out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        for cost, wait in ordered:
            tooltip = f"{WORDS[policy]}: {cost:.3f} x demand, {wait:.3g} per 1,000 wait"
            out.append(
                f'<circle cx="{x(cost):.1f}" cy="{y(wait):.1f}" r="4"'
                f' fill="{color}"><title>{tooltip}</title></circle>'
            )
            if cost > DEAREST:
                out.append(
                    f'<text x="{x(cost) - 8:.0f}" y="{y(wait) - 8:.0f}" text-anchor="end" '
                    f'fill="{color}">{cost:.1f} x &#8594;</text>'
                )
    return out


def report_without(traces, several):
    """Print the mean cut of each family without each part, and who is harmed."""
    tables = {name: {} for name in several}
    for pool, delay in itertools.product(traces, DELAYS):
        print(f"... {pool}, {delay} min", file=sys.stderr, flush=True)
        steps = max(1, delay * MINUTE // STEP)
        judged = scores_without(traces[pool].astype(float), STEP, steps, CAPS, several, score)
        for cap, by_name in judged.items():
            for name, each in by_name.items():
                tables[name][Case(pool, delay, cap)] = each
    families = dict.fromkeys(pool.split("/")[0] for pool in traces)
    titles = " | ".join([*families, "mean of families", "every pool", *GROUPS_WITHOUT])
    print(f"| without | {titles} | waits more | costs more | changes |")
    print(f"|---|{'---|' * (titles.count('|') + 4)}")
    for name, table in tables.items():
        of_family = {family: {} for family in families}
        for case, each in table.items():
            of_family[case.family][case] = each
        means = [mean_cut(each) for each in of_family.values()]
        cells = [*means, np.mean(means), mean_cut(table)]
        at_10 = {case: each for case, each in table.items() if (case.cap, case.delay) == (1.1, 10)}
        cells += [mean_cut(at_10, GROUPS[group]) for group in GROUPS_WITHOUT]
        waits = sum(each.wait > MOST_WAIT_RATIO * each.tuned_wait + 1e-6 for each in table.values())
        dear = sum(each.capacity > MOST_COST_RATIO * each.tuned_capacity for each in table.values())
        busy = sum(each.actions > 1.25 * each.tuned_actions + each.days for each in table.values())
        print(
            f"| {name} | {' | '.join(f'{value:.2f}' for value in cells)} | {waits} | {dear} |"
            f" {busy} |",
            flush=True,
        )


def mean_cut(table, belongs=bool):
    cuts = [each.cut for case, each in table.items() if belongs(case)]
    return np.mean(cuts) if cuts else np.nan


GROUPS_WITHOUT = ("training cluster", "single teams")
"""Shown at 1.10 and 10 minutes beside the means over all budgets and delays."""


def option(name, default):
    given = [
        argument.partition("=")[2] for argument in sys.argv if argument.startswith(f"--{name}=")
    ]
    return given[0] if given else default


def main() -> int:
    pools = other_five_minutes if "--others" in sys.argv else five_minutes
    traces = {
        name: values for name, values in pools(folder()).items() if option("pools", "") in name
    }
    if option("pictures", ""):
        for name, (title, file) in DRAWN.items():
            picture(traces[name], title, Path(option("pictures", "")) / file)
        return 0
    if "--without" in sys.argv or option("without", ""):
        report_without(traces, chosen_parts(option("without", "")))
        return 0
    settings, table, started = every_setting(), {}, time.process_time()
    for name, delay, cap in itertools.product(traces, DELAYS, CAPS):
        print(f"... {name}, {delay} min, {cap}", file=sys.stderr, flush=True)
        table[Case(name, delay, cap)] = scores(traces[name].astype(float), delay, cap, settings)
    results, chosen = judge_left_out(settings, table)
    print(
        f"{len(traces)} pools, {len(settings)} settings, {time.process_time() - started:.0f} s of"
        " CPU\n"
    )
    report(results)
    summary("left out", results)
    summary(
        "as shipped (has seen all)", {case: table[case][settings.index(SHIPPED)] for case in table}
    )
    for family, constants in [
        *chosen.items(),
        ("none", choose(settings, table, None)),
        ("ships", SHIPPED),
    ]:
        print(f"without {family}: " if family != "ships" else "ships: ", constants)
    against_defaults(traces)
    return 0


if __name__ == "__main__":
    sys.exit(main())
