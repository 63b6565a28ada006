"""What jobs of several workloads held and cost."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.charged_runs import ChargedJob
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing.reports import (
    CHARGE_DIMENSIONS,
    CLOSED_WORKLOADS,
    LEVEL_COLUMNS,
)
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, to_object

_COLUMNS = """workload_id, owner_id, accelerator_id, gpu_model, start_ms, end_ms, gpu_ns, busy_ns, idle_ns, unknown_ns,
    currency, cost_micro, idle_cost_micro, energy_mj, day_ms AS billed_ms"""
_UID = "coalesce(CASE WHEN k.workload_id IS NULL THEN w.job_uid ELSE k.job_uid END, '')"
_SUMMED = (
    "gpu_ns",
    "busy_ns",
    "idle_ns",
    "unknown_ns",
    "cost_micro",
    "idle_cost_micro",
    "energy_mj",
)
_DAYS = "day_ms >= %(start)s AND day_ms < %(end)s AND state = 'held' AND workload_id IS NOT NULL"


def list_charged(
    connection: Connection, period: Period, owner: Mapping[str, str]
) -> list[ChargedJob]:
    """List the jobs that were charged for days of the period, with corrections of those days; a
    workload without a job is a row of its own.
    """
    conditions = "".join(
        f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %({level})s" for level in owner
    )
    sums = ", ".join(f"sum(l.{name})::bigint AS {name}" for name in _SUMMED)
    rows = select(
        connection,
        f"""
        SELECT {CHARGE_DIMENSIONS["job"]} AS job, {_UID} AS uid, array_agg(DISTINCT w.key) AS workloads,
            coalesce(string_agg(DISTINCT w.user_name, ', '), '') AS user,
            coalesce(string_agg(DISTINCT nullif(o.team, ''), ', '), '') AS team,
            string_agg(DISTINCT l.gpu_model, ', ') AS gpu_model,
            count(DISTINCT l.accelerator_id) AS accelerators, min(l.start_ms) AS start_ms,
            max(l.end_ms) AS end_ms, l.currency, {sums}
        FROM (
            SELECT {_COLUMNS} FROM charge WHERE {_DAYS} UNION ALL SELECT {_COLUMNS} FROM correction WHERE {_DAYS}
        ) l JOIN workload w ON w.id = l.workload_id{CLOSED_WORKLOADS}
        LEFT JOIN owner o ON o.id = l.owner_id
        WHERE true{conditions}
        GROUP BY 1, 2, l.currency ORDER BY 1, 2, l.currency
        """,
        {"start": period.start_ms, "end": period.end_ms, **owner},
    )
    return [to_object(ChargedJob, row, workloads=tuple(row.workloads)) for row in rows]
