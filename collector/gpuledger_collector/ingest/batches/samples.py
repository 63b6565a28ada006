"""Samples of a flush: hot metrics to the sample table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Connection, ResolvedBatch
from gpuledger_collector.ingest.batches.columns import (
    DTYPES,
    Array,
    absent_if_not_finite,
    blank,
    pack,
)
from gpuledger_collector.ingest.batches.validate import METRIC_KINDS, SampleBlock
from gpuledger_common.catalog import HOT

HOT_KINDS = {metric.name: metric.column_kind for metric in HOT}


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Samples of a flush by accelerator id, with a column for each metric."""

    accelerator: Array
    at_ms: Array
    columns: dict[str, Array]


def join_samples(batches: Sequence[ResolvedBatch]) -> SampleRows | None:
    """Concatenate the samples of all batches; None when there are none."""
    blocks = [
        (resolved, resolved.batch.block) for resolved in batches if resolved.batch.block is not None
    ]
    if not blocks:
        return None
    accelerators = []
    for resolved, block in blocks:
        # An array from position to id translates all rows of the block at once.
        ids = np.zeros(max(resolved.accelerators) + 1, dtype="<i8")
        for place, accelerator_id in resolved.accelerators.items():
            ids[place] = accelerator_id
        accelerators.append(ids[block.accelerator])
    names = sorted(set().union(*(block.columns for _, block in blocks)))
    return SampleRows(
        accelerator=np.concatenate(accelerators),
        at_ms=np.concatenate([block.at_ms for _, block in blocks]),
        columns={name: _join_column(name, [block for _, block in blocks]) for name in names},
    )


def _join_column(name: str, blocks: Sequence[SampleBlock]) -> Array:
    """Concatenate a metric; absent where a block lacks it or has no finite number."""
    kind = METRIC_KINDS[name]
    # Bytes are joined before they become an array: one array per metric instead of one per batch
    # and metric.
    parts = [
        block.columns[name] if name in block.columns else blank(len(block.at_ms), kind).tobytes()
        for block in blocks
    ]
    return absent_if_not_finite(np.frombuffer(b"".join(parts), DTYPES[kind]))


def hot_column(samples: SampleRows, name: str) -> Array:
    """A hot metric's values; blank when no batch brought it."""
    values = samples.columns.get(name)
    return blank(len(samples.at_ms), HOT_KINDS[name]) if values is None else values


def copy_samples(connection: Connection, samples: SampleRows) -> None:
    """COPY the hot metrics of every row."""
    columns = [
        samples.accelerator,
        samples.at_ms,
        *[hot_column(samples, name) for name in HOT_KINDS],
    ]
    names = ", ".join(["accelerator_id", "at_ms", *HOT_KINDS])
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY gpu_sample ({names}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        for part in pack(columns):
            copy.write(part)
