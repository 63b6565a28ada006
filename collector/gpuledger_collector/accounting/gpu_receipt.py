"""The receipt of one GPU's time: who held it when, at which price, and that nothing of it is
missing.

A board is asked for as a whole, with its MIG slices and what they leave of it, or one slice by
itself. Law: the lines of a day add up to the capacity of the GPU, as its hours do; and where no
commitment covers a part of it, to capacity x rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.evidence_periods import EvidencePeriod, narrow_to_evidence
from gpuledger_collector.accounting.ledger import ExportedCharge, without_zeros
from gpuledger_collector.accounting.measures import Measures, total
from gpuledger_collector.accounting.money import Money, round_amounts, total_by_currency
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import CapacityCost
from gpuledger_collector.accounting.usage import (
    STATES,
    STRANDED,
    UNALLOCATED,
    UNAVAILABLE,
    UNOBSERVED,
)

BUSY, IDLE, ACTIVITY_UNKNOWN = "busy", "idle", "activity unknown"
HOUR_STATES = (BUSY, IDLE, ACTIVITY_UNKNOWN, UNALLOCATED, UNAVAILABLE, UNOBSERVED, STRANDED)


@dataclass(frozen=True, slots=True)
class GpuPart:
    """A slice of the board, or the board itself, with where it was last."""

    accelerator_id: int
    uuid: str
    device: str
    model: str
    mig_instance: str | None
    gpu_index: int | None
    health: str
    cause: str
    health_since_ms: int | None
    """Since when its reports say this health; None: not known."""
    pool: str
    node: str
    out_ms: int | None
    """When it left; None: it is there."""
    node_status: str
    seen_ms: int | None
    """The last sign of life of its node; None: it has none."""


@dataclass(frozen=True, slots=True)
class GpuHour:
    """An hour of the GPU: GPU-nanoseconds by state, of the hourly ledger; the rest is unobserved."""

    at_ms: int
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine(Measures):
    """What one holder had of it, or what was a state without one, at one price.

    `start_ms` and `end_ms` are the first and the last instant of its evidence, of time without any
    those of the charged hours.
    """

    uuid: str
    state: str
    owner: OwnerPath | None
    workload: str
    name: str
    user: str
    start_ms: int
    end_ms: int
    rate: Decimal | None
    currency: str | None
    commitment: str
    correction_of: str
    cost: Money | None
    """None: no price, which is not free."""


@dataclass(frozen=True, slots=True)
class GpuDay:
    """Whether the lines of a day are the GPU's capacity, and whether the proof of the whole day
    holds.

    `cost_holds` None: a commitment covers a part, so that its cost is proven with the day alone.
    """

    date: str
    period: Period
    until_ms: int
    capacity_ns: int
    charged_ns: int
    hours_ns: int
    cost_holds: bool | None
    day_holds: bool

    @property
    def holds(self) -> bool:
        """Whether nothing is missing or counted twice."""
        is_whole = self.capacity_ns == self.charged_ns == self.hours_ns
        return is_whole and self.cost_holds is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSum:
    """A state with its time and, by currency, its cost."""

    state: str
    gpu_ns: int
    costs: Sequence[Money]


@dataclass(frozen=True, kw_only=True)
class GpuReceipt:
    """The receipt of a period."""

    asked: str
    """The UUID that was asked for."""
    parts: Sequence[GpuPart]
    first_ms: int
    """When the first of its parts came."""
    period: Period
    days: Sequence[Period]
    hours: Sequence[GpuHour]
    lines: Sequence[GpuLine]
    proofs: Sequence[GpuDay]

    @property
    def is_rated(self) -> bool:
        """Whether any day of it is."""
        return bool(self.proofs)

    @property
    def holds(self) -> bool:
        """Whether nothing is missing or counted twice, on each of its rated days."""
        return all(day.holds and day.day_holds for day in self.proofs)

    @property
    def gpu_ns(self) -> int:
        """All of its charged time."""
        return sum(line.gpu_ns for line in self.lines)

    @property
    def costs(self) -> Sequence[Money]:
        """What all of it cost, by currency, as the lines add up."""
        return _sum_shown(line.cost for line in self.lines)

    @property
    def unpriced_ns(self) -> int:
        """Time without a price."""
        return sum(line.gpu_ns for line in self.lines if line.cost is None)

    @property
    def states(self) -> Sequence[StateSum]:
        """Its charged time by state, with its cost."""
        times: Counter[str] = Counter()
        for line in self.lines:
            times[line.state] += line.gpu_ns
        return [
            StateSum(
                state=state,
                gpu_ns=times[state],
                costs=_sum_shown(line.cost for line in self.lines if line.state == state),
            )
            for state in STATES
            if times[state]
        ]

    @property
    def hour_sums(self) -> Mapping[str, int]:
        """GPU-nanoseconds of the drawn hours by state."""
        sums: Counter[str] = Counter()
        for hour in self.hours:
            sums.update(hour.states)
        return {state: sums[state] for state in HOUR_STATES if sums[state]}


def _sum_shown(costs: Iterable[Money | None]) -> list[Money]:
    """Amounts as they are shown, added up by currency."""
    known = [cost for cost in costs if cost is not None]
    minor: Counter[str] = Counter()
    for cost in known:
        minor[cost.currency] += cost.minor
    return [
        Money(sum_.micro, sum_.currency, minor[sum_.currency]) for sum_ in total_by_currency(known)
    ]


_LineKey = tuple[str, str, str, OwnerPath | None, Decimal | None, str | None, str, str]


def _key_of(line: ExportedCharge) -> _LineKey:
    charge = line.charge
    return (
        line.accelerator_uuid or "",
        charge.state,
        line.workload_key or "",
        charge.owner,
        None if charge.price is None else charge.price.rate,
        charge.currency,
        "" if charge.commitment is None else charge.commitment.name,
        line.correction_of,
    )


def lines_of(
    charges: Iterable[ExportedCharge], until_ms: int, seen: Iterable[EvidencePeriod] = ()
) -> list[GpuLine]:
    """Add up the charges of a GPU over its days, held time first, by when it began; their amounts
    in minor units add up by currency. `seen`: the evidence of these days.

    A line ends at `until_ms` at the latest, up to where the ledger is rated: not with its hour.
    """
    by_key: dict[_LineKey, list[ExportedCharge]] = {}
    for charge in charges:
        by_key.setdefault(_key_of(charge), []).append(charge)
    keyed = sorted(
        by_key.items(),
        key=lambda pair: (
            STATES.index(pair[1][0].charge.state),
            min(line.charge.start_ms for line in pair[1]),
            pair[0][0],
            pair[0][2],
            pair[0][7],
        ),
    )
    sums = [total(line.charge for line in own) for _, own in keyed]
    costs: list[Money | None] = [None] * len(keyed)
    for currency in {own[0].charge.currency for _, own in keyed} - {None}:
        at = [place for place, (_, own) in enumerate(keyed) if own[0].charge.currency == currency]
        rounded = round_amounts([sums[place].cost_micro or 0 for place in at], str(currency))
        for place, money in zip(at, rounded, strict=True):
            costs[place] = money
    evidence: dict[tuple[str, str, str], list[EvidencePeriod]] = {}
    for each in seen:
        evidence.setdefault((each.uuid, each.state, each.workload), []).append(each)
    return [
        _line(key, own, amounts, cost, _span_of(own, until_ms, evidence.get(key[:3], ())))
        for (key, own), amounts, cost in zip(keyed, sums, costs, strict=True)
    ]


def _span_of(
    own: Sequence[ExportedCharge], until_ms: int, seen: Sequence[EvidencePeriod]
) -> Period:
    """From when to when a line was: charges are of whole hours, evidence is of seconds."""
    start_ms = min(line.charge.start_ms for line in own)
    end_ms = min(until_ms, max(line.charge.end_ms for line in own))
    span = Period(start_ms, max(start_ms, end_ms))
    return narrow_to_evidence(span, seen)


def _line(
    key: _LineKey,
    own: Sequence[ExportedCharge],
    amounts: Measures,
    cost: Money | None,
    span: Period,
) -> GpuLine:
    uuid, state, workload, owner, rate, currency, commitment, correction_of = key
    return GpuLine(
        uuid=uuid,
        state=state,
        owner=owner,
        workload=workload,
        name=own[-1].workload_name or "",
        user=own[-1].user or "",
        start_ms=span.start_ms,
        end_ms=span.end_ms,
        rate=rate,
        currency=currency,
        commitment=commitment,
        correction_of=correction_of,
        cost=cost,
        **amounts.amounts,
    )


def cost_holds(
    charges: Sequence[ExportedCharge], capacities: Iterable[CapacityCost]
) -> bool | None:
    """Whether a day's charges cost capacity x rate; None where a commitment covers a part."""
    if any(line.charge.commitment is not None for line in charges):
        return None
    expected: Counter[str] = Counter()
    for capacity in capacities:
        expected.update(capacity.cost)
    charged: Counter[str] = Counter()
    for line in charges:
        if line.charge.currency is not None:
            charged[line.charge.currency] += line.charge.cost_micro or 0
    return without_zeros(charged) == without_zeros(expected)


def is_of_slice(line: ExportedCharge) -> bool:
    """Whether a charge is that of a slice itself, not of what slices leave of the board."""
    return line.charge.state != STRANDED
