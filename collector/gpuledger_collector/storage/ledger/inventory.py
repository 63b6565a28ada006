"""Capacity and inventory in Postgres: which accelerators were available, where and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuledger_collector.accounting.import_progress import OnRow, RowStages, tell_nobody
from gpuledger_collector.accounting.ledger_rows import CapacityRow, ImportOutcome, InventoryRow
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.ledger.placements import settle
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as, select_values
from gpuledger_common.instants import to_datetime

INVENTORY_STAGES = 2
"""What every accelerator passes: writing, and the capacity that follows from its placements."""


def capacity(
    connection: Connection, period: Period, accelerator_ids: Sequence[int] | None = None
) -> list[CapacityRow]:
    """Read capacity that overlaps the period, of these accelerators (None: of all), by accelerator
    and time.
    """
    return select_as(
        connection,
        CapacityRow,
        """
        SELECT a.id AS accelerator_id, c.gpu_micro, c.gpu_model, c.pool, coalesce(n.name,
            '') AS node, c.in_ms,
            c.out_ms, c.source, a.uuid, a.device_uuid AS device
        FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)
            AND (%(ids)s::bigint[] IS NULL OR a.id = ANY(%(ids)s)) ORDER BY a.uuid, c.in_ms, c.id
        """,
        {
            "start": period.start_ms,
            "end": period.end_ms,
            "ids": None if accelerator_ids is None else list(accelerator_ids),
        },
    )


def gpus_by_node(connection: Connection, names: Sequence[str], period: Period) -> dict[str, int]:
    """Sum the GPUs, in millionths, that each of these nodes had in the period; unknown ones are
    left out.
    """
    rows = connection.execute(
        """
        SELECT n.name, sum(c.gpu_micro)::bigint FROM capacity c JOIN node n ON n.id = c.node_id
        WHERE n.name = ANY(%s) AND c.in_ms < %s AND (c.out_ms IS NULL OR c.out_ms > %s) GROUP BY 1
        """,
        (list(names), period.end_ms, period.start_ms),
    )
    return {str(name): int(micro) for name, micro in rows}


def replace_inventory(
    connection: Connection,
    rows: Sequence[InventoryRow],
    now_ms: int,
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Replace the inventory of every accelerator named here; others keep theirs.

    The file decides when and where an accelerator is, whatever agents report. `on_row` is told how
    far it is.
    """
    placements: dict[str, list[InventoryRow]] = defaultdict(list)
    for row in rows:
        placements[row.uuid].append(row)
    connection.execute("LOCK TABLE inventory IN SHARE ROW EXCLUSIVE MODE")
    nodes = _nodes(connection, sorted({row.node for row in rows}), now_ms)
    accelerators = _accelerators(connection, placements)
    known = _read_stated(connection, list(accelerators.values()))
    placed = set(
        select_values(
            connection,
            "SELECT DISTINCT accelerator_id FROM capacity WHERE accelerator_id = ANY(%s)",
            (list(accelerators.values()),),
        )
    )
    counts = {"added": 0, "updated": 0, "unchanged": 0}
    changed: list[int] = []
    changes: list[audit.Change] = []
    stages = RowStages(list(placements.items()), INVENTORY_STAGES, on_row)
    for uuid, wanted in stages.one_by_one():
        accelerator_id = accelerators[uuid]
        new = sorted(
            Stated(nodes[row.node], row.pool, row.gpu_model, row.in_ms, row.out_ms or 0)
            for row in wanted
        )
        old = known.get(accelerator_id, [])
        if new == old:
            counts["unchanged"] += len(wanted)
            continue
        counts["updated" if old or accelerator_id in placed else "added"] += len(wanted)
        changed.append(accelerator_id)
        changes.append(
            audit.Change(
                "inventory",
                uuid,
                _audit_facts(old, nodes) if old else None,
                _audit_facts(new, nodes),
            )
        )
        connection.execute("DELETE FROM inventory WHERE accelerator_id = %s", (accelerator_id,))
        for stated in new:
            connection.execute(
                "INSERT INTO inventory (accelerator_id, node_id, pool, gpu_model, in_ms, out_ms) "
                "VALUES (%s, %s, %s, %s, %s, %s)",
                (
                    accelerator_id,
                    stated.node_id,
                    stated.pool,
                    stated.gpu_model,
                    stated.in_ms,
                    stated.out_ms or None,
                ),
            )
    if not changed:
        stages.pass_stage()
        return ImportOutcome(counts["added"], counts["updated"], counts["unchanged"])
    audit.record(connection, changes, now_ms)
    settle(connection, changed, 0)
    since_ms = min(row.in_ms for row in rows)
    days = usage.request_days_with_evidence(connection, since_ms, now_ms)
    stages.pass_stage()
    return ImportOutcome(counts["added"], counts["updated"], counts["unchanged"], days)


class Stated(NamedTuple):
    """A row of the inventory, comparable: `out_ms` 0 where it is still present."""

    node_id: int
    pool: str
    gpu_model: str
    in_ms: int
    out_ms: int


def _audit_facts(rows: Sequence[Stated], nodes: Mapping[str, int]) -> dict[str, object]:
    names = {number: name for name, number in nodes.items()}
    return {
        "rows": [
            {
                "node": names.get(row.node_id, str(row.node_id)),
                "pool": row.pool,
                "gpu_model": row.gpu_model,
                "in_ms": row.in_ms,
                "out_ms": row.out_ms or None,
            }
            for row in rows
        ]
    }


def _nodes(connection: Connection, names: Sequence[str], now_ms: int) -> dict[str, int]:
    connection.execute(
        "INSERT INTO node (name, first_seen_at, last_seen_at, status, source) SELECT name, %s, %s,"
        " 'inventory', 'inventory' FROM unnest(%s::text[]) AS name ON CONFLICT (name) DO NOTHING",
        (to_datetime(now_ms), to_datetime(now_ms), list(names)),
    )
    return dict(
        connection.execute(
            "SELECT name, id FROM node WHERE name = ANY(%s)", (list(names),)
        ).fetchall()
    )


def _accelerators(
    connection: Connection, placements: Mapping[str, Sequence[InventoryRow]]
) -> dict[str, int]:
    """Return ids by UUID; a model that an agent reported is kept, a missing one is taken from the
    inventory.
    """
    connection.execute(
        "INSERT INTO accelerator AS old (uuid, device_uuid, model) SELECT uuid, uuid, model FROM"
        " unnest(%s::text[], %s::text[]) AS given (uuid, model) ON CONFLICT (uuid) DO UPDATE SET"
        " model = excluded.model WHERE old.model = '' AND excluded.model <> ''",
        (sorted(placements), [placements[uuid][0].gpu_model for uuid in sorted(placements)]),
    )
    return dict(
        connection.execute(
            "SELECT uuid, id FROM accelerator WHERE uuid = ANY(%s)", (list(placements),)
        ).fetchall()
    )


def _read_stated(connection: Connection, ids: Sequence[int]) -> dict[int, list[Stated]]:
    rows = select(
        connection,
        "SELECT accelerator_id, coalesce(node_id, 0) AS node_id, pool, gpu_model, in_ms,"
        " coalesce(out_ms, 0) AS out_ms FROM inventory WHERE accelerator_id = ANY(%s) ORDER BY 1,"
        " 2, 3, 4, 5, 6",
        (list(ids),),
    )
    stated: dict[int, list[Stated]] = defaultdict(list)
    for row in rows:
        stated[row.accelerator_id].append(
            Stated(row.node_id, row.pool, row.gpu_model, row.in_ms, row.out_ms)
        )
    return stated
