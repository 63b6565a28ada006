"""Spending anomalies: our detector in the loop that measured the others, on the same series, injections and budget.

Hourly GPUs of 8 research teams and 8 inference services, 31 days, 14 of them history, with labelled injections
(runaway, retry storm, plateau, leak, price; a weekly batch and missing hours that are none). Threshold and persistence
of each detector are chosen on half of the series for at most one false alarm per team and month on the clean copies and
measured on the other half. `as shipped` are our flags with the thresholds that the product ships. `--seeds=0,1` are the
reference's (ours was tuned on them), others are fresh; `--all` runs every detector of the reference.
The loop is read from `../shared/judges`, or from --judges=DIR.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from bench._traces import folder
from gpuledger_collector.insight.anomalies import TUNED, judge, price_rises
from gpuledger_collector.insight.series import Series

HOUR = 3_600_000
JUDGES = Path(__file__).resolve().parents[1] / ".." / "shared" / "judges"
QUICK = ("mad", "ewma", "cusum", "composite")
SHOWN = ("recall", "precision", "clean_fa", "delay_med", "delay_p90", "r_runaway", "r_retry_storm", "r_plateau",
         "r_leak", "r_price", "flag_batch_normal", "flag_missing")  # fmt: skip


def option(name, default):
    found = [argument.partition("=")[2] for argument in sys.argv if argument.startswith(f"--{name}=")]
    return found[0] if found else default


def loop():
    """The reference's loop as a module; ends with 3 when it is not there."""
    path = Path(option("judges", JUDGES)) / "spend_anomaly_bench.py"
    if not path.exists():
        print(f"bench: no loop at {path}; name its folder with --judges=DIR", file=sys.stderr)
        sys.exit(3)
    spec = importlib.util.spec_from_file_location("spend_anomaly_bench", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def ours(cost, gpus):
    """Our score: usage judged, the rate beside it, as the collector does it with its price book."""
    rate = np.divide(cost, gpus, out=np.full(len(gpus), np.nan), where=gpus > 0)
    return np.nan_to_num(judge(Series("team", 0, HOUR, gpus), price_rises(rate, HOUR)).score)


def curve_only(cost, _gpus):
    """Our score from the cost alone, as `gpuledger anomalies --series` sees it: no rates, so a price is a level."""
    return np.nan_to_num(judge(Series("team", 0, HOUR, cost)).score)


def shipped(cost, gpus):
    """Our flags as they ship."""
    rate = np.divide(cost, gpus, out=np.full(len(gpus), np.nan), where=gpus > 0)
    return judge(Series("team", 0, HOUR, gpus), price_rises(rate, HOUR)).flag.astype(float)


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
            found = judge_loop.evaluate(part, threshold, hours)
            if found["clean_fa"] <= budget and (best is None or found["recall"] > best[0]):
                best = (found["recall"], threshold, hours)
        if best is not None:
            parts.append(judge_loop.evaluate([item for item in items if item[0] in test], *best[1:]))
    return pd.DataFrame(parts).mean().to_dict()


def row(name, group, found):
    cells = " | ".join(f"{found.get(key, float('nan')):.2f}" for key in SHOWN)
    print(f"| {name} | {group} | {cells} |", flush=True)


def main() -> int:
    judge_loop, place = loop(), folder()
    seeds = [int(one) for one in option("seeds", "0,1").split(",")]
    rivals = judge_loop.DET if "--all" in sys.argv else {name: judge_loop.DET[name] for name in QUICK}
    found = list(cases(judge_loop, place, seeds))
    print(f"seeds {seeds}, {len({case[0] for case in found})} series, 1 false alarm per team and month\n")
    print(f"| detector | series | {' | '.join(SHOWN)} |\n|{'---|' * (len(SHOWN) + 2)}")
    for name, detector in {"gpuledger": ours, "gpuledger, curve only": curve_only, **rivals}.items():
        started = time.process_time()
        items = [(series, copy, detector(cost, gpus), events) for series, copy, cost, gpus, events in found]
        seconds = time.process_time() - started
        for group in ("all", "serving", "research"):
            part = [item for item in items if group in ("all", item[0].partition(":")[0])]
            row(name, group, measured(judge_loop, part, 1.0))
        print(f"<!-- {name}: {1000 * seconds / len(items):.0f} ms a series -->")
    items = [(series, copy, shipped(cost, gpus), events) for series, copy, cost, gpus, events in found]
    for group in ("all", "serving", "research"):
        part = [item for item in items if group in ("all", item[0].partition(":")[0])]
        row(f"as shipped ({TUNED.threshold})", group, judge_loop.evaluate(part, 0.5, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
