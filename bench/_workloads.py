"""The workloads behind the series of the anomaly bench; not a benchmark of its own.

Traces of dlrm and openb have workloads. Those of helios (and demand, its running and pending GPUs)
and of requests have sums alone: workloads are drawn that add up to them. A rise is begun by
workloads of 1 to 16 GPUs, a fall ends the newest ones in 7 of 10 cases and any in the others. That
is a model, and so is what an injection is made of: a runaway is one workload; a plateau one, and
what fills it up; a leak is made of workloads that do not end; a retry storm of runs of a quarter of
an hour, four in succession for each of its GPUs. Names are drawn: eight of a team, some far more
often than others; half of the runaways and storms have a name of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bench._traces import DAY, mean_in_use
from gpuledger_collector.insight.anomalies.causes import WorkloadRun
from gpuledger_collector.insight.anomalies.detector import LONG_RUNNING_HOURS

HOUR = 3_600_000
UNTIL = 31 * DAY
SIZES, SHARES = (1, 2, 4, 8, 16), (0.4, 0.2, 0.2, 0.15, 0.05)
NEWEST = 0.7
"""Share of the falls that end the newest workload."""
NAMES = tuple(f"job-{number}" for number in range(8))
POPULARITY = 1 / np.arange(1, 9) / (1 / np.arange(1, 9)).sum()
OWN = "injected"
STORM_RUNS_AN_HOUR = 4


@dataclass
class Workloads:
    """Start and end in hours of the series, GPUs and name of each workload."""

    start: np.ndarray
    end: np.ndarray
    gpus: np.ndarray
    name: np.ndarray
    unused: np.ndarray | None = None
    """Whether each does nothing: that is what a plateau is made of."""
    injected: dict = field(default_factory=dict)
    """The name of what was injected by kind and first hour."""

    def long_running(self, hours):
        """Mean GPUs of each hour that long-running workloads held; unknown at first, as in the
        ledger.
        """
        since = np.maximum(self.start, 0) + LONG_RUNNING_HOURS
        still = since < self.end
        held = mean_in_use(
            since[still] * 3600, self.end[still] * 3600, self.gpus[still], 3600, hours * 3600
        )
        held[:LONG_RUNNING_HOURS] = np.nan
        return held

    def runs(self):
        """The workloads as the search for retry storms reads them."""
        return [
            WorkloadRun(
                name=str(name),
                start_ms=round(start * HOUR),
                end_ms=round(end * HOUR),
                gpu_micro=round(gpus * 1e6),
                gpu_ns=round((end - start) * gpus * 3.6e12),
                busy_ms=0,
                idle_ms=0,
                cost_micro=0,
            )
            for start, end, gpus, name in zip(
                self.start, self.end, self.gpus, self.name, strict=True
            )
        ]


def base_workloads(place, series):
    """The workloads of each series before anything is injected."""
    jobs = pd.read_csv(place / "alibaba_dlrm_2025_jobs.csv.gz")
    pods = pd.read_csv(place / "alibaba_openb_2023_pods.csv.gz").dropna(
        subset=["scheduled_time", "deletion_time"]
    )
    zero = int(pods.creation_time.max()) - UNTIL
    pods["gpus"] = np.where(pods.num_gpu == 1, pods.gpu_milli / 1000, pods.num_gpu)
    helios = pd.read_csv(place / "helios_earth_team_gpus_5min.csv.gz")
    helios["demand"] = helios.gpus_running + helios.gpus_pending
    out = {}
    for number, name in enumerate(sorted(series)):
        chance = np.random.default_rng(900 + number)
        family, _, team = name.partition("/")
        if family == "dlrm":
            rows = jobs[jobs.team == team]
            held = _table(rows.start_s.fillna(0), rows.end_s.fillna(UNTIL), rows.gpus)
        elif family == "openb":
            qos, _, kind = team.partition(" ")
            rows = pods[(pods.qos == qos) & ((pods.gpu_milli < 1000) == (kind == "shared"))]
            rows = rows[(rows.deletion_time > zero) & (rows.scheduled_time < zero + UNTIL)]
            held = _table(rows.scheduled_time - zero, rows.deletion_time - zero, rows.gpus)
        elif family in ("helios", "demand"):
            column = "gpus_running" if family == "helios" else "demand"
            values = helios[helios.team == team][column].to_numpy(float)[: 744 * 12]
            held = draw_workloads(values, 1 / 12, chance)
        else:
            held = draw_workloads(series[name], 1.0, chance)
        names = np.full(len(held), team) if family == "dlrm" else _draw_names(len(held), chance)
        out[name] = Workloads(*held.T, names)
    return out


def _table(start_s, end_s, gpus):
    """Start and end in hours, and GPUs; those that were there at first and at the end are one."""
    rows = pd.DataFrame(
        {"start": start_s / 3600, "end": np.minimum(end_s, UNTIL) / 3600, "gpus": gpus}
    )
    return rows.groupby(["start", "end"], as_index=False).gpus.sum().to_numpy(float)


def _draw_names(count, chance):
    return chance.choice(NAMES, size=count, p=POPULARITY)


def draw_workloads(values, step, chance, unit=1.0):
    """Workloads (start, end, GPUs) that add up to a series; unknown values are 0."""
    active, ended, before = [], [], 0.0
    for at, value in enumerate(np.nan_to_num(values).tolist()):
        change, before = value - before, value
        while change > 1e-9:
            size = min(change, chance.choice(SIZES, p=SHARES) * unit)
            # No crumbs: what is left over belongs to the last one.
            size = change if change - size < 0.3 * unit else size
            active.append([at * step, size])
            change -= size
        while change < -1e-9 and active:
            newest = chance.random() < NEWEST
            place = len(active) - 1 if newest else int(chance.integers(len(active)))
            start, size = active[place]
            gone = min(size, -change)
            ended.append((start, at * step, gone))
            change += gone
            active[place][1] -= gone
            if active[place][1] <= 1e-9:
                del active[place]
    ended += [(start, len(values) * step, size) for start, size in active]
    return np.array(ended, dtype=float).reshape(-1, 3)


def with_injections(base, values, gpus, events, chance):
    """The workloads of a series and of what was injected into it."""
    added = np.nan_to_num(gpus - values)
    unit = max(1.0, round(float(np.median(values)) / 32))
    tables, names, unused, injected = [], [], [np.zeros(len(base.start), dtype=bool)], {}
    rest = added.copy()
    for kind, start, end, _ in events:
        part = np.zeros(len(added))
        part[start:end] = added[start:end]
        table = _injected(kind, part, start, end, unit, chance)
        if table is None:
            continue
        rest[start:end] = 0.0
        own_name = kind in ("plateau", "runaway", "retry_storm") and chance.random() < 0.5
        name = OWN if own_name else chance.choice(NAMES, p=POPULARITY)
        tables.append(table)
        names.append(np.full(len(table), name))
        unused.append(np.full(len(table), kind == "plateau"))
        injected[kind, start] = str(name)
    # The weekly batch, which is normal.
    tables.append(draw_workloads(rest, 1.0, chance, unit))
    names.append(np.full(len(tables[-1]), "batch"))
    unused.append(np.zeros(len(tables[-1]), dtype=bool))
    start, end, held = np.concatenate(tables).T
    return Workloads(
        np.concatenate([base.start, start]),
        np.concatenate([base.end, end]),
        np.concatenate([base.gpus, held]),
        np.concatenate([base.name, *names]),
        np.concatenate(unused),
        injected,
    )


def _injected(kind, part, start, end, unit, chance):
    if kind == "runaway":
        return np.array([(start, end, part[start])])
    if kind == "plateau":
        least = part[start:end].min()
        filled = np.where(part > 0, part - least, 0.0)
        held = np.array([(start, end, least)])
        return np.concatenate([held, draw_workloads(filled, 1.0, chance, unit)])
    if kind == "leak":
        return draw_workloads(np.floor(part / unit) * unit, 1.0, chance, unit)
    if kind == "retry_storm":
        rows = []
        for hour in range(start, end):
            count = max(1, round(part[hour] / unit))
            for quarter in range(STORM_RUNS_AN_HOUR):
                begin = hour + quarter / STORM_RUNS_AN_HOUR
                rows += [(begin, begin + 0.24, part[hour] / count)] * count
        return np.array(rows)
    return None
