"""From evidence to hours: what agents saw of one accelerator becomes who held it, rating interval
by rating interval.

Problem: usage intervals arrive late, twice, out of order, and from an accelerator that two nodes
claim. Idea: sort them by a key that does not depend on arrival and let each claim only the time
that no earlier one has. Law: the parts of an rating interval never exceed it, and the result does
not depend on the order or the duplication of the input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from gpuledger_collector.accounting.period import Period, join_periods
from gpuledger_collector.accounting.quick_values import made_quickly
from gpuledger_common.largest_remainder import split

HELD, UNALLOCATED, UNAVAILABLE, UNOBSERVED = "held", "unallocated", "unavailable", "unobserved"
STRANDED = "stranded"
# The order in which states are listed and compared; `unobserved` and `stranded` are derived and
# never reported.
STATES = (HELD, UNALLOCATED, UNAVAILABLE, UNOBSERVED, STRANDED)


@made_quickly
@dataclass(frozen=True, slots=True)
class UsageInterval:
    """Evidence: one accelerator, one state, one holder, from start to end, as an agent integrated
    it (milliseconds).

    Holders that share the accelerator have one usage interval each with the same bounds and batch;
    their `held_ms` are their parts. `energy_mj` is None where nothing measured it. `attributes_id`
    is what was reported of the workload then.
    """

    accelerator_id: int
    workload_id: int | None
    state: str
    start_ms: int
    end_ms: int
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    energy_mj: int | None
    node_id: int
    epoch: str
    seq: int
    record: int
    node: str = ""
    attributes_id: int | None = None


@made_quickly
@dataclass(frozen=True, slots=True)
class HourlyUsage:
    """What one state (and holder) had of a rating interval.

    `held_ms` is its time for every state, activity only for `held`.
    """

    accelerator_id: int
    start_ms: int
    end_ms: int
    state: str
    workload_id: int | None
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    energy_mj: int | None
    attributes_id: int | None = None


def rating_intervals(day: Period, cuts: Sequence[int]) -> list[Period]:
    """The UTC hours of a period, cut further at the given instants: within one rating interval one
    price is in force.
    """
    inside = sorted({cut for cut in cuts if day.start_ms < cut < day.end_ms})
    if not inside:
        return day.hours()
    # Hours first, then the cuts: an interval never spans two hours, so rating stays additive over
    # adjoining hours.
    edges = sorted({hour.start_ms for hour in day.hours()} | set(inside) | {day.end_ms})
    return [Period(start, end) for start, end in pairwise(edges)]


def merge_pieces(pieces: Sequence[HourlyUsage]) -> list[HourlyUsage]:
    """Add up the pieces that one holder, by one report of it, has of a rating interval; the order
    of the first ones is kept.

    An accelerator that leaves and comes back within an interval is rated as one, so its remainders
    are shared once.
    """
    by_holder: dict[tuple[int, str, int | None, int | None], HourlyUsage] = {}
    for piece in pieces:
        key = (piece.start_ms, piece.state, piece.workload_id, piece.attributes_id)
        first = by_holder.get(key)
        by_holder[key] = piece if first is None else _add_pieces(first, piece)
    return list(by_holder.values())


def _add_pieces(first: HourlyUsage, other: HourlyUsage) -> HourlyUsage:
    measured = [piece.energy_mj for piece in (first, other) if piece.energy_mj is not None]
    return replace(
        first,
        end_ms=max(first.end_ms, other.end_ms),
        held_ms=first.held_ms + other.held_ms,
        busy_ms=first.busy_ms + other.busy_ms,
        idle_ms=first.idle_ms + other.idle_ms,
        unknown_ms=first.unknown_ms + other.unknown_ms,
        energy_mj=sum(measured) if measured else None,
    )


_Part = tuple[int, int, str, int | None, int | None]
"""Start and end of the rating interval, state, workload and what was reported of it."""


def fold(
    usage_intervals: Iterable[UsageInterval],
    rating_intervals: Sequence[Period],
    capacity: Sequence[Period],
) -> list[HourlyUsage]:
    """The usage of one accelerator in the given rating intervals (ascending, disjoint), from all
    evidence that touches them.

    Time outside `capacity` is not counted. Where spans overlap, the one that sorts first by (start,
    end, node, epoch, seq) keeps the time.
    """
    # Adjoining and overlapping periods as one, so that no window is counted twice and none is split
    # without need.
    present = join_periods(capacity)
    parts: dict[_Part, list[int | None]] = {}
    accelerator_id = 0
    cursor: int | None = None
    for span in _spans(usage_intervals):
        first = span[0]
        accelerator_id = first.accelerator_id
        # What an earlier span has taken is not given away again, whoever reports it.
        start = first.start_ms if cursor is None else max(first.start_ms, cursor)
        if start >= first.end_ms:
            continue
        # Spans come in the order of their start, so no later one can claim free time before the
        # cursor: one number is enough. A long span that began early wins over a shorter one inside
        # it.
        cursor = first.end_ms
        free = Period(start, first.end_ms)
        for rating_interval in rating_intervals:
            if rating_interval.start_ms >= free.end_ms:
                break
            common = rating_interval.clip(free)
            if common is not None:
                for window in _clip_periods(common, present):
                    _add_window(parts, span, rating_interval, window)
    # In a fixed order: the split of an interval's cost gives ties to the earlier piece.
    return [
        _piece(accelerator_id, key, amounts) for key, amounts in sorted(parts.items(), key=_order)
    ]


def _spans(usage_intervals: Iterable[UsageInterval]) -> list[list[UsageInterval]]:
    """Holders that share a span together, spans in their fixed order, exact repetitions dropped."""
    # The epoch and sequence number are the batch's own, so a batch that is delivered twice sorts,
    # and drops out, the same way whenever it arrives.
    ordered = sorted(set(usage_intervals), key=lambda fact: (*_span_key(fact), fact.record))
    return [list(group) for _, group in groupby(ordered, key=_span_key)]


def _span_key(fact: UsageInterval) -> tuple[int, int, str, str, int]:
    return fact.start_ms, fact.end_ms, fact.node, fact.epoch, fact.seq


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two reports of one node give the same time of an accelerator to different holders; the first
    keeps it.
    """

    accelerator_id: int
    node_id: int
    workload_id: int
    start_ms: int
    end_ms: int


def contradictions(usage_intervals: Iterable[UsageInterval]) -> list[Contradiction]:
    """Held time of one accelerator that a node reported for other holders as well; the reports come
    in any order.
    """
    by_node: dict[int, list[UsageInterval]] = defaultdict(list)
    for fact in usage_intervals:
        by_node[fact.node_id].append(fact)
    return [contradiction for facts in by_node.values() for contradiction in _contradictions(facts)]


def _contradictions(usage_intervals: Iterable[UsageInterval]) -> list[Contradiction]:
    contradictions: list[Contradiction] = []
    # The same order as in `fold`, so that what is reported as losing is what does lose there.
    until_ms, holders = 0, frozenset[int | None]()
    for span in _spans(usage_intervals):
        first = span[0]
        span_holders = frozenset(fact.workload_id for fact in span)
        if first.state == HELD and first.start_ms < until_ms and not span_holders <= holders:
            end_ms = min(until_ms, first.end_ms)
            contradictions += [
                Contradiction(
                    accelerator_id=first.accelerator_id,
                    node_id=first.node_id,
                    workload_id=number,
                    start_ms=first.start_ms,
                    end_ms=end_ms,
                )
                for number in sorted(
                    holder for holder in span_holders - holders if holder is not None
                )
            ]
        if first.end_ms > until_ms:
            until_ms, holders = first.end_ms, span_holders
    return contradictions


def _clip_periods(common: Period, present: Sequence[Period]) -> list[Period]:
    windows = (common.clip(period) for period in present)
    return [window for window in windows if window is not None]


def _add_window(
    parts: dict[_Part, list[int | None]],
    span: Sequence[UsageInterval],
    rating_interval: Period,
    window: Period,
) -> None:
    """Add the usage of a span within one window: time over holders, then each holder's over its
    activity.
    """
    # Holders share a window as they shared the entire interval: how their parts lay inside it was
    # not reported.
    weights = [fact.held_ms if fact.state == HELD else window.ms for fact in span]
    # Nobody held it for a full millisecond; the window must still be given out entirely, so it is
    # shared evenly.
    if not any(weights):
        weights = [1] * len(span)
    for fact, held_ms in zip(span, split(window.ms, weights), strict=True):
        key = (
            rating_interval.start_ms,
            rating_interval.end_ms,
            fact.state,
            fact.workload_id,
            fact.attributes_id,
        )
        amounts = parts.setdefault(key, [0, 0, 0, 0, None])
        activity = _activity(fact, held_ms)
        for at, value in enumerate((held_ms, *activity)):
            amounts[at] = (amounts[at] or 0) + value
        if fact.energy_mj is not None:
            amounts[4] = (amounts[4] or 0) + _energy(fact, fact.energy_mj, window)


def _activity(fact: UsageInterval, held_ms: int) -> list[int]:
    if fact.state != HELD:
        return [0, 0, 0]
    weights = [fact.busy_ms, fact.idle_ms, fact.unknown_ms]
    # Activity is split from the time that was really assigned, so busy + idle + unknown = held
    # after every clipping.
    return split(held_ms, weights) if any(weights) else [0, 0, held_ms]


def _energy(fact: UsageInterval, energy_mj: int, window: Period) -> int:
    """Energy up to the window's end less that up to its start: whatever the windows, their energies
    add up.
    """
    # Differences of a cumulative floor, not a floor for each window: the windows of an interval add
    # up to its energy however it is cut.
    length = fact.end_ms - fact.start_ms
    until_end = energy_mj * (window.end_ms - fact.start_ms) // length
    return until_end - energy_mj * (window.start_ms - fact.start_ms) // length


def _order(item: tuple[_Part, object]) -> tuple[int, int, int, int]:
    (start_ms, _, state, workload_id, attributes_id), _ = item
    return start_ms, STATES.index(state), workload_id or -1, attributes_id or -1


def _piece(accelerator_id: int, key: _Part, amounts: Sequence[int | None]) -> HourlyUsage:
    start_ms, end_ms, state, workload_id, attributes_id = key
    held, busy, idle, unknown = (value or 0 for value in amounts[:4])
    return HourlyUsage(
        accelerator_id=accelerator_id,
        start_ms=start_ms,
        end_ms=end_ms,
        state=state,
        workload_id=workload_id,
        held_ms=held,
        busy_ms=busy,
        idle_ms=idle,
        unknown_ms=unknown,
        energy_mj=amounts[4],
        attributes_id=attributes_id,
    )
