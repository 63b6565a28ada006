"""Where an accelerator stood, and when: capacity rows made disjoint, so that its time is counted
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpuledger_collector.accounting.ledger_rows import CapacityRow
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.quick_values import made_quickly
from gpuledger_collector.accounting.rating import RatedAccelerator

FAR_MS = 7_258_118_400_000
"""An end for what has none yet."""
ROUNDING_MICRO = 7
"""Shares are rounded down to millionths: seven sevenths leave one, which is no slice."""


@made_quickly
@dataclass(frozen=True, slots=True)
class RatedPlacement:
    """An accelerator in one place for a period."""

    accelerator: RatedAccelerator
    period: Period


def placements_of(rows: Iterable[CapacityRow]) -> dict[int, list[RatedPlacement]]:
    """Disjoint placements by accelerator, in order of time; those that follow each other in one
    place are one.

    Where rows overlap, imported ones win, then earlier.
    """
    by_accelerator: dict[int, list[CapacityRow]] = defaultdict(list)
    for row in rows:
        by_accelerator[row.accelerator_id].append(row)
    return {
        accelerator_id: _disjoint(own_rows) for accelerator_id, own_rows in by_accelerator.items()
    }


def _disjoint(rows: Sequence[CapacityRow]) -> list[RatedPlacement]:
    # Of a large fleet nearly all stay where they are.
    if len(rows) == 1:
        return [_placement_of(rows[0])]
    taken: list[RatedPlacement] = []
    # False sorts first, so imported rows take their time before others, which only get what is
    # left.
    for row in sorted(
        rows, key=lambda row: (row.source != "import", row.in_ms, row.pool, row.node)
    ):
        whole = _placement_of(row)
        taken += [
            RatedPlacement(whole.accelerator, part)
            for part in subtract(whole.period, [placement.period for placement in taken])
        ]
    joined: list[RatedPlacement] = []
    # A claim of a pool that does not hold begins a row in the same place: it must not cut an hour,
    # whose milliseconds and micro-units would be split twice.
    for placement in sorted(taken, key=lambda placement: placement.period):
        _append(joined, placement)
    return joined


def _placement_of(row: CapacityRow) -> RatedPlacement:
    accelerator = RatedAccelerator(
        accelerator_id=row.accelerator_id,
        gpu_micro=row.gpu_micro,
        pool=row.pool,
        gpu_model=row.gpu_model,
        node=row.node,
        uuid=row.uuid,
    )
    return RatedPlacement(
        accelerator, Period(row.in_ms, FAR_MS if row.out_ms is None else row.out_ms)
    )


def _append(placements: list[RatedPlacement], following: RatedPlacement) -> None:
    """Append a placement, or extend the last one where it goes on in the same place."""
    period = following.period
    if placements and placements[-1].accelerator == following.accelerator:
        last = placements[-1].period
        if last.end_ms == period.start_ms:
            whole = Period(last.start_ms, period.end_ms)
            placements[-1] = RatedPlacement(following.accelerator, whole)
            return
    placements.append(following)


def with_stranded(
    placements: Mapping[int, Sequence[RatedPlacement]], rows: Iterable[CapacityRow], within: Period
) -> dict[int, list[RatedPlacement]]:
    """Add to the placements, within a period, what the MIG instances of each board leave of it.

    The rest has the id and place of the instance with the first UUID. Law: at every instant the
    instances of a board and what they leave are one device, while there is an instance at all.
    """
    boards: dict[str, dict[int, str]] = defaultdict(dict)
    for row in rows:
        # An instance of a board; a device has its own UUID in both.
        if row.device and row.uuid != row.device:
            boards[row.device][row.accelerator_id] = row.uuid
    # The device itself is a part of its board, too; a dict keeps each part once, in order.
    parts: dict[str, dict[int, None]] = defaultdict(dict)
    for row in rows:
        parts[row.device][row.accelerator_id] = None
    all_placements = {number: list(on_board) for number, on_board in placements.items()}
    for device, uuids in boards.items():
        on_board = [
            (uuids.get(number), replace(placement, period=part))
            for number in parts[device]
            for placement in placements.get(number, ())
            if (part := placement.period.clip(within)) is not None
        ]
        for placement in _left_of_board(on_board):
            all_placements[placement.accelerator.accelerator_id].append(placement)
    return all_placements


def without_stranded(placements: Iterable[RatedPlacement]) -> list[RatedPlacement]:
    """The placements of an accelerator itself, which alone cut its hours."""
    return [placement for placement in placements if not placement.accelerator.stranded]


def _left_of_board(placements: Sequence[tuple[str | None, RatedPlacement]]) -> list[RatedPlacement]:
    edges = sorted(
        {
            edge
            for _, placement in placements
            for edge in (placement.period.start_ms, placement.period.end_ms)
        }
    )
    left: list[RatedPlacement] = []
    for start_ms, end_ms in pairwise(edges):
        there = [
            (uuid, placement)
            for uuid, placement in placements
            if placement.period.start_ms <= start_ms < placement.period.end_ms
        ]
        instances = sorted(
            ((uuid, placement) for uuid, placement in there if uuid is not None),
            key=lambda instance: instance[0],
        )
        micro = GPU_MICRO - sum(placement.accelerator.gpu_micro for _, placement in there)
        # A board without any instance is an entire device, or empty: nothing of it is stranded.
        if not instances or micro <= ROUNDING_MICRO:
            continue
        stranded = replace(instances[0][1].accelerator, gpu_micro=micro, stranded=True)
        _append(left, RatedPlacement(stranded, Period(start_ms, end_ms)))
    return left


def subtract(period: Period, others: Iterable[Period]) -> list[Period]:
    """The parts of a period that none of the others covers, in order."""
    left = []
    cursor = period.start_ms
    for other in sorted(others):
        if other.end_ms <= cursor:
            continue
        if other.start_ms >= period.end_ms:
            break
        if other.start_ms > cursor:
            left.append(Period(cursor, other.start_ms))
        cursor = other.end_ms
    if cursor < period.end_ms:
        left.append(Period(cursor, period.end_ms))
    return left


def cuts_of(placements: Sequence[RatedPlacement], hour: Period) -> list[int]:
    """Instants at which a piece of this hour must end, because the accelerator moved: none when it
    stayed in place.
    """
    # Asked for every piece of a day, and hardly any accelerator moves.
    if len(placements) < 2:
        return []
    inside = [placement for placement in placements if placement.period.clip(hour) is not None]
    if len(inside) < 2:
        return []
    return sorted(
        {
            edge
            for placement in inside
            for edge in (placement.period.start_ms, placement.period.end_ms)
        }
    )
