"""Evidence of holding: stretches as reported, the hours they touch, the inventory they imply, signs of life."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gpuledger_agent.wire import WireWorkload
from gpuledger_collector.ingest import capacity
from gpuledger_collector.ingest.columns import BinaryArray
from gpuledger_collector.ingest.directory import Connection, Ids
from gpuledger_collector.ingest.validate import DAY_MS, Accepted, SampleBlock, workload_key

HOUR_MS = 3_600_000
DEFAULT_POOL = "default"
MOST_DAYS_MARKED = 400
_JSON = msgspec.json.Encoder().encode


def copy_stretches(connection: Connection, batches: Sequence[Accepted], ids: Ids) -> None:
    """COPY the stretches."""
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY stretch (accelerator_id, workload_id, state, start_ms, end_ms, held_ms, busy_ms, idle_ms,"
            " unknown_ms, energy_mj, node_id, epoch, seq, record) FROM STDIN (FORMAT BINARY)"
        ) as copy,
    ):
        copy.set_types([*["int8"] * 2, "text", *["int8"] * 8, "uuid", "int8", "int4"])
        for batch in batches:
            known, node_id = ids.placed(batch), ids.nodes[batch.node]
            for place, one in batch.stretches.items():
                workload_id = None if one.workload is None else id_of(batch, batch.workloads[one.workload], ids)
                copy.write_row(
                    (
                        *(known[one.accelerator], workload_id, one.state, one.start_ms, one.end_ms, one.held_ms),
                        *(one.busy_ms, one.idle_ms, one.unknown_ms, one.energy_mj, node_id, batch.epoch, batch.seq),
                        place,
                    )
                )


def mark_hours(connection: Connection, batches: Sequence[Accepted], ids: Ids) -> None:
    """Mark the hours that stretches or samples touch: their usage is folded, and their minutes are rolled up, again."""
    hours: set[tuple[int, int]] = set()
    for batch in batches:
        known = ids.placed(batch)
        for stretch in batch.stretches.values():
            for hour in range(stretch.start_ms // HOUR_MS, (stretch.end_ms - 1) // HOUR_MS + 1):
                hours.add((known[stretch.accelerator], hour))
        if batch.block is not None:
            hours.update((known[place], hour) for place, hour in hours_of(batch.block))
    marked = np.array(sorted(hours), dtype="<i8").reshape(-1, 2)
    connection.execute(
        "INSERT INTO dirty_hour (accelerator_id, hour_ms) SELECT * FROM unnest(%b::bigint[], %b::bigint[])",
        (BinaryArray(marked[:, 0]), BinaryArray(marked[:, 1] * HOUR_MS)),
    )


def hours_of(block: SampleBlock) -> set[tuple[int, int]]:
    """Position of the accelerator and number of the hour, of all rows of a block."""
    hours = block.at_ms // HOUR_MS
    if hours[0] == hours[-1] and (hours == hours[0]).all():
        return {(place, int(hours[0])) for place in set(block.accelerator.tolist())}
    return set(zip(block.accelerator.tolist(), hours.tolist(), strict=True))


def id_of(batch: Accepted, workload: WireWorkload, ids: Ids) -> int:
    """The id of a workload that a batch names."""
    return ids.workloads[workload_key(workload.kind, batch.node, workload.id)]


def latest_states(batches: Sequence[Accepted], ids: Ids) -> dict[int, tuple[int, str, int | None]]:
    """Of each accelerator the end, the state and the (chief) holder of its latest stretch."""
    latest: dict[int, tuple[tuple[int, int], str, int | None]] = {}
    for batch in batches:
        known = ids.placed(batch)
        for one in batch.stretches.values():
            accelerator_id = known[one.accelerator]
            rank = (one.end_ms, one.held_ms)
            if accelerator_id not in latest or rank > latest[accelerator_id][0]:
                holder = None if one.workload is None else id_of(batch, batch.workloads[one.workload], ids)
                latest[accelerator_id] = (rank, one.state, holder)
    return {accelerator: (rank[0], state, holder) for accelerator, (rank, state, holder) in latest.items()}


def evidence_of(batches: Sequence[Accepted], ids: Ids) -> list[capacity.Evidence]:
    """First evidence of each accelerator in each batch, in the order of accelerators and time."""
    seen: list[capacity.Evidence] = []
    for batch in batches:
        first: dict[int, int] = {}
        for one in batch.stretches.values():
            first[one.accelerator] = min(one.start_ms, first.get(one.accelerator, one.start_ms))
        if batch.block is not None:
            for place in sorted(set(batch.block.accelerator.tolist()).difference(first)):
                first[place] = int(batch.block.at_ms[batch.block.accelerator == place].min())
        known, node_id = ids.placed(batch), ids.nodes[batch.node]
        for place, first_ms in first.items():
            pool = batch.accelerators[place].pool or DEFAULT_POOL
            seen.append(capacity.Evidence(known[place], node_id, pool, first_ms))
    return sorted(seen, key=lambda one: (one.accelerator_id, one.first_ms))


def keep_capacity(
    connection: Connection, seen: Sequence[capacity.Evidence], on_contest: Callable[[capacity.Evidence], None]
) -> dict[int, capacity.CapacityRow]:
    """Bring the inventory in line with the evidence; the newest row of each accelerator that was looked at.

    A UUID that a second node reports while the first still does is contested: it stays where it is.
    """
    accelerators = sorted({one.accelerator_id for one in seen})
    connection.execute("SELECT 1 FROM accelerator WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", (accelerators,))
    for one in seen:
        rows = capacity_rows(connection, [one.accelerator_id])[one.accelerator_id]
        steps = capacity.plan(rows, one)
        if steps and is_contested(connection, rows, one):
            record_contest(connection, one, rows[-1].node_id)
            on_contest(one)
            continue
        for step in steps:
            apply_step(connection, one, step)
        if steps:
            mark_days(connection, rows, one, steps)
    return {accelerator: rows[-1] for accelerator, rows in capacity_rows(connection, accelerators).items() if rows}


def record_contest(connection: Connection, seen: capacity.Evidence, holder_id: int | None) -> None:
    """Keep that a second node reports an accelerator: a copied UUID, or a node that claims what is another's."""
    connection.execute(
        "INSERT INTO contest AS old (accelerator_id, node_id, holder_id, first_ms, last_ms, reports) "
        "VALUES (%s, %s, %s, %s, %s, 1) ON CONFLICT (accelerator_id, node_id) DO UPDATE SET "
        "holder_id = excluded.holder_id, last_ms = greatest(old.last_ms, excluded.last_ms), reports = old.reports + 1",
        (seen.accelerator_id, seen.node_id, holder_id, seen.first_ms, seen.first_ms),
    )


def is_contested(connection: Connection, rows: Sequence[capacity.CapacityRow], seen: capacity.Evidence) -> bool:
    """Whether another node has shown the accelerator at or after the time of this evidence."""
    if not rows or rows[-1].node_id in (None, seen.node_id) or seen.first_ms < rows[-1].in_ms:
        return False
    later = connection.execute(
        "SELECT 1 FROM stretch WHERE accelerator_id = %s AND node_id = %s AND start_ms >= %s AND end_ms > %s LIMIT 1",
        (seen.accelerator_id, rows[-1].node_id, seen.first_ms - DAY_MS, seen.first_ms),
    )
    return later.fetchone() is not None


def capacity_rows(connection: Connection, accelerators: Sequence[int]) -> dict[int, list[capacity.CapacityRow]]:
    """The inventory's rows of these accelerators in order of time."""
    rows: dict[int, list[capacity.CapacityRow]] = defaultdict(list)
    for accelerator_id, *row in connection.execute(
        "SELECT accelerator_id, id, node_id, pool, in_ms, out_ms, source = 'import' FROM capacity"
        " WHERE accelerator_id = ANY(%s) ORDER BY accelerator_id, in_ms",
        (list(accelerators),),
    ):
        rows[accelerator_id].append(capacity.CapacityRow(*row))
    return rows


def apply_step(connection: Connection, seen: capacity.Evidence, step: capacity.Step) -> None:
    """Write one step of a plan."""
    if isinstance(step, capacity.Insert):
        connection.execute(
            "INSERT INTO capacity (accelerator_id, node_id, pool, in_ms, out_ms, source)"
            " VALUES (%s, %s, %s, %s, %s, 'agent')",
            (seen.accelerator_id, seen.node_id, seen.pool, step.in_ms, step.out_ms),
        )
    elif step.moved:
        connection.execute(
            "UPDATE capacity SET node_id = %s, pool = %s WHERE id = %s", (seen.node_id, seen.pool, step.id)
        )
    else:
        connection.execute(
            "UPDATE capacity SET in_ms = %s, out_ms = %s WHERE id = %s", (step.in_ms, step.out_ms, step.id)
        )


def mark_days(
    connection: Connection,
    rows: Sequence[capacity.CapacityRow],
    seen: capacity.Evidence,
    steps: Sequence[capacity.Step],
) -> None:
    """Mark the days whose capacity changed, from the evidence to what was known before, to be rated again.

    A row without an end is capacity of every day since: days that were rated before it was known are marked, too.
    """
    until = max([seen.first_ms, *[row.in_ms for row in rows]])
    first, last = seen.first_ms // DAY_MS, until // DAY_MS
    days = [day * DAY_MS for day in range(first, min(last, first + MOST_DAYS_MARKED) + 1)]
    connection.execute("INSERT INTO dirty_day (day_ms) SELECT unnest(%s::bigint[])", (days,))
    if any(isinstance(step, capacity.Insert) and step.out_ms is None for step in steps) or any(
        isinstance(step, capacity.Change) and step.moved for step in steps
    ):
        mark_rated_since(connection, days[-1] + DAY_MS)


def mark_rated_since(connection: Connection, day_ms: int) -> None:
    """Mark every rated day from this one on."""
    connection.execute("INSERT INTO dirty_day (day_ms) SELECT day_ms FROM day_proof WHERE day_ms >= %s", (day_ms,))


def write_heartbeats(connection: Connection, batches: Sequence[Accepted], ids: Ids, now: dt.datetime) -> None:
    """Keep of each node its latest sign of life; a batch that was spooled earlier in the same epoch changes nothing."""
    latest: dict[int, Accepted] = {}
    for batch in sorted(batches, key=lambda batch: (str(batch.epoch), batch.seq)):
        latest[ids.nodes[batch.node]] = batch
    chosen = [latest[node_id] for node_id in sorted(latest)]
    connection.execute(
        """
        UPDATE node SET last_seen_at = greatest(last_seen_at, %s),
            status = CASE WHEN newer THEN beat ->> 'status' ELSE status END,
            status_detail = CASE WHEN newer THEN coalesce(beat ->> 'detail', '') ELSE status_detail END,
            agent_version = CASE WHEN newer THEN beat ->> 'agent_version' ELSE agent_version END,
            source = CASE WHEN newer THEN beat ->> 'source' ELSE source END,
            driver = CASE WHEN newer THEN beat ->> 'driver' ELSE driver END,
            heartbeat = CASE WHEN newer THEN beat ELSE heartbeat END
        FROM (
            SELECT id AS node_id, beat, heartbeat IS NULL OR heartbeat ->> 'epoch' <> beat ->> 'epoch'
                OR (heartbeat ->> 'seq')::bigint < (beat ->> 'seq')::bigint AS newer
            FROM node JOIN (SELECT id, beat::jsonb FROM unnest(%s::bigint[], %s::text[]) AS told (id, beat)) AS told
                USING (id)
            ORDER BY id FOR NO KEY UPDATE OF node
        ) AS told
        WHERE id = node_id
        """,
        (
            now,
            sorted(latest),
            [_JSON({**batch.heartbeat, "epoch": str(batch.epoch), "seq": batch.seq}).decode() for batch in chosen],
        ),
    )
