"""What the map of the fleet reads: accelerators that were there in an hour with their hourly usage,
or that are there now with their latest reading; who held them; and the hours of one GPU.

The hourly ledger is indexed by hour, so an hour costs as much whatever the length of the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.gpu_receipt import GpuPart
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_value


@dataclass(slots=True)
class PlacedAccelerator:
    """A row of capacity with its accelerator.

    Not frozen: a page makes tens of thousands, and frozen ones take three times as long to make.
    """

    accelerator_id: int
    uuid: str
    device: str
    model: str
    mig_instance: str | None
    gpu_index: int | None
    health: str
    cause: str
    health_since_ms: int | None
    gpu_micro: int
    pool: str
    node: str
    in_ms: int
    out_ms: int | None
    source: str


@dataclass(slots=True)
class UsedHour(PlacedAccelerator):
    """And what the hourly ledger has of it in an hour; None: no evidence."""

    busy_ms: int | None
    idle_ms: int | None
    unknown_ms: int | None
    unallocated_ms: int | None
    unavailable_ms: int | None


@dataclass(slots=True)
class LatestReading(PlacedAccelerator):
    """And its latest reading; None: there is none."""

    read_ms: int | None
    state: str | None
    activity: float | None


@dataclass(slots=True)
class HolderRow:
    """A workload that held an accelerator in an hour, or that holds it now."""

    accelerator_id: int
    workload: str
    name: str
    team: str | None
    held_ms: int


@dataclass(frozen=True, slots=True)
class TeamColor:
    """A team (empty: unattributed), and its number among the teams of the ledger."""

    team: str
    number: int


_PLACED = """c.accelerator_id, a.uuid, a.device_uuid AS device, coalesce(nullif(a.model, ''), c.gpu_model) AS model,
    a.mig_instance, a.gpu_index, a.health, a.health_cause AS cause, a.health_since_ms,
    c.gpu_micro, c.pool, coalesce(n.name, '') AS node,
    c.in_ms, c.out_ms, c.source"""
_THERE = """FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id"""
_NARROWED = """(%(pool)s::text IS NULL AND %(node)s::text IS NULL OR a.device_uuid IN (
    SELECT b.device_uuid FROM capacity d JOIN accelerator b ON b.id = d.accelerator_id
        LEFT JOIN node m ON m.id = d.node_id
    WHERE (%(pool)s::text IS NULL OR d.pool = %(pool)s) AND (%(node)s::text IS NULL OR coalesce(m.name, '') = %(node)s)
))"""
"""Whole boards of which something is in the pool or on the node: what slices leave of a board
depends on all of them.
"""


def used_hours(
    connection: Connection, hour: Period, pool: str | None = None, node: str | None = None
) -> list[UsedHour]:
    """Read the accelerators that were there in an hour, each with its sums; one that moved has a
    row for each place, with the sums of all of them.

    Each row of the ledger lies in an hour, so its times fit an integer; sums of those cost half of
    sums of bigint, which Postgres adds up as numeric.
    """
    return select_as(
        connection,
        UsedHour,
        f"""
        WITH used AS MATERIALIZED (
            SELECT accelerator_id,
                sum(busy_ms::integer) FILTER (WHERE state = 'held') AS busy_ms,
                sum(idle_ms::integer) FILTER (WHERE state = 'held') AS idle_ms,
                sum((held_ms - busy_ms - idle_ms)::integer) FILTER (WHERE state = 'held') AS unknown_ms,
                sum(held_ms::integer) FILTER (WHERE state = 'unallocated') AS unallocated_ms,
                sum(held_ms::integer) FILTER (WHERE state = 'unavailable') AS unavailable_ms
            FROM usage_hour WHERE hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1
        )
        SELECT {_PLACED}, u.busy_ms, u.idle_ms, u.unknown_ms, u.unallocated_ms, u.unavailable_ms
        {_THERE} LEFT JOIN used u ON u.accelerator_id = c.accelerator_id
        WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s) AND {_NARROWED}
        """,
        {"start": hour.start_ms, "end": hour.end_ms, "pool": pool, "node": node},
    )


def latest_readings(
    connection: Connection, pool: str | None = None, node: str | None = None
) -> list[LatestReading]:
    """Read the accelerators that are there now, each with its latest reading."""
    return select_as(
        connection,
        LatestReading,
        f"""
        SELECT {_PLACED}, l.at_ms AS read_ms, l.state,
            coalesce(l.gpu_sm_active_ratio, l.gpu_graphics_engine_active_ratio, l.gpu_utilization_ratio)::float8
                AS activity
        {_THERE} LEFT JOIN gpu_latest l ON l.accelerator_id = c.accelerator_id
        WHERE c.out_ms IS NULL AND {_NARROWED}
        """,
        {"pool": pool, "node": node},
    )


_CHARGED = """charged AS MATERIALIZED (
    SELECT DISTINCT ON (l.accelerator_id, l.workload_id) l.accelerator_id, l.workload_id,
        coalesce(o.team, '') AS team
    FROM (SELECT accelerator_id, workload_id, owner_id, start_ms FROM charge
            WHERE day_ms = ANY(%(days)s) AND {wanted} AND state = 'held'
        UNION ALL SELECT accelerator_id, workload_id, owner_id, start_ms FROM correction
            WHERE day_ms = ANY(%(days)s) AND {wanted} AND state = 'held' AND gpu_ns > 0) l
        LEFT JOIN owner o ON o.id = l.owner_id
    ORDER BY l.accelerator_id, l.workload_id, l.start_ms DESC
)"""
"""Who pays for holders, by the charges of these days that are wanted, newest first."""
_OF_HOUR = _CHARGED.format(
    # What leaves out most comes first: Postgres asks in this order of every charge of the day.
    wanted="start_ms < %(end)s AND end_ms > %(start)s"
    " AND accelerator_id IS NOT NULL AND workload_id IS NOT NULL"
)
_OF_PRESENT = _CHARGED.format(
    wanted="(accelerator_id, workload_id) IN"
    " (SELECT accelerator_id, workload_id FROM gpu_latest WHERE state = 'held')"
)
_NAMED = "coalesce(w.key, '') AS workload, coalesce(nullif(w.name, ''), w.external_id, '') AS name"


def hour_holders(
    connection: Connection, hour: Period, days_ms: Sequence[int], *, with_names: bool = True
) -> list[HolderRow]:
    """Read who held accelerators in an hour of these days of the bill, in no order; a team of None:
    not rated yet. Without names the workloads of a team are one.
    """
    names = _NAMED if with_names else "'' AS workload, '' AS name"
    joined = "LEFT JOIN workload w ON w.id = u.workload_id" if with_names else ""
    groups = "1, w.id, u.workload_id, t.team" if with_names else "1, 4"
    return select_as(
        connection,
        HolderRow,
        f"""
        WITH {_OF_HOUR}
        SELECT u.accelerator_id, {names}, CASE WHEN u.workload_id IS NULL THEN '' ELSE t.team END AS team,
            sum(u.held_ms::integer) AS held_ms
        FROM usage_hour u {joined}
            LEFT JOIN charged t ON t.accelerator_id = u.accelerator_id AND t.workload_id = u.workload_id
        WHERE u.hour_ms >= %(start)s AND u.hour_ms < %(end)s AND u.state = 'held'
        GROUP BY {groups}
        """,
        {"start": hour.start_ms, "end": hour.end_ms, "days": list(days_ms)},
    )


def present_holders(connection: Connection, days_ms: Sequence[int]) -> list[HolderRow]:
    """Read who holds accelerators by their latest readings, and who pays for them today."""
    return select_as(
        connection,
        HolderRow,
        f"""
        WITH {_OF_PRESENT}
        SELECT l.accelerator_id, {_NAMED}, CASE WHEN l.workload_id IS NULL THEN '' ELSE t.team END AS team,
            %(hour)s::bigint AS held_ms
        FROM gpu_latest l LEFT JOIN workload w ON w.id = l.workload_id
            LEFT JOIN charged t ON t.accelerator_id = l.accelerator_id AND t.workload_id = l.workload_id
        WHERE l.state = 'held' ORDER BY 1
        """,
        {"days": list(days_ms), "hour": HOUR_MS},
    )


@dataclass(frozen=True, slots=True)
class StateHour:
    """What an accelerator did in an hour (or a part of one that was cut), by state."""

    accelerator_id: int
    hour_ms: int
    state: str
    held_ms: int
    busy_ms: int
    idle_ms: int


def parts_of_gpu(connection: Connection, uuid: str) -> list[GpuPart]:
    """Read the parts of a board by its UUID, itself among them; or one slice by its own. Each with
    where it was last.
    """
    return select_as(
        connection,
        GpuPart,
        """
        SELECT DISTINCT ON (a.uuid) a.id AS accelerator_id, a.uuid, a.device_uuid AS device,
            coalesce(nullif(a.model, ''), c.gpu_model) AS model, a.mig_instance, a.gpu_index, a.health,
            a.health_cause AS cause, a.health_since_ms, c.pool, coalesce(n.name, '') AS node, c.out_ms,
            coalesce(n.status, '') AS node_status,
            floor(extract(epoch FROM n.last_seen_at) * 1000)::bigint AS seen_ms
        FROM accelerator a JOIN capacity c ON c.accelerator_id = a.id LEFT JOIN node n ON n.id = c.node_id
        WHERE a.uuid = %(uuid)s OR a.device_uuid = %(uuid)s ORDER BY a.uuid, c.in_ms DESC
        """,
        {"uuid": uuid},
    )


def hours_of_accelerators(
    connection: Connection, accelerator_ids: Sequence[int], period: Period
) -> list[StateHour]:
    """Read the hourly ledger of some accelerators, by hour."""
    return select_as(
        connection,
        StateHour,
        "SELECT accelerator_id, hour_ms, state, sum(held_ms)::bigint AS held_ms, sum(busy_ms)::bigint"
        " AS busy_ms, sum(idle_ms)::bigint AS idle_ms FROM usage_hour"
        " WHERE accelerator_id = ANY(%s) AND hour_ms >= %s AND hour_ms < %s GROUP BY 1, 2, 3"
        " ORDER BY 2, 1, 3",
        (list(accelerator_ids), period.start_ms, period.end_ms),
    )


def team_colors(connection: Connection) -> list[TeamColor]:
    """Number the teams of the ledger from 0, by when they came."""
    return select_as(
        connection,
        TeamColor,
        "SELECT team, row_number() OVER (ORDER BY first, coalesce(nullif(team, ''),"
        " '(unattributed)')) - 1 AS number"
        " FROM (SELECT team, min(id) AS first FROM owner GROUP BY 1) named",
    )


def first_instant_ms(
    connection: Connection, accelerator_ids: Sequence[int] | None = None
) -> int | None:
    """Read the first instant at which one of these accelerators (None: any) was there."""
    ids = None if accelerator_ids is None else list(accelerator_ids)
    first_ms: int | None = select_value(
        connection,
        "SELECT min(in_ms) FROM capacity WHERE %(ids)s::bigint[] IS NULL OR accelerator_id ="
        " ANY(%(ids)s)",
        {"ids": ids},
    )
    return first_ms


def has_imported_usage(connection: Connection) -> bool:
    """Whether there is usage that was imported as counts of GPUs."""
    return bool(select_value(connection, "SELECT EXISTS (SELECT FROM imported_usage)"))
