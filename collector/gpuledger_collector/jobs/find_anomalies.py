"""Spending that stands out becomes a finding per episode: whose, since when, why, and what it comes to.

Each team's hours are priced three times: at the first rates, which leaves usage alone and is judged by the estimator;
at those in force; and at those of three days before, which says from the price book alone how much dearer the same
usage has become. The money at stake is exact: what the episode's hours cost, less what the same hours cost a week (or
days) before, in price, volume and mix. What stands behind it is told from the runs themselves (natures.py); a storm of
short runs is found by them alone, however little it costs, as an episode of the state `storm`. An hour that nobody saw
is unknown: neither a saving nor an anomaly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts
from gpuledger_collector.accounting.budgets import Driver, HolderSpend, drivers, top
from gpuledger_collector.accounting.money import MICRO, cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook, PurchaseChoice
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.insight.anomalies import AnomalyEpisode, Detection, detect, group_episodes
from gpuledger_collector.insight.anomalies.causes import (
    AnomalyCase,
    AnomalyCause,
    RateChange,
    RetryStorm,
    WorkloadRun,
    explain,
    find_storms,
)
from gpuledger_collector.insight.anomalies.detector import MERGE_HOURS, PRICE_RISE, Flags
from gpuledger_collector.insight.findings import Finding, WorkloadUsage
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.rating import Owners

KIND = "anomaly"
DAYS = 42
"""How far back spending is read; all but the first three days of it are judged."""
WEEK_MS = 7 * DAY_MS
COVERED = 0.9
LEAST_OF_DAY = 0.05
"""An episode that comes to less than this part of its owner's usual day, over what was expected or over the same hours
before, is not worth a person's time; a dearer rate always is."""
SHOWN_DRIVERS = 5
STORM = "storm"
FIRST_MINUTE = "first_minute_ms"
"""In the evidence of an episode that minutes told first: when its first workload began (unix ms)."""
BY_MINUTES = "by_minutes"
"""In the evidence of an episode that was told from minutes (watch_spending.py) and that no hour has confirmed yet."""
STORM_OVER_MS = 2 * HOUR_MS
STORM_CONFIDENCE = 0.8
"""Not measured: no open trace says which rows of short runs are retries. Printed as the guess that it is."""


class SpendingUnit(Protocol):
    """One transaction over one snapshot."""

    def prices(self) -> Sequence[Price]:
        """The price book in force."""

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""

    def rules(self) -> Sequence[Rule]:
        """The attribution rules in force."""

    def workloads(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """Facts of these workloads."""

    def hourly_use(self, start_ms: int, end_ms: int) -> Sequence[WorkloadUsage]:
        """What workloads held, by rating interval."""

    def coverage(self, start_ms: int, end_ms: int) -> Mapping[tuple[str, int], float]:
        """By pool and clock hour, what part of the capacity's time anybody saw."""

    def overlapping(self, kind: str, start_ms: int, end_ms: int) -> Sequence[Finding]:
        """Findings of a kind that were seen in the period or go on."""

    def put(self, findings: Iterable[Finding]) -> int:
        """Write findings, those that are known anew."""

    def drop(self, keys: Sequence[str]) -> None:
        """Remove findings that a new look no longer sees."""

    def set_mark(self, kind: str, until_ms: int) -> None:
        """The search of this kind has come so far."""


class Spending(Protocol):
    """Where usage and findings are kept."""

    def unit(self) -> AbstractContextManager[SpendingUnit]:
        """A transaction, alone in searching."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One workload's use in an rating interval, with its exact cost and what it would have cost at the first rates."""

    use: WorkloadUsage
    label: tuple[str, ...]
    cost_micro: int
    at_first_rates: float
    before_micro: int
    """At the rates of three days before."""
    rate: str


@dataclass
class Team:
    """What one team spent in one currency."""

    name: str
    currency: str
    spent: list[Spent] = field(default_factory=list)
    runs: list[WorkloadRun] = field(default_factory=list)
    """By begin; filled when all of `spent` is known."""
    pools: set[str] = field(default_factory=set)
    first_rates: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By pool, model and node: the rate at which its series is judged."""

    @property
    def said(self) -> str:
        """The team as people read it."""
        return self.name or "(unattributed)"

    def series(self, end_ms: int, coverage: Mapping[tuple[str, int], float]) -> tuple[Series, Flags]:
        """Hourly spend at first rates, NaN where nobody saw enough; and where rates have risen."""
        start = min(one.use.rating_interval_ms for one in self.spent) // HOUR_MS * HOUR_MS
        hours = (end_ms - start) // HOUR_MS
        first, actual, before = np.zeros(hours), np.zeros(hours), np.zeros(hours)
        for one in self.spent:
            at = (one.use.rating_interval_ms - start) // HOUR_MS
            first[at] += one.at_first_rates
            actual[at] += one.cost_micro
            before[at] += one.before_micro
        for at in range(hours):
            if any(coverage.get((pool, start + at * HOUR_MS), 0.0) < COVERED for pool in self.pools):
                first[at] = np.nan
        return Series(self.name, start, HOUR_MS, first), actual > PRICE_RISE * before


def find_anomalies(store: Spending, now_ms: int) -> int:
    """Judge every team's hours anew; how many episodes stand."""
    end = now_ms // HOUR_MS * HOUR_MS
    start = end - DAYS * DAY_MS
    with store.unit() as unit:
        uses = unit.hourly_use(start, end)
        if not uses:
            return 0
        coverage = unit.coverage(start, end)
        before = {one.key: one for one in unit.overlapping(KIND, start, end)}
        found: list[Finding] = []
        for team in teams_of(unit, uses):
            judged = detect(*team.series(end, coverage))
            pairs = [
                (_finding(team, judged, episode, list(before.values())), episode) for episode in group_episodes(judged)
            ]
            made = [one for one, episode in pairs if _worth_telling(one, judged, episode)]
            found += made
            found += [
                _storm(team, one, start, end)
                for one in find_storms(team.said, team.runs, start)
                if not _told(one, made)
            ]
        keys = {one.key for one in found}
        # What began before the hours that are still read is history; what a new look no longer sees was none.
        settled = start + 15 * DAY_MS
        unit.drop(
            [
                key
                for key, one in before.items()
                if key not in keys and one.since_ms >= settled and BY_MINUTES not in one.evidence
            ]
        )
        unit.set_mark(KIND, end)
        return unit.put(_unique(found))


def _unique(found: Iterable[Finding]) -> list[Finding]:
    return list({one.key: one for one in found}.values())


def teams_of(unit: SpendingUnit, uses: Sequence[WorkloadUsage]) -> list[Team]:
    """What each team spent, by currency; usage without a rate has no price that could stand out."""
    book = PriceBook(unit.prices(), unit.purchase_choices())
    facts = unit.workloads(sorted({use.workload_id for use in uses}))
    owners = Owners(unit.rules(), facts)
    teams: dict[tuple[str, str], Team] = {}
    first: dict[tuple[str, str, str], Price] = {}
    for use in uses:
        price = book.price_at(use.pool, use.gpu_model, use.node, "", use.rating_interval_ms)
        if price is None:
            continue
        reference = first.setdefault((use.pool, use.gpu_model, use.node), price)
        earlier = book.price_at(use.pool, use.gpu_model, use.node, "", use.rating_interval_ms - 3 * DAY_MS) or price
        name = owners.at(use.pool, use.node)(use.workload_id, use.rating_interval_ms, None).team
        team = teams.setdefault((name, price.currency), Team(name, price.currency))
        team.first_rates[use.pool, use.gpu_model, use.node] = float(reference.rate)
        hours = use.gpu_ns / GPU_NS_PER_HOUR
        said = facts[use.workload_id].name or str(use.workload_id)
        team.spent.append(
            Spent(
                use,
                (said,),
                cost_micro(use.gpu_ns, price.rate),
                hours * float(reference.rate),
                cost_micro(use.gpu_ns, earlier.rate),
                f"{price.rate.normalize():f}",
            )
        )
        team.pools.add(use.pool)
    for team in teams.values():
        team.runs = runs_of(team.spent, max(use.rating_interval_ms for use in uses))
    return [teams[key] for key in sorted(teams)]


def runs_of(spent: Iterable[Spent], last_ms: int) -> list[WorkloadRun]:
    """Workloads as they were held, by begin; those that held up to the end of the last hour go on.

    The ledger says how long a workload held in each rating interval, not from when: in its first it held to the end, in
    its last from the begin, as those do that go over an edge. Runs of one name within a single rating interval are put
    one after the other.
    """
    of: dict[int, list[Spent]] = defaultdict(list)
    for one in spent:
        of[one.use.workload_id].append(one)
    made = []
    taken: dict[tuple[str, int], int] = defaultdict(int)
    for ones in of.values():
        longest: dict[int, int] = defaultdict(int)
        gpus: dict[int, int] = defaultdict(int)
        for one in ones:
            longest[one.use.rating_interval_ms] = max(longest[one.use.rating_interval_ms], one.use.longest_ms)
            gpus[one.use.rating_interval_ms] += one.use.gpu_micro
        name, first, last = ones[0].label[0], min(longest), max(longest)
        begin, end = max(first, first + HOUR_MS - longest[first]), last + longest[last]
        if first == last:
            begin = first + min(taken[name, first], HOUR_MS - longest[first])
            end = begin + longest[first]
            taken[name, first] = end - first
        made.append(
            WorkloadRun(
                name=name,
                start_ms=begin,
                end_ms=end,
                gpu_micro=max(gpus.values()),
                gpu_ns=sum(one.use.gpu_ns for one in ones),
                busy_ms=sum(one.use.busy_ms for one in ones),
                idle_ms=sum(one.use.idle_ms for one in ones),
                cost_micro=sum(one.cost_micro for one in ones),
                going_on=end >= last_ms // HOUR_MS * HOUR_MS + HOUR_MS,
            )
        )
    return sorted(made, key=lambda run: (run.start_ms, run.name))


def _finding(team: Team, judged: Detection, episode: AnomalyEpisode, known: Sequence[Finding]) -> Finding:
    series = judged.series
    begin = series.start_ms + episode.first * HOUR_MS
    until = series.start_ms + (episode.last + 1) * HOUR_MS
    last = series.start_ms + len(series.values) * HOUR_MS
    subject = team.said
    same = _same(known, team, begin, until)
    first = None if same is None else same.evidence.get(FIRST_MINUTE)
    if first is not None:
        begin = min(begin, max(series.start_ms, first // HOUR_MS * HOUR_MS))
    price = judged.price[episode.first : episode.last + 1]
    usage = (judged.flag & ~judged.price)[episode.first : episode.last + 1]
    back = _week_or_days(begin - series.start_ms, until - begin)
    why = _drivers(team, begin, until, back)
    change = sum(driver.change_micro for driver in why)
    rates = _rates(team, begin, until, back)
    cause = _cause(team, judged, episode, begin, until, why, rates)
    return Finding(
        key=same.key if same else f"{KIND}:{subject}:{team.currency}:{begin}",
        kind=KIND,
        state="both" if price.any() and usage.any() else "price" if price.any() else "usage",
        subject=subject,
        accelerator_id=None,
        workload_id=None,
        team=team.name,
        owner={"team": team.name} if team.name else {},
        since_ms=begin,
        opened_ms=same.opened_ms if same else begin + HOUR_MS,
        until_ms=until,
        resolved_ms=until if last - until > 12 * HOUR_MS else None,
        confidence=round(_confidence(judged, episode), 3),
        currency=team.currency,
        cost_micro=change,
        per_day_micro=change * DAY_MS // (until - begin),
        evidence={
            "days_before": back // DAY_MS,
            "price_micro": sum(driver.price_micro for driver in why),
            "volume_micro": sum(driver.volume_micro for driver in why),
            "mix_micro": sum(driver.mix_micro for driver in why),
            "drivers": [_said(driver) for driver in top(why, SHOWN_DRIVERS)],
            "rates": rates,
            **told_as(cause),
            **({} if first is None else {FIRST_MINUTE: first}),
            "highest_score": round(float(np.nanmax(judged.score[episode.first : episode.last + 1])), 2),
        },
    )


def _same(known: Iterable[Finding], team: Team, begin_ms: int, until_ms: int) -> Finding | None:
    """What was found of this episode before; of what minutes told, also when hours see it some time later only."""
    for one in known:
        reach = MERGE_HOURS * HOUR_MS if BY_MINUTES in one.evidence else 0
        if (
            (one.subject, one.currency) == (team.said, team.currency)
            and one.state != STORM
            and one.since_ms < until_ms
            and one.until_ms + reach > begin_ms
        ):
            return one
    return None


def told_as(cause: AnomalyCause) -> dict[str, object]:
    """A nature as evidence keeps it."""
    return {"cause": cause.kind, "sentence": cause.sentence, "workloads": list(cause.workloads)}


def _cause(
    team: Team,
    judged: Detection,
    episode: AnomalyEpisode,
    begin_ms: int,
    until_ms: int,
    why: Sequence[Driver],
    rates: Sequence[Mapping[str, str]],
) -> AnomalyCause:
    moved: dict[str, int] = defaultdict(int)
    for driver in why:
        moved[driver.label[0]] += driver.change_micro
    hours = judged.series.values[max(0, episode.first - 48) : episode.last + 1]
    daily = [
        float(np.nanmean(part)) for at in range(0, len(hours), 24) if np.isfinite(part := hours[at : at + 24]).any()
    ]
    case = AnomalyCase(
        team.said,
        begin_ms,
        until_ms,
        team.runs,
        moved,
        sum(driver.price_micro for driver in why),
        team.currency,
        [RateChange(**rate) for rate in rates],
        daily,
    )
    return explain(case)


def _told(storm: RetryStorm, made: Iterable[Finding]) -> bool:
    """Whether an episode of spending is about this storm already."""
    return any(
        storm.name in one.evidence["workloads"] and one.since_ms < storm.until_ms and one.until_ms > storm.begin_ms
        for one in made
    )


def _storm(team: Team, storm: RetryStorm, start_ms: int, end_ms: int) -> Finding:
    """A storm as an episode of its own; its money is what the name cost more than in the same hours before."""
    begin, until = storm.begin_ms // HOUR_MS * HOUR_MS, -(-storm.until_ms // HOUR_MS) * HOUR_MS
    back = _week_or_days(begin - start_ms, until - begin)
    why = [driver for driver in _drivers(team, begin, until, back) if driver.label == (storm.name,)]
    change = sum(driver.change_micro for driver in why)
    return Finding(
        key=f"{KIND}:{STORM}:{team.said}:{team.currency}:{storm.name}:{storm.begin_ms}",
        kind=KIND,
        state=STORM,
        subject=team.said,
        accelerator_id=None,
        workload_id=None,
        team=team.name,
        owner={"team": team.name} if team.name else {},
        since_ms=storm.begin_ms,
        opened_ms=storm.opened_ms,
        until_ms=storm.until_ms,
        resolved_ms=storm.until_ms if end_ms - storm.until_ms > STORM_OVER_MS else None,
        confidence=STORM_CONFIDENCE,
        currency=team.currency,
        cost_micro=change,
        per_day_micro=change * DAY_MS // max(HOUR_MS, storm.until_ms - storm.begin_ms),
        evidence={
            "days_before": back // DAY_MS,
            "price_micro": sum(driver.price_micro for driver in why),
            "volume_micro": sum(driver.volume_micro for driver in why),
            "mix_micro": sum(driver.mix_micro for driver in why),
            "drivers": [_said(driver) for driver in top(why, SHOWN_DRIVERS)],
            "rates": [],
            **told_as(storm.cause),
            "runs": len(storm.runs),
        },
    )


def _worth_telling(one: Finding, judged: Detection, episode: AnomalyEpisode) -> bool:
    if judged.price[episode.first : episode.last + 1].any() and one.evidence["price_micro"] > 0:
        return True
    # Both: what is told is the cost against the same hours before, which may have been as high.
    return min(one.cost_micro or 0, episode.excess * MICRO) > LEAST_OF_DAY * _usual_day(judged)


def _usual_day(judged: Detection) -> float:
    """Micro-units of the owner's median day."""
    known = judged.series.values[np.isfinite(judged.series.values)]
    return 24e6 * float(np.median(known)) if len(known) else 0.0


def _week_or_days(behind_ms: int, length_ms: int) -> int:
    """How far back the comparison lies: a week, more when the episode is longer, days when there is less history."""
    wanted = max(WEEK_MS, -(-length_ms // WEEK_MS) * WEEK_MS)
    if behind_ms >= wanted:
        return wanted
    return max(DAY_MS, -(-length_ms // DAY_MS) * DAY_MS)


def _drivers(team: Team, begin_ms: int, until_ms: int, back_ms: int) -> list[Driver]:
    """Why the episode cost what it did, against the same hours before."""
    before = [_held(one) for one in team.spent if begin_ms <= one.use.rating_interval_ms + back_ms < until_ms]
    after = [_held(one) for one in team.spent if begin_ms <= one.use.rating_interval_ms < until_ms]
    return drivers(before, after)


def _held(one: Spent) -> HolderSpend:
    return HolderSpend(one.label, one.use.gpu_model, one.use.gpu_ns, one.cost_micro)


def _said(driver: Driver) -> dict[str, object]:
    return {
        "workload": " ".join(driver.label),
        "model": driver.model,
        "change_micro": driver.change_micro,
        "price_micro": driver.price_micro,
        "volume_micro": driver.volume_micro,
        "mix_micro": driver.mix_micro,
    }


def _rates(team: Team, begin_ms: int, until_ms: int, back_ms: int) -> list[dict[str, str]]:
    """Rates of the episode that differ from those of the same hours before, by pool and model."""
    old: dict[tuple[str, str], set[str]] = defaultdict(set)
    new: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in team.spent:
        key = (one.use.pool, one.use.gpu_model)
        if begin_ms <= one.use.rating_interval_ms + back_ms < until_ms:
            old[key].add(one.rate)
        if begin_ms <= one.use.rating_interval_ms < until_ms:
            new[key].add(one.rate)
    return [
        {
            "pool": pool,
            "model": model,
            "before": ", ".join(sorted(old[pool, model])),
            "now": ", ".join(sorted(new[pool, model])),
        }
        for pool, model in sorted(new)
        if old.get((pool, model)) and old[pool, model] != new[pool, model]
    ]


def _confidence(judged: Detection, episode: AnomalyEpisode) -> float:
    """Part of the episode's known hours that were flagged; 1 where the price book says so."""
    part = slice(episode.first, episode.last + 1)
    if judged.price[part].any():
        return 1.0
    known = np.isfinite(judged.score[part])
    return float(judged.flag[part].sum() / max(1, known.sum()))
