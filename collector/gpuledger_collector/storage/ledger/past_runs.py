"""Measurements of past runs in the ledger, to compare with a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class PastRun:
    """A workload that held GPUs. Activities are means over the minutes of its last day, of whole hours in which it was
    alone on an accelerator: a long run on many GPUs has too many minutes to read.

    None: not measured, or for `cost_micro` unpriced or in several currencies. `accelerators`: distinct ones it held.
    """

    kind: str
    external_id: str
    name: str | None
    gpu_model: str
    accelerators: int
    gpu_ns: int
    start_ms: int
    end_ms: int
    cost_micro: int | None
    currency: str | None
    sm_active_ratio: float | None
    tensor_active_ratio: float | None


def models_like(connection: Connection, wanted: str, period: Period) -> list[str]:
    """List models charged in the period whose names contain every word of `wanted`."""
    rows = connection.execute(
        "SELECT DISTINCT gpu_model FROM charge WHERE day_ms >= %s AND day_ms < %s", (period.start_ms, period.end_ms)
    )
    return sorted(model for (model,) in rows if model_match(wanted, model) > 0)


def similar(
    connection: Connection, models: Sequence[str], accelerators: tuple[int, int], period: Period, most: int
) -> list[PastRun]:
    """List workloads that held a number (from, to, inclusive) of accelerators of these models, most GPU-hours first."""
    rows = connection.execute(
        f"""
        WITH run AS (
            SELECT workload_id, min(gpu_model) AS gpu_model, count(DISTINCT accelerator_id) AS accelerators,
                sum(gpu_ns)::bigint AS gpu_ns, min(start_ms) AS start_ms, max(end_ms) AS end_ms,
                CASE WHEN bool_and(cost_micro IS NOT NULL) AND count(DISTINCT currency) = 1
                    THEN sum(cost_micro)::bigint END AS cost_micro, min(currency) AS currency
            FROM charge
            WHERE day_ms >= %(start)s AND day_ms < %(end)s AND gpu_model = ANY(%(models)s) AND state = 'held'
                AND workload_id IS NOT NULL AND accelerator_id IS NOT NULL
            GROUP BY workload_id
            HAVING count(DISTINCT accelerator_id) BETWEEN %(fewest)s AND %(largest)s
            ORDER BY gpu_ns DESC, workload_id LIMIT %(most)s
        )
        SELECT w.kind, w.external_id, w.name, run.gpu_model, accelerators, gpu_ns, start_ms, end_ms, cost_micro,
            CASE WHEN cost_micro IS NOT NULL THEN currency END, measured.sm, measured.tensor
        FROM run JOIN workload w ON w.id = run.workload_id LEFT JOIN LATERAL (
            SELECT avg(m.sm_active_ratio) AS sm, avg(m.tensor_active_ratio) AS tensor
            FROM usage_hour u JOIN gpu_minute m ON m.accelerator_id = u.accelerator_id AND m.minute_ms >= u.hour_ms
                AND m.minute_ms < u.hour_ms + {HOUR_MS}
            WHERE u.accelerator_id IN (SELECT c.accelerator_id FROM charge c WHERE c.workload_id = run.workload_id)
                AND u.hour_ms >= greatest(run.start_ms, run.end_ms - {DAY_MS}) AND u.hour_ms < run.end_ms
                AND u.workload_id = run.workload_id AND u.held_ms = {HOUR_MS} AND NOT EXISTS (
                    SELECT FROM usage_hour other WHERE other.accelerator_id = u.accelerator_id
                        AND other.hour_ms = u.hour_ms AND other.workload_id <> u.workload_id)
        ) AS measured ON true
        ORDER BY gpu_ns DESC, w.id
        """,
        {
            "start": period.start_ms,
            "end": period.end_ms,
            "models": list(models),
            "fewest": accelerators[0],
            "largest": accelerators[1],
            "most": most,
        },
    )
    return [PastRun(*row) for row in rows]
