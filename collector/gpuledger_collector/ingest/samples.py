"""Readings of a flush: hot metrics to the sample table, slow ones where they change, the newest of each accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_agent.catalogue import HOT
from gpuledger_agent.wire import ABSENT_INT64
from gpuledger_collector.ingest.columns import Array, BinaryArray, blank, is_absent, pack
from gpuledger_collector.ingest.directory import Connection, Ids
from gpuledger_collector.ingest.validate import METRIC_KINDS, Accepted

HOT_KINDS = {metric.name: metric.column_kind for metric in HOT}
_SQL_TYPES = {"f4": "real", "f8": "double precision", "i8": "bigint"}


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of readings of a whole flush, with ids for positions. Columns have one value a row."""

    accelerator: Array
    at_ms: Array
    columns: dict[str, Array]


def join_samples(batches: Sequence[Accepted], ids: Ids) -> Samples | None:
    """The rows of all batches, one under the other; None when there is none."""
    blocks = [(batch, batch.block) for batch in batches if batch.block is not None]
    if not blocks:
        return None
    names = sorted({name for _, block in blocks for name in block.columns})
    accelerators = []
    for batch, block in blocks:
        table = np.zeros(max(batch.accelerators) + 1, dtype="<i8")
        for place, accelerator_id in ids.placed(batch).items():
            table[place] = accelerator_id
        accelerators.append(table[block.accelerator])
    return Samples(
        accelerator=np.concatenate(accelerators),
        at_ms=np.concatenate([block.at_ms for _, block in blocks]),
        columns={
            name: np.concatenate(
                [
                    block.columns[name] if name in block.columns else blank(len(block.at_ms), METRIC_KINDS[name])
                    for _, block in blocks
                ]
            )
            for name in names
        },
    )


def hot_column(samples: Samples, name: str) -> Array:
    """A hot metric's values; blank when no batch brought it."""
    found = samples.columns.get(name)
    return blank(len(samples.at_ms), HOT_KINDS[name]) if found is None else found


def copy_samples(connection: Connection, samples: Samples) -> None:
    """COPY the hot metrics of every row."""
    packed = pack([samples.accelerator, samples.at_ms, *[hot_column(samples, name) for name in HOT_KINDS]])
    names = ", ".join(["accelerator_id", "at_ms", *HOT_KINDS])
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY gpu_sample ({names}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(packed)


def _latest_sql() -> str:
    names = ["accelerator_id", "at_ms", "state", "workload_id", *HOT_KINDS]
    types = ["bigint", "bigint", "text", "bigint", *[_SQL_TYPES[kind] for kind in HOT_KINDS.values()]]
    # The same instant again completes the row: remote write may bring a scrape in parts.
    hot = ", ".join(
        f"{name} = CASE WHEN excluded.at_ms > old.at_ms THEN excluded.{name}"
        f" ELSE coalesce(excluded.{name}, old.{name}) END"
        for name in HOT_KINDS
    )
    return f"""
        INSERT INTO gpu_latest AS old ({", ".join(names)})
        SELECT * FROM unnest({", ".join(f"%b::{kind}[]" for kind in types)})
        ON CONFLICT (accelerator_id) DO UPDATE SET
            at_ms = excluded.at_ms, state = coalesce(excluded.state, old.state),
            workload_id = CASE WHEN excluded.state IS NULL THEN old.workload_id ELSE excluded.workload_id END, {hot}
        WHERE excluded.at_ms >= old.at_ms
        """


_LATEST = _latest_sql()


def keep_latest(
    connection: Connection, samples: Samples | None, states: dict[int, tuple[int, str, int | None]]
) -> None:
    """Keep of each accelerator the newest sample, its state and its holder; what is older changes nothing."""
    known, rows = newest_rows(samples)
    accelerators = np.union1d(known, np.array(list(states), dtype="<i8"))
    if not len(accelerators):
        return
    row = np.full(len(accelerators), -1)
    row[np.searchsorted(accelerators, known)] = rows
    told = [states.get(one, (ABSENT_INT64, None, None)) for one in accelerators.tolist()]
    at = np.array([one[0] for one in told], dtype="<i8")
    hot = [blank(len(row), kind) for kind in HOT_KINDS.values()]
    if samples is not None:
        there = row >= 0
        at[there] = samples.at_ms[row[there]]
        for values, name in zip(hot, HOT_KINDS, strict=True):
            if name in samples.columns:
                values[there] = samples.columns[name][row[there]]
    holder = np.array([ABSENT_INT64 if one[2] is None else one[2] for one in told], dtype="<i8")
    connection.execute(
        _LATEST,
        (BinaryArray(accelerators), BinaryArray(at), [one[1] for one in told], BinaryArray(holder),
         *map(BinaryArray, hot)),
    )  # fmt: skip


def newest_rows(samples: Samples | None) -> tuple[Array, Array]:
    """The accelerators of these samples, in order, and the row of each one's newest: the last of an instant's."""
    if samples is None or not len(samples.at_ms):
        return np.empty(0, dtype="<i8"), np.empty(0, dtype="<i8")
    order = np.lexsort((samples.at_ms, samples.accelerator))
    ordered = samples.accelerator[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return ordered[last], order[last]


SlowChange = tuple[int, str, int, float | None]


def slow_changes(
    samples: Samples, slow: dict[str, Array], known: dict[tuple[int, str], tuple[int, float | None]]
) -> tuple[list[SlowChange], dict[tuple[int, str], tuple[int, float | None]]]:
    """What slow metrics turned into, reading by reading in order of time: (accelerator, metric, instant, value).

    A reading that is absent is no change: slow metrics are asked seldom. A late one, older than what is known, is
    written as it is, because what it changed from is not known.
    """
    changes: list[SlowChange] = []
    latest: dict[tuple[int, str], tuple[int, float | None]] = {}
    order = np.lexsort((samples.at_ms, samples.accelerator))
    for name, values in slow.items():
        absent = is_absent(values)
        for row in order[~absent[order]]:
            key = (int(samples.accelerator[row]), name)
            at_ms, value = int(samples.at_ms[row]), float(values[row])
            before = latest.get(key) or known.get(key)
            if before is None or at_ms < before[0] or before[1] != value:
                changes.append((*key, at_ms, value))
            if before is None or at_ms >= before[0]:
                latest[key] = (at_ms, value)
    return changes, latest


def write_slow(connection: Connection, changes: Sequence[SlowChange]) -> None:
    """Write the changes; the same reading again replaces itself."""
    unique = {change[:3]: change for change in changes}
    if not unique:
        return
    columns = list(zip(*(unique[key] for key in sorted(unique)), strict=True))
    connection.execute(
        "INSERT INTO gpu_state (accelerator_id, metric, at_ms, value)"
        " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::double precision[])"
        " ON CONFLICT (accelerator_id, metric, at_ms) DO UPDATE SET value = excluded.value",
        tuple(list(column) for column in columns),
    )
