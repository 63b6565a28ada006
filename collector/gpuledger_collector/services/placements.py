"""Where an accelerator stood, and when: capacity rows made disjoint, so that its time is counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.ports import CapacityRow
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.rating import RatedAccelerator

FAR_MS = 7_258_118_400_000
"""An end for what has none yet."""
ROUNDING_MICRO = 7
"""Shares are rounded down to millionths: seven sevenths leave one, which is no slice."""


@dataclass(frozen=True, slots=True)
class Stay:
    """An accelerator in one place for a period."""

    accelerator: RatedAccelerator
    period: Period


def stays_of(rows: Iterable[CapacityRow]) -> dict[int, list[Stay]]:
    """Disjoint stays by accelerator, in order of time. Where rows overlap, an imported one wins, then the earlier."""
    by_accelerator: dict[int, list[CapacityRow]] = defaultdict(list)
    for row in rows:
        by_accelerator[row.accelerator_id].append(row)
    return {accelerator_id: _disjoint(mine) for accelerator_id, mine in by_accelerator.items()}


def _disjoint(rows: Sequence[CapacityRow]) -> list[Stay]:
    taken: list[Stay] = []
    for row in sorted(rows, key=lambda row: (row.source != "import", row.in_ms, row.pool, row.node)):
        place = RatedAccelerator(row.accelerator_id, row.gpu_micro, row.pool, row.gpu_model, row.node, uuid=row.uuid)
        whole = Period(row.in_ms, FAR_MS if row.out_ms is None else row.out_ms)
        taken += [Stay(place, part) for part in subtract(whole, [stay.period for stay in taken])]
    return sorted(taken, key=lambda stay: stay.period)


def with_stranded(
    stays: Mapping[int, Sequence[Stay]], rows: Iterable[CapacityRow], within: Period
) -> dict[int, list[Stay]]:
    """The stays, and within a period what the MIG instances of each board leave of it.

    What is left stands under the id of the instance whose UUID is the first, in the place of that instance. Law: at
    every instant the instances of a board and what they leave are one device, while there is an instance at all.
    """
    boards: dict[str, dict[int, str]] = defaultdict(dict)
    for row in rows:
        if row.device and row.uuid != row.device:
            boards[row.device][row.accelerator_id] = row.uuid
    devices = {row.accelerator_id: row.device for row in rows}
    found = {number: list(mine) for number, mine in stays.items()}
    for device, uuids in boards.items():
        parts = [number for number, of_device in devices.items() if of_device == device]
        mine = [
            (uuids.get(number), replace(stay, period=part))
            for number in parts
            for stay in stays.get(number, ())
            if (part := stay.period.clip(within)) is not None
        ]
        for stay in _left_of_board(mine):
            found[stay.accelerator.accelerator_id].append(stay)
    return found


def _left_of_board(stays: Sequence[tuple[str | None, Stay]]) -> list[Stay]:
    edges = sorted({edge for _, stay in stays for edge in (stay.period.start_ms, stay.period.end_ms)})
    left: list[Stay] = []
    for start_ms, end_ms in pairwise(edges):
        there = [(uuid, stay) for uuid, stay in stays if stay.period.start_ms <= start_ms < stay.period.end_ms]
        instances = sorted(((uuid, stay) for uuid, stay in there if uuid is not None), key=lambda one: one[0])
        micro = GPU_MICRO - sum(stay.accelerator.gpu_micro for _, stay in there)
        if not instances or micro <= ROUNDING_MICRO:
            continue
        stranded = replace(instances[0][1].accelerator, gpu_micro=micro, stranded=True)
        if left and left[-1].accelerator == stranded and left[-1].period.end_ms == start_ms:
            left[-1] = Stay(stranded, Period(left[-1].period.start_ms, end_ms))
        else:
            left.append(Stay(stranded, Period(start_ms, end_ms)))
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


def cuts_of(stays: Sequence[Stay], hour: Period) -> list[int]:
    """Instants at which a piece of this hour must end, because the accelerator moved: none when it stayed in place."""
    inside = [stay for stay in stays if stay.period.clip(hour) is not None]
    if len(inside) < 2:
        return []
    return sorted({edge for stay in inside for edge in (stay.period.start_ms, stay.period.end_ms)})
