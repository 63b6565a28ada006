"""The report of one run: what it held, used, wasted and produced, what a unit cost, what held it back, and its like."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median
from typing import Any, Protocol

from gpuledger_collector.accounting.period import HOUR_MS, UTC_DAYS, Calendar
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.unit_cost import HeldHour, HourCost, UnitCost, hour_costs
from gpuledger_collector.insight.bottlenecks import BottleneckReport, GpuReadings

COUNTER_PREFERENCE = (
    "total_tokens",
    "tokens",
    "generated_tokens",
    "steps",
    "inferences",
    "samples",
    "requests",
    "prompt_tokens",
)
"""Counters, the one by which runs are compared first."""


class Receipt(Protocol):
    """What it was charged by kind and rate, what of it was found as waste, and both by currency (jobs/receipt.py)."""

    @property
    def held(self) -> Sequence[Any]:
        """Charges of one kind of accelerator at one rate each."""

    @property
    def items(self) -> Sequence[Any]:
        """Findings of waste."""

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """By currency: charged, idle by the ledger, and found as waste (micro-units)."""


@dataclass(frozen=True, slots=True)
class ActivePeriod:
    """A usage interval of hours without a break in which the run held something. `cost_micro`: by currency."""

    start_ms: int
    end_ms: int
    accelerators: int
    held_ms: int
    cost_micro: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunDay:
    """A day of a run: milliseconds of accelerators used, idle and not known, and its cost by currency."""

    day_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    cost_micro: Mapping[str, int]
    date: dt.date


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Another run of the same name and owner, or this one. `unit`: the cost of its chief counter, None: none counted.

    `units_per_gpu_hour` is over covered time. `outcome`: how its scheduler says that it ended, where that is known.
    """

    key: str
    start_ms: int
    end_ms: int
    accelerators: int
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    currency: str | None
    cost_micro: int | None
    unit: UnitCost | None = None
    units_per_gpu_hour: Decimal | None = None
    outcome: str = ""

    @property
    def activity(self) -> Decimal | None:
        """Used part of the time whose activity is known."""
        known = self.busy_ns + self.idle_ns
        return Decimal(self.busy_ns) / known if known else None


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Runs on so many GPUs: the median of what one GPU did, and that against the fewest GPUs (1: it scales fully)."""

    accelerators: int
    runs: int
    measure: str
    per_gpu: Decimal
    efficiency: Decimal


@dataclass(frozen=True)
class RunReport:
    """Everything; `units` over all of its time, `by` the same in the buckets that were asked for."""

    key: str
    name: str
    user: str | None
    team: str
    kind: str
    made_ms: int
    receipt: Receipt
    hours: Mapping[int, HourCost]
    days: Sequence[RunDay]
    parts: Sequence[ActivePeriod]
    energy_mj: int | None
    units: Sequence[UnitCost]
    by: Sequence[UnitCost]
    restarts: int
    """Times at which what counts its output began anew."""
    outcome: str
    peers: Sequence[ComparedRun]
    scaling: Sequence[ScalingPoint]
    gpus: Sequence[GpuReadings]
    judgement: BottleneckReport
    notes: Sequence[str] = field(default_factory=list)

    @property
    def start_ms(self) -> int | None:
        """When it first held something."""
        return self.parts[0].start_ms if self.parts else None

    @property
    def end_ms(self) -> int | None:
        """Up to when it is known to have held something, to the hour."""
        return self.parts[-1].end_ms if self.parts else None


def active_periods(held: Sequence[HeldHour], hours: Mapping[int, HourCost]) -> list[ActivePeriod]:
    """The run cut where an hour passed in which it held nothing."""
    cards: dict[int, set[int]] = {}
    time: dict[int, int] = {}
    for one in held:
        hour_ms = one.at_ms - one.at_ms % HOUR_MS
        cards.setdefault(hour_ms, set()).add(one.accelerator_id)
        time[hour_ms] = time.get(hour_ms, 0) + one.held_ms
    runs: list[list[int]] = []
    for hour_ms in sorted(hours.keys() | cards.keys()):
        if not runs or hour_ms > runs[-1][-1] + HOUR_MS:
            runs.append([])
        runs[-1].append(hour_ms)
    found = []
    for run in runs:
        cost: dict[str, int] = {}
        for hour_ms in run:
            for currency, micro in (hours[hour_ms].cost if hour_ms in hours else {}).items():
                cost[currency] = cost.get(currency, 0) + micro
        most = len(set().union(*(cards.get(hour_ms, set()) for hour_ms in run)))
        found.append(ActivePeriod(run[0], run[-1] + HOUR_MS, most, sum(time.get(hour_ms, 0) for hour_ms in run), cost))
    return found


def run_days(held: Sequence[HeldHour], hours: Mapping[int, HourCost], calendar: Calendar = UTC_DAYS) -> list[RunDay]:
    """The run day by day, in days of the bill; an hour that a midnight cuts is of the day in which it begins."""
    sums: dict[int, list[int]] = {}
    cost: dict[int, dict[str, int]] = {}
    for one in held:
        entry = sums.setdefault(calendar.day_of(one.at_ms).start_ms, [0, 0, 0])
        for at, value in enumerate((one.busy_ms, one.idle_ms, one.unknown_ms)):
            entry[at] += value
    for hour_ms, hour in hours.items():
        of_day = cost.setdefault(calendar.day_of(hour_ms).start_ms, {})
        for currency, micro in hour.cost.items():
            of_day[currency] = of_day.get(currency, 0) + micro
    found = []
    for day_ms in sorted(sums.keys() | cost.keys()):
        busy, idle, unknown = sums.get(day_ms, [0, 0, 0])
        found.append(RunDay(day_ms, busy, idle, unknown, cost.get(day_ms, {}), calendar.date_of(day_ms)))
    return found


def leading_counter(units: Sequence[UnitCost]) -> UnitCost | None:
    """The counter by which runs are compared: the first of CHIEF that counted anything."""
    there = [one for one in units if one.units]
    return min(there, key=lambda one: COUNTER_PREFERENCE.index(one.counter), default=None)


def units_per_gpu_hour(unit: UnitCost | None, charges: Sequence[Charge], held: Sequence[HeldHour]) -> Decimal | None:
    """Units of a GPU-hour of covered time; None where nothing was counted or nobody saw what was held."""
    if unit is None or not unit.covered_ms or not hour_costs(charges, held):
        return None
    cards_ms = sum(one.held_ms for one in held)
    if not cards_ms or not unit.held_ms:
        return None
    return Decimal(unit.units) * unit.held_ms * HOUR_MS / (Decimal(unit.covered_ms) * cards_ms)


def scaling_points(peers: Sequence[ComparedRun]) -> list[ScalingPoint]:
    """How what one GPU does changes with the number of GPUs, over runs of one name and owner.

    By units where every one of them counted the same, else by activity; nothing where all had equally many GPUs.
    """
    counters = {None if one.units_per_gpu_hour is None or one.unit is None else one.unit.counter for one in peers}
    by_units = len(counters) == 1 and None not in counters
    measure = f"{next(iter(counters))} per GPU-hour" if by_units else "activity"
    groups: dict[int, list[Decimal]] = {}
    for one in peers:
        value = one.units_per_gpu_hour if by_units else one.activity
        if value is not None and one.accelerators:
            groups.setdefault(one.accelerators, []).append(value)
    if len(groups) < 2:
        return []
    rates = {count: median(values) for count, values in sorted(groups.items())}
    base = rates[min(rates)]
    if not base:
        return []
    return [ScalingPoint(count, len(groups[count]), measure, rate, rate / base) for count, rate in rates.items()]


def measured_energy_mj(charges: Sequence[Charge]) -> int | None:
    """Millijoules measured over its charges; None where nothing measured any."""
    known = [one.energy_mj for one in charges if one.energy_mj is not None]
    return sum(known) if known else None
