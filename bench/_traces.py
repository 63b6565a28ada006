"""The open traces as the benchmarks use them; not a benchmark of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

DEFAULT = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "traces"
DAY = 86_400


def folder() -> Path:
    """Where the traces lie: `--traces=DIR`, or beside the repository; ends with 3 when they are not
    there.
    """
    given = [
        argument.partition("=")[2] for argument in sys.argv if argument.startswith("--traces=")
    ]
    place = Path(given[0]) if given else DEFAULT
    if not (place / "helios_earth_team_gpus_5min.csv.gz").exists():
        print(f"bench: no traces in {place}; name their folder with --traces=DIR", file=sys.stderr)
        sys.exit(3)
    return place


def mean_in_use(start, end, gpus, step_s, until_s):
    """Exact mean of GPUs in use over each step, from intervals in seconds."""
    edges = np.arange(int(until_s // step_s) + 1) * float(step_s)
    total = np.zeros(len(edges))
    for sign, at in ((1, start), (-1, end)):
        at = np.clip(np.asarray(at, float), 0, until_s)
        order = np.argsort(at)
        at, weight = at[order], np.asarray(gpus, float)[order]
        count = np.concatenate([[0], np.cumsum(weight)])
        moment = np.concatenate([[0], np.cumsum(weight * at)])
        seen = np.searchsorted(at, edges, side="right")
        total += sign * (count[seen] * edges - moment[seen])
    return np.diff(total) / step_s


def helios(place: Path) -> pd.DataFrame:
    frame = pd.read_csv(place / "helios_earth_team_gpus_5min.csv.gz")
    frame["demand"] = frame.gpus_running + frame.gpus_pending
    return frame


def dlrm(place: Path, step_s: int) -> dict[str, np.ndarray]:
    """GPUs per inference service, the eight that change most, and all together."""
    jobs = pd.read_csv(place / "alibaba_dlrm_2025_jobs.csv.gz")
    until = 31 * DAY
    jobs["start"], jobs["end"] = jobs.start_s.fillna(0), jobs.end_s.fillna(until)
    services = {
        str(team): mean_in_use(part.start, part.end, part.gpus, step_s, until)
        for team, part in jobs.groupby("team")
    }
    per_day = DAY // step_s
    moved = {
        team: np.abs(np.diff(v[per_day:])).sum() for team, v in services.items() if v.mean() >= 5
    }
    chosen = sorted(moved, key=lambda team: moved[team])[-8:]
    return {team: services[team] for team in chosen} | {
        "all": np.sum(list(services.values()), axis=0)
    }


def openb(place: Path, step_s: int) -> np.ndarray:
    """GPUs of the short pods (under three days), 35 days."""
    short = short_pods(place)
    return mean_in_use(
        short.start, short.end, short.gpus, step_s, min(35 * DAY, float(short.end.max()))
    )


def short_pods(place: Path) -> pd.DataFrame:
    """Pods that lived under three days: start and end in seconds, GPUs, and the class of service as
    the owner.
    """
    pods = pd.read_csv(place / "alibaba_openb_2023_pods.csv.gz")
    short = pods[(pods.deletion_time - pods.creation_time) < 3 * DAY]
    first = short.creation_time.quantile(0.05)
    short = short[short.creation_time >= first]
    return pd.DataFrame(
        {
            "start": short.creation_time - first,
            "end": short.deletion_time - first,
            "gpus": short.num_gpu * short.gpu_milli / 1000,
            "owner": short.qos,
        }
    )


def workloads(place: Path) -> dict[str, pd.DataFrame]:
    """The workloads behind the series of `hourly` that have any: start, end (NaN: goes on), gpus,
    owner.
    """
    jobs = pd.read_csv(place / "alibaba_dlrm_2025_jobs.csv.gz").rename(
        columns={"end_s": "end", "team": "owner"}
    )
    jobs["start"] = jobs.start_s.fillna(0)
    services = {f"dlrm/{team}": part for team, part in jobs.groupby("owner")}
    return services | {"dlrm/all": jobs, "openb/short pods": short_pods(place)}


def hourly(place: Path) -> dict[str, np.ndarray]:
    """Hourly series by `family/name`: Helios teams in use and demanded, inference services, short
    pods.
    """
    frame = helios(place)
    frame["hour"] = pd.to_datetime(frame.ts).dt.floor("h")
    out: dict[str, np.ndarray] = {}
    by_team = frame.groupby(["team", "hour"])[["gpus_running", "demand"]].mean()
    for team in frame.team.unique():
        part = by_team.loc[team]
        if part.gpus_running.mean() >= 1:
            out[f"helios in use/{team}"] = part.gpus_running.to_numpy()
            out[f"helios demand/{team}"] = part.demand.to_numpy()
    whole = frame.groupby("hour")[["gpus_running", "demand"]].sum() / 12
    out["helios in use/all"], out["helios demand/all"] = (
        whole.gpus_running.to_numpy(),
        whole.demand.to_numpy(),
    )
    out |= {f"dlrm/{name}": values for name, values in dlrm(place, 3600).items()}
    out["openb/short pods"] = openb(place, 3600)
    return out


def five_minutes(place: Path) -> dict[str, np.ndarray]:
    """Demand in whole GPUs at 5 minutes by `family/name`: pools of three clusters, and shapes of
    serving demand.

    helios: the cluster and its six teams of eight GPUs or more; dlrm: all services, and the five
    that change most; openb: short pods, all and by class of service; seasonal: request counts of
    companies, summed and alone, and taxi rides, interpolated with noise of 2 % (seed 0).
    """
    frame = helios(place)
    out = {"helios/cluster": frame.groupby("ts").demand.sum().to_numpy()}
    for team, rows in frame.groupby("team"):
        if rows.demand.mean() >= 8:
            out[f"helios/{team}"] = rows.sort_values("ts").demand.to_numpy()
    out |= {f"dlrm/{name}": values for name, values in list(dlrm(place, 300).items())[-6:]}
    out["openb/short pods"] = openb(place, 300)
    pods = short_pods(place)
    for name in ("LS", "BE"):
        rows = pods[pods.owner == name]
        out[f"openb/{name}"] = mean_in_use(
            rows.start, rows.end, rows.gpus, 300, min(35 * DAY, float(pods.end.max()))
        )
    requests = pd.read_csv(place / "nab_requests_5min.csv.gz")
    ten = {
        name: rows.value.to_numpy(float) for name, rows in requests.groupby("series", sort=False)
    }
    count = min(35 * 288, *(len(counts) for counts in ten.values()))
    total = np.sum([counts[:count] / counts.mean() for counts in ten.values()], axis=0)
    out["seasonal/requests"] = as_gpus(total, 80)
    for name in ("AAPL", "AMZN", "GOOG"):
        out[f"seasonal/requests {name}"] = as_gpus(ten[name][:count], 20)
    rides = pd.read_csv(place / "nab_taxi_30min.csv.gz").value.to_numpy(float)[: 35 * 48]
    smooth = np.interp(np.arange(35 * 288), np.arange(len(rides)) * 6 + 3, rides)
    smooth = smooth * (1 + np.random.default_rng(0).normal(0, 0.02, len(smooth)))
    out["seasonal/taxi"] = smooth / smooth.mean() * 80
    return {name: np.ceil(values - 1e-6) for name, values in out.items()}


def other_five_minutes(place: Path) -> dict[str, np.ndarray]:
    """Pools that no constant of capacity was chosen on: the other companies' requests, taxi rides
    with other noise, the smaller teams of helios, and openb's pods by size.
    """
    known = five_minutes(place)
    out = {}
    requests = pd.read_csv(place / "nab_requests_5min.csv.gz")
    for name, rows in requests.groupby("series", sort=False):
        if f"seasonal/requests {name}" not in known:
            out[f"seasonal/requests {name}"] = as_gpus(rows.value.to_numpy(float)[: 35 * 288], 20)
    taxi = known["seasonal/taxi"]
    out["seasonal/taxi"] = taxi * (1 + np.random.default_rng(1).normal(0, 0.02, len(taxi)))
    for team, rows in helios(place).groupby("team"):
        if 2 <= rows.demand.mean() < 8:
            out[f"helios/{team}"] = rows.sort_values("ts").demand.to_numpy()
    pods = short_pods(place)
    for name, rows in (("shared", pods[pods.gpus < 1]), ("whole", pods[pods.gpus >= 1])):
        until = min(35 * DAY, float(pods.end.max()))
        out[f"openb/{name}"] = mean_in_use(rows.start, rows.end, rows.gpus, 300, until)
    return {name: np.ceil(values - 1e-6) for name, values in out.items()}


def as_gpus(counts: np.ndarray, mean: float) -> np.ndarray:
    """Request counts, 15 min mean without the highest 0.2 %, scaled to a mean number of GPUs."""
    calm = (
        pd.Series(counts.clip(0, np.quantile(counts, 0.998)))
        .rolling(3, min_periods=1)
        .mean()
        .to_numpy()
    )
    return calm / calm.mean() * mean
