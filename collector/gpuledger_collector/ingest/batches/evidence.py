"""What a flush proves: which hours must be recomputed, and on which node each accelerator is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.ingest.batches.attributes import Connection, ResolvedBatch
from gpuledger_collector.ingest.batches.columns import Array, BinaryArray
from gpuledger_collector.ingest.batches.samples import SampleRows
from gpuledger_collector.ingest.batches.usage_intervals import IntervalRows
from gpuledger_collector.ingest.batches.validate import SampleBlock, select_rows
from gpuledger_collector.storage.rows import select_as

_FAR_MS = 2**62
_HOUR_BITS = 24
"""Bits for the number of an hour: enough for 1,900 years."""


def request_hour_recompute(
    connection: Connection, intervals: IntervalRows, samples: SampleRows | None
) -> None:
    """Request that the hours which these touch are folded to usage and rolled up to minutes again."""
    hours = touched_hours(intervals, samples)
    # Requests are only inserted and never updated, so writers of the same hour do not wait for each
    # other.
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT * FROM unnest(%b::bigint[],"
        " %b::bigint[])",
        (BinaryArray(hours[:, 0]), BinaryArray(hours[:, 1] * HOUR_MS)),
    )


def touched_hours(intervals: IntervalRows, samples: SampleRows | None) -> Array:
    """Distinct pairs of accelerator and number of the hour, sorted."""
    # An interval may touch several hours: repeat each accelerator once per hour and add 0, 1, 2,
    # ... to the first hour. The end is exclusive, hence the hour of `end_ms - 1`.
    first, last = intervals.start_ms // HOUR_MS, (intervals.end_ms - 1) // HOUR_MS
    hours_each = last - first + 1
    offsets = np.arange(hours_each.sum()) - np.repeat(
        np.cumsum(hours_each) - hours_each, hours_each
    )
    accelerators = [np.repeat(intervals.accelerator, hours_each)]
    hours = [np.repeat(first, hours_each) + offsets]
    if samples is not None:
        accelerators.append(samples.accelerator)
        hours.append(samples.at_ms // HOUR_MS)
    # Accelerator and hour are packed into one integer: sorting integers is much faster than sorting
    # pairs.
    touched = np.unique(np.concatenate(accelerators) << _HOUR_BITS | np.concatenate(hours))
    return np.column_stack((touched >> _HOUR_BITS, touched & ((1 << _HOUR_BITS) - 1)))


@dataclass(frozen=True, slots=True)
class PlacementEvidence:
    """A batch shows an accelerator on a node, with these attributes, from `first_ms` on."""

    accelerator_id: int
    node_id: int
    attributes_id: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class CachedPlacement:
    """The newest inventory row of an accelerator; `node_id` None: any node, `out_ms` None: still
    there.
    """

    node_id: int | None
    attributes_id: int
    in_ms: int
    out_ms: int | None
    is_stated: bool
    turn: int = field(default=0, compare=False)
    """Number of the settling that returned it: of two rows, the one with the greater number is
    current.
    """

    def confirmed_since(self, node_id: int, attributes_id: int) -> int | None:
        """The instant from which such evidence changes nothing; None when this row contradicts it."""
        # Stated to have left: evidence from after that changes nothing, whichever node reports it.
        if self.is_stated and self.out_ms is not None:
            return self.out_ms
        is_same = self.node_id in (None, node_id) and self.attributes_id == attributes_id
        return self.in_ms if is_same and self.out_ms is None else None


@dataclass(frozen=True, slots=True)
class _InventoryRow:
    """Where an accelerator is, from `in_ms` to `out_ms`; `node_id` None: on any node."""

    accelerator_id: int
    node_id: int | None
    in_ms: int
    out_ms: int


def drop_foreign_evidence(
    connection: Connection, batches: Sequence[ResolvedBatch], changed: Sequence[ResolvedBatch]
) -> Sequence[ResolvedBatch]:
    """Drop from the batches in `changed` what they report of accelerators while another node has
    them.

    Readings and states of an accelerator are taken from its own node only. Call it once placements
    are settled.
    """
    accelerators = sorted({number for entry in changed for number in entry.accelerators.values()})
    if not accelerators:
        return batches
    inventory: dict[int, list[_InventoryRow]] = defaultdict(list)
    for row in select_as(
        connection,
        _InventoryRow,
        "SELECT accelerator_id, node_id, in_ms, coalesce(out_ms, %s) AS out_ms FROM capacity"
        " WHERE accelerator_id = ANY(%s)",
        (_FAR_MS, accelerators),
    ):
        inventory[row.accelerator_id].append(row)
    # By identity: batches contain dictionaries and cannot be hashed.
    checked = {id(entry) for entry in changed}
    return [_own_evidence(entry, inventory) if id(entry) in checked else entry for entry in batches]


def _own_evidence(
    resolved: ResolvedBatch, inventory: Mapping[int, Sequence[_InventoryRow]]
) -> ResolvedBatch:
    batch = resolved.batch
    foreign = {
        place: spans
        for place, number in resolved.accelerators.items()
        if (
            spans := [
                (row.in_ms, row.out_ms)
                for row in inventory.get(number, ())
                if row.node_id not in (None, resolved.node_id)
            ]
        )
    }
    if not foreign:
        return resolved
    usage_intervals = {
        record: interval
        for record, interval in batch.usage_intervals.items()
        # An interval belongs to the node that had the accelerator at its start; bills cut it where
        # the accelerator moves.
        if not any(
            start <= interval.start_ms < end for start, end in foreign.get(interval.accelerator, ())
        )
    }
    block = batch.block
    if block is not None:
        own = np.ones(len(block.at_ms), dtype=bool)
        for place, spans in foreign.items():
            for start, end in spans:
                own &= ~(
                    (block.accelerator == place) & (block.at_ms >= start) & (block.at_ms < end)
                )
        block = (
            SampleBlock.from_columns(
                block.accelerator[own], block.at_ms[own], select_rows(block.columns, own)
            )
            if own.any()
            else None
        )
    return replace(resolved, batch=replace(batch, usage_intervals=usage_intervals, block=block))


def placement_evidence(batches: Sequence[ResolvedBatch]) -> list[PlacementEvidence]:
    """The first evidence of each accelerator in each batch."""
    evidence: list[PlacementEvidence] = []
    for resolved in batches:
        batch = resolved.batch
        first: dict[int, int] = {}
        for interval in batch.usage_intervals.values():
            place = interval.accelerator
            first[place] = min(interval.start_ms, first.get(place, interval.start_ms))
        if batch.block is not None:
            for place in sorted(set(batch.block.accelerator.tolist()).difference(first)):
                first[place] = int(batch.block.at_ms[batch.block.accelerator == place].min())
        evidence += [
            PlacementEvidence(
                resolved.accelerators[place],
                resolved.node_id,
                resolved.accelerator_attributes[place],
                first_ms,
            )
            for place, first_ms in first.items()
        ]
    return evidence
