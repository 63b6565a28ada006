"""Ten teams whose spending becomes unusual for ten different reasons, and the finding of each at the
hour in which somebody is first notified of it. Six weeks by the hour, the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.insight.anomalies import detect
from gpuledger_collector.insight.anomalies.spending_findings import judge_team
from gpuledger_collector.insight.anomalies.team_spending import (
    TeamSpending,
    list_runs,
    spending_by_team,
)
from gpuledger_collector.insight.findings import WORKLOADS, Finding, WorkloadUsage
from gpuledger_collector.insight.notifications.anomaly_floors import USUAL_DAYS, UsualCosts
from gpuledger_collector.insight.notifications.finding_rules import AnomalyNotice

START = 20_740 * DAY_MS
"""Wednesday 2026-10-14."""
DAYS = 42
EVENT = START + 37 * DAY_MS + 3 * HOUR_MS
"""When each event begins: Friday 2026-11-20, 03:00 UTC."""
END = START + DAYS * DAY_MS
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
RATES = {H100: Decimal("2.50"), A100: Decimal("1.40")}
DEARER = Decimal("2.95")
USERS = {
    "reindex-all": "goran",
    "asr-eval": "kofi",
    "weekend-hold": "farah",
    "moe-13b": "ines",
    "chat-api": "svc-chat",
    "sweep": "amina",
    "replica": "jonas",
    "align": "divya",
    "train": "lena",
}


@dataclass
class World:
    """Usage and facts of the teams, as the hourly ledger would have them."""

    usage: list[WorkloadUsage] = field(default_factory=list)
    facts: dict[int, WorkloadFacts] = field(default_factory=dict)

    def hold(
        self,
        team: str,
        name: str,
        start_ms: int,
        length_ms: int,
        gpus: float,
        model: str = H100,
        busy: float = 0.8,
    ) -> None:
        """One workload that holds so many GPUs from start to end."""
        number = len(self.facts) + 1
        user = USERS.get(name.rpartition("-")[0] or name, USERS.get(name, f"{team}-user"))
        self.facts[number] = WorkloadFacts(
            number, "slurm", user, None, name, {"team": team}, key=f"slurm::{number}"
        )
        end_ms = min(start_ms + length_ms, END)
        for hour_ms in range(start_ms - start_ms % HOUR_MS, end_ms, HOUR_MS):
            part = min(end_ms, hour_ms + HOUR_MS) - max(start_ms, hour_ms)
            held = round(part * gpus)
            self.usage.append(
                WorkloadUsage(
                    hour_ms,
                    number,
                    team,
                    model,
                    f"{team}-01",
                    round(part * gpus * GPU_MICRO),
                    part,
                    round(gpus * GPU_MICRO),
                    round(busy * held),
                    held - round(busy * held),
                )
            )

    def team(self, name: str) -> TeamSpending:
        """What a team spent; its pool has its name."""
        usage = sorted(
            (use for use in self.usage if use.pool == name),
            key=lambda use: (use.rating_interval_ms, use.workload_id),
        )
        prices = [
            Price(None, "", model, "on_demand", rate, "USD", 0) for model, rate in RATES.items()
        ]
        if name == "vision":
            prices.append(Price(None, "vision", H100, "on_demand", DEARER, "USD", EVENT))
        (team,) = spending_by_team(usage, PriceBook(prices), self.facts, lambda use: use.pool)
        return team


def usual_days(world: World, team: str, gpus: int, model: str = H100) -> None:
    """A service around the clock, trainings of some hours, and a batch every night."""
    rng = random.Random(team)
    world.hold(team, "serve", START, DAYS * DAY_MS, gpus, model)
    for day in range(DAYS):
        at_ms = START + day * DAY_MS
        for name, hour, most in (("train", 9, 6), ("train", 13, 7), ("nightly", 1, 2)):
            length = rng.randint(2, most) * HOUR_MS
            world.hold(team, name, at_ms + hour * HOUR_MS, length, gpus // 2 or 1, model)


def furnish() -> World:
    """Every team with its event."""
    world = World()
    teams = (
        ("data", 4),
        ("speech", 2),
        ("vision", 16),
        ("nlp", 4),
        ("research", 8),
        ("inference", 8),
        ("robotics", 4),
        ("ads", 6),
        ("genomics", 4),
        ("search", 8),
    )
    for team, gpus in teams:
        usual_days(world, team, gpus, A100 if team in {"speech", "robotics"} else H100)
    hours = (END - EVENT) // HOUR_MS
    # Those of a name before: a nightly rebuild of three hours on two GPUs.
    for day in range(37):
        at_ms = START + day * DAY_MS + 2 * HOUR_MS
        world.hold("data", "reindex-all", at_ms, 3 * HOUR_MS, 2)
        world.hold("speech", "asr-eval", at_ms, 95 * MINUTE_MS, 1, A100)
    world.hold("data", "reindex-all", EVENT, 44 * HOUR_MS, 8)
    for at in range(54):
        begin_ms = EVENT + 11 * at * MINUTE_MS
        world.hold("speech", "asr-eval", begin_ms, 10 * MINUTE_MS, 1, A100)
    world.hold("nlp", "weekend-hold", EVENT, 62 * HOUR_MS, 6, busy=0.0)
    for day in range(5):
        for number in range(3):
            begin_ms = EVENT + day * DAY_MS + number * 5 * HOUR_MS
            world.hold("research", "moe-13b", begin_ms, 20 * HOUR_MS, 8)
    world.hold("inference", "chat-api", START, EVENT - START, 6)
    world.hold("inference", "chat-api", EVENT, hours * HOUR_MS, 14)
    for number in range(40):
        begin_ms = EVENT + 3 * number * HOUR_MS
        world.hold("robotics", f"replica-{number}", begin_ms, END - begin_ms, 1, A100)
    for number in range(12):
        world.hold("ads", f"sweep-{number}", EVENT, 9 * HOUR_MS, 2)
    # Of many names that were there before, each a little more.
    for name in ("a", "b", "c", "d", "e", "f"):
        for day in range(DAYS):
            at_ms = START + day * DAY_MS
            more = 3 if at_ms + DAY_MS > EVENT else 1
            world.hold("genomics", f"align-{name}", at_ms + 3 * HOUR_MS, 8 * HOUR_MS * more, 1)
    for hour in range(0, hours, 6):
        begin_ms = EVENT + hour * HOUR_MS
        world.hold("search", "train", begin_ms, 6 * HOUR_MS, 12)
    return world


def usual_costs(world: World) -> UsualCosts:
    """What the teams cost on the 28 days before the events; nobody else holds anything."""
    end_ms = EVENT - EVENT % DAY_MS
    teams = {
        (name, "USD"): sum(
            priced.cost_micro
            for priced in world.team(name).usage
            if end_ms - USUAL_DAYS * DAY_MS <= priced.usage.rating_interval_ms < end_ms
        )
        for name in sorted({use.pool for use in world.usage})
    }
    return UsualCosts(USUAL_DAYS, {"USD": sum(teams.values())}, teams)


def first_notices() -> Iterator[AnomalyNotice]:
    """What each team is first notified of, in the hour in which it is found."""
    world = furnish()
    for number, name in enumerate(sorted({use.pool for use in world.usage}), 1):
        team = world.team(name)
        for end_ms in range(EVENT + HOUR_MS, END, HOUR_MS):
            found = [each for each in findings_at(team, end_ms) if each.until_ms > EVENT]
            if found:
                ids = found[0].evidence[WORKLOADS]
                users = tuple(sorted({str(world.facts[each].user) for each in ids}))
                runs = tuple(world.facts[each].key for each in ids)
                yield AnomalyNotice(number, found[0], end_ms, users, runs)
                break


def findings_at(team: TeamSpending, end_ms: int, known: Sequence[Finding] = ()) -> list[Finding]:
    """What the search finds of a team at the end of an hour, beside what it found before."""
    seen = TeamSpending(
        team.name,
        team.currency,
        [each for each in team.usage if each.usage.rating_interval_ms < end_ms],
        pools=team.pools,
        first_rates=team.first_rates,
    )
    seen.runs = list_runs(seen.usage, end_ms - HOUR_MS)
    coverage = {(pool, at): 1.0 for pool in team.pools for at in range(START, end_ms, HOUR_MS)}
    detection = detect(*seen.hourly(end_ms, coverage))
    return judge_team(seen, detection, known, Period(START, end_ms))
