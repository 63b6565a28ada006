"""Who pays a node's cost: whoever holds k of its N accelerators pays that share of the node's hour.

Shares are of GPU-time, so that MIG instances and fractions weigh what they are of a device. What
nobody held falls to the same states as its GPU-time: unallocated, unavailable, unobserved,
stranded. Law: the charges of a node's hour add up to its price x time to the micro-unit, by largest
remainder, whatever the order of the evidence. They have no GPU-time: that is counted by the charges
of the accelerators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.node_costs import NODE_COST, NodeCost, NodeHour
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.rating import Charge, OwnerOf, RatedAccelerator, present_ms
from gpuledger_collector.accounting.usage import HELD, STRANDED, UNOBSERVED, HourlyUsage
from gpuledger_common.largest_remainder import split


@dataclass(frozen=True, slots=True, order=True)
class _Holder:
    """Who held a part of a node, or what it was instead.

    Its order settles ties, and knows no order of arrival.
    """

    state: str
    owner: tuple[OwnerPath, ...]
    workload_key: str
    pool: str
    gpu_model: str
    workload_id: int | None


class NodeUsage:
    """The GPU-time of the nodes of a day, hour by hour, by who held it."""

    def __init__(self, day: Period, until_ms: int) -> None:
        self._day, self._until_ms = day, until_ms
        self._gpu_ns: dict[tuple[str, int], dict[_Holder, int]] = defaultdict(
            lambda: defaultdict(int)
        )

    def add(
        self,
        accelerator: RatedAccelerator,
        capacity: Sequence[Period],
        pieces: Iterable[HourlyUsage],
        owner_of: OwnerOf,
        key_of: Callable[[int, int | None], str],
    ) -> None:
        """Add an accelerator in one place: when it was there, and its pieces, as they are rated."""
        seen_ms: dict[int, int] = defaultdict(int)
        for piece in pieces:
            hour = piece.start_ms // HOUR_MS
            seen_ms[hour] += piece.held_ms
            holder = _holder(accelerator, piece, owner_of, key_of)
            self._gpu_ns[accelerator.node, hour][holder] += gpu_ns(
                accelerator.gpu_micro, piece.held_ms
            )
        missing = STRANDED if accelerator.stranded else UNOBSERVED
        nobody = _Holder(missing, (), "", accelerator.pool, accelerator.gpu_model, None)
        for part in self._day.hours():
            hour = part.start_ms // HOUR_MS
            missing_ms = present_ms(capacity, part, self._until_ms) - seen_ms[hour]
            if missing_ms > 0:
                self._gpu_ns[accelerator.node, hour][nobody] += gpu_ns(
                    accelerator.gpu_micro, missing_ms
                )

    def charges(self, hours: Iterable[NodeHour]) -> list[Charge]:
        """Split the costs of the day's nodes: a charge for each node, declared cost and holder."""
        sums: dict[tuple[str, NodeCost, _Holder], tuple[Period, int]] = {}
        for hour in hours:
            parts = sorted(self._gpu_ns[hour.node, hour.hour.start_ms // HOUR_MS].items())
            for (holder, _), micro in zip(
                parts, split(hour.micro, [part_ns for _, part_ns in parts]), strict=True
            ):
                if micro:
                    span, total = sums.get((hour.node, hour.cost, holder), (hour.hour, 0))
                    span = Period(span.start_ms, hour.hour.end_ms)
                    sums[hour.node, hour.cost, holder] = span, total + micro
        return [
            _charge(self._day, span, node, cost, holder, micro)
            for (node, cost, holder), (span, micro) in sums.items()
        ]


def _holder(
    accelerator: RatedAccelerator,
    piece: HourlyUsage,
    owner_of: OwnerOf,
    key_of: Callable[[int, int | None], str],
) -> _Holder:
    place = accelerator.pool, accelerator.gpu_model
    if piece.state != HELD:
        return _Holder(piece.state, (), "", *place, None)
    # Held by somebody unknown: an owner all the same, shown as unattributed.
    if piece.workload_id is None:
        return _Holder(NODE_COST, (OwnerPath(),), "", *place, None)
    owner = owner_of(piece.workload_id, piece.start_ms, piece.attributes_id)
    return _Holder(
        NODE_COST,
        (owner,),
        key_of(piece.workload_id, piece.attributes_id),
        *place,
        piece.workload_id,
    )


def _charge(
    day: Period, span: Period, node: str, cost: NodeCost, holder: _Holder, micro: int
) -> Charge:
    return Charge(
        day_ms=day.start_ms,
        start_ms=span.start_ms,
        end_ms=span.end_ms,
        accelerator_id=None,
        workload_id=holder.workload_id,
        owner=holder.owner[0] if holder.owner else None,
        state=holder.state,
        pool=holder.pool,
        gpu_model=holder.gpu_model,
        node=node,
        price=None,
        currency=cost.currency,
        node_cost=cost,
        cost_micro=micro,
        list_cost_micro=micro,
        contracted_cost_micro=micro,
    )
