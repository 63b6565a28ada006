"""Queues of Kubernetes schedulers: what was last read of a cluster, quotas with dates, GPU-time by
hour, and evictions.

A reading and what it adds are one transaction under the row of its cluster, so that no time counts
twice, whichever collector reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.queue_quotas import (
    DatedQuota,
    DatedTenant,
    Eviction,
    QueuedWorkload,
    QueueHours,
    QueueReading,
    QueueTime,
    Quota,
    ResourceTime,
)
from gpuledger_collector.insight.queue_health import ListProblem
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as, select_row, select_values

KEEP_MS = 400 * DAY_MS
FORGET_MS = 7 * DAY_MS
"""After this time without a reading a cluster is gone, and its quotas end."""
MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """What was last read of a cluster; `reading` None: nothing yet."""

    read_ms: int
    reading: QueueReading | None
    problems: tuple[ListProblem, ...]


def lock_cluster(connection: Connection, cluster: str) -> KnownCluster:
    """Read what is known of a cluster, and keep others from adding to it in this transaction."""
    connection.execute(
        "INSERT INTO scheduler_cluster (cluster, read_ms, reading, problems) VALUES (%s, 0,"
        " 'null', '[]') ON CONFLICT DO NOTHING",
        (cluster,),
    )
    row = select_row(
        connection,
        "SELECT read_ms, reading, problems FROM scheduler_cluster WHERE cluster = %s FOR UPDATE",
        (cluster,),
    )
    reading = None if row.reading is None else msgspec.convert(row.reading, QueueReading)
    return KnownCluster(row.read_ms, reading, _problems(row.problems))


def keep_reading(
    connection: Connection, cluster: str, reading: QueueReading, problems: Sequence[ListProblem]
) -> None:
    """Keep the newest reading of a cluster."""
    connection.execute(
        "UPDATE scheduler_cluster SET read_ms = %s, reading = %s, problems = %s WHERE cluster = %s",
        (
            reading.at_ms,
            msgspec.json.encode(reading).decode(),
            json.dumps([msgspec.to_builtins(problem) for problem in problems]),
            cluster,
        ),
    )


def _problems(stored: list[dict[str, str]]) -> tuple[ListProblem, ...]:
    return tuple(msgspec.convert(entry, ListProblem) for entry in stored)


_TERMS = (
    "scheduler, queue, flavor, resource, parent, pool, has_children, quota_micro, borrowing_micro,"
    " lending_micro"
)


def _terms(quota: Quota) -> tuple[object, ...]:
    place = quota.place
    return (
        *(place.scheduler, place.queue, place.flavor, place.resource),
        *(quota.parent, quota.pool, quota.has_children),
        *(quota.quota_micro, quota.borrowing_micro, quota.lending_micro),
    )


def date_quotas(
    connection: Connection,
    cluster: str,
    quotas: Iterable[Quota],
    at_ms: int,
    kept: Sequence[str] = (),
) -> int:
    """Date what changed of the quotas of a cluster; return how many rows are new.

    `kept`: schedulers of which nothing is known now.
    """
    known = {
        tuple(terms): number
        for number, *terms in connection.execute(
            f"SELECT id, {_TERMS} FROM queue_quota WHERE cluster = %s AND scheduler <> ALL(%s) AND"
            " until_ms IS NULL",
            (cluster, list(kept)),
        )
    }
    wanted = dict.fromkeys(map(_terms, quotas))
    gone = [number for terms, number in known.items() if terms not in wanted]
    new = [terms for terms in wanted if terms not in known]
    _end_rows(connection, "queue_quota", gone, at_ms)
    marks = ", ".join(["%s"] * 12)
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO queue_quota (cluster, {_TERMS}, from_ms) VALUES ({marks})",
            [(cluster, *terms, at_ms) for terms in new],
        )
    return len(new)


def date_tenants(
    connection: Connection,
    cluster: str,
    tenants: Iterable[tuple[str, str, str]],
    at_ms: int,
    kept: Sequence[str] = (),
) -> None:
    """Date what changed of the queues that workloads name: scheduler, name, queue with the quota.

    `kept`: schedulers of which nothing is known now.
    """
    known = {
        (scheduler, name, queue): number
        for number, scheduler, name, queue in connection.execute(
            "SELECT id, scheduler, name, queue FROM tenant_queue WHERE cluster = %s AND"
            " scheduler <> ALL(%s) AND until_ms IS NULL",
            (cluster, list(kept)),
        )
    }
    wanted = set(tenants)
    _end_rows(
        connection,
        "tenant_queue",
        [number for row, number in known.items() if row not in wanted],
        at_ms,
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO tenant_queue (cluster, scheduler, name, queue, from_ms)"
            " VALUES (%s, %s, %s, %s, %s)",
            [(cluster, *row, at_ms) for row in sorted(wanted - known.keys())],
        )


def _end_rows(connection: Connection, table: str, numbers: list[int], at_ms: int) -> None:
    connection.execute(f"UPDATE {table} SET until_ms = %s WHERE id = ANY(%s)", (at_ms, numbers))


def add_hours(connection: Connection, hours: QueueHours) -> None:
    """Add GPU-time to the hours that it lies in."""
    with connection.cursor() as cursor:
        cursor.executemany(
            """
            INSERT INTO queue_hour AS old (scheduler, queue, flavor, resource, hour_ms, known_ms,
                reserved_ns, observed_ms, used_ns, borrowed_ns, lent_ns, unused_ns)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
            ON CONFLICT (scheduler, queue, flavor, resource, hour_ms) DO UPDATE SET
                known_ms = old.known_ms + excluded.known_ms,
                reserved_ns = CASE WHEN old.reserved_ns IS NULL THEN excluded.reserved_ns
                    ELSE old.reserved_ns + coalesce(excluded.reserved_ns, 0) END,
                observed_ms = old.observed_ms + excluded.observed_ms,
                used_ns = old.used_ns + excluded.used_ns,
                borrowed_ns = old.borrowed_ns + excluded.borrowed_ns,
                lent_ns = old.lent_ns + excluded.lent_ns,
                unused_ns = old.unused_ns + excluded.unused_ns
            """,
            [
                (
                    *(place.scheduler, place.queue, place.flavor, place.resource, hour_ms),
                    *(entry.known_ms, entry.reserved_ns, entry.observed_ms, entry.used_ns),
                    *(entry.borrowed_ns, entry.lent_ns, entry.unused_ns),
                )
                for (place, hour_ms), entry in hours.places.items()
            ],
        )
        cursor.executemany(
            """
            INSERT INTO queue_wait_hour AS old
                (scheduler, queue, resource, hour_ms, observed_ms, waiting_ns, beside_unused_ns)
            VALUES (%s, %s, %s, %s, %s, %s, %s)
            ON CONFLICT (scheduler, queue, resource, hour_ms) DO UPDATE SET
                observed_ms = old.observed_ms + excluded.observed_ms,
                waiting_ns = old.waiting_ns + excluded.waiting_ns,
                beside_unused_ns = old.beside_unused_ns + excluded.beside_unused_ns
            """,
            [
                (*key, hour_ms, entry.observed_ms, entry.waiting_ns, entry.beside_unused_ns)
                for (key, hour_ms), entry in hours.waits.items()
            ],
        )


def admitted_workloads(connection: Connection, cluster: str) -> dict[str, QueuedWorkload]:
    """The workloads that ran at the last reading, by UID."""
    return {
        row.uid: QueuedWorkload(row.uid, row.name, row.queue, row.gpu_micro, row.admitted_ms)
        for row in select(
            connection,
            "SELECT uid, name, queue, gpu_micro, admitted_ms FROM scheduler_workload"
            " WHERE cluster = %s",
            (cluster,),
        )
    }


def keep_admitted(
    connection: Connection,
    cluster: str,
    known: Mapping[str, QueuedWorkload],
    workloads: Iterable[QueuedWorkload],
) -> None:
    """Keep which workloads run now."""
    running = {entry.uid: entry for entry in workloads if entry.admitted_ms is not None}

    def content(entry: QueuedWorkload) -> tuple[object, ...]:
        return entry.name, entry.queue, entry.gpu_micro, entry.admitted_ms

    changed = [
        entry
        for uid, entry in running.items()
        if uid not in known or content(known[uid]) != content(entry)
    ]
    connection.execute(
        "DELETE FROM scheduler_workload WHERE cluster = %s AND uid = ANY(%s)",
        (cluster, [*(known.keys() - running.keys()), *(entry.uid for entry in changed)]),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO scheduler_workload (cluster, uid, name, queue, gpu_micro, admitted_ms)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            [(cluster, entry.uid, *content(entry)) for entry in changed],
        )


def add_evictions(connection: Connection, cluster: str, evictions: Iterable[Eviction]) -> None:
    """Add evictions; one that is known stays as it was first seen."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO queue_eviction (cluster, uid, evicted_ms, workload, queue, gpu_micro,"
            " admitted_ms, reason, preempted_by, preempting_queue) VALUES (%s, %s, %s, %s, %s, %s,"
            " %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [
                (
                    *(cluster, entry.uid, entry.evicted_ms, entry.workload, entry.queue),
                    *(entry.gpu_micro, entry.admitted_ms, entry.reason),
                    *(entry.preempted_by, entry.preempting_queue),
                )
                for entry in evictions
            ],
        )


def list_quotas(connection: Connection, period: Period) -> list[DatedQuota]:
    """Quotas that held at some time of a period, oldest first within a place."""
    return select_as(
        connection,
        DatedQuota,
        "SELECT scheduler, queue, flavor, resource, parent, pool, quota_micro, borrowing_micro,"
        " lending_micro, from_ms, until_ms FROM queue_quota WHERE from_ms < %(end)s AND (until_ms"
        " IS NULL OR until_ms > %(start)s) ORDER BY scheduler, queue, flavor, resource, from_ms,"
        " id",
        {"start": period.start_ms, "end": period.end_ms},
    )


def list_tenants(connection: Connection, period: Period) -> list[DatedTenant]:
    """Queues that workloads named at some time of a period."""
    return select_as(
        connection,
        DatedTenant,
        "SELECT scheduler, name, queue, from_ms, until_ms FROM tenant_queue WHERE from_ms < %s AND"
        " (until_ms IS NULL OR until_ms > %s) ORDER BY scheduler, name, from_ms, id",
        (period.end_ms, period.start_ms),
    )


def list_evictions(connection: Connection, period: Period) -> list[Eviction]:
    """Evictions of a period, newest first."""
    return select_as(
        connection,
        Eviction,
        "SELECT uid, evicted_ms, workload, queue, gpu_micro, reason, admitted_ms, preempted_by,"
        " preempting_queue FROM queue_eviction WHERE evicted_ms >= %s AND evicted_ms < %s"
        " ORDER BY evicted_ms DESC, uid",
        (period.start_ms, period.end_ms),
    )


def sum_times(connection: Connection, period: Period) -> list[QueueTime]:
    """The GPU-time of each queue in the hours of a period, over all flavors and resources."""
    return select_as(
        connection,
        QueueTime,
        """
        WITH used AS (
            SELECT scheduler, queue, sum(reserved_ns)::bigint AS reserved_ns,
                CASE WHEN sum(observed_ms) > 0 THEN sum(used_ns)::bigint END AS used_ns,
                CASE WHEN sum(observed_ms) > 0 THEN sum(borrowed_ns)::bigint END AS borrowed_ns,
                CASE WHEN sum(observed_ms) > 0 THEN sum(lent_ns)::bigint END AS lent_ns,
                CASE WHEN sum(observed_ms) > 0 THEN sum(unused_ns)::bigint END AS unused_ns
            FROM queue_hour WHERE hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2
        ), known AS (
            SELECT scheduler, queue, sum(ms)::bigint AS known_ms FROM (
                SELECT scheduler, queue, hour_ms, max(known_ms) AS ms FROM queue_hour
                WHERE hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2, 3) hours
            GROUP BY 1, 2
        ), waits AS (
            SELECT scheduler, queue, sum(waiting_ns)::bigint AS waiting_ns,
                sum(beside_unused_ns)::bigint AS beside_unused_ns
            FROM queue_wait_hour WHERE hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2
        ), lost AS (
            SELECT queue, count(*) AS evictions,
                sum((evicted_ms - admitted_ms) * gpu_micro)::bigint AS lost_ns
            FROM queue_eviction WHERE evicted_ms >= %(start)s AND evicted_ms < %(end)s GROUP BY 1
        )
        SELECT used.scheduler, used.queue, coalesce((SELECT q.parent FROM queue_quota q
                WHERE q.scheduler = used.scheduler AND q.queue = used.queue
                AND q.from_ms < %(end)s ORDER BY q.from_ms DESC, q.id DESC LIMIT 1), '') AS parent,
            known.known_ms, reserved_ns, used_ns, borrowed_ns, lent_ns, unused_ns, waiting_ns,
            beside_unused_ns, coalesce(lost.evictions, 0) AS evictions, lost.lost_ns
        FROM used JOIN known USING (scheduler, queue) LEFT JOIN waits USING (scheduler, queue)
        LEFT JOIN lost ON lost.queue = used.queue AND used.scheduler = 'kueue'
        ORDER BY used.scheduler, used.queue
        """,
        {
            "start": period.start_ms - period.start_ms % HOUR_MS,
            "end": period.end_ms,
        },
    )


def waited_beside_unused(connection: Connection, period: Period) -> list[ResourceTime]:
    """What waited in the hours of a period beside unused quota, by queue and resource."""
    return select_as(
        connection,
        ResourceTime,
        "SELECT scheduler, queue, resource, sum(beside_unused_ns)::bigint AS ns FROM queue_wait_hour"
        " WHERE hour_ms >= %s AND hour_ms < %s GROUP BY 1, 2, 3 HAVING sum(beside_unused_ns) > 0",
        (period.start_ms - period.start_ms % HOUR_MS, period.end_ms),
    )


def unused_quota(connection: Connection, period: Period) -> list[ResourceTime]:
    """Quota that nobody used in the hours of a period, by queue and resource."""
    return select_as(
        connection,
        ResourceTime,
        "SELECT scheduler, queue, resource, sum(unused_ns)::bigint AS ns FROM queue_hour"
        " WHERE hour_ms >= %s AND hour_ms < %s GROUP BY 1, 2, 3 HAVING sum(unused_ns) > 0",
        (period.start_ms - period.start_ms % HOUR_MS, period.end_ms),
    )


def read_problems(connection: Connection) -> list[tuple[str, int, tuple[ListProblem, ...]]]:
    """Each cluster, when it was last read, and what was not answered then."""
    return [
        (row.cluster, row.read_ms, _problems(row.problems))
        for row in select(
            connection,
            "SELECT cluster, read_ms, problems FROM scheduler_cluster ORDER BY cluster",
        )
    ]


def quota_by_pool(connection: Connection) -> dict[str, int]:
    """Quotas that hold now, by pool; those of queues above others are sums."""
    return dict(
        connection.execute(
            "SELECT pool, sum(quota_micro)::bigint FROM queue_quota WHERE until_ms IS NULL AND NOT"
            " has_children AND quota_micro IS NOT NULL GROUP BY 1"
        ).fetchall()
    )


def capacity_by_pool(connection: Connection) -> dict[str, int]:
    """What is there now, in millionths of a GPU; a board with MIG instances is one."""
    return dict(
        connection.execute(
            "SELECT b.pool, sum(least(b.gpu_micro, 1000000))::bigint FROM (SELECT c.pool,"
            " coalesce(a.device_uuid, a.uuid) AS board, sum(c.gpu_micro) AS gpu_micro FROM capacity"
            " c JOIN accelerator a ON a.id = c.accelerator_id WHERE c.out_ms IS NULL GROUP BY 1, 2)"
            " b GROUP BY 1"
        ).fetchall()
    )


def queues_without_team(connection: Connection, period: Period) -> list[str]:
    """Queues of which charged time of a period has no team."""
    return select_values(
        connection,
        "SELECT DISTINCT w.queue FROM charge c JOIN workload w ON w.id = c.workload_id LEFT JOIN"
        " owner o ON o.id = c.owner_id WHERE c.day_ms >= %s AND c.day_ms < %s AND c.state = 'held'"
        " AND w.queue IS NOT NULL AND coalesce(o.team, '') = '' ORDER BY 1 LIMIT %s",
        (period.start_ms, period.end_ms, MAX_NAMES),
    )


def count_queues(connection: Connection) -> int:
    """Queues that hold workloads under a quota now."""
    values = select_values(
        connection,
        "SELECT count(DISTINCT (scheduler, queue)) FROM queue_quota WHERE until_ms IS NULL AND NOT"
        " has_children",
    )
    return int(values[0])


def expire(connection: Connection, now_ms: int) -> None:
    """Delete hours and evictions older than KEEP_MS, and clusters that are gone, whose quotas end
    with the last reading. Quotas stay: they have no other history.
    """
    for cluster, read_ms in connection.execute(
        "DELETE FROM scheduler_cluster WHERE read_ms < %s RETURNING cluster, read_ms",
        (now_ms - FORGET_MS,),
    ).fetchall():
        for table in ("queue_quota", "tenant_queue"):
            connection.execute(
                f"UPDATE {table} SET until_ms = %s WHERE cluster = %s AND until_ms IS NULL",
                (read_ms, cluster),
            )
        connection.execute("DELETE FROM scheduler_workload WHERE cluster = %s", (cluster,))
    for table, column in (
        ("queue_hour", "hour_ms"),
        ("queue_wait_hour", "hour_ms"),
        ("queue_eviction", "evicted_ms"),
    ):
        connection.execute(f"DELETE FROM {table} WHERE {column} < %s", (now_ms - KEEP_MS,))
