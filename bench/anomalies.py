"""Spending anomalies judged left out: constants are chosen on some clusters and shown on another
one.

Hourly GPUs over 31 days, 14 of them history, with labeled injections (runaway, retry storm,
plateau, leak, price; a weekly batch and missing hours that are none) by the loop of
`../shared/judges` (or of --judges=DIR). Families are clusters: helios (8 teams of a cluster for
training and research), dlrm (16 inference services), openb (3 classes of pods of a mixed cluster).
For each family the threshold, the fatigue and the weight of long-running workloads are chosen on
the other families by the mean of recall and precision, less a twentieth for each false alarm above
0.6 a clean team-month; the other constants are those that ship. For other detectors, threshold and
persistence are chosen by the same score.
Counts of requests (10 companies, a city's taxis; the shape of serving, not GPUs) choose nothing.
`as shipped` has seen all three clusters; `demand` (running and pending GPUs of five teams of
helios) is left out together with helios, and in no total. `from the ledger` are the episodes that
the collector's search keeps of the same hours, with a price book and workloads (clusters and the
first seed alone: it takes seconds a case); `at once` is the
rule that looks every minute, in steps of five minutes, against runaways of its own.
`--chosen-on=10,11` draw the injections that constants are chosen on, `--seeds=40,41` those that are
shown; `--rivals=composite,ewma` are the detectors of the loop to
judge beside ours. `--without` shows instead what each part of the detector and each rule of causes is
worth (_anomalies_without.py).

`--inputs=cost,price,workloads` are what the detector is given (the default: all three). The rate is
cost by GPU-hours. Workloads are those of the trace (dlrm, openb), or drawn so that they add up to
its GPUs (helios, demand, requests: their traces have sums alone), see _workloads.py.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd

from bench._anomalies_without import (
    cause_parts,
    changed,
    detector_parts,
    figures_without,
    merit_of,
)
from bench._traces import DAY, as_gpus, folder, mean_in_use
from bench._workloads import Workloads, base_workloads, with_injections
from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.insight.anomalies import (
    TUNED,
    Tuning,
    causes,
    detect,
    group_episodes,
    limits,
    price_rises,
)
from gpuledger_collector.insight.anomalies.alarms import MERGE_HOURS
from gpuledger_collector.insight.anomalies.baseline import RollingBaseline, rolling_baseline
from gpuledger_collector.insight.anomalies.causes import find_storms
from gpuledger_collector.insight.anomalies.spending_findings import STORM
from gpuledger_collector.insight.findings import WorkloadUsage
from gpuledger_collector.insight.notifications import anomaly_floors
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.anomaly_search import find_anomalies

HOUR = 3_600_000


def option(name, default):
    values = [
        argument.partition("=")[2] for argument in sys.argv if argument.startswith(f"--{name}=")
    ]
    return values[0] if values else default


INPUTS = option("inputs", "cost,price,workloads").split(",")
JUDGES = Path(__file__).resolve().parents[1] / ".." / "shared" / "judges"
FAMILIES = ("helios", "dlrm", "openb")
FALSE_ALARMS = 0.6
"""Allowed for a clean team-month."""
SAME_CLUSTER = {"demand": "helios"}
"""A family that is left out together with another one, and chooses nothing."""
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
CHOICES = {
    "threshold": (0.7, 0.85, 1.0, 1.2, 1.4),
    "fatigue": (0.25, 0.5, 1.0),
    "long_running": (0.3, 0.5, 0.7),
}
"""What is chosen left out; drawing the other constants as well was no better (docs/insight.md)."""


@dataclass
class Case:
    """One series with one set of injections, and its baseline, which no setting changes."""

    name: str
    copy: str
    seed: int
    cost: np.ndarray
    gpus: np.ndarray
    events: list
    price: np.ndarray
    workloads: Workloads
    long_running: np.ndarray
    storms: list
    past: RollingBaseline
    past_of_long_running: RollingBaseline

    @property
    def family(self):
        return self.name.partition("/")[0]


class Alarms:
    """First and last hour of each alarm of a series of so many hours; they may overlap.

    `per_day` has what a day of a storm costs: only its own job counts.
    """

    def __init__(self, spans, hours, per_day=()):
        self.spans = sorted(spans)
        self.per_day = dict(per_day)
        self._hours = hours

    def __len__(self):
        return self._hours


def loop():
    """The reference's loop as a module; ends with 3 when it is not there."""
    path = Path(option("judges", JUDGES)) / "spend_anomaly_bench.py"
    if not path.exists():
        print(f"bench: no loop at {path}; name its folder with --judges=DIR", file=sys.stderr)
        sys.exit(3)
    spec = importlib.util.spec_from_file_location("spend_anomaly_bench", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    alarms_of_score = module.alarms

    def alarms(score, threshold, hours):
        """As the loop does, but alarms that are found already are taken as they are."""
        if not isinstance(score, Alarms):
            return alarms_of_score(score, threshold, hours)
        judged = [(max(first, module.W), last) for first, last in score.spans]
        return [(first, last) for first, last in judged if first <= last]

    module.alarms = alarms  # type: ignore[attr-defined]
    return module


def load(judge_loop, place):
    """Hourly GPUs of 31 days by `family/name`; counts of requests are scaled to a mean of 20 GPUs,
    rides to 80.
    """
    base = judge_loop.base(str(place))
    series = {
        f"helios/{name[9:]}": values
        for name, values in base.items()
        if name.startswith("research:")
    }
    jobs = pd.read_csv(place / "alibaba_dlrm_2025_jobs.csv.gz")
    # As the loop has them: a workload without a begin was there from the start, without an end
    # until the end.
    until = 31 * DAY
    services = {
        team: mean_in_use(rows.start_s.fillna(0), rows.end_s.fillna(until), rows.gpus, 3600, until)
        for team, rows in jobs.groupby("team")
    }
    for team in sorted(services, key=lambda team: -services[team].mean())[:16]:
        series[f"dlrm/{team}"] = services[team]
    pods = pd.read_csv(place / "alibaba_openb_2023_pods.csv.gz").dropna(
        subset=["scheduled_time", "deletion_time"]
    )
    zero = int(pods.creation_time.max()) - until
    gpus = np.where(pods.num_gpu == 1, pods.gpu_milli / 1000, pods.num_gpu)
    for name, rows in pods.assign(gpus=gpus).groupby(["qos", pods.gpu_milli < 1000]):
        used = mean_in_use(
            rows.scheduled_time - zero, rows.deletion_time - zero, rows.gpus, 3600, until
        )
        if name[0] in ("LS", "BE") and used.mean() > 0.5:
            series[f"openb/{name[0]} {'shared' if name[1] else 'whole'}"] = used
    series |= dict(wanted_gpus(place, series))
    requests = pd.read_csv(place / "nab_requests_5min.csv.gz")
    for name, rows in requests.groupby("series"):
        series[f"requests/{name}"] = (
            as_gpus(rows.value.to_numpy(float)[: 31 * 288], 20).reshape(-1, 12).mean(1)
        )
    rides = pd.read_csv(place / "nab_taxi_30min.csv.gz").value.to_numpy(float)[: 31 * 48]
    series["requests/taxi"] = (rides / rides.mean() * 80).reshape(-1, 2).mean(1)
    return series


def wanted_gpus(place, series):
    """Running and pending GPUs of the teams of helios for which that is another series."""
    table = pd.read_csv(place / "helios_earth_team_gpus_5min.csv.gz", parse_dates=["ts"])
    table["demand"] = table.gpus_running + table.gpus_pending
    for team, rows in table.groupby("team"):
        running = series.get(f"helios/{team}")
        wanted = rows.set_index("ts").demand.resample("1h").mean().to_numpy()[:744]
        if running is not None and np.abs(wanted - running).mean() > 0.05 * wanted.mean():
            yield f"demand/{team}", wanted


def labeled_cases(judge_loop, series, base, seeds):
    """Every series clean and with each set of injections."""
    for number, name in enumerate(sorted(series)):
        values = series[name].astype(float)
        sets = [("clean", 0, (values * judge_loop.PRICE, values, []))]
        for seed, copy in itertools.product(seeds, "ABC"):
            chance = np.random.default_rng(1000 * number + seed)
            sets.append((copy, seed, judge_loop.inject(values, copy, chance)))
        for copy, seed, (cost, gpus, events) in sets:
            chance = np.random.default_rng([number, seed, ord(copy[0])])
            workloads = with_injections(base[name], values, gpus, events, chance)
            yield labeled_case(name, copy, seed, cost, gpus, events, workloads)


def labeled_case(name, copy, seed, cost, gpus, events, workloads):
    """A case with the inputs that `--inputs` names."""
    rate = np.divide(cost, gpus, out=np.full(len(gpus), np.nan), where=gpus > 0)
    price = price_rises(rate, HOUR)
    values = gpus
    if "price" not in INPUTS:
        values, price = cost, np.zeros(len(gpus), dtype=bool)
    long_running = np.where(np.isfinite(gpus), workloads.long_running(len(gpus)), np.nan)
    storms = []
    if "workloads" in INPUTS:
        storms = find_storms(name, workloads.runs(), 0)
    else:
        long_running[:] = np.nan
    return Case(
        name,
        copy,
        seed,
        cost,
        values,
        events,
        price,
        workloads,
        long_running,
        [storm_hours(storm) for storm in storms],
        rolling_baseline(Series(name, 0, HOUR, values)),
        rolling_baseline(Series(name, 0, HOUR, long_running)),
    )


def storm_hours(storm):
    """First and last hour in which a storm is known, and the GPU-hours of a day of it."""
    held = sum(run.gpu_ns for run in storm.runs) / 3.6e12
    hours = max(1.0, (storm.until_ms - storm.begin_ms) / HOUR)
    return storm.opened_ms // HOUR, storm.until_ms // HOUR, 24 * held / hours


def flags(case, tuning=TUNED):
    """Our alarms: usage judged, the rate and workloads beside it, as the collector does it."""
    # No setting changes the baselines: they are computed once a case.
    pasts = iter((case.past, case.past_of_long_running))
    with patch(
        "gpuledger_collector.insight.anomalies.detector.rolling_baseline", lambda _: next(pasts)
    ):
        series = Series(case.name, 0, HOUR, case.gpus)
        judged = detect(series, case.price, case.long_running, tuning)
    spans = [(episode.first, episode.last) for episode in group_episodes(judged)]
    # A storm is no alarm of its own where one has begun with it.
    storms = {
        (first, last): gpu_hours
        for first, last, gpu_hours in case.storms
        if not any(
            begin <= last and end >= first and begin >= first - MERGE_HOURS for begin, end in spans
        )
    }
    return Alarms([*spans, *storms], len(case.gpus), storms)


BUSY = 0.8
"""Share of its time that a workload is busy; what a plateau is made of never is."""


class Book:
    """The hours of a series as the collector's ledger has them: its workloads, a price book, and
    what was seen.
    """

    standby = False

    def __init__(self, case):
        known = np.isfinite(case.gpus)
        rate = np.divide(case.cost, case.gpus, out=np.full(len(known), np.nan), where=case.gpus > 0)
        rate = pd.Series(rate).ffill().bfill().to_numpy()
        starts = np.r_[0, np.flatnonzero(np.abs(np.diff(rate)) > 1e-9) + 1]
        self._prices = [
            Price(
                None,
                "",
                "gpu",
                "on_demand",
                Decimal(str(round(rate[at], 6))),
                "USD",
                int(at) * HOUR if at else 0,
            )
            for at in starts
        ]
        self._names = case.workloads.name
        self._uses = list(hourly_uses(case.workloads, known))
        self._seen = {("pool", at * HOUR): float(known[at]) for at in range(len(known))}
        self.findings = []

    @contextmanager
    def transaction(self, _lock):
        yield self

    def stores(self):
        """Stand-ins for the storage modules that the search calls, each function with the
        connection first.
        """
        facts = {
            number: WorkloadFacts(number, "slurm", None, None, str(name), {"team": "team"})
            for number, name in enumerate(self._names)
        }
        return {
            "minutes": SimpleNamespace(
                hourly_use=lambda *_: self._uses, coverage=lambda *_: self._seen
            ),
            "findings": SimpleNamespace(
                overlapping=lambda *_: [], drop=_ignore, set_progress=_ignore, upsert=self._put
            ),
            "prices": SimpleNamespace(price_book=lambda *_: PriceBook(self._prices)),
            "rules": SimpleNamespace(current=lambda _: []),
            "workloads": SimpleNamespace(facts=lambda *_: facts),
        }

    def _put(self, _connection, findings):
        self.findings = list(findings)
        return len(self.findings)


def _ignore(*_):
    pass


def hourly_uses(workloads, known):
    """What each workload held in each known hour."""
    rows = []
    for number, (start, end, gpus) in enumerate(
        zip(workloads.start, workloads.end, workloads.gpus, strict=True)
    ):
        for hour in range(int(max(start, 0)), min(len(known), int(np.ceil(end)))):
            held_ms = round((min(end, hour + 1) - max(start, hour)) * HOUR)
            if known[hour] and held_ms > 0:
                rows.append((hour * HOUR, number, held_ms, gpus))
    for at_ms, number, held_ms, gpus in sorted(rows):
        busy = 0.0 if workloads.unused is not None and workloads.unused[number] else BUSY
        yield WorkloadUsage(
            at_ms,
            number,
            "pool",
            "gpu",
            "",
            round(held_ms * 1_000_000 * gpus),
            held_ms,
            round(gpus * 1e6),
            round(busy * held_ms * gpus),
            round((1 - busy) * held_ms * gpus),
        )


def ledger(case):
    """The episodes that the search in the ledger keeps."""
    book = Book(case)
    hours = len(case.gpus)
    with patch.multiple("gpuledger_collector.services.anomaly_search", **book.stores()):
        find_anomalies(book, hours * HOUR)
    return Alarms(
        [
            (finding.opened_ms // HOUR - (finding.state != STORM), -(-finding.until_ms // HOUR) - 1)
            for finding in book.findings
        ],
        hours,
    )


def episodes_with_causes(case):
    """Each episode of the ledger as its cause is looked for."""
    seen = []
    explain = causes.explain

    def record(each):
        seen.append(each)
        return explain(each)

    with patch("gpuledger_collector.insight.anomalies.spending_findings.explain", record):
        ledger(case)
    return seen


def usual_costs(cases, company=lambda case: case.family):
    """What GPUs cost before each day, by company with one set of injections and day: as the
    collector has it from rated days, here of known hours.
    """
    companies = {}
    for case in cases:
        companies.setdefault((company(case), case.copy, case.seed), []).append(case)
    usual = {}
    for teams in companies.values():
        for day in range(len(teams[0].cost) // 24 + 1):
            days = min(day, anomaly_floors.USUAL_DAYS)
            micros = {
                (team.name, "USD"): micro(np.nanmean(part) * 24 * days)
                for team in teams
                if np.isfinite(part := team.cost[24 * (day - days) : 24 * day]).any()
            }
            costs = anomaly_floors.UsualCosts(days, {"USD": sum(micros.values())}, micros)
            usual |= {(team.name, team.copy, team.seed, day): costs for team in teams}
    return usual


def micro(amount):
    """A cost in micro-units."""
    return round(float(amount) * 1_000_000)


def mailed(judge_loop, case, alarms, usual):
    """The alarms that are mailed by themselves, from the hour on in which they are; those that cost
    no more than a week before are none, as in the collector's search.
    """
    spans = []
    for first, last in alarms.spans:
        for hour in range(first, last + 1):
            per_day = per_day_so_far(judge_loop, case, alarms, (first, last), hour)
            episode = SimpleNamespace(team=case.name, currency="USD", per_day_micro=micro(per_day))
            day = (hour + 1) // 24
            if per_day > 0 and not usual[case.name, case.copy, case.seed, day].is_small(episode):
                spans.append((hour, last))
                break
    return Alarms(spans, len(alarms))


def per_day_so_far(judge_loop, case, alarms, span, hour):
    """What a day of an alarm costs more than the same hours of weeks before, as of an hour of it."""
    if span in alarms.per_day:
        return alarms.per_day[span] * judge_loop.PRICE
    hours = hour - span[0] + 1
    now, before = (
        np.nansum(case.cost[max(0, span[0] - ago) : max(0, hour + 1 - ago)])
        for ago in (0, 168 * -(-hours // 168))
    )
    return (now - before) * 24 / hours


def report_floors(judge_loop, cases, scores, company, title):
    """Print what shares of what is usual hold back: of alarms in clean weeks, and of injections that
    are found, with what a day of them costs by a day of their company.
    """
    usual = usual_costs(cases, company)
    clean = {case.name: case.cost for case in cases if case.copy == "clean"}
    print(
        f"\n| {title}: of all, % | of the team, % | mails | in clean weeks | in no injection |"
        " injections told | the dearest that is not, % of all | their part of what all cost, % |"
        f"\n|{'---|' * 8}"
    )
    told = None
    for shares in option("floors", "0:0,0.5:50,1:25,1:50,1:100,2:50,3:50,5:50").split(","):
        of_all, of_team = (float(share) for share in shares.split(":"))
        with (
            patch.object(anomaly_floors, "PERCENT_OF_ALL", of_all),
            patch.object(anomaly_floors, "PERCENT_OF_TEAM", of_team),
        ):
            mails = [
                judge_loop.alarms(mailed(judge_loop, case, score, usual), 0.5, 1)
                for case, score in zip(cases, scores, strict=True)
            ]
        costs = {}
        for case, spans in zip(cases, mails, strict=True):
            day = usual[case.name, case.copy, case.seed, len(case.cost) // 24]
            whole = day.all_micro["USD"] / 1e6 / day.days
            for kind, start, end, anomalous in case.events:
                if anomalous and is_hit(spans, start, end):
                    extra = np.nanmean((case.cost - clean[case.name])[start:end]) * 24
                    costs[case.name, case.copy, case.seed, kind] = extra / whole
        told = told or costs
        held = [cost for key, cost in told.items() if key not in costs]
        false = [
            not any(last >= start and first < end for _, start, end, good in case.events if good)
            for case, spans in zip(cases, mails, strict=True)
            for first, last in spans
            if case.copy != "clean"
        ]
        in_clean = sum(
            len(spans) for case, spans in zip(cases, mails, strict=True) if case.copy == "clean"
        )
        print(
            f"| {of_all:g} | {of_team:g} | {sum(map(len, mails))} | {in_clean} | {sum(false)} |"
            f" {len(costs)} | {100 * max(held, default=0):.2f} |"
            f" {100 * sum(held) / sum(told.values()):.2f} |",
            flush=True,
        )


def is_hit(spans, start, end):
    """Whether an injection is found, as the loop says it."""
    return any(last >= start and start - 12 <= first < end for first, last in spans)


def figures(judge_loop, cases, scores, threshold=0.5, hours=1):
    """Figures of the loop by family of the cases."""
    items = {}
    for case, score in zip(cases, scores, strict=True):
        items.setdefault(case.family, []).append((case.name, case.copy, score, case.events))
    return {family: judge_loop.evaluate(part, threshold, hours) for family, part in items.items()}


def merit(by_family, left_out):
    """Mean of recall and precision over the families without one; less a twentieth for each false
    alarm above what is allowed.
    """
    seen = [by_family[family] for family in FAMILIES if family != left_out]
    return np.mean(
        [
            (each["recall"] + each["precision"]) / 2
            - 0.05 * max(0.0, each["clean_fa"] - FALSE_ALARMS)
            for each in seen
        ]
    )


class Chooser:
    """Chooses settings of our detector on the cases of some families; every setting is judged
    once.
    """

    def __init__(self, judge_loop, cases):
        judged = [case for case in cases if case.family in FAMILIES]
        self._figures = {
            tuning: figures(judge_loop, judged, [flags(case, tuning) for case in judged])
            for tuning in (
                Tuning(**dict(zip(CHOICES, values, strict=True)))
                for values in itertools.product(*CHOICES.values())
            )
        }

    def choose(self, left_out):
        """The best setting on all families but `left_out`."""
        return max(self._figures, key=lambda each: merit(self._figures[each], left_out))


def left_out_of(case):
    """The family that is left out for a case."""
    return SAME_CLUSTER.get(case.family, case.family)


def count_series(cases):
    """Number of series by family."""
    names = {(case.family, case.name) for case in cases}
    return {
        family: sum(each == family for each, _ in names)
        for family in sorted({family for family, _ in names})
    }


def choose_threshold(judge_loop, cases, scores, left_out):
    """Threshold and persistence of a detector that gives a score, by the same merit."""
    clean = [score for case, score in zip(cases, scores, strict=True) if case.copy == "clean"]
    pool = np.concatenate([score[judge_loop.W :] for score in clean])
    grid = np.unique(np.quantile(pool, 1 - np.logspace(-0.6, -4, 24)))
    choices = itertools.product(grid, (1, 2, 4, 8))
    return max(choices, key=lambda each: merit(figures(judge_loop, cases, scores, *each), left_out))


def report(judge_loop, label, cases, scores):
    """Print a row for each family, given 0/1 flags, and one for all clusters; `requests` are in no
    total.
    """
    for family, measured in figures(judge_loop, cases, scores).items():
        row(label, family, measured)
    pairs = [pair for pair in zip(cases, scores, strict=True) if pair[0].family in FAMILIES]
    items = [(case.name, case.copy, score, case.events) for case, score in pairs]
    row(label, "all clusters", judge_loop.evaluate(items, 0.5, 1))


def row(name, group, measured):
    cells = " | ".join(f"{measured.get(key, float('nan')):.2f}" for key in SHOWN)
    print(f"| {name} | {group} | {cells} |", flush=True)


def as_flags(judge_loop, score, threshold, hours):
    """The alarms of a score."""
    return Alarms(judge_loop.alarms(score, threshold, hours), len(score))


def report_rivals(judge_loop, choosing, cases):
    for name in filter(None, option("rivals", "composite,ewma").split(",")):
        tried, scores = (
            [np.nan_to_num(judge_loop.DET[name](case.cost, case.gpus)) for case in each]
            for each in (choosing, cases)
        )
        chosen_on = [
            pair for pair in zip(choosing, tried, strict=True) if pair[0].family in FAMILIES
        ]
        known = {
            left: choose_threshold(judge_loop, *zip(*chosen_on, strict=True), left)
            for left in (*FAMILIES, None)
        }
        pairs = zip(cases, scores, strict=True)
        shown = [
            as_flags(judge_loop, score, *known.get(left_out_of(case), known[None]))
            for case, score in pairs
        ]
        report(judge_loop, f"{name}, left out", cases, shown)


def main() -> int:
    judge_loop, place = loop(), folder()
    chosen_on, seeds = (
        [int(seed) for seed in option(name, default).split(",")]
        for name, default in (("chosen-on", "10,11"), ("seeds", "40,41"))
    )
    series = load(judge_loop, place)
    base = base_workloads(place, series)
    choosing, cases = (
        list(labeled_cases(judge_loop, series, base, each)) for each in (chosen_on, seeds)
    )
    print(
        f"chosen on seeds {chosen_on}, shown on {seeds}; {count_series(cases)} series,"
        f" {FALSE_ALARMS} false alarms a team-month\n"
    )
    if "--without" in sys.argv:
        report_without(judge_loop, choosing, cases)
        report_causes([case for case in cases if case.seed in (0, seeds[0])])
        return 0
    print(f"| detector | series | {' | '.join(SHOWN)} |\n|{'---|' * (len(SHOWN) + 2)}")
    chooser = Chooser(judge_loop, choosing)
    chosen = {left_out: chooser.choose(left_out) for left_out in (*FAMILIES, None)}
    # Requests choose nothing: they are shown with what all clusters choose.
    scores = [flags(case, chosen.get(left_out_of(case), chosen[None])) for case in cases]
    usual = usual_costs(cases)
    report(judge_loop, "gpuledger, left out", cases, scores)
    report(
        judge_loop,
        "mailed, left out",
        cases,
        [mailed(judge_loop, case, score, usual) for case, score in zip(cases, scores, strict=True)],
    )
    report(judge_loop, "gpuledger, as shipped", cases, [flags(case) for case in cases])
    report(
        judge_loop,
        f"from the ledger, as shipped, seed {seeds[0]}",
        first := [case for case in cases if case.seed in (0, seeds[0]) and case.family in FAMILIES],
        [ledger(case) for case in first],
    )
    report_rivals(judge_loop, choosing, cases)
    for left_out, tuning in chosen.items():
        print(f"without {left_out or 'none'}: {asdict(tuning)}")
    print(f"ships: {asdict(TUNED)}")
    report_floors(judge_loop, cases, scores, lambda case: case.family, "each family a company")
    whole = [pair for pair in zip(cases, scores, strict=True) if pair[0].family in FAMILIES]
    report_floors(judge_loop, *zip(*whole, strict=True), bool, "all clusters one company")
    at_once(judge_loop, place, seeds)
    return 0


def report_without(judge_loop, choosing, cases):
    """Print what each part of the detector is worth, and each rule of causes."""
    changed_cases = {}

    def judge(part, tuning, show):
        with changed(part.values):
            if (id(part), show) not in changed_cases:
                changed_cases.clear()
                changed_cases[id(part), show] = [
                    case_without(part, case)
                    for case in (cases if show else choosing)
                    if show or case.family in FAMILIES
                ]
            some = changed_cases[id(part), show]
            scores = [flags(case, tuning) for case in some]
        found = figures(judge_loop, some, scores)
        if show:
            pairs = [pair for pair in zip(some, scores, strict=True) if pair[0].family in FAMILIES]
            items = [(case.name, case.copy, score, case.events) for case, score in pairs]
            found["all clusters"] = judge_loop.evaluate(items, 0.5, 1)
        return found

    families = {
        family: [each for each in FAMILIES if each != SAME_CLUSTER.get(family, family)]
        for family in (*FAMILIES, "demand", "requests")
    }
    print(
        f"| without | merit | {' | '.join(families)} | thresholds | median delay | slowest tenth |"
        f"\n|{'---|' * (len(families) + 5)}"
    )
    for name, part in detector_parts().items():
        shown = figures_without(part, families, CHOICES["threshold"], judge)
        cells = [
            ", ".join(f"{each[key]:.2f}" for key in ("recall", "precision", "clean_fa"))
            for _, each in shown.values()
        ]
        delays = [
            np.nanmean([each[key] for _, each in shown.values()])
            for key in ("delay_med", "delay_p90")
        ]
        merit = np.mean([merit_of(each) for _, each in shown.values()])
        chosen = ", ".join(f"{threshold:g}" for threshold, _ in shown.values())
        print(
            f"| {name} | {merit:.3f} | {' | '.join(cells)} | {chosen} | {delays[0]:.1f} |"
            f" {delays[1]:.0f} |",
            flush=True,
        )


def case_without(part, case):
    """A case without a part."""
    if part.storms:
        storms = find_storms(case.name, case.workloads.runs(), 0)
        case = replace(
            case,
            storms=[storm_hours(storm) for storm in storms],
        )
    return part.case(case) if part.case else case


KIND_OF = {
    "runaway": causes.RUNAWAY,
    "retry_storm": causes.STORM,
    "plateau": causes.PLATEAU,
    "leak": causes.LEAK,
    "price": causes.PRICE,
}


def report_causes(cases):
    """Print for each rule of causes how often the episodes of an injection had its word, or named
    its workload, without the rule.
    """
    episodes = []
    for case in cases:
        found = episodes_with_causes(case)
        for kind, start, end, anomalous in case.events:
            here = [
                each
                for each in found
                if each.begin_ms < end * HOUR and each.until_ms > start * HOUR
            ]
            if anomalous and here:
                first = min(here, key=lambda each: abs(each.begin_ms - start * HOUR))
                name = case.workloads.injected.get((kind, start))
                episodes.append((case.family, kind, first, name))
    families = list(dict.fromkeys(family for family, *_ in episodes))
    print(
        f"\n| causes without | right word | {' | '.join(families)} | {' | '.join(KIND_OF)} |"
        f" names the workload |\n|{'---|' * (len(families) + len(KIND_OF) + 3)}"
    )
    for name, values in cause_parts().items():
        with changed({f"causes.{key}": value for key, value in values.items()}):
            told = [(*each, causes.explain(each[2])) for each in episodes]
        right = [cause.kind == KIND_OF[kind] for _, kind, _, _, cause in told]
        named = [who in cause.workloads for *_, who, cause in told if who is not None]
        cells = [
            np.mean([each for each, row in zip(right, told, strict=True) if row[place] == value])
            for place, values in ((0, families), (1, KIND_OF))
            for value in values
        ]
        print(
            f"| {name} | {np.mean(right):.3f} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"
            f" {np.mean(named):.3f} |",
            flush=True,
        )
    print(f"{len(episodes)} episodes of injections")


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
            whole = (
                table[table.team == team]
                .set_index("ts")
                .gpus_running.resample("5min")
                .mean()
                .to_numpy()
            )
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
    """What the rule that looks every minute sees of runaways in their first ten minutes, and of
    clean weeks.
    """
    print(
        "\n| series | runaways | seen within 10 minutes | ever | false alarms a month"
        " |\n|---|---|---|---|---|"
    )
    sums = {"serving": [0, 0, 0, 0, 0.0], "research": [0, 0, 0, 0, 0.0]}
    for number, (name, values) in enumerate(five_minutes(judge_loop, place)):
        total = sums[name.partition(":")[0]]
        clean = standing_out(values)
        total[3] += 0 if not len(clean) else 1 + int((np.diff(clean) > 12 * STEPS).sum())
        total[4] += (len(values) / STEPS - judge_loop.W) / 720
        level = max(np.median(values[: judge_loop.W * STEPS].reshape(-1, STEPS).mean(1)), 4.0)
        for seed, size in itertools.product(seeds, (0.3, 0.5, 1.0)):
            chance = np.random.default_rng(1000 * number + seed + round(100 * size))
            start = (judge_loop.W + chance.integers(1, 14) * 24) * STEPS + chance.integers(
                0, 24 * STEPS
            )
            wild = values.copy()
            stop = start + chance.integers(24, 72) * STEPS
            wild[start:stop] += size * level
            seen = [at for at in standing_out(wild) if start <= at < stop]
            total[0] += 1
            total[1] += bool(seen and seen[0] - start < 2)
            total[2] += bool(seen)
    for kind, (count, soon, ever, false, months) in sums.items():
        print(
            f"| {kind} | {count} | {soon / count:.2f} | {ever / count:.2f} | {false / months:.2f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
