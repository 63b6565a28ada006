"""What a flush shows: hours to be folded again, the inventory that it implies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from gpuledger_collector.ingest import capacity
from gpuledger_collector.ingest.columns import Array, BinaryArray
from gpuledger_collector.ingest.directory import Connection, Numbered
from gpuledger_collector.ingest.samples import Samples
from gpuledger_collector.ingest.stretches import Stretches
from gpuledger_collector.ingest.validate import DAY_MS

HOUR_MS = 3_600_000
DEFAULT_POOL = "default"
MOST_DAYS_MARKED = 400
_HOUR_BITS = 24
"""Of the number of an hour, which is enough for 1,900 years."""


def mark_hours(connection: Connection, stretches: Stretches, samples: Samples | None) -> None:
    """Mark the hours that stretches or samples touch: their usage is folded, and their minutes are rolled up, again."""
    marked = hours_of(stretches, samples)
    connection.execute(
        "INSERT INTO dirty_hour (accelerator_id, hour_ms) SELECT * FROM unnest(%b::bigint[], %b::bigint[])",
        (BinaryArray(marked[:, 0]), BinaryArray(marked[:, 1] * HOUR_MS)),
    )


def hours_of(stretches: Stretches, samples: Samples | None) -> Array:
    """Accelerator and number of the hour, one of each, in order."""
    first, last = stretches.start_ms // HOUR_MS, (stretches.end_ms - 1) // HOUR_MS
    spans = last - first + 1
    within = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
    accelerators, hours = [np.repeat(stretches.accelerator, spans)], [np.repeat(first, spans) + within]
    if samples is not None:
        accelerators.append(samples.accelerator)
        hours.append(samples.at_ms // HOUR_MS)
    touched = np.unique(np.concatenate(accelerators) << _HOUR_BITS | np.concatenate(hours))
    return np.column_stack((touched >> _HOUR_BITS, touched & ((1 << _HOUR_BITS) - 1)))


def evidence_of(batches: Sequence[Numbered]) -> list[capacity.Evidence]:
    """First evidence of each accelerator in each batch, in the order of accelerators and time."""
    seen: list[capacity.Evidence] = []
    for numbered in batches:
        batch = numbered.batch
        first: dict[int, int] = {}
        for one in batch.stretches.values():
            first[one.accelerator] = min(one.start_ms, first.get(one.accelerator, one.start_ms))
        if batch.block is not None:
            for place in sorted(set(batch.block.accelerator.tolist()).difference(first)):
                first[place] = int(batch.block.at_ms[batch.block.accelerator == place].min())
        for place, first_ms in first.items():
            pool = batch.accelerators[place].pool or DEFAULT_POOL
            seen.append(capacity.Evidence(numbered.accelerators[place], numbered.node_id, pool, first_ms))
    return sorted(seen, key=lambda one: (one.accelerator_id, one.first_ms))


def keep_capacity(
    connection: Connection, seen: Sequence[capacity.Evidence], on_contest: Callable[[capacity.Evidence], None]
) -> dict[int, capacity.CapacityRow]:
    """Bring the inventory in line with the evidence; the newest row of each accelerator that was looked at.

    A UUID that a second node reports while the first still does is contested: it stays where it is.
    """
    accelerators = sorted({one.accelerator_id for one in seen})
    connection.execute("SELECT 1 FROM accelerator WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", (accelerators,))
    known = capacity_rows(connection, accelerators)
    for one in seen:
        rows = known[one.accelerator_id]
        steps = capacity.plan(rows, one)
        if steps and is_contested(connection, rows, one):
            record_contest(connection, one, rows[-1].node_id)
            on_contest(one)
            continue
        for step in steps:
            apply_step(connection, one, step)
        if steps:
            mark_days(connection, rows, one, steps)
            known |= capacity_rows(connection, [one.accelerator_id])
    return {accelerator: rows[-1] for accelerator, rows in known.items() if rows}


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
