"""What a flush shows: hours to be folded again, the inventory that it implies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Connection, Numbered
from gpuledger_collector.ingest.batches.columns import Array, BinaryArray
from gpuledger_collector.ingest.batches.samples import Samples
from gpuledger_collector.ingest.batches.usage_intervals import UsageIntervals
from gpuledger_collector.ingest.batches.validate import SampleBlock, cut

HOUR_MS = 3_600_000
_FAR_MS = 2**62
_HOUR_BITS = 24
"""Of the number of an hour, which is enough for 1,900 years."""


def mark_hours(connection: Connection, usage_intervals: UsageIntervals, samples: Samples | None) -> None:
    """Mark the hours that usage intervals or samples touch: their usage is folded, and their minutes are rolled up,
    again.
    """
    marked = hours_of(usage_intervals, samples)
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT * FROM unnest(%b::bigint[], %b::bigint[])",
        (BinaryArray(marked[:, 0]), BinaryArray(marked[:, 1] * HOUR_MS)),
    )


def hours_of(usage_intervals: UsageIntervals, samples: Samples | None) -> Array:
    """Accelerator and number of the hour, one of each, in order."""
    first, last = usage_intervals.start_ms // HOUR_MS, (usage_intervals.end_ms - 1) // HOUR_MS
    spans = last - first + 1
    within = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
    accelerators, hours = [np.repeat(usage_intervals.accelerator, spans)], [np.repeat(first, spans) + within]
    if samples is not None:
        accelerators.append(samples.accelerator)
        hours.append(samples.at_ms // HOUR_MS)
    touched = np.unique(np.concatenate(accelerators) << _HOUR_BITS | np.concatenate(hours))
    return np.column_stack((touched >> _HOUR_BITS, touched & ((1 << _HOUR_BITS) - 1)))


@dataclass(frozen=True, slots=True)
class Shown:
    """A batch shows an accelerator on a node, with these attributes, from `first_ms` on."""

    accelerator_id: int
    node_id: int
    attributes_id: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest row of an accelerator in the inventory time line; `node_id` None: any, `out_ms` None: still there."""

    node_id: int | None
    attributes_id: int
    in_ms: int
    out_ms: int | None
    is_stated: bool
    turn: int = field(default=0, compare=False)
    """Settled as the how manieth since this process began: of two rows the later one is true."""

    def covers(self, node_id: int, attributes_id: int) -> int | None:
        """The instant since which such evidence changes nothing; None when this row does not show it."""
        if self.is_stated and self.out_ms is not None:
            return self.out_ms
        same = self.node_id in (None, node_id) and self.attributes_id == attributes_id
        return self.in_ms if same and self.out_ms is None else None


_Row = tuple[int | None, int, int]
"""Node (None: any), in and out of a row of the inventory time line."""


def without_foreign(
    connection: Connection, batches: Sequence[Numbered], news: Sequence[Numbered]
) -> Sequence[Numbered]:
    """These batches without what those in `news` say of accelerators at times when another node has them.

    Readings and states of an accelerator are taken from its own node alone. Call it once the placements are settled.
    """
    numbers = sorted({number for one in news for number in one.accelerators.values()})
    if not numbers:
        return batches
    rows: dict[int, list[_Row]] = defaultdict(list)
    for number, node_id, in_ms, out_ms in connection.execute(
        "SELECT accelerator_id, node_id, in_ms, coalesce(out_ms, %s) FROM capacity WHERE accelerator_id = ANY(%s)",
        (_FAR_MS, numbers),
    ):
        rows[number].append((node_id, in_ms, out_ms))
    checked = {id(one) for one in news}
    return [_own(one, rows) if id(one) in checked else one for one in batches]


def _own(one: Numbered, rows: Mapping[int, Sequence[_Row]]) -> Numbered:
    batch = one.batch
    foreign = {
        place: [row[1:] for row in rows.get(number, ()) if row[0] not in (None, one.node_id)]
        for place, number in one.accelerators.items()
    }
    foreign = {place: spans for place, spans in foreign.items() if spans}
    if not foreign:
        return one
    usage_intervals = {
        record: usage_interval
        for record, usage_interval in batch.usage_intervals.items()
        if not any(start <= usage_interval.start_ms < end for start, end in foreign.get(usage_interval.accelerator, ()))
    }
    block = batch.block
    if block is not None:
        kept = np.ones(len(block.at_ms), dtype=bool)
        for place, spans in foreign.items():
            for start, end in spans:
                kept &= ~((block.accelerator == place) & (block.at_ms >= start) & (block.at_ms < end))
        block = (
            SampleBlock.of(block.accelerator[kept], block.at_ms[kept], cut(block.columns, kept)) if kept.any() else None
        )
    return replace(one, batch=replace(batch, usage_intervals=usage_intervals, block=block))


def shown_by(batches: Sequence[Numbered]) -> list[Shown]:
    """The first evidence of each accelerator in each batch."""
    shown: list[Shown] = []
    for numbered in batches:
        batch = numbered.batch
        first: dict[int, int] = {}
        for one in batch.usage_intervals.values():
            first[one.accelerator] = min(one.start_ms, first.get(one.accelerator, one.start_ms))
        if batch.block is not None:
            for place in sorted(set(batch.block.accelerator.tolist()).difference(first)):
                first[place] = int(batch.block.at_ms[batch.block.accelerator == place].min())
        shown += [
            Shown(numbered.accelerators[place], numbered.node_id, numbered.accelerator_attributes[place], first_ms)
            for place, first_ms in first.items()
        ]
    return shown
