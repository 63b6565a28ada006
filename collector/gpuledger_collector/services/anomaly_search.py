"""Find anomalous spending: a finding for each episode, with its team, start, cause and cost.

Each team's hours are priced three times: at the first rates, which isolates usage and is what the
detector sees; at the rates in force; and at those of three days before, which shows from the price
book alone how much dearer the same usage has become. The cost of an episode is exact: what its
hours cost, less what the same hours cost a week (or days) before, split into price, volume and mix.
The cause comes from the runs themselves (insight.anomalies.causes); a storm of short runs is found
from them alone, however little it costs, as an episode with the state `storm`. An hour without
evidence is unknown: neither a saving nor an anomaly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuledger_collector.accounting.budgets import Driver, HolderSpend, drivers, top
from gpuledger_collector.accounting.money import MICRO, cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price
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
from gpuledger_collector.insight.anomalies.detector import MERGE_HOURS, PRICE_RISE
from gpuledger_collector.insight.findings import Finding, WorkloadUsage
from gpuledger_collector.insight.series import Flags, Series
from gpuledger_collector.services.rating import Owners
from gpuledger_collector.storage.billing import price_book
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minutes

KIND = "anomaly"
HISTORY_DAYS = 42
"""Days of spending that are read; all but the first three of them are judged."""
SETTLED_DAYS = 15
"""Findings that began within the first days of the history stay as they are: their context is no
longer read.
"""
WEEK_MS = 7 * DAY_MS
MIN_COVERAGE = 0.9
MIN_SHARE_OF_DAY = 0.05
"""Episodes below this part of the team's usual day, over the expected cost or over the same hours
before, are not worth a person's time; a dearer rate always is.
"""
SHOWN_DRIVERS = 5
STORM = "storm"
FIRST_MINUTE = "first_minute_ms"
"""Evidence key of an episode that was first found from minutes: when its first workload began (unix
ms).
"""
BY_MINUTES = "by_minutes"
"""Evidence key of an episode that was found from minutes (spending_watch.py) and not confirmed by
an hour yet.
"""
STORM_ENDED_MS = 2 * HOUR_MS
"""A storm without a run for this long has ended."""
STORM_CONFIDENCE = 0.8
"""Not measured: no open trace marks which short runs are retries. Mails say that it is a guess."""


@dataclass(frozen=True, slots=True)
class PricedUsage:
    """One workload's usage in a rating interval with its exact cost, and its cost at the first
    rates.
    """

    usage: WorkloadUsage
    label: tuple[str, ...]
    cost_micro: int
    at_first_rates: float
    before_micro: int
    """At the rates of three days before."""
    rate: str

    def held(self) -> HolderSpend:
        """The usage as the comparison of two periods takes it."""
        return HolderSpend(self.label, self.usage.gpu_model, self.usage.gpu_ns, self.cost_micro)


@dataclass
class TeamSpending:
    """What one team spent in one currency."""

    name: str
    currency: str
    usage: list[PricedUsage] = field(default_factory=list)
    runs: list[WorkloadRun] = field(default_factory=list)
    """By start; filled once all of `usage` is known."""
    pools: set[str] = field(default_factory=set)
    first_rates: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By pool, model and node: the rate at which the series is judged."""

    @property
    def label(self) -> str:
        """The team as people read it."""
        return self.name or "(unattributed)"

    def series(
        self, end_ms: int, coverage: Mapping[tuple[str, int], float]
    ) -> tuple[Series, Flags]:
        """Hourly spending at the first rates, NaN without enough evidence; and the hours in which
        rates have risen.
        """
        start_ms = (
            min(priced.usage.rating_interval_ms for priced in self.usage) // HOUR_MS * HOUR_MS
        )
        hours = (end_ms - start_ms) // HOUR_MS
        first, actual, before = np.zeros(hours), np.zeros(hours), np.zeros(hours)
        for priced in self.usage:
            hour = (priced.usage.rating_interval_ms - start_ms) // HOUR_MS
            first[hour] += priced.at_first_rates
            actual[hour] += priced.cost_micro
            before[hour] += priced.before_micro
        # An hour that is seen in part only would look cheap: unknown is better than too low.
        for hour in range(hours):
            if any(
                coverage.get((pool, start_ms + hour * HOUR_MS), 0.0) < MIN_COVERAGE
                for pool in self.pools
            ):
                first[hour] = np.nan
        # A rise of the rate is visible in any hour, also in one with too little evidence to judge
        # usage.
        return Series(self.name, start_ms, HOUR_MS, first), actual > PRICE_RISE * before


def find_anomalies(database: Database, now_ms: int) -> int:
    """Judge every team's hours; return how many episodes there are.

    A read replica leaves it to the primary.
    """
    if database.standby:
        return 0
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - HISTORY_DAYS * DAY_MS
    with database.transaction(Lock.FINDINGS) as connection:
        usage = minutes.hourly_use(connection, start_ms, end_ms)
        if not usage:
            return 0
        coverage = minutes.coverage(connection, start_ms, end_ms)
        known = {
            finding.key: finding
            for finding in findings.overlapping(connection, KIND, start_ms, end_ms)
        }
        current: dict[str, Finding] = {}
        for team in team_spending(connection, usage):
            detection = detect(*team.series(end_ms, coverage))
            episodes = [
                finding
                for episode in group_episodes(detection)
                if _is_worth_telling(
                    finding := _episode_finding(team, detection, episode, list(known.values())),
                    detection,
                    episode,
                )
            ]
            storms = [
                _storm_finding(team, storm, start_ms, end_ms)
                for storm in find_storms(team.label, team.runs, start_ms)
                if not _is_explained(storm, episodes)
            ]
            current |= {finding.key: finding for finding in (*episodes, *storms)}
        # Findings of the settled days are kept, and so are those from minutes that no hour has
        # confirmed yet.
        vanished = [
            key
            for key, finding in known.items()
            if key not in current
            and finding.since_ms >= start_ms + SETTLED_DAYS * DAY_MS
            and BY_MINUTES not in finding.evidence
        ]
        findings.drop(connection, vanished)
        findings.set_progress(connection, KIND, end_ms)
        return findings.put(connection, current.values())


def team_spending(connection: Connection, usage: Sequence[WorkloadUsage]) -> list[TeamSpending]:
    """What each team spent, by currency; usage without a price is left out."""
    book = price_book.current(connection)
    facts = workloads.facts(connection, sorted({use.workload_id for use in usage}))
    owners = Owners(rules.current(connection), facts)
    teams: dict[tuple[str, str], TeamSpending] = {}
    first_prices: dict[tuple[str, str, str], Price] = {}
    for use in usage:
        price = book.price_at(use.pool, use.gpu_model, use.node, use.rating_interval_ms)
        if price is None:
            continue
        place = use.pool, use.gpu_model, use.node
        # The series is judged at the first rates: a price change must not look like a change of
        # usage.
        first_rate = float(first_prices.setdefault(place, price).rate)
        # Without a rate then, nothing has become dearer.
        earlier = book.price_at(*place, use.rating_interval_ms - 3 * DAY_MS) or price
        name = owners.at(use.pool, use.node)(use.workload_id, use.rating_interval_ms, None).team
        team = teams.setdefault((name, price.currency), TeamSpending(name, price.currency))
        team.first_rates[place] = first_rate
        team.pools.add(use.pool)
        team.usage.append(
            PricedUsage(
                use,
                (facts[use.workload_id].name or str(use.workload_id),),
                cost_micro(use.gpu_ns, price.rate),
                use.gpu_ns / GPU_NS_PER_HOUR * first_rate,
                cost_micro(use.gpu_ns, earlier.rate),
                f"{price.rate.normalize():f}",
            )
        )
    last_ms = max((use.rating_interval_ms for use in usage), default=0)
    for team in teams.values():
        team.runs = _runs(team.usage, last_ms)
    return [teams[key] for key in sorted(teams)]


def _runs(usage: Iterable[PricedUsage], last_ms: int) -> list[WorkloadRun]:
    """Runs of workloads, by start; those that held up to the end of the last hour are ongoing.

    The ledger says how long a workload held in each rating interval, not from when: a run is
    assumed to fill its first interval to the end and its last from the start, as every run over an
    edge does. Runs of one name within a single rating interval are placed one after the other.
    """
    by_workload: dict[int, list[PricedUsage]] = defaultdict(list)
    for priced in usage:
        by_workload[priced.usage.workload_id].append(priced)
    runs = []
    taken: dict[tuple[str, int], int] = defaultdict(int)
    for rows in by_workload.values():
        longest: dict[int, int] = defaultdict(int)
        gpus: dict[int, int] = defaultdict(int)
        for priced in rows:
            at_ms = priced.usage.rating_interval_ms
            longest[at_ms] = max(longest[at_ms], priced.usage.longest_ms)
            gpus[at_ms] += priced.usage.gpu_micro
        name, first, last = rows[0].label[0], min(longest), max(longest)
        start_ms, end_ms = max(first, first + HOUR_MS - longest[first]), last + longest[last]
        if first == last:
            start_ms = first + min(taken[name, first], HOUR_MS - longest[first])
            end_ms = start_ms + longest[first]
            taken[name, first] = end_ms - first
        runs.append(
            WorkloadRun(
                name=name,
                start_ms=start_ms,
                end_ms=end_ms,
                gpu_micro=max(gpus.values()),
                gpu_ns=sum(priced.usage.gpu_ns for priced in rows),
                busy_ms=sum(priced.usage.busy_ms for priced in rows),
                idle_ms=sum(priced.usage.idle_ms for priced in rows),
                cost_micro=sum(priced.cost_micro for priced in rows),
                ongoing=end_ms >= last_ms // HOUR_MS * HOUR_MS + HOUR_MS,
            )
        )
    return sorted(runs, key=lambda run: (run.start_ms, run.name))


def _episode_finding(
    team: TeamSpending, detection: Detection, episode: AnomalyEpisode, known: Sequence[Finding]
) -> Finding:
    series = detection.series
    part = slice(episode.first, episode.last + 1)
    start_ms = series.start_ms + episode.first * HOUR_MS
    until_ms = series.start_ms + (episode.last + 1) * HOUR_MS
    same = _same_episode(known, team, start_ms, until_ms)
    first_minute_ms = None if same is None else same.evidence.get(FIRST_MINUTE)
    if first_minute_ms is not None:
        start_ms = min(start_ms, max(series.start_ms, first_minute_ms // HOUR_MS * HOUR_MS))
    back_ms = _comparison_distance(start_ms - series.start_ms, until_ms - start_ms)
    changes = _drivers(team, start_ms, until_ms, back_ms)
    rates = _rate_changes(team, start_ms, until_ms, back_ms)
    by_price = bool(detection.price[part].any())
    by_usage = bool((detection.flag & ~detection.price)[part].any())
    evidence = _evidence(
        changes,
        rates,
        _cause(team, detection, episode, start_ms, until_ms, changes, rates),
        back_ms,
    )
    if first_minute_ms is not None:
        evidence[FIRST_MINUTE] = first_minute_ms
    evidence["highest_score"] = round(float(np.nanmax(detection.score[part])), 2)
    cost = sum(driver.change_micro for driver in changes)
    return team_finding(
        team,
        key=same.key if same else f"{KIND}:{team.label}:{team.currency}:{start_ms}",
        state="both" if by_price and by_usage else "price" if by_price else "usage",
        since_ms=start_ms,
        opened_ms=same.opened_ms if same else start_ms + HOUR_MS,
        until_ms=until_ms,
        resolved_ms=until_ms if series.end_ms - until_ms > 12 * HOUR_MS else None,
        confidence=round(_confidence(detection, part), 3),
        cost_micro=cost,
        per_day_micro=cost * DAY_MS // (until_ms - start_ms),
        evidence=evidence,
    )


def team_finding(
    team: TeamSpending,
    *,
    key: str,
    state: str,
    since_ms: int,
    opened_ms: int,
    until_ms: int,
    resolved_ms: int | None,
    confidence: float,
    cost_micro: int,
    per_day_micro: int,
    evidence: Mapping[str, object],
) -> Finding:
    """A finding about the spending of a team."""
    return Finding(
        key=key,
        kind=KIND,
        state=state,
        subject=team.label,
        accelerator_id=None,
        workload_id=None,
        team=team.name,
        owner={"team": team.name} if team.name else {},
        since_ms=since_ms,
        opened_ms=opened_ms,
        until_ms=until_ms,
        resolved_ms=resolved_ms,
        confidence=confidence,
        currency=team.currency,
        cost_micro=cost_micro,
        per_day_micro=per_day_micro,
        evidence=evidence,
    )


def _same_episode(
    known: Iterable[Finding], team: TeamSpending, start_ms: int, until_ms: int
) -> Finding | None:
    """The earlier finding of this episode; one found from minutes also when hours confirm it some
    time later.
    """
    for finding in known:
        reach_ms = MERGE_HOURS * HOUR_MS if BY_MINUTES in finding.evidence else 0
        if (
            (finding.subject, finding.currency) == (team.label, team.currency)
            and finding.state != STORM
            and finding.since_ms < until_ms
            and finding.until_ms + reach_ms > start_ms
        ):
            return finding
    return None


def cause_evidence(cause: AnomalyCause) -> dict[str, object]:
    """A cause as a finding stores it."""
    return {"cause": cause.kind, "sentence": cause.sentence, "workloads": list(cause.workloads)}


def _evidence(
    changes: Sequence[Driver], rates: Sequence[Mapping[str, str]], cause: AnomalyCause, back_ms: int
) -> dict[str, object]:
    return {
        "days_before": back_ms // DAY_MS,
        "price_micro": sum(driver.price_micro for driver in changes),
        "volume_micro": sum(driver.volume_micro for driver in changes),
        "mix_micro": sum(driver.mix_micro for driver in changes),
        "drivers": [
            {
                "workload": " ".join(driver.label),
                "model": driver.model,
                "change_micro": driver.change_micro,
                "price_micro": driver.price_micro,
                "volume_micro": driver.volume_micro,
                "mix_micro": driver.mix_micro,
            }
            for driver in top(changes, SHOWN_DRIVERS)
        ],
        "rates": list(rates),
        **cause_evidence(cause),
    }


def _cause(
    team: TeamSpending,
    detection: Detection,
    episode: AnomalyEpisode,
    start_ms: int,
    until_ms: int,
    changes: Sequence[Driver],
    rates: Sequence[Mapping[str, str]],
) -> AnomalyCause:
    moved: dict[str, int] = defaultdict(int)
    for driver in changes:
        moved[driver.label[0]] += driver.change_micro
    # Two days before the episode as well, so that a slow rise shows against what came before.
    hours = detection.series.values[max(0, episode.first - 48) : episode.last + 1]
    days = [hours[begin : begin + 24] for begin in range(0, len(hours), 24)]
    return explain(
        AnomalyCase(
            team.label,
            start_ms,
            until_ms,
            team.runs,
            moved,
            sum(driver.price_micro for driver in changes),
            team.currency,
            [RateChange(**rate) for rate in rates],
            [float(np.nanmean(day)) for day in days if np.isfinite(day).any()],
        )
    )


def _is_explained(storm: RetryStorm, episodes: Iterable[Finding]) -> bool:
    """Whether an episode of spending is about this storm already."""
    return any(
        storm.name in episode.evidence["workloads"]
        and episode.since_ms < storm.until_ms
        and episode.until_ms > storm.begin_ms
        for episode in episodes
    )


def _storm_finding(team: TeamSpending, storm: RetryStorm, start_ms: int, end_ms: int) -> Finding:
    """A storm as an episode of its own; its cost is what the job cost more than in the same hours
    before.
    """
    first_ms, last_ms = storm.begin_ms // HOUR_MS * HOUR_MS, -(-storm.until_ms // HOUR_MS) * HOUR_MS
    back_ms = _comparison_distance(first_ms - start_ms, last_ms - first_ms)
    changes = [
        driver
        for driver in _drivers(team, first_ms, last_ms, back_ms)
        if driver.label == (storm.name,)
    ]
    cost = sum(driver.change_micro for driver in changes)
    return team_finding(
        team,
        key=f"{KIND}:{STORM}:{team.label}:{team.currency}:{storm.name}:{storm.begin_ms}",
        state=STORM,
        since_ms=storm.begin_ms,
        opened_ms=storm.opened_ms,
        until_ms=storm.until_ms,
        resolved_ms=storm.until_ms if end_ms - storm.until_ms > STORM_ENDED_MS else None,
        confidence=STORM_CONFIDENCE,
        cost_micro=cost,
        per_day_micro=cost * DAY_MS // max(HOUR_MS, storm.until_ms - storm.begin_ms),
        evidence={**_evidence(changes, [], storm.cause, back_ms), "runs": len(storm.runs)},
    )


def _is_worth_telling(finding: Finding, detection: Detection, episode: AnomalyEpisode) -> bool:
    if (
        detection.price[episode.first : episode.last + 1].any()
        and finding.evidence["price_micro"] > 0
    ):
        return True
    # Both must be large: people read the cost against the same hours before, which may have been as
    # high.
    return min(
        finding.cost_micro or 0, episode.excess * MICRO
    ) > MIN_SHARE_OF_DAY * _usual_day_micro(detection)


def _usual_day_micro(detection: Detection) -> float:
    """Cost of the team's median day."""
    known = detection.series.values[np.isfinite(detection.series.values)]
    return 24 * MICRO * float(np.median(known)) if len(known) else 0.0


def _comparison_distance(history_ms: int, length_ms: int) -> int:
    """How far back the comparison lies: whole weeks, or whole days when the history is too short."""
    # Longer than the episode, so that it is not compared with itself; weeks, since days of the week
    # differ.
    weeks_ms = max(WEEK_MS, -(-length_ms // WEEK_MS) * WEEK_MS)
    return weeks_ms if history_ms >= weeks_ms else max(DAY_MS, -(-length_ms // DAY_MS) * DAY_MS)


def _drivers(team: TeamSpending, start_ms: int, until_ms: int, back_ms: int) -> list[Driver]:
    """What changed the cost of the episode against the same hours before."""
    before = [
        priced.held()
        for priced in team.usage
        if start_ms <= priced.usage.rating_interval_ms + back_ms < until_ms
    ]
    after = [
        priced.held()
        for priced in team.usage
        if start_ms <= priced.usage.rating_interval_ms < until_ms
    ]
    return drivers(before, after)


def _rate_changes(
    team: TeamSpending, start_ms: int, until_ms: int, back_ms: int
) -> list[dict[str, str]]:
    """Rates of the episode that differ from those of the same hours before, by pool and model."""
    old: dict[tuple[str, str], set[str]] = defaultdict(set)
    new: dict[tuple[str, str], set[str]] = defaultdict(set)
    for priced in team.usage:
        key = (priced.usage.pool, priced.usage.gpu_model)
        if start_ms <= priced.usage.rating_interval_ms + back_ms < until_ms:
            old[key].add(priced.rate)
        if start_ms <= priced.usage.rating_interval_ms < until_ms:
            new[key].add(priced.rate)
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


def _confidence(detection: Detection, part: slice) -> float:
    """Part of the episode's known hours that were flagged; 1 when the price book shows a rise."""
    if detection.price[part].any():
        return 1.0
    known = np.isfinite(detection.score[part])
    return float(detection.flag[part].sum() / max(1, known.sum()))
