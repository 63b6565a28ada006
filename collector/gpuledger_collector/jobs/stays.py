"""Where an accelerator stood, and when: capacity rows made disjoint, so that its time is counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.ports import CapacityRow
from gpuledger_collector.accounting.rating import RatedAccelerator

FAR_MS = 7_258_118_400_000
"""An end for what has none yet."""


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
        place = RatedAccelerator(row.accelerator_id, row.gpu_micro, row.pool, row.gpu_model, row.node)
        whole = Period(row.in_ms, FAR_MS if row.out_ms is None else row.out_ms)
        taken += [Stay(place, part) for part in subtract(whole, [stay.period for stay in taken])]
    return sorted(taken, key=lambda stay: stay.period)


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
