"""Demand forecasts on the open traces against strong baselines, judged on clusters that no choice
has seen.

Hourly series, 24 h ahead, 22 rolling origins 18 h apart, at most 1,008 h of history; every method
sees the same past and is clipped at zero. WQL is the mean over the quantiles 0.1, 0.5 and 0.9 of 2
x quantile loss / sum of |actual|, pooled over a series' origins; shown is the geometric mean over
series of its ratio to that of persistence: the last value with the quantiles of the changes of the
last 21 days.

A family is a cluster. The constants of our method are chosen without the family on which they are
scored: the same random settings are judged on every family, and each family gets, constant by
constant, the median of the tenth that is best on the *other* families. The constants that ship are
chosen so from all families and are shown apart, because no family is left to judge them.

`--days=7` asks for 168 h, `--step=5m` for 2 h of five minutes and `--rhythms` for series with a
rhythm, all with the constants chosen at 24 h on the other families. `--quick` leaves out AutoETS,
Theta and MSTL; `--settings=N` draws N settings; `--cache=FILE` keeps losses between runs, also
those of earlier code: delete it after a change. `--without` shows instead what each constant is
worth: the settings that do without it next to those that have it.

`--bands` measures instead how often the bands of spend hold that state 80 %, over whole days to
come, by `insight.spend` on daily means of the traces and made-up teams (seeds). Its constants were
chosen on helios and seeds 0 to 59 alone. Bands of demand: `./dev bench demand_bands`.
"""

from __future__ import annotations

import pickle
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from bench._traces import DAY, folder, helios, mean_in_use
from gpuledger_collector.insight.forecast import forecast
from gpuledger_collector.insight.forecast.analogs import Analogs, Similarity
from gpuledger_collector.insight.forecast.forecasts import recent_history
from gpuledger_collector.insight.series import Series
from gpuledger_collector.insight.spend import MAX_HISTORY_DAYS, forecast_spend

FAMILIES = ("helios", "dlrm", "openb")
REFERENCE = "persistence, 21 days"
WINDOWS = {
    "persistence, 7 days": 7,
    "persistence, 14 days": 14,
    REFERENCE: 21,
    "persistence, whole past": None,
}
Q = np.array([0.1, 0.5, 0.9])
CAP_HOURS, APART_HOURS, ORIGINS = 1008, 18, 22
CHOICES = {
    "level": (0.05, 0.1, 0.2, 0.4, 0.8, None),
    "age": (0.35, 0.7, 1.4, 2.8, None),
    "hour": (1.5, 3.0, 6.0, None),
    "movement": (0.2, 0.4, 0.8, 1.6, None),
    "departure": (0.25, 0.5, 1.0, 2.0, None),
    "memory_days": (3.5, 7.0, 14.0, 28.0, None),
    "level_days": (0.0, 2.5, 5.0, 7.5),
    "blend": (1, 4, 9),
}
"""What each constant may be, in order; None is an infinite width: the distance does not count."""


@dataclass(frozen=True)
class Case:
    """One origin of one series: the past up to it, and what came."""

    series: str
    past: Series
    actual: np.ndarray

    @property
    def family(self) -> str:
        return self.series.split("/")[0]


def load(place, step_s):
    """Series by `family/kind name`: Helios teams in use and in demand, inference services, pods by
    class of service.
    """
    series = {}
    frame = helios(place).assign(at=lambda rows: pd.to_datetime(rows.ts).dt.floor(f"{step_s}s"))
    for team, rows in frame.groupby("team"):
        by_step = rows.groupby("at")[["gpus_running", "demand"]].mean()
        if by_step.gpus_running.mean() > 1:
            start_ms = int(by_step.index[0].timestamp() * 1000)
            for kind, column in (("in use", "gpus_running"), ("demand", "demand")):
                name = f"helios/{kind} {team}"
                series[name] = Series(
                    name, start_ms, step_s * 1000, by_step[column].to_numpy(float)
                )
    jobs = pd.read_csv(place / "alibaba_dlrm_2025_jobs.csv.gz")
    until = 31 * DAY
    for app in jobs.team.value_counts().head(10).index:
        rows = jobs[jobs.team == app]
        used = mean_in_use(
            rows.start_s.fillna(0), rows.end_s.fillna(until), rows.gpus, step_s, until
        )
        if used[DAY // step_s :].std() > 0.5:
            series[f"dlrm/{app}"] = Series(f"dlrm/{app}", 0, step_s * 1000, used)
    pods = pd.read_csv(place / "alibaba_openb_2023_pods.csv.gz").dropna(
        subset=["scheduled_time", "deletion_time"]
    )
    until = 40 * DAY
    zero = int(pods.creation_time.max()) - until
    for kind, rows in pods[pods.deletion_time > zero].groupby("qos"):
        gpus = np.where(rows.num_gpu == 1, rows.gpu_milli / 1000, rows.num_gpu)
        used = mean_in_use(
            rows.scheduled_time - zero, rows.deletion_time - zero, gpus, step_s, until
        )
        if used.std() > 0.5:
            series[f"openb/{kind}"] = Series(f"openb/{kind}", 0, step_s * 1000, used)
    return series


def load_rhythms(place):
    """Hourly request counts of ten companies and taxi rides: shapes of serving demand, daily and
    weekly.
    """
    requests = pd.read_csv(place / "nab_requests_5min.csv.gz")
    values = {
        f"requests/{name}": (rows.value, 12)
        for name, rows in requests.groupby("series", sort=False)
    }
    values["rides/taxi"] = pd.read_csv(place / "nab_taxi_30min.csv.gz").value, 2
    return {
        name: Series(
            name,
            0,
            3_600_000,
            each.to_numpy(float)[: len(each) // per_hour * per_hour].reshape(-1, per_hour).mean(1),
        )
        for name, (each, per_hour) in values.items()
    }


def cases(series, horizon):
    """Every origin of every series, oldest first."""
    out = []
    for name, whole in series.items():
        hour = 3_600_000 // whole.step_ms
        for back in range(ORIGINS - 1, -1, -1):
            cut = len(whole.values) - horizon - APART_HOURS * hour * back
            if cut >= max(192 * hour, 2 * horizon):
                first = max(0, cut - CAP_HOURS * hour)
                past = Series(
                    name,
                    whole.start_ms + first * whole.step_ms,
                    whole.step_ms,
                    whole.values[first:cut],
                )
                out.append(Case(name, past, whole.values[cut : cut + horizon]))
    return out


def quantile_loss(actual, levels):
    """2 x the mean over the quantiles of the summed quantile loss."""
    error = actual[:, None] - np.maximum(levels, 0)
    return 2 * np.maximum(Q * error, (Q - 1) * error).sum() / len(Q)


def judge(case, levels):
    """Loss, and the share of what came that lies under the 0.9 quantile."""
    return quantile_loss(case.actual, levels), float(
        (case.actual <= np.maximum(levels[:, 2], 0) + 1e-9).mean()
    )


def persistence(values, horizon, steps):
    changes = ((values[h:] - values[:-h])[-steps if steps else 0 :] for h in range(1, horizon + 1))
    return np.stack([values[-1] + np.quantile(change, Q) for change in changes])


def seasonal(values, horizon, period):
    error = values[period:] - values[:-period]
    return np.resize(values[-period:], horizon)[:, None] + np.quantile(error, Q)


def baselines(horizon, per_day, quick):
    """Functions from the values of the past to levels (H, Q), by name."""
    from statsforecast.models import MSTL, AutoETS, AutoTheta, Naive
    from statsforecast.utils import ConformalIntervals

    def classical(model):
        def predict(values):
            made = model.forecast(y=values, h=horizon, level=[80])
            return np.stack([made["lo-80"], made["mean"], made["hi-80"]], axis=1)

        return predict

    methods = {
        name: lambda values, days=days: persistence(values, horizon, days and days * per_day)
        for name, days in WINDOWS.items()
    }
    windows = 5 if horizon <= per_day else 2
    conformal = ConformalIntervals(n_windows=windows, h=horizon)
    methods["naive + conformal"] = classical(Naive(prediction_intervals=conformal))
    methods["seasonal naive, a day"] = lambda values: seasonal(values, horizon, per_day)
    methods["seasonal naive, a week"] = lambda values: seasonal(values, horizon, 7 * per_day)
    if not quick:
        methods["AutoETS (24)"] = classical(AutoETS(season_length=per_day))
        methods["Theta (24)"] = classical(AutoTheta(season_length=per_day))
        methods["MSTL (24, 168)"] = classical(MSTL(season_length=[per_day, 7 * per_day]))
    return methods


def draw_settings(count):
    """Settings drawn at random, the same in every run."""
    generator = np.random.default_rng(21)
    return [
        Similarity(
            **{name: values[generator.integers(len(values))] for name, values in CHOICES.items()}
        )
        for _ in range(count)
    ]


def log_ratios(cases, losses, reference):
    """By family the logarithm of loss / loss of the reference, arrays (methods, series); `losses`
    are (methods, cases).

    One case never decides: losses are summed over the origins of a series first.
    """
    ratios = {}
    for family in dict.fromkeys(case.family for case in cases):
        names = dict.fromkeys(case.series for case in cases if case.family == family)
        rows = [[case.series == name for case in cases] for name in names]
        ours = np.stack([losses[:, row].sum(axis=1) for row in rows], axis=1)
        base = np.array([reference[row].sum() for row in rows])
        ratios[family] = np.log((ours + 1e-9) / (base + 1e-9))
    return ratios


def choose(settings, ratios, left_out):
    """Constant by constant the median of the tenth of `settings` that is best on every family but
    `left_out`.
    """
    seen = [rows.mean(axis=1) for family, rows in ratios.items() if family != left_out]
    best = np.argsort(np.mean(seen, axis=0), kind="stable")[: max(1, len(settings) // 10)]
    constants = {}
    for name, values in CHOICES.items():
        places = sorted(values.index(getattr(settings[place], name)) for place in best)
        constants[name] = values[places[len(places) // 2]]
    return Similarity(**constants)


class Judge:
    """Loss and coverage of methods on cases, each computed once."""

    def __init__(self, cases, cache):
        self.cases, self.file = cases, cache
        self.known = pickle.loads(cache.read_bytes()) if cache and cache.exists() else {}
        self.key = (len(cases), len(cases[0].actual), cases[0].past.step_ms)

    def save(self):
        if self.file:
            self.file.write_bytes(pickle.dumps(self.known))

    def of_settings(self, settings):
        """Arrays (settings, cases, 2) of loss and coverage."""
        missing = [each for each in dict.fromkeys(settings) if (self.key, each) not in self.known]
        if missing:
            rows = np.empty((len(missing), len(self.cases), 2))
            for number, case in enumerate(self.cases):
                # The table of past changes is made once for all settings.
                analogs = Analogs(recent_history(case.past), np.arange(1, len(case.actual) + 1))
                for place, each in enumerate(missing):
                    rows[place, number] = judge(case, np.sort(analogs.predict(each, Q)[0], axis=1))
            self.known |= {(self.key, each): row for each, row in zip(missing, rows, strict=True)}
            self.save()
        return np.stack([self.known[self.key, each] for each in settings])

    def of_method(self, name, predict):
        """Array (cases, 2) of loss and coverage, and milliseconds a case."""
        if (self.key, name) not in self.known:
            print(f"... {name}", file=sys.stderr, flush=True)
            started = time.process_time()
            rows = np.array([judge(case, predict(case.past.values)) for case in self.cases])
            self.known[self.key, name] = (
                rows,
                1000 * (time.process_time() - started) / len(self.cases),
            )
            self.save()
        return self.known[self.key, name]


def left_out(judge, settings, chosen_on):
    """Loss and coverage (cases, 2) by constants chosen on the other families, and these constants
    by family.
    """
    families = dict.fromkeys(case.family for case in judge.cases)
    chosen = {family: choose(settings, chosen_on, family) for family in families}
    rows = judge.of_settings(list(chosen.values()))
    of_case = [list(families).index(case.family) for case in judge.cases]
    return rows[of_case, np.arange(len(judge.cases))], chosen


def report(judge, results, reference, milliseconds):
    """Print the table: the ratio to the reference by family and over all series, and the coverage."""
    ratios = {
        name: {
            family: rows[0]
            for family, rows in log_ratios(judge.cases, loss[None, :, 0], reference).items()
        }
        for name, loss in results.items()
    }
    families = list(next(iter(ratios.values())))
    print(
        f"| method | all | {' | '.join(families)} | cov90 | ms"
        f" |\n|---|{'---|' * (len(families) + 3)}"
    )
    for name, by_family in ratios.items():
        every = np.exp(np.concatenate(list(by_family.values())).mean())
        each = " | ".join(f"{np.exp(rows.mean()):.3f}" for rows in by_family.values())
        cost = f"{milliseconds[name]:.1f}" if name in milliseconds else ""
        print(f"| {name} | {every:.3f} | {each} | {results[name][:, 1].mean():.3f} | {cost} |")
    for family in families:
        best = min(WINDOWS, key=lambda name: ratios[name][family].mean())
        ours = np.exp(ratios[LEFT_OUT][family].mean() - ratios[best][family].mean())
        print(f"{family}: left out {ours:.3f} of its best window ({best})")


SPEND_DAYS = (1, 7, 14, 21, 28)
CHOSEN_ON, CHOSEN_SEEDS, FRESH_SEEDS = "helios", range(60), range(1000, 1060)
MADE = ((0.05, 0.0), (0.3, 0.0), (0.1, 0.03), (0.1, 0.08))
"""Noise of a day and drift of the level a day of made-up teams, which halve at the weekend."""


def load_days(place):
    """Daily series of spend by family, and of which kind: those that the constants were chosen on, or
    left out.
    """
    series = [*load(place, 3600).items(), *load_rhythms(place).items()]
    kinds = {"chosen on": {}, "left out": {}}
    for name, whole in series:
        family = name.split("/")[0]
        kind = "chosen on" if family == CHOSEN_ON else "left out"
        values = np.nan_to_num(whole.values)
        days = values[: len(values) // 24 * 24].reshape(-1, 24).mean(axis=1)
        kinds[kind].setdefault(family, []).append(days)
    for kind, seeds in (("chosen on", CHOSEN_SEEDS), ("left out", FRESH_SEEDS)):
        for seed in seeds:
            noise, drift = MADE[seed % len(MADE)]
            random = np.random.default_rng(seed)
            level = np.exp(np.cumsum(random.normal(0, drift, 84)))
            level *= np.where(np.arange(84) % 7 < 5, 1.0, 0.5)
            family = f"made, noise {noise:g}, drift {drift:g}"
            days = level * np.exp(random.normal(0, noise, 84))
            kinds[kind].setdefault(family, []).append(days)
    return kinds


def spend_coverage(days):
    """By number of days ahead, whether each sum that came lay in the band forecast before it."""
    inside = {ahead: [] for ahead in SPEND_DAYS}
    micro = [round(value * 1e6) for value in days]
    for origin in range(10, len(micro), 3):
        past = micro[max(0, origin - MAX_HISTORY_DAYS) : origin]
        end = forecast_spend(past, 0, 1.0, max(SPEND_DAYS) - 1) if any(past) else None
        for ahead in SPEND_DAYS if end is not None else ():
            if origin + ahead <= len(micro):
                came = sum(micro[origin : origin + ahead])
                inside[ahead].append(end.low[ahead - 1] - 1 <= came <= end.high[ahead - 1] + 1)
    return inside


def report_bands(place) -> None:
    """Print how often bands of 80 % held, by horizon: the goal is 0.75 to 0.85 left out."""
    heads = " | ".join(f"{ahead} d" for ahead in SPEND_DAYS)
    for kind, families in load_days(place).items():
        print(f"\n| spend, {kind} | {heads} |\n|---|{'---|' * len(SPEND_DAYS)}")
        shares = []
        for family, rows in families.items():
            found = [spend_coverage(days) for days in rows]
            held = [[hit for each in found for hit in each[ahead]] for ahead in SPEND_DAYS]
            shares.append([np.mean(hits) if hits else np.nan for hits in held])
            print(f"| {family} | {' | '.join(f'{share:.2f}' for share in shares[-1])} |")
        means = np.nanmean(shares, axis=0)
        print(f"| mean of families | {' | '.join(f'{share:.3f}' for share in means)} |", flush=True)


NOTHING = dict.fromkeys(CHOICES) | {"level_days": 0.0, "blend": 1}
"""The value with which a constant has no effect."""


def report_without(judge, settings, ratios) -> None:
    """Print the ratio left out by the settings that do without one constant, next to those that have
    it.

    Each is chosen among its own settings alone, of which those that do without are fewer.
    """
    families = list(ratios)
    reference = judge.of_method(REFERENCE, None)[0][:, 0]
    judges = {}
    for family in families:
        places = [number for number, case in enumerate(judge.cases) if case.family == family]
        judges[family] = Judge([judge.cases[number] for number in places], None), reference[places]
    print(
        f"| left out | settings | all | {' | '.join(families)} |\n|{'---|' * (len(families) + 3)}"
    )
    for name in (None, *CHOICES):
        for has in (True, False) if name else (True,):
            places = [
                place
                for place, each in enumerate(settings)
                if name is None or (getattr(each, name) != NOTHING[name]) == has
            ]
            part = {family: rows[places] for family, rows in ratios.items()}
            drawn = [settings[place] for place in places]
            shown = {}
            for family, (own, reference) in judges.items():
                # Medians of some settings need not be one of them: it is judged like the others.
                best = own.of_settings([choose(drawn, part, family)])[:, :, 0]
                shown[family] = log_ratios(own.cases, best, reference)[family][0]
            every = np.exp(np.concatenate(list(shown.values())).mean())
            each = " | ".join(f"{np.exp(rows.mean()):.3f}" for rows in shown.values())
            label = f"{'with' if has else 'without'} {name}" if name else "every setting"
            print(f"| {label} | {len(places)} | {every:.3f} | {each} |", flush=True)


LEFT_OUT, SHIPPED = "gpuledger, left out", "gpuledger, as shipped (has seen all)"


def option(name, default):
    given = [
        argument.partition("=")[2] for argument in sys.argv if argument.startswith(f"--{name}=")
    ]
    return given[0] if given else default


def main() -> int:
    warnings.filterwarnings("ignore")
    cache = Path(option("cache", "")) if option("cache", "") else None
    place, settings = folder(), draw_settings(int(option("settings", "300")))
    if "--bands" in sys.argv:
        report_bands(place)
        return 0
    days, fine, rhythms = (
        int(option("days", "1")),
        option("step", "1h") == "5m",
        "--rhythms" in sys.argv,
    )
    at_24h = Judge(cases(load(place, 3600), 24), cache)
    reference, _ = at_24h.of_method(REFERENCE, baselines(24, 24, True)[REFERENCE])
    chosen_on = log_ratios(at_24h.cases, at_24h.of_settings(settings)[:, :, 0], reference[:, 0])
    if "--without" in sys.argv:
        report_without(at_24h, settings, chosen_on)
        return 0
    horizon, per_day = (24, 288) if fine else (24 * days, 24)
    judged = at_24h
    if rhythms:
        judged = Judge(cases(load_rhythms(place), horizon), cache)
    elif fine or days > 1:
        judged = Judge(cases(load(place, 300 if fine else 3600), horizon), cache)
    results, milliseconds = {}, {}
    results[REFERENCE], _ = judged.of_method(
        REFERENCE, baselines(horizon, per_day, True)[REFERENCE]
    )
    results[LEFT_OUT], chosen = left_out(judged, settings, chosen_on)
    results[SHIPPED] = judged.of_settings([Similarity()])[0]
    started = time.process_time()
    for case in judged.cases[::5]:
        forecast([case.past], horizon)
    milliseconds[SHIPPED] = 1000 * (time.process_time() - started) / len(judged.cases[::5])
    for name, predict in baselines(horizon, per_day, "--quick" in sys.argv or fine).items():
        rows, milliseconds[name] = judged.of_method(name, predict)
        # MSTL has no finite forecast of some pasts.
        silent = np.isnan(rows[:, 0])
        results[name] = (
            np.where(silent[:, None], results[REFERENCE], rows) if silent.any() else rows
        )
        if silent.any():
            print(
                f"{name}: no forecast at {silent.sum()} origins; it gets that of {REFERENCE} there"
            )
    print(
        f"{len({case.series for case in judged.cases})} series, {len(judged.cases)} origins,"
        f" {horizon} steps ahead;"
    )
    print(f"ratio of the weighted quantile loss to {REFERENCE}: smaller is better\n")
    report(judged, results, results[REFERENCE][:, 0], milliseconds)
    for family, similarity in [
        *chosen.items(),
        ("none", choose(settings, chosen_on, None)),
        ("ships", Similarity()),
    ]:
        print(f"without {family}: " if family != "ships" else "ships: ", asdict(similarity))
    return 0


if __name__ == "__main__":
    sys.exit(main())
