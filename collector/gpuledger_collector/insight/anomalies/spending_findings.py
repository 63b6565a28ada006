"""Findings of unusual spending: an episode of a team with its cause, and what it cost more than the
same hours before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuledger_collector.accounting.budgets import Driver, drivers, top
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.insight.anomalies.alarms import MERGE_HOURS
from gpuledger_collector.insight.anomalies.causes import (
    AnomalyCase,
    AnomalyCause,
    RateChange,
    RetryStorm,
    WorkloadRun,
    explain,
    find_storms,
)
from gpuledger_collector.insight.anomalies.detector import (
    AnomalyEpisode,
    Detection,
    group_episodes,
)
from gpuledger_collector.insight.anomalies.team_spending import TeamSpending
from gpuledger_collector.insight.findings import WORKLOADS, Finding

KIND = "anomaly"
WEEK_MS = 7 * DAY_MS
MIN_SHARE_OF_DAY = 0.05
"""Episodes below this part of the team's usual day, over the expected cost or over the same hours
before, are not worth a person's time; a dearer rate always is.
"""
SHOWN_DRIVERS = 8
MOST_IDS = 20
STORM = "storm"
FIRST_MINUTE = "first_minute_ms"
"""Evidence key of an episode that was first found from minutes: when its first workload began (unix
ms).
"""
BY_MINUTES = "by_minutes"
"""Evidence key of an episode that was found from minutes (services/spending_watch.py) and not confirmed by
an hour yet.
"""
BY_LONG_RUNNING = "by_long_running"
"""Evidence key of an episode that shows in what has run for LONG_RUNNING_HOURS: the total of its
team varies too much.
"""
ONSET_SHARE = 0.5
"""Hours right before the first flagged one belong to its episode while they have this share of what it
was above the expected: what begins at night is flagged when it has lasted.
"""
HELD_MS = "held_ms"
"""Evidence key: GPU-milliseconds that the runs of the cause held, whether they worked or not."""
NS_PER_MS = 1_000_000
PILES_UP = "piles_up"
"""Evidence key of a cause whose runs begin one after the other and do not end."""
UNUSUAL_HOURS = "unusual_hours"
"""Evidence key: hours of the episode that were flagged."""
STORM_ENDED_MS = 2 * HOUR_MS
"""A storm without a run for this long has ended."""
STORM_CONFIDENCE = 0.8
"""Not measured: no open trace marks which short runs are retries. Mails say that it is a guess."""


def judge_team(
    team: TeamSpending, detection: Detection, known: Sequence[Finding], period: Period
) -> list[Finding]:
    """Findings of a team's episodes that are worth telling, and of storms that none of them is
    about.
    """
    episodes = [
        finding
        for episode in group_episodes(detection)
        if _is_worth_telling(
            finding := _episode_finding(team, detection, episode, known), detection, episode
        )
    ]
    storms = [
        _storm_finding(team, storm, period.start_ms, period.end_ms)
        for storm in find_storms(team.label, team.runs, period.start_ms)
        if not _is_explained(storm, episodes)
    ]
    return [*episodes, *storms]


def _episode_finding(
    team: TeamSpending, detection: Detection, episode: AnomalyEpisode, known: Sequence[Finding]
) -> Finding:
    series = detection.series
    part = slice(episode.first, episode.last + 1)
    flagged_ms = series.start_ms + episode.first * HOUR_MS
    start_ms = series.start_ms + find_onset(detection, episode) * HOUR_MS
    until_ms = series.start_ms + (episode.last + 1) * HOUR_MS
    same = _same_episode(known, team, Period(start_ms, until_ms), flagged_ms)
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
        _cause(team, detection, episode, start_ms, until_ms, back_ms, changes, rates),
        back_ms,
        [run for run in team.runs if run.start_ms < until_ms and run.end_ms > start_ms],
    )
    if first_minute_ms is not None:
        evidence[FIRST_MINUTE] = first_minute_ms
    if _is_by_long_running(detection, part):
        evidence[BY_LONG_RUNNING] = True
    evidence[UNUSUAL_HOURS] = int(detection.flag[part].sum())
    evidence["highest_score"] = round(float(np.nanmax(detection.score[part])), 2)
    cost = sum(driver.change_micro for driver in changes)
    return team_finding(
        team,
        key=same.key if same else f"{KIND}:{team.label}:{team.currency}:{start_ms}",
        state="both" if by_price and by_usage else "price" if by_price else "usage",
        since_ms=start_ms,
        opened_ms=same.opened_ms if same else flagged_ms + HOUR_MS,
        until_ms=until_ms,
        resolved_ms=until_ms if series.end_ms - until_ms > 12 * HOUR_MS else None,
        confidence=round(_confidence(detection, part), 3),
        cost_micro=cost,
        per_day_micro=cost * DAY_MS // (until_ms - start_ms),
        evidence=evidence,
    )


def find_onset(detection: Detection, episode: AnomalyEpisode) -> int:
    """Index of the hour in which an episode began: hours right before the first flagged one that
    were above the expected as well, at most MERGE_HOURS and none of an earlier alarm.

    A dearer rate begins when it does.
    """
    first = episode.first
    if detection.price[first]:
        return first
    least = ONSET_SHARE * detection.excess[first]
    earliest = max(0, first - MERGE_HOURS)
    while (
        first > earliest
        and not detection.flag[first - 1]
        and 0 < least <= detection.excess[first - 1]
    ):
        first -= 1
    return first


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
    known: Iterable[Finding], team: TeamSpending, episode: Period, flagged_ms: int
) -> Finding | None:
    """The earlier finding of this episode; one found from minutes also when the first flagged hour
    confirms it some time later.
    """
    reach_ms = MERGE_HOURS * HOUR_MS
    for finding in known:
        if (
            (finding.subject, finding.currency) == (team.label, team.currency)
            and finding.state != STORM
            and finding.since_ms < episode.end_ms
            and (
                finding.until_ms > episode.start_ms
                or (BY_MINUTES in finding.evidence and finding.until_ms + reach_ms > flagged_ms)
            )
        ):
            return finding
    return None


def cause_evidence(cause: AnomalyCause, runs: Iterable[WorkloadRun]) -> dict[str, object]:
    """A cause as a finding stores it, with the latest runs of the episode that it is about."""
    about = [run for run in runs if run.name in cause.workloads]
    ids = dict.fromkeys(run.workload_id for run in about)
    return {
        "cause": cause.kind,
        "sentence": cause.sentence,
        "workloads": list(cause.workloads),
        **({PILES_UP: True} if cause.piles_up else {}),
        WORKLOADS: list(ids)[-MOST_IDS:],
        HELD_MS: sum(run.gpu_ns for run in about) // NS_PER_MS,
        "busy_ms": sum(run.busy_ms for run in about),
        "idle_ms": sum(run.idle_ms for run in about),
    }


def _evidence(
    changes: Sequence[Driver],
    rates: Sequence[Mapping[str, str]],
    cause: AnomalyCause,
    back_ms: int,
    runs: Iterable[WorkloadRun],
) -> dict[str, object]:
    return {
        "days_before": back_ms // DAY_MS,
        "before_micro": sum(driver.before_micro for driver in changes),
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
            for driver in top([each for each in changes if each.change_micro], SHOWN_DRIVERS)
        ],
        "rates": list(rates),
        **cause_evidence(cause, runs),
    }


def _cause(
    team: TeamSpending,
    detection: Detection,
    episode: AnomalyEpisode,
    start_ms: int,
    until_ms: int,
    back_ms: int,
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
            back_ms,
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
        evidence={
            **_evidence(changes, [], storm.cause, back_ms, storm.runs),
            "runs": len(storm.runs),
        },
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
        priced.to_holder_spend()
        for priced in team.usage
        if start_ms <= priced.usage.rating_interval_ms + back_ms < until_ms
    ]
    after = [
        priced.to_holder_spend()
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


def _is_by_long_running(detection: Detection, part: slice) -> bool:
    """Whether most of the flagged hours were flagged for what has run for long."""
    flagged = detection.flag[part] & ~detection.price[part]
    return bool(2 * detection.long_running[part][flagged].sum() > flagged.sum())


def _confidence(detection: Detection, part: slice) -> float:
    """Part of the episode's known hours that were flagged; 1 when the price book shows a rise."""
    if detection.price[part].any():
        return 1.0
    known = np.isfinite(detection.score[part])
    return float(detection.flag[part].sum() / max(1, known.sum()))
