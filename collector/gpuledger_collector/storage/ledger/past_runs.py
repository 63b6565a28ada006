"""Measurements of past runs in the ledger, to compare with a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class PastRun:
    """A workload that held GPUs.

    Activities are means over the minutes of its last day, of whole hours in which it was alone on
    an accelerator: a long run on many GPUs has too many minutes to read.

    None: not measured, or for `cost_micro` unpriced or in several currencies. `accelerators`:
    distinct ones it held.
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
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None


def models_like(connection: Connection, wanted: str, period: Period) -> list[str]:
    """List models charged in the period whose names contain every word of `wanted`."""
    rows = connection.execute(
        "SELECT DISTINCT gpu_model FROM charge WHERE day_ms >= %s AND day_ms < %s",
        (period.start_ms, period.end_ms),
    )
    return sorted(model for (model,) in rows if model_match(wanted, model) > 0)


def similar(
    connection: Connection,
    models: Sequence[str],
    accelerators: tuple[int, int],
    period: Period,
    most: int,
) -> list[PastRun]:
    """List workloads that held a number (from, to, inclusive) of accelerators of these models, most
    GPU-hours first.
    """
    rows = connection.execute(
        """
        WITH run AS (
            SELECT workload_id, min(gpu_model) AS gpu_model, array_agg(DISTINCT accelerator_id) AS accelerator_ids,
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
        SELECT w.id, accelerator_ids, w.kind, w.external_id, w.name, run.gpu_model, cardinality(accelerator_ids),
            gpu_ns, start_ms, end_ms, cost_micro, CASE WHEN cost_micro IS NOT NULL THEN currency END
        FROM run JOIN workload w ON w.id = run.workload_id
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
    ).fetchall()
    runs = {int(row[0]): PastRun(*row[2:]) for row in rows}
    held = [(int(number), workload) for workload, numbers, *_ in rows for number in numbers]
    activities = _activities(connection, runs, held)
    return [
        (
            replace(
                run,
                sm_active_ratio=activities[workload][0],
                tensor_active_ratio=activities[workload][1],
            )
            if workload in activities
            else run
        )
        for workload, run in runs.items()
    ]


def _activities(
    connection: Connection, runs: Mapping[int, PastRun], held: Sequence[tuple[int, int]]
) -> dict[int, tuple[float | None, float | None]]:
    """Mean SM and tensor activity of each workload's last day; `held`: accelerators and the
    workload that held them.

    A query of its own: Citus joins evidence to lists of ids, not to charges of the coordinator.
    """
    if not runs:
        return {}
    begins = {workload: max(run.start_ms, run.end_ms - DAY_MS) for workload, run in runs.items()}
    rows = connection.execute(
        f"""
        SELECT u.workload_id, avg(m.sm_active_ratio), avg(m.tensor_active_ratio)
        FROM usage_hour u
        JOIN unnest(%(accelerators)s::bigint[], %(workloads)s::bigint[], %(begins)s::bigint[], %(ends)s::bigint[])
            AS h (accelerator_id, workload_id, begin_ms, end_ms)
            ON u.accelerator_id = h.accelerator_id AND u.workload_id = h.workload_id
            AND u.hour_ms >= h.begin_ms AND u.hour_ms < h.end_ms
        JOIN gpu_minute m ON m.accelerator_id = u.accelerator_id AND m.minute_ms >= u.hour_ms
            AND m.minute_ms < u.hour_ms + {HOUR_MS}
        WHERE u.held_ms = {HOUR_MS} AND u.hour_ms >= %(begin)s AND u.hour_ms < %(end)s AND m.minute_ms >= %(begin)s
            AND m.minute_ms < %(end)s + {HOUR_MS} AND NOT EXISTS (
                SELECT FROM usage_hour other WHERE other.accelerator_id = u.accelerator_id
                    AND other.hour_ms = u.hour_ms AND other.workload_id <> u.workload_id)
        GROUP BY u.workload_id
        """,
        {
            "accelerators": [accelerator for accelerator, _ in held],
            "workloads": [workload for _, workload in held],
            "begins": [begins[workload] for _, workload in held],
            "ends": [runs[workload].end_ms for _, workload in held],
            "begin": min(begins.values()),
            "end": max(run.end_ms for run in runs.values()),
        },
    )
    return {int(workload): (sm, tensor) for workload, sm, tensor in rows}
