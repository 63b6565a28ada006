"""Commitments: capacity that is paid for a term, used or not, and whose time it covers.

A commitment pays for so many GPUs in every hour of its term. The upfront payment is spread over
those hours by largest remainder (all hours weigh the same, so the earliest ones carry the odd
micro-units), and a recurring rate comes on top. What an hour of a commitment costs is therefore
known without a look at what happened in it.

It covers the time of accelerators that were there, and of usage imported as counts, in the places
that it names: all of them in proportion to their time, so that nobody is dearer by the luck of
which GPU he was given. What is left over is the commitment's own line, *unused*, and nobody's.
Laws: the hours of a term add up to the upfront payment; covered
+ unused = committed, in time and in money; adjoining hours add up; the order of what is covered
  changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.accounting.quantity import GPU_MICRO, gpu_ns
from gpuledger_common.largest_remainder import split

COMMITMENT_UNUSED = "commitment_unused"
"""The state of a charge that is a commitment's unused part: nobody's time, and no accelerator's."""
Key = tuple[int, ...]
"""Who asks for cover: sortable, so that the last micro-unit falls the same way every time."""


@dataclass(frozen=True, slots=True)
class Commitment:
    """So many GPUs from `starts_ms` (in) to `ends_ms` (out), both on a UTC hour.

    Empty places match any.

    `upfront_micro` is in micro-units; `rate` recurs for every committed GPU-hour.
    """

    id: int | None
    name: str
    gpus: int
    upfront_micro: int
    rate: Decimal
    currency: str
    starts_ms: int
    ends_ms: int
    pool: str = ""
    gpu_model: str = ""
    node: str = ""
    region: str = ""

    def __post_init__(self) -> None:
        if self.starts_ms % HOUR_MS or self.ends_ms % HOUR_MS or self.ends_ms <= self.starts_ms:
            raise ValueError(
                f"commitment {self.name!r}: a term goes from one whole hour to a later one"
            )

    @property
    def term(self) -> Period:
        """From its start to its end."""
        return Period(self.starts_ms, self.ends_ms)

    def amortized_micro(self, hour_ms: int) -> int:
        """The part of the upfront payment that falls on an hour of the term.

        `hour_ms` is where the hour begins.
        """
        # The hour's share follows from its number alone, so any day can be rated without the days
        # before it. Months of different length do not matter: an hour of February costs what an
        # hour of July does (decision 0014).
        hours = (self.ends_ms - self.starts_ms) // HOUR_MS
        at = (hour_ms - self.starts_ms) // HOUR_MS
        if not 0 <= at < hours:
            return 0
        # The first hours of the term carry the odd micro-units: all hours have the same weight.
        whole, odd = divmod(self.upfront_micro, hours)
        return whole + (at < odd)

    def hour_micro(self, hour_ms: int) -> int:
        """What an hour of the term costs, used or not: amortized and recurring."""
        return self.amortized_micro(hour_ms) + self._recurring_hour

    @property
    def _recurring_hour(self) -> int:
        return cost_micro(gpu_ns(self.gpus * GPU_MICRO, HOUR_MS), self.rate)

    def recurring_micro(self, span: Period) -> int:
        """The recurring fee of a span of the term, in micro-units; spans that adjoin add up."""
        inside = span.clip(self.term)
        if inside is None:
            return 0
        start_ms, end_ms = inside.start_ms - self.starts_ms, inside.end_ms - self.starts_ms
        # The fee up to the end less that up to the start: cut anywhere, the parts add up to the
        # whole.
        return self._recurring_hour * end_ms // HOUR_MS - self._recurring_hour * start_ms // HOUR_MS

    def paid_micro(self, span: Period) -> int:
        """What is paid within a span: the upfront payment when the term begins, and the recurring
        fee.
        """
        upfront = self.upfront_micro if span.start_ms <= self.starts_ms < span.end_ms else 0
        return upfront + self.recurring_micro(span)

    def cost(self, span: Period) -> int:
        """What a span of the term costs, in micro-units; of an hour cut in two both parts add up to
        it.
        """
        # Hour by hour, since the odd micro-units of the upfront payment make hours differ by one.
        inside = span.clip(self.term)
        return 0 if inside is None else sum(self._part(hour) for hour in inside.hours())

    def _part(self, part: Period) -> int:
        hour_ms = part.start_ms - part.start_ms % HOUR_MS
        whole = self.hour_micro(hour_ms)
        # The cumulative cost up to the end less that up to the start: however an hour is cut, its
        # parts add up to it.
        until_end = whole * (part.end_ms - hour_ms) // HOUR_MS
        return until_end - whole * (part.start_ms - hour_ms) // HOUR_MS

    def committed_ns(self, span: Period) -> int:
        """GPU-nanoseconds that it pays for within a span."""
        inside = span.clip(self.term)
        return 0 if inside is None else gpu_ns(self.gpus * GPU_MICRO, inside.ms)

    def covers(self, pool: str, gpu_model: str, node: str, region: str) -> bool:
        """Whether it covers time in this place."""
        named = ((self.pool, pool), (self.node, node), (self.region, region))
        return model_match(self.gpu_model, gpu_model) >= 0 and all(
            not wanted or wanted == actual for wanted, actual in named
        )

    @property
    def precedence(self) -> tuple[object, ...]:
        """Where several cover the same time: the most specific first, then the one that began
        first.
        """
        # False sorts before True, so what is named is negated to come first. The name is the last
        # tie-break: ids depend on the order of import.
        specific = (bool(self.node), bool(self.pool), bool(self.gpu_model), bool(self.region))
        return tuple(not is_named for is_named in specific), self.starts_ms, self.name


@dataclass(frozen=True, slots=True)
class CoveredShare:
    """What a commitment covers of one rating interval: GPU-nanoseconds, and what they cost in
    micro-units.
    """

    commitment: Commitment
    gpu_ns: int
    cost_micro: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Time that can be covered: GPU-nanoseconds by the start of their rating interval, in one
    place.
    """

    key: Key
    pool: str
    gpu_model: str
    node: str
    region: str
    ns: Mapping[int, int]
    name: str = ""
    """Settles ties, where `key` would by the order of arrival."""


@dataclass(frozen=True, slots=True)
class CommitmentCost:
    """What a commitment pays for within a day, apart from whose time it covers."""

    commitment: Commitment
    committed_ns: int
    cost_micro: int


@dataclass(slots=True)
class Coverage:
    """Of a day: `shares` by who is covered and rating interval, `unused` by commitment and rating
    interval, and the commitments' whole cost.

    Where no commitment is in force everything is empty.
    """

    shares: dict[Key, dict[int, list[CoveredShare]]] = field(default_factory=dict)
    unused: list[tuple[Period, CoveredShare]] = field(default_factory=list)
    costs: list[CommitmentCost] = field(default_factory=list)

    def shares_of(self, key: Key) -> Mapping[int, Sequence[CoveredShare]] | None:
        """The shares of one place by rating interval, None where nothing covers it."""
        return self.shares.get(key)


def cover(
    commitments: Iterable[Commitment],
    demands: Sequence[Demand],
    rating_intervals: Sequence[Period],
    until_ms: int,
) -> Coverage:
    """Whose time the commitments cover, rating interval by rating interval, up to `until_ms`.

    Each commitment, in order of precedence, is split over the time in its places that no other
    covers yet, by largest remainder; so is its cost over what it covers and what is left unused.
    """
    coverage = Coverage()
    parts = [
        Period(rating_interval.start_ms, min(rating_interval.end_ms, until_ms))
        for rating_interval in rating_intervals
        if rating_interval.start_ms < until_ms
    ]
    # By name first: keys are database ids, which depend on the order of arrival.
    ordered = sorted(demands, key=lambda demand: (demand.name, demand.key))
    # What no commitment covers yet. Commitments take from it one after the other, so no time is
    # paid for twice.
    left = {(demand.key, at): quantity for demand in ordered for at, quantity in demand.ns.items()}
    for commitment in sorted(commitments, key=lambda commitment: commitment.precedence):
        covered = [
            demand
            for demand in ordered
            if commitment.covers(demand.pool, demand.gpu_model, demand.node, demand.region)
        ]
        committed_ns = cost = 0
        for part in parts:
            # Also where nothing asks for it: the commitment costs its hour either way, and the time
            # is then unused.
            quantity = commitment.committed_ns(part)
            if quantity:
                committed_ns += quantity
                cost += _cover_rating_interval(coverage, commitment, quantity, covered, left, part)
        if committed_ns:
            coverage.costs.append(CommitmentCost(commitment, committed_ns, cost))
    return coverage


def _cover_rating_interval(
    coverage: Coverage,
    commitment: Commitment,
    quantity: int,
    demands: Sequence[Demand],
    left: dict[tuple[Key, int], int],
    part: Period,
) -> int:
    """Covers one rating interval; what the commitment costs in it."""
    at = part.start_ms
    asking = [
        (demand.key, open_ns) for demand in demands if (open_ns := left.get((demand.key, at), 0))
    ]
    wanted = sum(open_ns for _, open_ns in asking)
    # In proportion to what is there, held or not: covering held time first would make the idle GPU
    # of the pool look dear (decision 0014).
    taken = split(min(quantity, wanted), [open_ns for _, open_ns in asking])
    unused = quantity - sum(taken)
    cost = commitment.cost(part)
    # Unused time is one more weight in the same split, so that covered + unused is the cost without
    # a second rounding.
    costs = split(cost, [*taken, unused])
    # Not strict: the last cost is that of the unused time.
    for (key, open_ns), covered, part_cost in zip(asking, taken, costs, strict=False):
        if covered:
            left[key, at] = open_ns - covered
            coverage.shares.setdefault(key, {}).setdefault(at, []).append(
                CoveredShare(commitment, covered, part_cost)
            )
    if unused:
        coverage.unused.append((part, CoveredShare(commitment, unused, costs[-1])))
    return cost
