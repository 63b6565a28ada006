"""Workloads that hold idle accelerators now: what they hold of it, and of which budget it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpuledger_collector.accounting.budget_status import IdleNow
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.notifications.finding_rules import (
    IDLE,
    RECLAIMABLE_STATES,
    IdleAccelerator,
    IdleWorkload,
    reclaim_command,
)
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, to_object


def idle_workloads(connection: Connection, at_ms: int) -> list[IdleWorkload]:
    """Workloads with accelerators that are idle now, by falling cost of a day, then by id."""
    by_workload: dict[int, list[IdleAccelerator]] = {}
    listed = findings.list_named(connection, IDLE, at_ms, at_ms + 1)
    for finding in sorted(listed, key=lambda finding: (finding.since_ms, finding.key)):
        if finding.is_ongoing and finding.workload_id is not None:
            accelerator = IdleAccelerator(finding, finding.model or "", finding.gpu_index)
            by_workload.setdefault(finding.workload_id, []).append(accelerator)
    rows = select(
        connection,
        "SELECT id AS workload_id, kind, external_id, coalesce(name, '') AS name,"
        " coalesce(user_name, '') AS user, tags FROM workload WHERE id = ANY(%s)",
        (list(by_workload),),
    )
    since_ms = {
        workload_id: min(accelerator.finding.since_ms for accelerator in accelerators)
        for workload_id, accelerators in by_workload.items()
    }
    held = _held_counts(connection, since_ms, at_ms)
    workloads = []
    for row in rows:
        idle = tuple(by_workload[row.workload_id])
        count = max(held.get(row.workload_id, 0), len(idle))
        workloads.append(to_object(IdleWorkload, row, accelerators=idle, held=count))

    def order(workload: IdleWorkload) -> tuple[int, int]:
        return (
            -max((per_day for _, _, per_day in workload.money()), default=0),
            workload.workload_id,
        )

    return sorted(workloads, key=order)


def _held_counts(connection: Connection, since_ms: Mapping[int, int], at_ms: int) -> dict[int, int]:
    """How many accelerators each of these workloads holds, by the usage from three hours before it
    went idle.

    Accelerators of a silent node count: whether they are idle, too, is not known.
    """
    from_ms = {
        workload_id: min(since, at_ms) - 3 * HOUR_MS for workload_id, since in since_ms.items()
    }
    rows = connection.execute(
        "SELECT u.workload_id, count(DISTINCT u.accelerator_id) FROM usage_hour u "
        "JOIN unnest(%s::bigint[], %s::bigint[]) AS idle (id, from_ms) ON u.workload_id = idle.id "
        "AND u.hour_ms >= idle.from_ms WHERE u.hour_ms >= %s AND u.hour_ms <= %s GROUP BY 1",
        (list(from_ms), list(from_ms.values()), min(from_ms.values(), default=at_ms), at_ms),
    )
    return {int(workload_id): int(count) for workload_id, count in rows}


def idle_of_budget(connection: Connection, budget: Budget, at_ms: int) -> list[IdleNow]:
    """List workloads of the owner that hold idle GPUs now, the most expensive per day first."""
    idle = []
    for workload in idle_workloads(connection, at_ms):
        own = tuple(
            accelerator
            for accelerator in workload.accelerators
            if accelerator.finding.state in RECLAIMABLE_STATES
            and budget.owner.items() <= {**accelerator.finding.owner, "team": workload.team}.items()
        )
        amounts = dataclasses.replace(workload, accelerators=own).money()
        money = {currency: (cost, per_day) for currency, cost, per_day in amounts}
        if budget.currency in money:
            idle.append(
                IdleNow(
                    workload.label, len(own), *money[budget.currency], reclaim_command(workload)
                )
            )
    return idle
