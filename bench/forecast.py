"""Demand forecasts on the open traces against what people have: quantile loss, coverage and time.

Hourly series, 24 h ahead, 22 rolling origins 18 h apart, at most 1,008 h of history; every method sees the same past
and is clipped at zero. relWQL is the geometric mean over series of WQL / WQL(seasonal naive 24 h): every series weighs
the same. `--quick` leaves out the three classical models; `--days=7` asks for 168 h; `--models` adds the models that
are not in the default mix, and the mix that knows the workloads behind a series (inference services and short pods
have them, team series do not); `--only=REGEX` keeps some of the series.
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from dataclasses import replace

import numpy as np

from bench._traces import folder, hourly, workloads
from gpuledger_collector.insight.forecast import (
    QUANTILES,
    STILL_RUNNING,
    ForecastSettings,
    Workloads,
    forecast,
    settings_for,
)
from gpuledger_collector.insight.series import Series

HOUR = 3_600_000
CAP = 1008
Q = np.array(QUANTILES)


def origins(count, horizon):
    step, many = (18, 22) if horizon == 24 else (36, 8)
    latest_first = (count - horizon - step * back for back in range(many))
    return [origin for origin in sorted(latest_first) if origin >= max(192, 2 * horizon + 1)]


def ours(settings=None, lives=None):
    """Our forecast by these settings; `lives` are the workloads behind the series, by name."""

    def run(pasts, horizon, due):
        series = [
            Series(name, (at - len(past)) * HOUR, HOUR, past) for past, (name, at) in zip(pasts, due, strict=True)
        ]
        return [result.values for result in forecast(series, horizon, settings=settings, workloads=lives)]

    return run


def lives(frame):
    ends = np.where(frame.end.isna(), STILL_RUNNING, (frame.end.fillna(0) * 1000).astype(np.int64))
    owners = np.unique(frame.owner.astype(str), return_inverse=True)[1]
    return Workloads((frame.start * 1000).to_numpy(np.int64), ends, frame.gpus.to_numpy(float), owners, STILL_RUNNING)


def empirical(pasts, horizon, _):
    return [np.stack([y[-1] + np.quantile(y[h:] - y[:-h], Q) for h in range(1, horizon + 1)]) for y in pasts]


def seasonal(pasts, horizon, _):
    return [np.resize(y[-24:], horizon)[:, None] + np.quantile(y[24:] - y[:-24], Q)[None, :] for y in pasts]


def classical(make):
    def run(pasts, horizon, _):
        out = []
        for y in pasts:
            predicted = make(horizon).forecast(y=y.astype(float), h=horizon, level=[80, 90])
            out.append(np.stack([predicted[name] for name in ("lo-80", "mean", "hi-80", "hi-90")], axis=1))
        return out

    return run


def methods(quick, models):
    from statsforecast.models import MSTL, AutoETS, AutoTheta, Naive
    from statsforecast.utils import ConformalIntervals

    methods = {
        "gpuledger": ours(),
        "EmpNaive": empirical,
        "Naive + conformal": classical(
            lambda h: Naive(prediction_intervals=ConformalIntervals(n_windows=2 if h > 24 else 5, h=h))
        ),
        "seasonal naive 24 h": seasonal,
    }
    if models:
        known = {name: lives(frame) for name, frame in workloads(folder()).items()}
        methods["gpuledger + workloads"] = ours(lives=known)
        methods["workloads alone"] = ours(settings_for("workloads"), known)
        methods["gpuledger + boosted"] = ours(
            replace(ForecastSettings(), prior=(*ForecastSettings().prior, ("boosted", 1.0)))
        )
        methods["boosted alone"] = ours(settings_for("boosted"))
    if not quick:
        methods["AutoETS (24)"] = classical(lambda _: AutoETS(season_length=24))
        methods["AutoTheta (24)"] = classical(lambda _: AutoTheta(season_length=24))
        methods["MSTL (24, 168)"] = classical(lambda _: MSTL(season_length=[24, 168]))
    return methods


def judge(method, series, horizon):
    """Per series (loss, sum of |actual|, coverages) and milliseconds per forecast."""
    scores = {name: [] for name in series}
    seconds, count = 0.0, 0
    rounds = max(len(origins(len(y), horizon)) for y in series.values())
    for number in range(rounds):
        due = [(name, y, at[number]) for name, y in series.items() if number < len(at := origins(len(y), horizon))]
        started = time.process_time()
        answers = method([y[max(0, at - CAP) : at] for _, y, at in due], horizon, [(name, at) for name, _, at in due])
        seconds, count = seconds + time.process_time() - started, count + len(due)
        for (name, y, at), answer in zip(due, answers, strict=True):
            actual, values = y[at : at + horizon], np.maximum(answer, 0)
            error = actual[:, None] - values
            loss = np.maximum(Q * error, (Q - 1) * error).sum()
            scores[name].append((loss, np.abs(actual).sum(), (error <= 1e-9).mean(0)))
    out = {
        name: (2 * sum(r[0] for r in rows) / 4, sum(r[1] for r in rows), np.mean([r[2] for r in rows], axis=0))
        for name, rows in scores.items()
    }
    return out, 1000 * seconds / count


def main() -> int:
    warnings.filterwarnings("ignore")
    horizon = 168 if "--days=7" in sys.argv else 24
    only = next((argument.partition("=")[2] for argument in sys.argv if argument.startswith("--only=")), "")
    series = {name: values for name, values in hourly(folder()).items() if re.search(only, name)}
    results = {}
    for name, method in methods("--quick" in sys.argv, "--models" in sys.argv).items():
        print(f"... {name}", file=sys.stderr, flush=True)
        results[name] = judge(method, series, horizon)
    wql = {name: {s: r[0] / max(r[1], 1e-9) for s, r in rows.items()} for name, (rows, _) in results.items()}
    base = wql["seasonal naive 24 h"]
    used = [s for s in series if base[s] > 0]
    families = sorted({s.split("/")[0] for s in used})

    def relative(name, part):
        return float(np.exp(np.mean([np.log(max(wql[name][s], 1e-9) / base[s]) for s in part])))

    print(
        f"{len(used)} series, {horizon} h ahead; relWQL: smaller is better; cov: share of actuals under the quantile\n"
    )
    print("| method | relWQL | WQL pooled | cov90 | cov95 | " + " | ".join(families) + " | ms |")
    print("|---|" + "---|" * (len(families) + 5))
    for name, (rows, ms) in results.items():
        pooled = sum(rows[s][0] for s in used) / sum(rows[s][1] for s in used)
        cover = np.mean([rows[s][2] for s in used], axis=0)
        parts = [[s for s in used if s.startswith(family + "/")] for family in families]
        each = " | ".join(f"{relative(name, part):.3f}" for part in parts)
        overall = f"{relative(name, used):.3f} | {pooled:.4f} | {cover[2]:.3f} | {cover[3]:.3f}"
        print(f"| {name} | {overall} | {each} | {ms:.1f} |")
    own = ("gpuledger", "workloads", "boosted")
    rivals = [name for name in results if not name.startswith(own)]
    best = min(rivals, key=lambda name: relative(name, used))
    print(f"\nours / best baseline ({best}): {relative('gpuledger', used) / relative(best, used):.3f}")
    if "AutoETS (24)" in results:
        print(f"ours / AutoETS: {relative('gpuledger', used) / relative('AutoETS (24)', used):.3f}")
    for family in families:
        part = [s for s in used if s.startswith(family + "/")]
        rival = min(rivals, key=lambda name: relative(name, part))
        print(f"{family}: {relative('gpuledger', part):.3f} against {relative(rival, part):.3f} ({rival})")
    worst = max(used, key=lambda s: wql["gpuledger"][s] / max(wql["Naive + conformal"][s], 1e-9))
    ratio = wql["gpuledger"][worst] / wql["Naive + conformal"][worst]
    print(f"worst series against Naive + conformal: {ratio:.3f} ({worst})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
