"""The report of one run: usage, waste, output and its unit cost, bottlenecks, and comparable runs."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median

from gpuledger_collector.accounting.charged_runs import ChargedRun
from gpuledger_collector.accounting.measures import total
from gpuledger_collector.accounting.money import Money, total_by_currency
from gpuledger_collector.accounting.period import HOUR_MS, UTC_DAYS, Calendar, Period
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.unit_cost import HeldHour, HourCost, UnitCost, hour_costs
from gpuledger_collector.insight.bottlenecks import BottleneckReport, GpuReadings
from gpuledger_collector.insight.waste_receipt import WasteReceipt

COUNTER_PREFERENCE = (
    "total_tokens",
    "tokens",
    "generated_tokens",
    "steps",
    "inferences",
    "samples",
    "requests",
    "prompt_tokens",
    "epochs",
)
"""Counters by which runs are compared, the preferred one first."""


@dataclass(frozen=True, slots=True)
class ActivePeriod:
    """Consecutive hours in which the run held something; `accelerators` is their number, which may
    be parts of GPUs, `cost_micro` by currency.
    """

    start_ms: int
    end_ms: int
    accelerators: int
    held_ms: int
    gpu_ns: int
    cost_micro: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunDay:
    """A day of a run: GPU-nanoseconds busy, idle and unknown, and its cost by currency."""

    day_ms: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    cost_micro: Mapping[str, int]
    date: dt.date


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Another run of the same name and owner, or this one.

    `unit`: cost of its leading counter, None: none counted.

    `units_per_gpu_hour` is over covered time. `outcome` is how the scheduler says that it ended, ""
    where unknown.
    """

    key: str
    start_ms: int
    end_ms: int
    gpu_model: str
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
        """Busy share of the time whose activity is known."""
        known = self.busy_ns + self.idle_ns
        return Decimal(self.busy_ns) / known if known else None


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Runs on this many GPUs: medians over them, and their efficiency against the runs with fewest
    GPUs.

    `counter`: what they are compared by, None for activity. `per_gpu`: its units per GPU-hour, or
    the active share. `seconds` and `unit_cost` are for as many units as people name a price for;
    None where nothing was counted. `efficiency` is `per_gpu` over that of the fewest GPUs (1:
    linear scaling), `lowest` and `highest` that of single runs.
    """

    accelerators: int
    runs: int
    counter: str | None
    per_gpu: Decimal
    seconds: Decimal | None
    unit_cost: Decimal | None
    efficiency: Decimal
    lowest: Decimal
    highest: Decimal

    @property
    def measure(self) -> str:
        """What `per_gpu` counts."""
        return "activity" if self.counter is None else f"{self.counter} per GPU-hour"


@dataclass(frozen=True, slots=True)
class ScaledRuns:
    """Runs of one name, team and model on different numbers of GPUs.

    `cost_micro` is of all of them.
    """

    team: str
    name: str
    gpu_model: str
    currency: str
    cost_micro: int
    points: Sequence[ScalingPoint]


@dataclass(frozen=True)
class RunReport:
    """All parts of the report.

    `units` are over the run's whole time, `by` in the requested buckets.

    `restarts` counts how often an output counter began anew.
    """

    key: str
    name: str
    user: str | None
    team: str
    kind: str
    made_ms: int
    receipt: WasteReceipt
    hours: Mapping[int, HourCost]
    days: Sequence[RunDay]
    parts: Sequence[ActivePeriod]
    energy_mj: int | None
    units: Sequence[UnitCost]
    by: Sequence[UnitCost]
    restarts: int
    outcome: str
    peers: Sequence[ComparedRun]
    scaling: Sequence[ScalingPoint]
    gpus: Sequence[GpuReadings]
    judgment: BottleneckReport
    notes: Sequence[str] = field(default_factory=list)
    calendar: Calendar = UTC_DAYS
    """In whose zone pages show its instants."""
    namesakes: Sequence[ChargedRun] = ()
    """The runs of its name and team in the year before its end, this one included."""
    is_running: bool = False
    """Whether it held something in the last rated hour, and no record says that it ended."""
    extent: Period | None = None
    """From when to when it held something, as observed; None: nothing but its charged hours is known."""
    give_back: str = ""
    """The command that frees its GPUs, where all that it holds is idle now."""

    @property
    def is_unused(self) -> bool:
        """Whether it is known that none of its time was used."""
        held = total(self.receipt.held)
        return held.has_known_activity and not held.busy_ns and not held.unknown_ns

    @property
    def namesake_count(self) -> int:
        """How many runs have its name."""
        return len({run.workload_id for run in self.namesakes})

    @property
    def namesake_costs(self) -> Sequence[Money]:
        """What they cost together, by currency."""
        return total_by_currency(run.cost for run in self.namesakes)

    @property
    def start_ms(self) -> int | None:
        """When it began to hold something; where that was not observed, the begin of the hour."""
        if self.extent is not None:
            return self.extent.start_ms
        return self.parts[0].start_ms if self.parts else None

    @property
    def end_ms(self) -> int | None:
        """Up to when it is known to have held something; where that was not observed, the end of
        the hour.
        """
        if self.extent is not None:
            return self.extent.end_ms
        return self.parts[-1].end_ms if self.parts else None


def active_periods(held: Sequence[HeldHour], hours: Mapping[int, HourCost]) -> list[ActivePeriod]:
    """Split the run at hours in which it held nothing."""
    accelerators: defaultdict[int, set[int]] = defaultdict(set)
    held_ms: Counter[int] = Counter()
    gpu_time: Counter[int] = Counter()
    for usage in held:
        hour_ms = usage.at_ms - usage.at_ms % HOUR_MS
        accelerators[hour_ms].add(usage.accelerator_id)
        held_ms[hour_ms] += usage.held_ms
        gpu_time[hour_ms] += gpu_ns(usage.gpu_micro, usage.held_ms)
    periods: list[list[int]] = []
    for hour_ms in sorted(hours.keys() | accelerators.keys()):
        if not periods or hour_ms > periods[-1][-1] + HOUR_MS:
            periods.append([])
        periods[-1].append(hour_ms)
    return [
        ActivePeriod(
            period[0],
            period[-1] + HOUR_MS,
            len(set().union(*(accelerators[hour_ms] for hour_ms in period))),
            sum(held_ms[hour_ms] for hour_ms in period),
            sum(gpu_time[hour_ms] for hour_ms in period),
            _sum_costs(hours[hour_ms].cost for hour_ms in period if hour_ms in hours),
        )
        for period in periods
    ]


def _sum_costs(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for cost in costs:
        total.update(cost)
    return dict(total)


def run_days(
    held: Sequence[HeldHour], hours: Mapping[int, HourCost], calendar: Calendar = UTC_DAYS
) -> list[RunDay]:
    """Split the run by days of the bill; an hour that a midnight cuts belongs to the day in which
    it begins.
    """
    times: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    costs: defaultdict[int, list[Mapping[str, int]]] = defaultdict(list)
    for usage in held:
        day_ms = calendar.day_of(usage.at_ms).start_ms
        parts = (usage.busy_ms, usage.idle_ms, usage.unknown_ms)
        times[day_ms] = [
            total + gpu_ns(usage.gpu_micro, part)
            for total, part in zip(times[day_ms], parts, strict=True)
        ]
    for hour_ms, hour in hours.items():
        costs[calendar.day_of(hour_ms).start_ms].append(hour.cost)
    days = []
    for day_ms in sorted(times.keys() | costs.keys()):
        busy_ns, idle_ns, unknown_ns = times[day_ms]
        date = calendar.date_of(day_ms)
        days.append(RunDay(day_ms, busy_ns, idle_ns, unknown_ns, _sum_costs(costs[day_ms]), date))
    return days


def leading_counter(units: Sequence[UnitCost]) -> UnitCost | None:
    """Return the cost by the most preferred counter that counted anything."""
    counted = [unit for unit in units if unit.units]
    return min(counted, key=lambda unit: COUNTER_PREFERENCE.index(unit.counter), default=None)


def units_per_gpu_hour(
    unit: UnitCost | None, charges: Sequence[Charge], held: Sequence[HeldHour]
) -> Decimal | None:
    """Return units per GPU-hour of covered time; None where nothing was counted or held time is
    unknown.
    """
    if unit is None or not unit.covered_ms or not hour_costs(charges, held):
        return None
    accelerator_ms = sum(usage.held_ms for usage in held)
    if not accelerator_ms or not unit.held_ms:
        return None
    return (
        Decimal(unit.units) * unit.held_ms * HOUR_MS / (Decimal(unit.covered_ms) * accelerator_ms)
    )


def scaling_points(peers: Sequence[ComparedRun]) -> list[ScalingPoint]:
    """Show how the output per GPU changes with the number of GPUs, over runs of one name, owner and
    model.

    By the counter that runs on most numbers of GPUs have, at least two; else by activity. Runs
    without it are left out. Empty where fewer than two numbers of GPUs can be compared.
    """
    counter = _shared_counter(peers)
    groups: defaultdict[int, list[tuple[Decimal, ComparedRun]]] = defaultdict(list)
    for peer in peers:
        rate = peer.activity if counter is None else _rate(peer, counter)
        if rate is not None and peer.accelerators:
            groups[peer.accelerators].append((rate, peer))
    base = median(rate for rate, _ in groups[min(groups)]) if len(groups) > 1 else None
    if not base:
        return []
    return [
        _scaling_point(count, counter, members, base) for count, members in sorted(groups.items())
    ]


def _shared_counter(peers: Sequence[ComparedRun]) -> str | None:
    sizes: defaultdict[str, set[int]] = defaultdict(set)
    for peer in peers:
        if peer.unit is not None and peer.units_per_gpu_hour is not None and peer.accelerators:
            sizes[peer.unit.counter].add(peer.accelerators)
    shared = [counter for counter in COUNTER_PREFERENCE if len(sizes[counter]) > 1]
    return max(shared, key=lambda counter: len(sizes[counter]), default=None)


def _rate(peer: ComparedRun, counter: str) -> Decimal | None:
    return (
        peer.units_per_gpu_hour if peer.unit is not None and peer.unit.counter == counter else None
    )


def _scaling_point(
    count: int, counter: str | None, members: Sequence[tuple[Decimal, ComparedRun]], base: Decimal
) -> ScalingPoint:
    rates = [rate for rate, _ in members]
    units = [] if counter is None else [peer.unit for _, peer in members if peer.unit is not None]
    costs = [unit.cost for unit in units if unit.cost is not None]
    return ScalingPoint(
        accelerators=count,
        runs=len(members),
        counter=counter,
        per_gpu=median(rates),
        seconds=(
            median(Decimal(unit.covered_ms * unit.per) / (unit.units * 1000) for unit in units)
            if units
            else None
        ),
        unit_cost=median(costs) if costs else None,
        efficiency=median(rates) / base,
        lowest=min(rates) / base,
        highest=max(rates) / base,
    )


def measured_energy_mj(charges: Sequence[Charge]) -> int | None:
    """Return the millijoules measured over the charges; None where none were measured."""
    known = [charge.energy_mj for charge in charges if charge.energy_mj is not None]
    return sum(known) if known else None
