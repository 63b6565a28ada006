"""Idle accelerators on labeled minutes and on a real serving day: precision, recall, wrong flags,
time to the flag.

The generator makes 300 GPU-days of 15 s samples (1 % lost, two agent restarts a day and
accelerator), rolled into minutes as the collector rolls them: segments of ten states and nine guard
cases in random order, each with its true label. Precision and recall are in GPU-hours of episodes,
counted from their beginning. Confidence: on the real day (alibaba_genai_2026, 68 pods) what is
counted on three quarters of the pods is compared with the fourth. Left out:
thresholds of `gone_idle` chosen on three quarters of the pods are shown on the fourth, and those
chosen on all pods on the labeled minutes. Each is the median of the tenth of the settings that
finds the most GPU-hours among those of whose episodes at most 15 % end within 30 minutes of the
flag. `--seed=N`.
"""

from __future__ import annotations

import itertools
import sys
import time
from unittest.mock import patch

import numpy as np
import pandas as pd

from bench._traces import folder
from gpuledger_collector.insight.idle.episodes import idle_episodes
from gpuledger_collector.insight.idle.minutes import Minutes
from gpuledger_collector.insight.idle.states import IDLE_RULES, IdleRules, State, classify
from gpuledger_collector.insight.idle.survival import AHEAD, OPEN_SURVIVAL, estimate_survival

GIB = 2.0**30
ROWS, DAY, PER_MINUTE = 300, 1440, 4
NAN = float("nan")
MONDAY = 1_760_918_400_000
"""2025-10-20T00:00:00Z"""
SEGMENTS = {
    "active": (60, 300),
    "no_data": (20, 120),
    "faulty": (30, 120),
    "unallocated": (30, 200),
    "zombie": (20, 180),
    "never_used": (80, 300),
    "gone_idle": (120, 300),
    "throttled": (40, 200),
    "data_starved": (60, 240),
    "hollow": (60, 240),
    "underused": (300, 600),
    "checkpoints": (180, 300),
    "periodic": (300, 500),
    "long pauses": (600, 900),
    "notebook": (100, 200),
    "replica": (100, 300),
    "straggler": (100, 130),
    "mig": (100, 200),
    "start-up": (60, 120),
    "transfer": (100, 200),
}
WEIGHTS = {"underused": 3.0, "notebook": 4.0, "long pauses": 3.0, "straggler": 12.0, "active": 3.0}
LEARNT = 240
"""Minutes of long pauses (two hours apart, 105 minutes long) in which their rhythm cannot be known;
not judged.
"""
GUARDS = (
    "checkpoints",
    "periodic",
    "long pauses",
    "notebook",
    "replica",
    "straggler",
    "mig",
    "start-up",
    "transfer",
)
STRICT = {"unallocated", "zombie", "never_used", "gone_idle"}
READINGS = (
    "utilization",
    "sm_active",
    "dram_active",
    "memory_copy",
    "memory_bytes",
    "power_watts",
    "clock_hertz",
    "slowed",
    "processes",
    "bytes_per_second",
)


CHOICES = {
    "idle_at_most": (0.0, 0.01, 0.02, 0.04),
    "gone_idle": (30, 45, 60, 75, 90, 105, 120, 150, 180),
    "idle_share": (0.9, 0.95, 1.0),
    "leave_busy": (1, 3, 5),
}
FOLDS, SOON = 4, 0.15


class Day:
    """Samples and truth, filled segment by segment."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        shape = (ROWS, DAY * PER_MINUTE)
        self.samples = {name: np.full(shape, NAN) for name in READINGS}
        minute = (ROWS, DAY)
        self.truth = np.full(minute, "", dtype=object)
        self.holder = np.full(minute, -1, dtype=np.int64)
        self.faulty, self.serving, self.interactive = (
            np.zeros(minute, dtype=bool) for _ in range(3)
        )
        self.lost = self.rng.random(shape) < 0.01
        self.next_holder = 0
        self.counts = dict.fromkeys(SEGMENTS, 0)
        self.begins = []

    def fill(self):
        for row in range(0, ROWS, 2):
            for gpu in (row, row + 1):
                at = 0
                while at < DAY - 30:
                    at = self.segment(gpu, at)
                self.put(gpu, "active", at, DAY)
                for restart in self.rng.integers(0, DAY * PER_MINUTE - 8, 2):
                    self.lost[gpu, restart : restart + 6] = True
        return self

    def segment(self, row, at):
        names = list(SEGMENTS)
        weights = np.array([WEIGHTS.get(name, 1.0) for name in names])
        weights[names.index("straggler")] *= row % 2
        name = names[self.rng.choice(len(names), p=weights / weights.sum())]
        length = int(self.rng.integers(*SEGMENTS[name]))
        if at + length > DAY:
            return self.put(row, "active", at, min(DAY, at + 60))
        if name == "notebook" and (at < 8 * 60 or at + length >= 20 * 60):
            return self.put(row, "active", at, min(DAY, at + 60))
        if name == "straggler" and not (self.truth[row - 1, at : at + length] == "active").all():
            return self.put(row, "active", at, min(DAY, at + 60))
        return self.put(row, name, at, at + length)

    def put(self, row, name, at, end):
        """Write one segment; what went idle was at work before, in the same hold."""
        self.counts[name] += 1
        self.begins.append((row, name, at, end))
        part, inside = slice(at * PER_MINUTE, end * PER_MINUTE), slice(at, end)
        count = (end - at) * PER_MINUTE
        rng = self.rng
        follows = name == "gone_idle" and at > 0 and self.truth[row, at - 1] == "active"
        if name not in {"unallocated", "zombie", "no_data"} and not follows:
            self.next_holder += 1
        self.truth[row, inside] = name
        held = name not in {"unallocated", "zombie"}
        self.holder[row, inside] = self.next_holder if held else -1
        if name == "straggler":
            self.holder[row, inside] = self.holder[row - 1, inside]
        self.faulty[row, inside] = name == "faulty"
        self.serving[row, inside] = name == "replica"
        self.interactive[row, inside] = name == "notebook"
        busy = self.busy(name, count)
        util = np.where(busy, rng.uniform(0.55, 0.98, count), 0.0)
        sm = util * 0.7
        dram = util * 0.4
        memory = 60 * GIB
        clock, slowed, processes, traffic = 1.98e9, 0.0, 1.0, 1e6
        watts = 120 + 500 * util
        if name in {"unallocated", "never_used"}:
            memory, processes, watts = 0.6 * GIB, 0.0, np.full(count, 72.0)
        elif name == "zombie":
            memory = 30 * GIB
        elif name == "throttled":
            slowed, clock = (rng.random(count) < 0.8).astype(float), 1.2e9
        elif name == "data_starved":
            dram = util * 0.08
        elif name == "hollow":
            util, sm, watts = np.ones(count), rng.uniform(0.02, 0.08, count), np.full(count, 180.0)
        elif name == "underused":
            util = rng.uniform(0.08, 0.2, count)
            sm, memory = util, 15 * GIB
        elif name == "mig":
            util = sm = dram = np.full(count, NAN)
        elif name == "transfer":
            traffic = 2e8
        values = {
            "utilization": util,
            "sm_active": sm,
            "dram_active": dram,
            "memory_copy": dram,
            "power_watts": watts,
            "memory_bytes": memory,
            "clock_hertz": clock,
            "slowed": slowed,
            "processes": processes,
            "bytes_per_second": traffic,
        }
        for key, value in values.items():
            self.samples[key][row, part] = value
        if name == "no_data":
            self.lost[row, part] = True
        return end

    def busy(self, name, count):
        """Which samples of a segment show work."""
        minute = np.arange(count) // PER_MINUTE
        if name in {
            "unallocated",
            "zombie",
            "never_used",
            "replica",
            "straggler",
            "notebook",
            "transfer",
            "faulty",
        }:
            return np.zeros(count, dtype=bool)
        if name == "gone_idle":
            probes = np.zeros(count, dtype=bool)
            probes[self.rng.integers(0, count, count // (PER_MINUTE * 150))] = True
            return probes
        if name == "checkpoints":
            return minute % 60 < 60 - int(self.rng.integers(8, 19))
        if name == "periodic":
            return minute % 80 < 15
        if name == "long pauses":
            return minute % 120 < 15
        if name == "start-up":
            return minute >= 9
        if name == "data_starved":
            return np.arange(count) % 4 < 2
        return np.ones(count, dtype=bool)

    def minutes(self):
        """The minutes as the collector rolls them: means over the samples that came."""
        shape = (ROWS, DAY, PER_MINUTE)
        came = ~self.lost.reshape(shape)
        seen = came.any(axis=2)

        def mean(values):
            known = came & np.isfinite(values.reshape(shape))
            total = np.where(known, values.reshape(shape), 0.0).sum(axis=2)
            return np.divide(
                total, known.sum(axis=2), out=np.full((ROWS, DAY), NAN), where=known.any(axis=2)
            )

        rolled = {name: mean(values) for name, values in self.samples.items() if name != "slowed"}
        zero = np.where(
            np.isfinite(self.samples["utilization"]), self.samples["utilization"] <= 0, NAN
        )
        facts = {
            "memory_total": 80 * GIB,
            "memory_floor": 0.6 * GIB,
            "idle_watts": 70.0,
            "limit_watts": 700.0,
        }
        card = {name: np.full(ROWS, value) for name, value in facts.items()}
        return Minutes(
            start_ms=MONDAY,
            seen=seen,
            faulty=self.faulty & seen,
            holder=self.holder,
            serving=self.serving,
            interactive=self.interactive,
            zero_ratio=mean(zero),
            slowed_ratio=mean(self.samples["slowed"]),
            host_busy=np.full((ROWS, DAY), NAN),
            **rolled,
            **card,
        )


def judged_minutes(day, minutes):
    """The minutes that count: seen, and not before a rhythm has come back, when nobody can know of
    it.
    """
    known = minutes.seen.copy()
    for row, name, begin, _ in day.begins:
        if name == "long pauses":
            known[row, begin : begin + LEARNT] = False
    return known


def judge_labeled_minutes(seed):
    day = Day(seed).fill()
    minutes = day.minutes()
    started = time.process_time()
    verdict = classify(minutes)
    episodes = idle_episodes(minutes, verdict)
    seconds = time.process_time() - started
    flagged_state = np.full((ROWS, DAY), "", dtype=object)
    flagged = []
    for episode in episodes:
        flagged_state[episode.row, episode.since : episode.end] = episode.state.name.lower()
        flagged.append((episode.row, episode.flagged, episode.state.name.lower()))
    known = judged_minutes(day, minutes)
    print(
        f"seed {seed}: {ROWS} GPU-days, {len(episodes)} episodes, {len(episodes) / ROWS:.1f} flags"
        " a GPU-day\n"
    )
    print(
        "| state | segments | precision | recall | median minutes to the flag | goal"
        " |\n|---|---|---|---|---|---|"
    )
    for state in (*sorted(STRICT), "throttled", "data_starved", "hollow", "underused", "faulty"):
        truth, ours = (day.truth == state) & known, (flagged_state == state) & known
        both = (truth & ours).sum()
        waits = [
            at - begin
            for row, name, begin, end in day.begins
            if name == state
            for r, at, s in flagged
            if r == row and s == state and begin <= at < end
        ]
        goal = (
            "0.95 / 0.90"
            if state in STRICT
            else "0.80"
            if state in {"throttled", "data_starved", "hollow"}
            else ""
        )
        print(
            f"| {state} | {day.counts[state]} | {both / max(1, ours.sum()):.3f} |"
            f" {both / max(1, truth.sum()):.3f} | {np.median(waits) if waits else NAN:.0f} |"
            f" {goal} |"
        )
    print("\n| left alone | segments | flagged segments |\n|---|---|---|")
    for guard in (*GUARDS, "no_data", "active"):
        hit = sum(
            any(
                r == row and begin + (LEARNT if guard == "long pauses" else 0) <= at < end
                for r, at, _ in flagged
            )
            for row, name, begin, end in day.begins
            if name == guard
        )
        print(f"| {guard} | {day.counts[guard]} | {hit} |")
    print(f"\n{1000 * seconds / ROWS:.2f} s of one core for 1,000 GPU-days of minutes")


def serving_day(place):
    """One day of serving pods, judged as if they were jobs."""
    frame = pd.read_csv(place / "alibaba_genai_2026_pod_gpu_1min.csv.gz")
    frame["minute"] = (frame.ts - frame.ts.min()) // 60
    table = frame.pivot_table(index="minute", columns="pod", values="gpu_util_pct")
    table = table.reindex(range(int(frame.minute.max()) + 1))
    table = table.loc[:, table.notna().sum() >= 60]
    util = table.to_numpy().T / 100
    shape = util.shape
    rows = len(util)
    nothing = np.full(shape, NAN)
    no = np.zeros(shape, dtype=bool)
    holder = np.broadcast_to(np.arange(rows)[:, None], shape).copy()
    readings = (
        "sm_active",
        "zero_ratio",
        "dram_active",
        "memory_copy",
        "memory_bytes",
        "power_watts",
        "clock_hertz",
        "slowed_ratio",
        "host_busy",
        "bytes_per_second",
    )
    absent = dict.fromkeys(readings, nothing)
    card = dict.fromkeys(
        ("memory_total", "memory_floor", "idle_watts", "limit_watts"), np.full(rows, NAN)
    )
    return Minutes(
        start_ms=MONDAY,
        seen=np.isfinite(util),
        faulty=no,
        holder=holder,
        serving=no,
        interactive=no,
        utilization=util,
        processes=np.ones(shape),
        **absent,
        **card,
    )


def gone_idle(minutes, rules=IDLE_RULES):
    """The episodes of `gone_idle` under these rules."""
    with patch("gpuledger_collector.insight.idle.states.IDLE_RULES", rules):
        return [
            each
            for each in idle_episodes(minutes, classify(minutes))
            if each.state is State.GONE_IDLE
        ]


def tally(episodes):
    """By fold of the accelerators: episodes, those that end within 30 minutes of the flag, and
    GPU-hours.
    """
    counts = np.zeros((FOLDS, 3))
    for each in episodes:
        soon = not each.ongoing and each.end - each.flagged <= 30
        counts[each.row % FOLDS] += 1, soon, (each.end - each.since) / 60
    return counts


def left_out(minutes, seed):
    """Thresholds chosen on some pods and shown on others, and those of all pods shown on the
    labeled minutes.
    """
    settings = [
        IdleRules(**dict(zip(CHOICES, values, strict=True)))
        for values in itertools.product(*CHOICES.values())
    ]
    counts = np.stack([tally(gone_idle(minutes, rules)) for rules in settings])

    def choose(folds):
        episodes, soon, hours = counts[:, folds].sum(axis=1).T
        best = np.argsort(np.where(soon <= SOON * episodes, -hours, 0), kind="stable")[
            : len(settings) // 10
        ]
        medians = {
            name: sorted(getattr(settings[place], name) for place in best)[len(best) // 2]
            for name in CHOICES
        }
        return settings.index(IdleRules(**medians))

    print(
        "\n| thresholds | shown on | episodes | GPU-hours | end within 30 min"
        " |\n|---|---|---|---|---|"
    )
    shown = []
    for fold in range(FOLDS):
        place = choose([each for each in range(FOLDS) if each != fold])
        shown.append(counts[place, fold])
        print_tally(describe(settings[place]), f"every fourth pod from {fold + 1}", shown[-1])
    print_tally("left out", "all pods", np.sum(shown, axis=0))
    print_tally("as shipped", "all pods", tally(gone_idle(minutes)).sum(axis=0))
    rules = settings[choose(list(range(FOLDS)))]
    day = Day(seed).fill()
    minutes = day.minutes()
    ours = np.zeros((ROWS, DAY), dtype=bool)
    for episode in gone_idle(minutes, rules):
        ours[episode.row, episode.since : episode.end] = True
    known = judged_minutes(day, minutes)
    truth, ours = (day.truth == "gone_idle") & known, ours & known
    both = (truth & ours).sum()
    print(f"\n{describe(rules)}, chosen on all pods, on the labeled minutes of seed {seed}:")
    print(f"gone_idle precision {both / ours.sum():.3f}, recall {both / truth.sum():.3f}")


def describe(rules):
    return ", ".join(f"{name} {getattr(rules, name):g}" for name in CHOICES)


def print_tally(rules, where, counts):
    episodes, soon, hours = counts
    print(f"| {rules} | {where} | {episodes:.0f} | {hours:.0f} | {soon / max(1, episodes):.0%} |")


def real(minutes):
    """One day of serving pods: who goes idle, how soon it ends, and how true the confidence is."""
    util = minutes.utilization
    rows = len(util)
    episodes = gone_idle(minutes)
    count, soon, hours = tally(episodes).sum(axis=0)
    pod_hours = np.isfinite(util).sum() / 60
    print(
        f"\nreal day, {rows} pods, {pod_hours:.0f} pod-hours, warm replicas judged as if they were"
        " jobs:"
    )
    share = 100 * soon / max(1, count)
    print(
        f"{count:.0f} episodes, {hours:.0f} GPU-hours, {share:.0f} % end within 30 minutes of"
        " the flag"
    )
    reliability(episodes)


def reliability(episodes):
    """Stated confidence next to how often episodes went on, counted on three quarters of the pods and
    shown on the fourth, without the open trace, which has seen all.
    """
    rows = []
    for fold in range(FOLDS):
        learn = [each for each in episodes if each.row % FOLDS != fold]
        flagged, length = (
            np.array([at - each.since for each, at in zip(learn, ends, strict=True)], float)
            for ends in ([each.flagged for each in learn], [each.end for each in learn])
        )
        with patch("gpuledger_collector.insight.idle.survival.WEIGHT", 1e-9):
            known = estimate_survival(
                flagged, length, np.array([not each.ongoing for each in learn])
            )
        for each in episodes:
            if each.row % FOLDS == fold:
                # Moments within half an hour of where the data ends are not over yet.
                last = each.end - AHEAD if each.ongoing else each.end
                for at in range(each.flagged, last + each.ongoing, 5):
                    lasted = at - each.since + 1
                    stated = known.probability_at(lasted), OPEN_SURVIVAL.probability_at(lasted)
                    rows.append((lasted, *stated, each.end - at >= AHEAD))
    lasted, left_out, ships, goes_on = np.array(rows, float).T
    print(
        "\n| idle so far (minutes) | stated, left out | stated as shipped | went on | moments |"
        "\n|---|---|---|---|---|"
    )
    for least, most in ((0, 90), (90, 120), (120, 240), (240, np.inf), (0, np.inf)):
        here = (lasted >= least) & (lasted < most)
        print(
            f"| {least} to {most:g} | {left_out[here].mean():.3f} | {ships[here].mean():.3f} |"
            f" {goes_on[here].mean():.3f} | {here.sum()} |"
        )
    print("\n| stated, left out | mean | went on | moments |\n|---|---|---|---|")
    for least, most in ((0, 0.7), (0.7, 0.9), (0.9, 0.97), (0.97, 1.001)):
        here = (left_out >= least) & (left_out < most)
        if here.any():
            print(
                f"| {least:g} to {most:.2f} | {left_out[here].mean():.3f} |"
                f" {goes_on[here].mean():.3f} | {here.sum()} |"
            )


def main() -> int:
    asked = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--seed=")]
    seed = int(asked[0]) if asked else 1
    place = folder()
    judge_labeled_minutes(seed)
    pods = serving_day(place)
    real(pods)
    left_out(pods, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
