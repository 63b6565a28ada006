"""Spare replicas of serving workloads: how many are held, and how many a week's busiest minutes
need.
"""

from __future__ import annotations

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.insight.idle.kinds import is_serving
from gpuledger_collector.insight.idle.serving_replicas import (
    DAYS,
    ServiceReplicas,
    assess_service,
    count_replicas,
    service_name,
)
from gpuledger_collector.insight.idle.states import IDLE_RULES
from gpuledger_collector.services.rating import Owners
from gpuledger_collector.storage.billing import prices
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.telemetry import minutes


def assess_services(database: Database, now_ms: int) -> list[ServiceReplicas]:
    """Every service over the last seven days of full hours, those with the most to spare first."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - DAYS * DAY_MS
    with database.transaction(read_only=True) as connection:
        facts = workloads.facts(connection, minutes.holders(connection, start_ms, end_ms))
        serving = {
            key: fact
            for key, fact in facts.items()
            if is_serving(fact.kind, fact.name or "", fact.tags)
        }
        owner_of = Owners(rules.current(connection), serving).owners_at("", "")
        names = {
            key: (
                service_name(fact.name or str(key), fact.tags),
                owner_of(key, end_ms - 1, None).team,
            )
            for key, fact in serving.items()
        }
        services = sorted(set(names.values()))
        if not services:
            return []
        numbers = {key: services.index(name) for key, name in names.items()}
        book = prices.price_book(connection, None)
        replicas = minutes.replicas(connection, start_ms, end_ms, numbers, IDLE_RULES.busy_above)
    assessed = []
    for (number, pool, model), (held, rows) in replicas.items():
        assessment = assess_service(count_replicas(rows, held))
        price = book.price_at(pool, model, "", end_ms - 1)
        currency = None if price is None else price.currency
        day = None
        if price is not None and assessment.spare is not None:
            day = cost_micro(24 * GPU_NS_PER_HOUR * assessment.spare, price.rate)
        assessed.append(ServiceReplicas(*services[number], pool, model, assessment, currency, day))
    return sorted(
        assessed,
        key=lambda service: (
            -(service.per_day_micro or 0),
            -(service.assessment.spare or 0),
            service.name,
            service.model,
        ),
    )
