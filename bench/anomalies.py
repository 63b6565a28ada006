"""Spending anomalies: our detector in the loop that measured the others, on the same series, injections and budget.

Hourly GPUs of 8 research teams and 8 inference services, 31 days, 14 of them history, with labeled injections
(runaway, retry storm, plateau, leak, price; a weekly batch and missing hours that are none). Threshold and persistence
of each detector are chosen on half of the series for at most one false alarm per team and month on the clean copies and
measured on the other half. `as shipped` are our flags with the thresholds that the product ships; `from the ledger` are
the episodes that the collector's search keeps of the same hours, with a price book. Within ten minutes: the rule that
looks every minute, on the same teams in steps of five minutes, against runaways of its own. `--seeds=0,1` are the
reference's (ours was tuned on them), others are fresh; `--all` runs every detector of the reference.
The loop is read from `../shared/judges`, or from --judges=DIR.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd

from bench._traces import folder
from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.insight.anomalies import TUNED, detect, limits, price_rises
from gpuledger_collector.insight.findings import WorkloadUsage
from gpuledger_collector.insight.series import Series
from gpuledger_collector.jobs.find_anomalies import find_anomalies

HOUR = 3_600_000
JUDGES = Path(__file__).resolve().parents[1] / ".." / "shared" / "judges"
QUICK = ("mad", "ewma", "cusum", "composite")
SHOWN = (
    "recall",
    "precision",
    "clean_fa",
    "delay_med",
    "delay_p90",
    "r_runaway",
    "r_retry_storm",
    "r_plateau",
    "r_leak",
    "r_price",
    "flag_batch_normal",
    "flag_missing",
)


def option(name, default):
    values = [argument.partition("=")[2] for argument in sys.argv if argument.startswith(f"--{name}=")]
    return values[0] if values else default


def loop():
    """The reference's loop as a module; ends with 3 when it is not there."""
    path = Path(option("judges", JUDGES)) / "spend_anomaly_bench.py"
    if not path.exists():
        print(f"bench: no loop at {path}; name its folder with --judges=DIR", file=sys.stderr)
        sys.exit(3)
    spec = importlib.util.spec_from_file_location("spend_anomaly_bench", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(cost, gpus):
    """Our score: usage judged, the rate beside it, as the collector does it with its price book."""
    rate = np.divide(cost, gpus, out=np.full(len(gpus), np.nan), where=gpus > 0)
    return np.nan_to_num(detect(Series("team", 0, HOUR, gpus), price_rises(rate, HOUR)).score)


def curve_only(cost, _gpus):
    """Our score from the cost alone, as `gpuledger anomalies --series` sees it: no rates, so a price is a level."""
    return np.nan_to_num(detect(Series("team", 0, HOUR, cost)).score)


def shipped(cost, gpus):
    """Our flags as they ship."""
    rate = np.divide(cost, gpus, out=np.full(len(gpus), np.nan), where=gpus > 0)
    return detect(Series("team", 0, HOUR, gpus), price_rises(rate, HOUR)).flag.astype(float)


class Book:
    """The hours of a series as the collector's ledger has them: one workload, a price book, and what was seen."""

    def __init__(self, cost, gpus):
        known = np.isfinite(gpus)
        rate = np.divide(cost, gpus, out=np.full(len(gpus), np.nan), where=gpus > 0)
        rate = pd.Series(rate).ffill().bfill().to_numpy()
        starts = np.r_[0, np.flatnonzero(np.abs(np.diff(rate)) > 1e-9) + 1]
        self._prices = [
            Price(None, "", "gpu", "on_demand", Decimal(str(round(rate[at], 6))), "USD", int(at) * HOUR if at else 0)
            for at in starts
        ]
        self._uses = [
            WorkloadUsage(
                at * HOUR, 1, "pool", "gpu", "", round(value * 3_600_000 * 1_000_000), HOUR, round(value * 1e6)
            )
            for at, value in enumerate(gpus)
            if known[at] and value > 0
        ]
        self._seen = {("pool", at * HOUR): float(known[at]) for at in range(len(gpus))}
        self.findings = []

    @contextmanager
    def transaction(self, _lock):
        yield self

    def stores(self):
        """Stand-ins for the storage modules that the search calls, each function with the connection first."""
        facts = {1: WorkloadFacts(1, "slurm", None, None, "job", {"team": "team"})}
        return {
            "minutes": SimpleNamespace(hourly_use=lambda *_: self._uses, coverage=lambda *_: self._seen),
            "findings": SimpleNamespace(overlapping=lambda *_: [], drop=_ignore, set_progress=_ignore, put=self._put),
            "price_book": SimpleNamespace(current=lambda _: PriceBook(self._prices)),
            "rules": SimpleNamespace(current=lambda _: []),
            "workloads": SimpleNamespace(facts=lambda *_: facts),
        }

    def _put(self, _connection, findings):
        self.findings = list(findings)
        return len(self.findings)


def _ignore(*_):
    pass


def ledger(cost, gpus):
    """Hours of the episodes that the search in the ledger keeps."""
    book = Book(cost, gpus)
    with patch.multiple("gpuledger_collector.jobs.find_anomalies", **book.stores()):
        find_anomalies(book, len(gpus) * HOUR)
    flags = np.zeros(len(gpus))
    for finding in book.findings:
        flags[finding.since_ms // HOUR : -(-finding.until_ms // HOUR)] = 1
    return flags


def cases(judge_loop, place, seeds):
    """Every series clean and with each set of injections."""
    base = judge_loop.base(str(place))
    for number, name in enumerate(sorted(base)):
        yield name, "clean", base[name] * judge_loop.PRICE, base[name].copy(), []
        for seed, copy in itertools.product(seeds, "ABC"):
            yield name, copy, *judge_loop.inject(base[name], copy, np.random.default_rng(1000 * number + seed))


def measured(judge_loop, items, budget):
    """Chosen on one half of the series, measured on the other, and the other way round (as the loop's main does)."""
    names = sorted({item[0] for item in items})
    halves = [set(names[::2]), set(names[1::2])]
    pool = np.concatenate([item[2][judge_loop.W :] for item in items if item[1] == "clean"])
    grid = np.unique(np.r_[np.quantile(pool, 1 - np.logspace(-0.6, -4.3, 34)), np.max(pool) * 1.05])
    parts = []
    for tune, test in (halves, halves[::-1]):
        best = None
        part = [item for item in items if item[0] in tune]
        for threshold, hours in itertools.product(grid, (1, 2, 4, 8)):
            measured = judge_loop.evaluate(part, threshold, hours)
            if measured["clean_fa"] <= budget and (best is None or measured["recall"] > best[0]):
                best = (measured["recall"], threshold, hours)
        if best is not None:
            parts.append(judge_loop.evaluate([item for item in items if item[0] in test], *best[1:]))
    return pd.DataFrame(parts).mean().to_dict()


def row(name, group, measured):
    cells = " | ".join(f"{measured.get(key, float('nan')):.2f}" for key in SHOWN)
    print(f"| {name} | {group} | {cells} |", flush=True)


def main() -> int:
    judge_loop, place = loop(), folder()
    seeds = [int(seed) for seed in option("seeds", "0,1").split(",")]
    rivals = judge_loop.DET if "--all" in sys.argv else {name: judge_loop.DET[name] for name in QUICK}
    labeled = list(cases(judge_loop, place, seeds))
    print(f"seeds {seeds}, {len({case[0] for case in labeled})} series, 1 false alarm per team and month\n")
    print(f"| detector | series | {' | '.join(SHOWN)} |\n|{'---|' * (len(SHOWN) + 2)}")
    for name, detector in {"gpuledger": ours, "gpuledger, curve only": curve_only, **rivals}.items():
        started = time.process_time()
        items = [(series, copy, detector(cost, gpus), events) for series, copy, cost, gpus, events in labeled]
        seconds = time.process_time() - started
        for group in ("all", "serving", "research"):
            part = [item for item in items if group in ("all", item[0].partition(":")[0])]
            row(name, group, measured(judge_loop, part, 1.0))
        print(f"<!-- {name}: {1000 * seconds / len(items):.0f} ms a series -->")
    items = [(series, copy, shipped(cost, gpus), events) for series, copy, cost, gpus, events in labeled]
    for group in ("all", "serving", "research"):
        part = [item for item in items if group in ("all", item[0].partition(":")[0])]
        row(f"as shipped ({TUNED.threshold})", group, judge_loop.evaluate(part, 0.5, 1))
    items = [(series, copy, ledger(cost, gpus), events) for series, copy, cost, gpus, events in labeled]
    for group in ("all", "serving", "research"):
        part = [item for item in items if group in ("all", item[0].partition(":")[0])]
        row("from the ledger", group, judge_loop.evaluate(part, 0.5, 1))
    at_once(judge_loop, place, seeds)
    return 0


STEPS = 12
"""Of five minutes in an hour."""


def five_minutes(judge_loop, place):
    """The loop's series in steps of five minutes."""
    table = pd.read_csv(place / "helios_earth_team_gpus_5min.csv.gz", parse_dates=["ts"])
    jobs = pd.read_csv(place / "alibaba_dlrm_2025_jobs.csv.gz")
    end = 31 * 86_400
    for name in sorted(judge_loop.base(str(place))):
        kind, _, team = name.partition(":")
        if kind == "research":
            whole = table[table.team == team].set_index("ts").gpus_running.resample("5min").mean().to_numpy()
        else:
            part = jobs[jobs.team == team]
            change = np.zeros(end // 300 + 1)
            np.add.at(change, (part.start_s.fillna(0) // 300).astype(int), part.gpus)
            np.add.at(change, (part.end_s.fillna(end) // 300).astype(int), -part.gpus)
            whole = change.cumsum()[:-1]
        yield name, whole[: 744 * STEPS].astype(float)


def standing_out(values):
    """Steps at which two in a row exceed the ceiling of their hour, from the second week's end on."""
    hours = values.reshape(-1, STEPS).mean(axis=1)
    bounds = limits(Series("team", 0, HOUR, hours))
    bounds[: 14 * 24] = np.nan
    above = values > np.repeat(bounds, STEPS)
    above[1:] &= above[:-1].copy()
    above[0] = False
    return np.flatnonzero(above)


def at_once(judge_loop, place, seeds):
    """What the rule that looks every minute sees of runaways in their first ten minutes, and of clean weeks."""
    print("\n| series | runaways | seen within 10 minutes | ever | false alarms a month |\n|---|---|---|---|---|")
    sums = {"serving": [0, 0, 0, 0, 0.0], "research": [0, 0, 0, 0, 0.0]}
    for number, (name, values) in enumerate(five_minutes(judge_loop, place)):
        total = sums[name.partition(":")[0]]
        clean = standing_out(values)
        total[3] += 0 if not len(clean) else 1 + int((np.diff(clean) > 12 * STEPS).sum())
        total[4] += (len(values) / STEPS - judge_loop.W) / 720
        level = max(np.median(values[: judge_loop.W * STEPS].reshape(-1, STEPS).mean(1)), 4.0)
        for seed, size in itertools.product(seeds, (0.3, 0.5, 1.0)):
            chance = np.random.default_rng(1000 * number + seed + round(100 * size))
            start = (judge_loop.W + chance.integers(1, 14) * 24) * STEPS + chance.integers(0, 24 * STEPS)
            wild = values.copy()
            stop = start + chance.integers(24, 72) * STEPS
            wild[start:stop] += size * level
            seen = [at for at in standing_out(wild) if start <= at < stop]
            total[0] += 1
            total[1] += bool(seen and seen[0] - start < 2)
            total[2] += bool(seen)
    for kind, (count, soon, ever, false, months) in sums.items():
        print(f"| {kind} | {count} | {soon / count:.2f} | {ever / count:.2f} | {false / months:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
