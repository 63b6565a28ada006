"""Capacity in Postgres: which accelerators were there, where and when."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.ports import CapacityRow, ImportOutcome, InventoryRow
from gpuledger_collector.accounting.stranded import Instance
from gpuledger_collector.storage import prices, usage

Connection = psycopg.Connection[tuple[Any, ...]]


def capacity(connection: Connection, period: Period) -> list[CapacityRow]:
    """Capacity that overlaps the period, by accelerator and time."""
    rows = connection.execute(
        """
        SELECT a.id, c.gpu_micro, c.gpu_model, c.pool, coalesce(n.name, ''), c.in_ms, c.out_ms, c.source, a.uuid,
            a.device_uuid
        FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        WHERE c.in_ms < %s AND (c.out_ms IS NULL OR c.out_ms > %s) ORDER BY a.id, c.in_ms, c.id
        """,
        (period.end_ms, period.start_ms),
    )
    return [CapacityRow(*row) for row in rows]


def mig_instances(connection: Connection, period: Period) -> list[Instance]:
    """What was there of each board that has ever had MIG instances, within the period; a whole board is one of 1."""
    rows = connection.execute(
        """
        SELECT a.device_uuid, c.pool, a.model, coalesce(n.name, ''), a.gpu_micro, greatest(c.in_ms, %(start)s),
            least(coalesce(c.out_ms, %(end)s), %(end)s)
        FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        WHERE a.device_uuid IN (SELECT device_uuid FROM accelerator WHERE mig_instance IS NOT NULL)
            AND c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s) ORDER BY a.device_uuid, c.in_ms, a.id
        """,
        {"start": period.start_ms, "end": period.end_ms},
    )
    return [Instance(row[0], row[1], row[2], row[3], row[4], Period(row[5], row[6])) for row in rows]


def pools_observed(connection: Connection, period: Period) -> Mapping[str, Sequence[Period]]:
    """When each pool had observed accelerators, within the period; spans may overlap."""
    rows = connection.execute(
        "SELECT DISTINCT pool, greatest(in_ms, %s), least(coalesce(out_ms, %s), %s) FROM capacity "
        "WHERE in_ms < %s AND (out_ms IS NULL OR out_ms > %s) ORDER BY 1, 2, 3",
        (period.start_ms, period.end_ms, period.end_ms, period.end_ms, period.start_ms),
    )
    found: dict[str, list[Period]] = defaultdict(list)
    for pool, start_ms, end_ms in rows:
        found[pool].append(Period(start_ms, end_ms))
    return found


def replace(connection: Connection, rows: Sequence[InventoryRow], now: dt.datetime) -> ImportOutcome:
    """The stays of every accelerator named here become these rows; accelerators not named keep theirs.

    The file is the authority on when an accelerator was there: stays first seen by an agent are replaced too.
    """
    stays: dict[str, list[InventoryRow]] = defaultdict(list)
    for row in rows:
        stays[row.uuid].append(row)
    connection.execute("LOCK TABLE capacity IN SHARE ROW EXCLUSIVE MODE")
    nodes = _nodes(connection, sorted({row.node for row in rows}), now)
    accelerators = _accelerators(connection, stays)
    known = _known(connection, list(accelerators.values()))
    counts = {"added": 0, "updated": 0, "unchanged": 0}
    days = 0
    for uuid, wanted in stays.items():
        accelerator_id = accelerators[uuid]
        new = sorted((nodes[row.node], row.pool, row.in_ms, row.out_ms, "import") for row in wanted)
        old = known.get(accelerator_id, [])
        if new == old:
            counts["unchanged"] += len(wanted)
            continue
        counts["updated" if old else "added"] += len(wanted)
        _write(connection, accelerator_id, new)
        days += _mark(connection, accelerator_id, [*old, *new], int(now.timestamp() * 1000))
    return ImportOutcome(**counts, dirty_days=days)


Stay = tuple[int, str, int, int | None, str]


def _nodes(connection: Connection, names: Sequence[str], now: dt.datetime) -> dict[str, int]:
    connection.execute(
        "INSERT INTO node (name, first_seen_at, last_seen_at, status, source) "
        "SELECT name, %s, %s, 'inventory', 'inventory' FROM unnest(%s::text[]) AS name ON CONFLICT (name) DO NOTHING",
        (now, now, list(names)),
    )
    rows = connection.execute("SELECT name, id FROM node WHERE name = ANY(%s)", (list(names),))
    return dict(rows.fetchall())


def _accelerators(connection: Connection, stays: Mapping[str, Sequence[InventoryRow]]) -> dict[str, int]:
    """Ids by uuid; an accelerator that an agent described keeps its model, one without gets the inventory's."""
    connection.execute(
        "INSERT INTO accelerator AS old (uuid, device_uuid, model) "
        "SELECT uuid, uuid, model FROM unnest(%s::text[], %s::text[]) AS given (uuid, model) "
        "ON CONFLICT (uuid) DO UPDATE SET model = excluded.model WHERE old.model = '' AND excluded.model <> ''",
        (list(stays), [rows[0].gpu_model for rows in stays.values()]),
    )
    rows = connection.execute("SELECT uuid, id FROM accelerator WHERE uuid = ANY(%s)", (list(stays),))
    return dict(rows.fetchall())


def _known(connection: Connection, ids: Sequence[int]) -> dict[int, list[Stay]]:
    rows = connection.execute(
        "SELECT accelerator_id, coalesce(node_id, 0), pool, in_ms, out_ms, source FROM capacity "
        "WHERE accelerator_id = ANY(%s) ORDER BY 1, 2, 3, 4",
        (list(ids),),
    )
    found: dict[int, list[Stay]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row[1:])
    return found


def _write(connection: Connection, accelerator_id: int, stays: Sequence[Stay]) -> None:
    connection.execute("DELETE FROM capacity WHERE accelerator_id = %s", (accelerator_id,))
    for node_id, pool, in_ms, out_ms, source in stays:
        connection.execute(
            "INSERT INTO capacity (accelerator_id, node_id, pool, in_ms, out_ms, source) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            (accelerator_id, node_id, pool, in_ms, out_ms, source),
        )


def _mark(connection: Connection, accelerator_id: int, stays: Sequence[Stay], now_ms: int) -> int:
    first = min(stay[2] for stay in stays)
    last = max(now_ms if stay[3] is None else stay[3] for stay in stays)
    usage.mark_evidence(connection, [accelerator_id], first, last)
    return prices.mark_days_with_evidence(connection, first, min(last, now_ms))
