"""Who held an accelerator last since an instant, such as since it is sick."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.last_holder import LastHolder
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as


def read_last_holders(
    connection: Connection, since_ms: Mapping[str, int]
) -> Mapping[str, LastHolder]:
    """Read by UUID who held these accelerators in the last hour that began since an instant of each;
    nothing of those that nobody is known to have held.

    The hour in which the instant lies is left out: who held one before it is not to be named.
    """
    held: list[tuple[str, int, int | None, int]] = []
    for row in select(
        connection, "SELECT id, uuid FROM accelerator WHERE uuid = ANY(%s)", (list(since_ms),)
    ):
        # One by one: each is a look-up in an index that ends at the first row, on one worker of a
        # cluster.
        held += [
            (row.uuid, row.id, hour.workload_id, hour.hour_ms)
            for hour in select(
                connection,
                "SELECT workload_id, hour_ms FROM usage_hour WHERE accelerator_id = %s AND state ="
                " 'held' AND held_ms > 0 AND hour_ms >= %s ORDER BY hour_ms DESC, held_ms DESC,"
                " workload_id LIMIT 1",
                (row.id, since_ms[row.uuid]),
            )
        ]
    return {holder.uuid: holder for holder in _name_holders(connection, held)}


def _name_holders(
    connection: Connection, held: list[tuple[str, int, int | None, int]]
) -> list[LastHolder]:
    """Name the holders: UUID and id of an accelerator, a workload, and the hour."""
    if not held:
        return []
    uuids, accelerators, workloads, hours = map(list, zip(*held, strict=True))
    return select_as(
        connection,
        LastHolder,
        f"""
        SELECT h.uuid, h.hour_ms, coalesce(nullif(w.name, ''), w.external_id, '') AS job,
            coalesce(w.key, '') AS job_key, coalesce(w.user_name, '') AS user, paid.team
        FROM unnest(%(uuids)s::text[], %(accelerators)s::bigint[], %(workloads)s::bigint[], %(hours)s::bigint[])
            AS h (uuid, accelerator_id, workload_id, hour_ms)
        LEFT JOIN workload w ON w.id = h.workload_id
        LEFT JOIN LATERAL (
            SELECT coalesce(o.team, '') AS team FROM charge c LEFT JOIN owner o ON o.id = c.owner_id
            WHERE c.workload_id = h.workload_id AND c.accelerator_id = h.accelerator_id AND c.state = 'held'
                AND c.day_ms > h.hour_ms - {2 * DAY_MS} AND c.day_ms <= h.hour_ms
                AND c.start_ms < h.hour_ms + {HOUR_MS} AND c.end_ms > h.hour_ms ORDER BY c.start_ms DESC LIMIT 1
        ) paid ON true
        """,
        {"uuids": uuids, "accelerators": accelerators, "workloads": workloads, "hours": hours},
    )
