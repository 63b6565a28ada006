"""Watch spending by the minute: find a runaway within minutes of its first sample, before its hour
has ended.

Once an hour each team's history gives the limit above which its spending is an anomaly at once
(`next_limit`). Every minute the usage of the last two windows of three minutes is compared with it:
both must exceed it, and workloads that began recently must account for at least half of the excess.
An episode opened here keeps its key when the hourly search confirms it, so that people are notified
once; when spending falls back it is resolved half an hour later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS, Period
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.insight.anomalies import AnomalyLimit, next_limit
from gpuledger_collector.insight.anomalies.causes import AnomalyCase, WorkloadRun, explain
from gpuledger_collector.insight.anomalies.spending_findings import (
    BY_MINUTES,
    FIRST_MINUTE,
    KIND,
    SHOWN_DRIVERS,
    cause_evidence,
    team_finding,
)
from gpuledger_collector.insight.anomalies.team_spending import TeamSpending
from gpuledger_collector.insight.findings import Finding, RecentHolding
from gpuledger_collector.services.anomaly_search import HISTORY_DAYS, team_spending
from gpuledger_collector.services.rating import Owners
from gpuledger_collector.storage.billing import prices
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minutes

WINDOW_MS = 3 * MINUTE_MS
LAG_MS = MINUTE_MS
"""The newest evidence is left out by this much, so that all nodes have reported."""
RECENT_MS = 2 * HOUR_MS
"""Workloads that began within this time may be the runaway."""
MIN_SHARE_OF_EXCESS = 0.5
RESOLVED_AFTER_MS = 30 * MINUTE_MS
CONFIDENCE = 0.9
"""None of the alarms of this rule on the clean weeks of the open traces was false: there were none
(insight.md).
"""


@dataclass(frozen=True)
class _TeamLimit:
    """A team's limit, as of the last full hour."""

    team: TeamSpending
    limit: AnomalyLimit
    old_workloads: frozenset[int]
    """Workloads that did not begin recently."""


@dataclass
class _SpendingRate:
    """What a team spends per hour at its first rates, by window: in total, and by workloads that
    began recently.
    """

    total: list[float]
    recent: list[float]
    recent_workloads: set[int]


class SpendingWatch:
    """Keeps the limits of the last full hour between two runs; a new instance computes the same
    ones.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._hour = -1
        self._limits: dict[tuple[str, str], _TeamLimit] = {}

    def run(self, now_ms: int) -> int:
        """Compare the last minutes with the limits; return how many episodes were opened, updated
        or resolved.
        """
        with self._database.transaction(Lock.FINDINGS) as connection:
            # Six weeks of hours are read once an hour: the limits change no more often.
            if self._hour != now_ms // HOUR_MS:
                self._limits = dict(_team_limits(connection, now_ms // HOUR_MS * HOUR_MS))
                self._hour = now_ms // HOUR_MS
            newest_ms = minutes.newest_evidence(connection, now_ms)
            if newest_ms is None or not self._limits:
                return 0
            at_ms = (newest_ms - LAG_MS) // MINUTE_MS * MINUTE_MS
            return findings.upsert(connection, self._changed_findings(connection, at_ms))

    def _changed_findings(self, connection: Connection, at_ms: int) -> list[Finding]:
        ongoing = [
            finding
            for finding in findings.overlapping(connection, KIND, at_ms - DAY_MS, at_ms + 1)
            if finding.resolved_ms is None
        ]
        changed = []
        exceeding = set()
        for key, rate in self._rates(connection, at_ms).items():
            team = self._limits[key]
            # The smaller of two windows: one window above the limit may be a start-up or a late
            # report.
            excess = min(rate.total) - team.limit.expected
            if (
                min(rate.total) <= team.limit.stands_out
                or min(rate.recent) < MIN_SHARE_OF_EXCESS * excess
            ):
                continue
            exceeding.add(key)
            same = [
                finding
                for finding in ongoing
                if (finding.subject, finding.currency) == (team.team.label, key[1])
                and finding.state in {"usage", "both"}
            ]
            # An episode that the hourly search has confirmed is its own to update.
            if all(BY_MINUTES in finding.evidence for finding in same):
                changed.append(_episode(connection, team, rate, at_ms, same[0] if same else None))
        for finding in ongoing:
            fell_back = (
                BY_MINUTES in finding.evidence and (finding.team, finding.currency) not in exceeding
            )
            if fell_back and at_ms - finding.until_ms > RESOLVED_AFTER_MS:
                changed.append(replace(finding, resolved_ms=finding.until_ms))
        return changed

    def _rates(self, connection: Connection, at_ms: int) -> dict[tuple[str, str], _SpendingRate]:
        edges = [at_ms - 2 * WINDOW_MS, at_ms - WINDOW_MS, at_ms]
        rows = _cap_shared(minutes.held_now(connection, edges), edges)
        facts = workloads.facts(connection, sorted({row.workload_id for row in rows}))
        owners = Owners(rules.current(connection), facts)
        book = prices.price_book(connection, Period(at_ms - DAY_MS, at_ms + 1))
        rates: dict[tuple[str, str], _SpendingRate] = {}
        for row in rows:
            price = book.price_at(row.pool, row.gpu_model, row.node, at_ms)
            if price is None:
                continue
            key = (
                owners.owners_at(row.pool, row.node)(row.workload_id, at_ms, None).team,
                price.currency,
            )
            team = self._limits.get(key)
            if team is None:
                continue
            # At the first rates, in which the limit is given; a place that is new has its current
            # one.
            first_rate = team.team.first_rates.get(
                (row.pool, row.gpu_model, row.node), float(price.rate)
            )
            rate = rates.setdefault(key, _SpendingRate([0.0, 0.0], [0.0, 0.0], set()))
            for window, held_ms in enumerate(row.held_ms):
                spent = held_ms / WINDOW_MS * row.gpu_micro / 1e6 * first_rate
                rate.total[window] += spent
                if row.workload_id not in team.old_workloads:
                    rate.recent[window] += spent
                    rate.recent_workloads.add(row.workload_id)
        return rates


def _team_limits(
    connection: Connection, hour_ms: int
) -> Iterable[tuple[tuple[str, str], _TeamLimit]]:
    """The limit of each team from the full hours before."""
    start_ms = hour_ms - HISTORY_DAYS * DAY_MS
    usage = minutes.hourly_use(connection, start_ms, hour_ms)
    if not usage:
        return
    coverage = minutes.coverage(connection, start_ms, hour_ms)
    old = frozenset(
        use.workload_id for use in usage if use.rating_interval_ms < hour_ms - RECENT_MS
    )
    for team in team_spending(connection, usage):
        limit = next_limit(team.hourly(hour_ms, coverage).series)
        if limit is not None:
            yield (team.name, team.currency), _TeamLimit(team, limit, old)


def _cap_shared(rows: Sequence[RecentHolding], edges: Sequence[int]) -> list[RecentHolding]:
    """Scale holders that share an accelerator down: together they never hold it for longer than a
    window.
    """
    sums: dict[int, list[int]] = defaultdict(lambda: [0] * (len(edges) - 1))
    for row in rows:
        sums[row.accelerator_id] = [
            a + b for a, b in zip(sums[row.accelerator_id], row.held_ms, strict=True)
        ]
    lengths = [after - before for before, after in pairwise(edges)]
    return [
        replace(
            row,
            held_ms=tuple(
                held if total <= length else held * length // total
                for held, total, length in zip(
                    row.held_ms, sums[row.accelerator_id], lengths, strict=True
                )
            ),
        )
        for row in rows
    ]


def _episode(
    connection: Connection,
    team_limit: _TeamLimit,
    rate: _SpendingRate,
    at_ms: int,
    known: Finding | None,
) -> Finding:
    """The episode of the recent workloads with their exact cost so far; none of them ran a week
    before.
    """
    team = team_limit.team
    edges = [at_ms - RECENT_MS - HOUR_MS if known is None else known.since_ms, at_ms]
    held = _cap_shared(minutes.held_now(connection, edges), edges)
    rows = [row for row in held if row.workload_id in rate.recent_workloads]
    facts = workloads.facts(connection, sorted(rate.recent_workloads))
    names = {key: fact.name or str(key) for key, fact in facts.items()}
    costs = _costs(connection, rows, names, at_ms)
    since_ms = min(row.since_ms for row in rows) if known is None else known.since_ms
    cost = sum(costs.values())
    moved: dict[str, int] = defaultdict(int)
    for (name, _), spent in costs.items():
        moved[name] += spent
    runs = [*team.runs, *_ongoing_runs(rows, names, at_ms)]
    cause = explain(AnomalyCase(team.label, since_ms, at_ms, runs, moved))
    return team_finding(
        team,
        key=f"{KIND}:{team.label}:{team.currency}:{since_ms}" if known is None else known.key,
        state="usage",
        since_ms=since_ms,
        opened_ms=at_ms if known is None else known.opened_ms,
        until_ms=at_ms,
        resolved_ms=None,
        confidence=CONFIDENCE,
        cost_micro=cost,
        per_day_micro=round(24e6 * (min(rate.total) - team_limit.limit.expected)),
        evidence={
            BY_MINUTES: True,
            FIRST_MINUTE: since_ms,
            "days_before": 7,
            "price_micro": 0,
            "volume_micro": cost,
            "mix_micro": 0,
            "drivers": _list_drivers(costs),
            "rates": [],
            **cause_evidence(cause, [run for run in runs if run.end_ms > since_ms]),
        },
    )


def _list_drivers(costs: Mapping[tuple[str, str], int]) -> list[dict[str, object]]:
    """The dearest workloads, as a finding stores them: all of it is more volume."""
    dearest = sorted(costs.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_DRIVERS]
    return [
        {
            "workload": name,
            "model": model,
            "change_micro": spent,
            "price_micro": 0,
            "volume_micro": spent,
            "mix_micro": 0,
        }
        for (name, model), spent in dearest
    ]


def _costs(
    connection: Connection, rows: Sequence[RecentHolding], names: Mapping[int, str], at_ms: int
) -> dict[tuple[str, str], int]:
    """Exact cost by workload name and GPU model: quantities at one rate are added up before they
    are rounded.
    """
    book = prices.price_book(connection, Period(at_ms - DAY_MS, at_ms + 1))
    quantities: dict[tuple[str, str, Decimal], int] = defaultdict(int)
    for row in rows:
        price = book.price_at(row.pool, row.gpu_model, row.node, at_ms)
        if price is not None:
            quantities[names[row.workload_id], row.gpu_model, price.rate] += gpu_ns(
                row.gpu_micro, row.held_ms[0]
            )
    costs: dict[tuple[str, str], int] = defaultdict(int)
    for (name, model, rate), quantity in quantities.items():
        costs[name, model] += cost_micro(quantity, rate)
    return costs


def _ongoing_runs(
    rows: Sequence[RecentHolding], names: Mapping[int, str], at_ms: int
) -> list[WorkloadRun]:
    by_workload: dict[int, list[RecentHolding]] = defaultdict(list)
    for row in rows:
        by_workload[row.workload_id].append(row)
    return [
        WorkloadRun(
            name=names[workload_id],
            start_ms=min(row.since_ms for row in held),
            end_ms=at_ms,
            gpu_micro=sum(row.gpu_micro for row in held),
            gpu_ns=sum(gpu_ns(row.gpu_micro, row.held_ms[0]) for row in held),
            busy_ms=0,
            idle_ms=0,
            cost_micro=0,
            ongoing=True,
            workload_id=workload_id,
        )
        for workload_id, held in by_workload.items()
    ]
