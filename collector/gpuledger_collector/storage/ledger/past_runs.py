"""Measurements of past runs in the ledger, to compare with a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.insight.past_runs import PastRun
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_values

_MEASURED = ("sm_active_ratio", "tensor_active_ratio")
_STORED = {field.name for field in fields(PastRun)} - {*_MEASURED}
"""What the ledger has of a run; the rest is measured."""


def models_like(connection: Connection, wanted: str, period: Period) -> list[str]:
    """List models charged in the period whose names contain every word of `wanted`."""
    models = select_values(
        connection,
        "SELECT DISTINCT gpu_model FROM charge WHERE day_ms >= %s AND day_ms < %s",
        (period.start_ms, period.end_ms),
    )
    return sorted(model for model in models if model_match(wanted, model) > 0)


def list_runs(
    connection: Connection,
    models: Sequence[str],
    accelerators: tuple[int, int],
    period: Period,
    most: int,
) -> list[PastRun]:
    """List workloads that held a number (from, to, inclusive) of accelerators of these models, most
    GPU-hours first.
    """
    query = """
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
        SELECT w.id, accelerator_ids, w.kind, w.external_id, w.name, run.gpu_model,
            cardinality(accelerator_ids) AS accelerators, gpu_ns, start_ms, end_ms, cost_micro,
            CASE WHEN cost_micro IS NOT NULL THEN currency END AS currency
        FROM run JOIN workload w ON w.id = run.workload_id
        ORDER BY gpu_ns DESC, w.id
        """
    values = {
        "start": period.start_ms,
        "end": period.end_ms,
        "models": list(models),
        "fewest": accelerators[0],
        "largest": accelerators[1],
        "most": most,
    }
    rows = select(connection, query, values)
    runs = {row.id: PastRun(**{name: getattr(row, name) for name in _STORED}) for row in rows}
    held = [(int(number), row.id) for row in rows for number in row.accelerator_ids]
    measured = _activities(connection, runs, held)
    return [replace(run, **measured.get(workload, {})) for workload, run in runs.items()]


def _activities(
    connection: Connection, runs: Mapping[int, PastRun], held: Sequence[tuple[int, int]]
) -> dict[int, dict[str, Any]]:
    """What is _MEASURED of each workload's last day, in the mean; `held`: accelerators and the
    workload that held them.

    A query of its own: Citus joins evidence to lists of ids, not to charges of the coordinator.
    """
    if not runs:
        return {}
    begins = {workload: max(run.start_ms, run.end_ms - DAY_MS) for workload, run in runs.items()}
    query = f"""
        SELECT u.workload_id, {", ".join(f"avg(m.{name}) AS {name}" for name in _MEASURED)}
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
        """
    values = {
        "accelerators": [accelerator for accelerator, _ in held],
        "workloads": [workload for _, workload in held],
        "begins": [begins[workload] for _, workload in held],
        "ends": [runs[workload].end_ms for _, workload in held],
        "begin": min(begins.values()),
        "end": max(run.end_ms for run in runs.values()),
    }
    return {
        row.workload_id: {name: getattr(row, name) for name in _MEASURED}
        for row in select(connection, query, values)
    }
