"""What a token, an inference or a step cost: the charges of a workload over what its counters
counted.

A day's charge is laid over the hours in which its accelerator was held, by time and without rest,
so that the hours add up to the charge. Of each hour only the part counts that its counters cover:
cost of covered time over units of covered time. Nothing is extrapolated over the rest; every cost
comes with the share of the charged time that is covered.

Several endpoints of one workload count together. One that was seen before and after an hour is
expected in it, and where it was not read, that part of the hour is not covered; each endpoint
stands for an equal part of the workload. Where one counter comes two ways (the agent and remote
write), an hour takes the way that covers more of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.quantity import GPU_MICRO, round_half_even_div
from gpuledger_collector.accounting.rating import Charge
from gpuledger_common.largest_remainder import split

WAYS = ("agent", "remote_write", "reported")
"""Ways in which counters come, the one that is taken first among equals."""
TOTAL_TOKENS = "total_tokens"
PER = {
    "inferences": 1_000,
    "requests": 1_000,
    "prompt_tokens": 1_000_000,
    "generated_tokens": 1_000_000,
    TOTAL_TOKENS: 1_000_000,
    "tokens": 1_000_000,
    "samples": 1_000,
    "steps": 1,
    "epochs": 1,
}
"""So many units people name a price for; other counters have none."""
DIGITS = 6
"""Decimal places of a unit cost."""


@dataclass(frozen=True, slots=True)
class HeldHour:
    """What a workload had of an accelerator from `at_ms` to the end of its hour; `shared`: others
    had it, too. `gpu_micro`: how much of a GPU the accelerator is.
    """

    accelerator_id: int
    at_ms: int
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    shared: bool = False
    gpu_micro: int = GPU_MICRO


@dataclass(frozen=True, slots=True)
class CountedHour:
    """What one endpoint (or the run itself) counted in an hour."""

    via: str
    source: str
    counter: str
    hour_ms: int
    units: int
    covered_ms: int
    restarts: int = 0


@dataclass(slots=True)
class HourCost:
    """An hour of a workload: the time for which it held anything, and its cost by currency in
    micro-units.

    `used`: the part of it in which its accelerators worked. `held_ms` is an upper bound where
    accelerators are shared.
    """

    held_ms: int = 0
    cost: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class UnitCost:
    """What units of one counter cost in one currency, over all time or in one bucket.

    `cost_micro` and `used_micro` are of the covered time alone, `charged_micro` of all of it.
    `held_ms` is the charged time of the workload, `covered_ms` the part of it that the counters
    cover.
    """

    counter: str
    bucket_ms: int
    currency: str
    units: int = 0
    cost_micro: int = 0
    used_micro: int = 0
    charged_micro: int = 0
    held_ms: int = 0
    covered_ms: int = 0
    restarts: int = 0

    @property
    def coverage(self) -> Decimal:
        """Covered part of the charged time, 0 to 1, to DIGITS places; 1 only where nothing is left
        out.
        """
        share = self.covered_ms * 10**DIGITS // self.held_ms if self.held_ms else 0
        return Decimal(share).scaleb(-DIGITS)

    @property
    def per(self) -> int:
        """Units to which the cost refers."""
        return PER[self.counter]

    @property
    def cost(self) -> Decimal | None:
        """Held cost in major units for `per` units, half to even; None where nothing was produced
        in covered time.
        """
        return cost_per(self.cost_micro, self.units, self.per)

    @property
    def used_cost(self) -> Decimal | None:
        """The same of the time alone in which the accelerators worked."""
        return cost_per(self.used_micro, self.units, self.per)


def cost_per(micro: int, units: int, per: int, digits: int = DIGITS) -> Decimal | None:
    """Major units for `per` units to `digits` places, half to even; None for no units."""
    if not units:
        return None
    return Decimal(round_half_even_div(micro * per * 10**digits, units * MICRO)).scaleb(-digits)


def hour_costs(charges: Iterable[Charge], held: Iterable[HeldHour]) -> dict[int, HourCost]:
    """The cost of each hour of one workload.

    Its hours add up to its priced charges, corrections included.
    """
    by_card: dict[int, list[HeldHour]] = defaultdict(list)
    for hour in sorted(held, key=lambda hour: (hour.accelerator_id, hour.at_ms)):
        by_card[hour.accelerator_id].append(hour)
    hours: dict[int, HourCost] = defaultdict(HourCost)
    for of_card in by_card.values():
        _hold(hours, of_card)
    for charge in charges:
        if charge.cost_micro is None or charge.currency is None:
            continue
        rating_intervals = [
            entry
            for entry in by_card.get(charge.accelerator_id or 0, ())
            if charge.start_ms <= entry.at_ms < charge.end_ms and entry.held_ms
        ]
        _lay(hours, charge, rating_intervals or _even(charge))
    return dict(hours)


def _hold(hours: dict[int, HourCost], rating_intervals: Sequence[HeldHour]) -> None:
    """The time for which the workload held this accelerator, hour by hour; of several the longest
    counts.
    """
    wall: dict[int, int] = defaultdict(int)
    for hour in rating_intervals:
        hour_ms = hour.at_ms - hour.at_ms % HOUR_MS
        wall[hour_ms] += hour_ms + HOUR_MS - hour.at_ms if hour.shared else hour.held_ms
    for hour_ms, ms in wall.items():
        hours[hour_ms].held_ms = max(hours[hour_ms].held_ms, min(ms, HOUR_MS))


def _even(charge: Charge) -> list[HeldHour]:
    """The hours of a charge of which nobody saw more than its begin and end, as of imported usage."""
    return [
        HeldHour(
            accelerator_id=0,
            at_ms=part.start_ms,
            held_ms=part.ms,
            busy_ms=0,
            idle_ms=0,
            unknown_ms=part.ms,
        )
        for part in Period(charge.start_ms, max(charge.end_ms, charge.start_ms + 1)).hours()
    ]


def _lay(hours: dict[int, HourCost], charge: Charge, rating_intervals: Sequence[HeldHour]) -> None:
    cost, currency = charge.cost_micro or 0, charge.currency or ""
    sign = -1 if cost < 0 else 1
    for hour, part in zip(
        rating_intervals, split(abs(cost), [hour.held_ms for hour in rating_intervals]), strict=True
    ):
        entry = hours[hour.at_ms - hour.at_ms % HOUR_MS]
        if charge.accelerator_id is None:
            entry.held_ms = max(entry.held_ms, hour.held_ms)
        known = hour.busy_ms + hour.idle_ms + hour.unknown_ms
        busy = split(part, [hour.busy_ms, hour.idle_ms, hour.unknown_ms])[0] if known else 0
        entry.cost[currency] = entry.cost.get(currency, 0) + sign * part
        entry.used[currency] = entry.used.get(currency, 0) + sign * busy


def with_totals(counted: Sequence[CountedHour]) -> list[CountedHour]:
    """These and, where an endpoint counts prompt and generated tokens, both together.

    One page has both, so they cover the same time; an hour in which they do not is not known for
    the two together.
    """
    both: dict[tuple[str, str, int], dict[str, CountedHour]] = defaultdict(dict)
    for count in counted:
        if count.counter in {"prompt_tokens", "generated_tokens"}:
            both[count.via, count.source, count.hour_ms][count.counter] = count
    totals = []
    for (via, source, hour_ms), parts in both.items():
        if len(parts) == 2:
            prompt, generated = parts["prompt_tokens"], parts["generated_tokens"]
            same = prompt.covered_ms == generated.covered_ms
            totals.append(
                CountedHour(
                    via=via,
                    source=source,
                    counter=TOTAL_TOKENS,
                    hour_ms=hour_ms,
                    units=prompt.units + generated.units if same else 0,
                    covered_ms=prompt.covered_ms if same else 0,
                    restarts=max(prompt.restarts, generated.restarts),
                )
            )
    return [*counted, *totals]


def unit_costs(
    hours: Mapping[int, HourCost],
    counted: Sequence[CountedHour],
    bucket: Callable[[int], int] = lambda _: 0,
) -> list[UnitCost]:
    """Unit costs by counter, bucket (a begin that `bucket` gives to an hour) and currency.

    Every charged hour counts as charged time, so that coverage says what the counters leave out.
    """
    counters: dict[str, list[CountedHour]] = defaultdict(list)
    for count in with_totals(counted):
        if count.counter in PER:
            counters[count.counter].append(count)
    costs = []
    for counter, counts in sorted(counters.items(), key=lambda entry: list(PER).index(entry[0])):
        chosen = _by_hour(counts)
        by_bucket: dict[tuple[int, str], UnitCost] = {}
        for hour_ms, hour in sorted(hours.items()):
            for currency, cost_micro in hour.cost.items():
                key = (bucket(hour_ms), currency)
                unit = by_bucket.setdefault(key, UnitCost(counter, *key))
                _add(unit, hour, cost_micro, chosen.get(hour_ms))
        costs += [by_bucket[key] for key in sorted(by_bucket)]
    return costs


@dataclass(frozen=True, slots=True)
class _Counted:
    """An hour of the way that was chosen: units, and covered time of each endpoint that is expected
    in it.
    """

    units: int
    covered: tuple[int, ...]
    restarts: int


def count_by_hour(counted: Sequence[CountedHour]) -> dict[int, tuple[int, int]]:
    """Units of one counter by hour, and the time of the hour that every endpoint covers, by the way
    that covers more of it.
    """
    return {
        hour_ms: (chosen.units, min(chosen.covered))
        for hour_ms, chosen in _by_hour(counted).items()
    }


def _by_hour(counted: Sequence[CountedHour]) -> dict[int, _Counted]:
    if len({(count.via, count.source) for count in counted}) == 1:
        # Nearly all workloads have one endpoint: there is no other to choose or to wait for.
        single = {
            count.hour_ms: _Counted(count.units, (count.covered_ms,), count.restarts)
            for count in counted
        }
        if len(single) == len(counted):
            return single
    lives: dict[tuple[str, str], list[int]] = {}
    by_hour: dict[int, dict[str, list[CountedHour]]] = defaultdict(lambda: defaultdict(list))
    for count in counted:
        first, last = lives.setdefault((count.via, count.source), [count.hour_ms, count.hour_ms])
        lives[count.via, count.source] = [min(first, count.hour_ms), max(last, count.hour_ms)]
        by_hour[count.hour_ms][count.via].append(count)
    chosen = {}
    for hour_ms, ways in by_hour.items():
        best: tuple[int, int, _Counted] | None = None
        for via, rows in ways.items():
            expected = sum(
                way == via and first <= hour_ms <= last for (way, _), (first, last) in lives.items()
            )
            # An endpoint that counted before and after this hour was there: its silence is
            # uncovered time, not zero units.
            covered = [*(row.covered_ms for row in rows), *[0] * (expected - len(rows))]
            candidate = _Counted(
                sum(row.units for row in rows), tuple(covered), max(row.restarts for row in rows)
            )
            # The way of counting that covers most of the hour; of equals the one that comes first
            # in WAYS.
            rank = sum(covered) * HOUR_MS // len(covered)
            if best is None or (rank, -WAYS.index(via)) > best[:2]:
                best = rank, -WAYS.index(via), candidate
        if best is not None:
            chosen[hour_ms] = best[2]
    return chosen


def _add(unit: UnitCost, hour: HourCost, cost_micro: int, counted: _Counted | None) -> None:
    unit.charged_micro += cost_micro
    unit.held_ms += hour.held_ms
    if counted is None or not hour.held_ms:
        return
    whole = hour.held_ms * len(counted.covered)
    covered = sum(min(ms, hour.held_ms) for ms in counted.covered)
    unit.units += counted.units
    unit.restarts += counted.restarts
    # Only the cost of the time that counters cover: units of half an hour against the cost of a
    # full one would look dear.
    unit.cost_micro += round_half_even_div(cost_micro * covered, whole)
    unit.used_micro += round_half_even_div(hour.used.get(unit.currency, 0) * covered, whole)
    unit.covered_ms += covered // len(counted.covered)
