"""The statement of one owner for one month: the row of the chargeback, taken apart so that every part adds up to it.

Cents are those of the chargeback: each table splits the amount that its row shows, by largest remainder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger_collector.accounting.budgets import Driver, Held, drivers
from gpuledger_collector.accounting.chargeback import Row, SharedPart
from gpuledger_collector.accounting.disputes import Dispute
from gpuledger_collector.accounting.ledger import add_known
from gpuledger_collector.accounting.money import MICRO, minor_digits
from gpuledger_collector.accounting.names import escaped
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, Period
from gpuledger_collector.accounting.shared_costs import SharedCost

MOST_JOBS = 10
UNNAMED = "(not named)"


@dataclass(frozen=True, slots=True)
class Part:
    """What an owner held of one kind on one day: quantities in GPU-nanoseconds, money in micro-units of `currency`.

    `amended_ms`: the closed day that it corrects; None: it is the day's own. `below`: the next level of the tree.
    """

    at_ms: int
    amended_ms: int | None
    below: str
    model: str
    currency: str | None
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    cost_micro: int | None
    idle_cost_micro: int | None
    energy_mj: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """What the jobs of one name, user and project held of a model, in the units of Part.

    `correction_of`: the closed month that it corrects; empty: it is the period's own.
    """

    name: str
    user: str
    project: str
    model: str
    currency: str | None
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    cost_micro: int | None
    idle_cost_micro: int | None
    energy_mj: int | None
    correction_of: str = ""


@dataclass(frozen=True, slots=True)
class Contested:
    """A dispute that waits for a decision, and the name and user of the job that it is about, where it names one."""

    dispute: Dispute
    job: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Amount:
    """A line of a table. `cost_minor` and `idle_cost_minor` add up over the table to what the chargeback shows."""

    label: tuple[str, ...]
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    cost_micro: int
    cost_minor: int
    idle_cost_minor: int | None


@dataclass(frozen=True, slots=True)
class SharedAmount:
    """What the owner bears of a shared cost; the minor units of all add up to the row's `shared_minor`."""

    cost: SharedCost
    micro: int
    minor: int


@dataclass(frozen=True, slots=True)
class Day:
    """One day of the month; amounts None: it is not rated (yet)."""

    day_ms: int
    busy_ns: int | None
    idle_ns: int | None
    unknown_ns: int | None
    cost_micro: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """Two usage intervals of days compared: the drivers add up to `after` less `before` to the micro-unit."""

    before: Period
    after: Period
    before_micro: int
    after_micro: int
    drivers: tuple[Driver, ...]

    @property
    def parts(self) -> tuple[int, int, int]:
        """Price, volume and mix over all drivers, in micro-units."""
        return (
            sum(one.price_micro for one in self.drivers),
            sum(one.volume_micro for one in self.drivers),
            sum(one.mix_micro for one in self.drivers),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """What an owner was billed in one currency. `row` is the row of the chargeback: direct cost, shares, both.

    Tables split the direct cost, corrections in lines of their own; `shared` splits the shares, cost by cost. Held,
    busy, idle (None: not known) and unknown time is the period's own, without corrections of closed months.
    """

    currency: str
    row: Row
    held_ns: int
    idle_ns: int | None
    busy_ns: int
    unknown_ns: int
    energy_mj: int | None
    days: tuple[Day, ...]
    below: tuple[Amount, ...]
    models: tuple[Amount, ...]
    jobs: tuple[Amount, ...]
    corrections: tuple[Amount, ...]
    shared: tuple[SharedAmount, ...] = ()


def section(
    row: Row,
    parts: Sequence[Part],
    jobs: Sequence[Job],
    month: Period,
    rated: frozenset[int],
    calendar: Calendar = UTC_DAYS,
    shares: Iterable[SharedPart] = (),
) -> Section:
    """The section of a chargeback row that has a currency. `rated`: days (unix ms) of the month that are rated."""
    assert row.currency is not None
    mine = [part for part in parts if part.currency == row.currency]
    held = [job for job in jobs if job.currency == row.currency]
    amended = [part for part in mine if part.amended_ms is not None]
    own = [part for part in mine if part.amended_ms is None]
    known = [part.idle_ns for part in own if part.unknown_ns != part.gpu_ns or part.idle_ns]
    energy: int | None = None
    for part in mine:
        energy = add_known(energy, part.energy_mj)
    return Section(
        row.currency,
        row,
        sum(part.gpu_ns for part in own),
        sum(known) if known else None,
        sum(part.busy_ns for part in own),
        sum(part.unknown_ns for part in own),
        energy,
        tuple(_day(day.start_ms, mine, rated) for day in calendar.days(month)),
        _table(row, mine, lambda part: (part.below or UNNAMED, *_correction(part, calendar))),
        _table(row, mine, lambda part: (escaped(part.model) or UNNAMED, *_correction(part, calendar))),
        _shortened(_table(row, held, _job_label), MOST_JOBS),
        _amended(_table(row, mine, lambda part: _corrected_month(part, calendar))) if amended else (),
        _shared(row, shares),
    )


def _shared(row: Row, shares: Iterable[SharedPart]) -> tuple[SharedAmount, ...]:
    """The shares of a row, cost by cost, dearest first; what differs in its key or dates stands apart."""
    found: list[tuple[SharedCost, int]] = []
    for part in shares:
        if part.currency != row.currency or part.keys != row.keys:
            continue
        at = next((at for at, (cost, _) in enumerate(found) if cost == part.cost), None)
        if at is None:
            found.append((part.cost, part.micro))
        else:
            found[at] = (part.cost, found[at][1] + part.micro)
    found.sort(key=lambda one: (-one[1], one[0].name))
    unit = MICRO // 10 ** minor_digits(row.currency or "")
    minors = split_minor([micro for _, micro in found], unit, row.shared_minor or 0)
    return tuple(SharedAmount(cost, micro, minor) for (cost, micro), minor in zip(found, minors, strict=True))


def _corrected_month(part: Part, calendar: Calendar) -> tuple[str, ...]:
    return () if part.amended_ms is None else (calendar.month_of(part.amended_ms),)


def _correction(part: Part, calendar: Calendar) -> tuple[str, ...]:
    return tuple(f"correction of {month}" for month in _corrected_month(part, calendar))


def _job_label(job: Job) -> tuple[str, ...]:
    correction = (f"correction of {job.correction_of}",) if job.correction_of else ()
    return (job.name, job.user, job.project, job.model, *correction)


def _amended(amounts: Sequence[Amount]) -> tuple[Amount, ...]:
    return tuple(sorted((one for one in amounts if one.label), key=lambda one: one.label))


def _day(day_ms: int, parts: Iterable[Part], rated: frozenset[int]) -> Day:
    own = [part for part in parts if part.at_ms == day_ms and part.amended_ms is None]
    if day_ms not in rated and not own:
        return Day(day_ms, None, None, None, None)
    return Day(
        day_ms,
        sum(part.busy_ns for part in own),
        sum(part.idle_ns for part in own),
        sum(part.unknown_ns for part in own),
        sum(part.cost_micro or 0 for part in own),
    )


def _table(row: Row, lines: Iterable[Any], label: Callable[[Any], tuple[str, ...]]) -> tuple[Amount, ...]:
    """Lines (Part or Job) added up by label, dearest first; their minor units add up to those of the row."""
    groups: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for line in lines:
        groups[label(line)].append(line)
    ordered = sorted(groups.items(), key=lambda item: (-_cost(item[1]), item[0]))
    unit = MICRO // 10 ** minor_digits(row.currency or "")
    costs = split_minor([_cost(group) for _, group in ordered], unit, row.cost_minor or 0)
    idle = [_idle_cost(group) for _, group in ordered]
    shown = iter(split_minor([one for one in idle if one is not None], unit, row.cost_idle_minor or 0))
    return tuple(
        Amount(
            key,
            sum(line.gpu_ns for line in group),
            sum(line.busy_ns for line in group),
            sum(line.idle_ns for line in group),
            sum(line.unknown_ns for line in group),
            _cost(group),
            costs[at],
            None if idle[at] is None else next(shown),
        )
        for at, (key, group) in enumerate(ordered)
    )


def _cost(lines: Iterable[Any]) -> int:
    return sum(line.cost_micro or 0 for line in lines)


def _idle_cost(lines: Iterable[Any]) -> int | None:
    """Known as the chargeback knows it: of lines of which some activity is known."""
    known: int | None = None
    for line in lines:
        if line.unknown_ns != line.gpu_ns or line.idle_ns:
            known = add_known(known, line.idle_cost_micro)
    return known


def split_minor(micros: Sequence[int], unit: int, total: int) -> list[int]:
    """Amounts in minor units of `unit` micro-units that add up to `total`, each within one of its own.

    `total` is the sum rounded down or up. What the floors leave goes to the largest remainders (ties: the earlier).
    """
    floors = [micro // unit for micro in micros]
    by_remainder = sorted(range(len(micros)), key=lambda at: (-(micros[at] % unit), at))
    for at in by_remainder[: total - sum(floors)]:
        floors[at] += 1
    return floors


def _shortened(amounts: tuple[Amount, ...], most: int) -> tuple[Amount, ...]:
    """The first lines, and the rest as one line with a label of one word."""
    if len(amounts) <= most + 1:
        return amounts
    rest = amounts[most:]
    idle = [one.idle_cost_minor for one in rest if one.idle_cost_minor is not None]
    others = Amount(
        (f"{len(rest):,} others",),
        sum(one.gpu_ns for one in rest),
        sum(one.busy_ns for one in rest),
        sum(one.idle_ns for one in rest),
        sum(one.unknown_ns for one in rest),
        sum(one.cost_micro for one in rest),
        sum(one.cost_minor for one in rest),
        sum(idle) if idle else None,
    )
    return (*amounts[:most], others)


def change(currency: str, before: Sequence[Job], after: Sequence[Job], windows: tuple[Period, Period]) -> Change:
    """Why the bill in a currency differs between two windows (before, after)."""
    old, new = (_held(jobs, currency) for jobs in (before, after))
    found = drivers(old, new)
    return Change(
        *windows,
        sum(one.cost_micro for one in old),
        sum(one.cost_micro for one in new),
        tuple(found),
    )


def _held(jobs: Iterable[Job], currency: str) -> list[Held]:
    """Jobs with the corrections of theirs that the window bills."""
    sums: dict[tuple[tuple[str, str, str], str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for job in jobs:
        if job.currency == currency:
            key = ((job.name, job.user, job.project), job.model)
            gpu_ns, cost_micro = sums[key]
            sums[key] = (gpu_ns + job.gpu_ns, cost_micro + (job.cost_micro or 0))
    return [Held(*key, *amounts) for key, amounts in sums.items()]


def windows(
    month: Period, known_ms: int, rated_before: frozenset[int], calendar: Calendar = UTC_DAYS
) -> tuple[Period, Period] | None:
    """Which days are compared, before and after: the month before and this month, whole, or as many whole days of each
    as this month has; where the ledger lacks some of those before, as many days on both sides of the month's begin.

    `rated_before`: days (unix ms) before the month that are rated. None when there is nothing to compare.
    """
    end_ms = min(month.end_ms, calendar.day_of(known_ms).start_ms)
    if end_ms <= month.start_ms:
        return None
    before, after = month_before(month, calendar), Period(month.start_ms, end_ms)
    earlier, later = calendar.days(before), calendar.days(after)
    if end_ms < month.end_ms:
        count = min(len(earlier), len(later))
        before = Period(before.start_ms, earlier[count - 1].end_ms)
        after = Period(after.start_ms, later[count - 1].end_ms)
        earlier = earlier[:count]
    if all(day.start_ms in rated_before for day in earlier):
        return before, after
    first, count = month.start_ms, 0
    while count < len(later) and calendar.days_before(first, 1) in rated_before:
        first, count = calendar.days_before(first, 1), count + 1
    if not count:
        return None
    return Period(first, month.start_ms), Period(month.start_ms, later[count - 1].end_ms)


def month_before(month: Period, calendar: Calendar = UTC_DAYS) -> Period:
    """The calendar month before a month."""
    last = calendar.date_of(month.start_ms - 1)
    return Period(calendar.start_of(last.replace(day=1)), month.start_ms)


def unpriced_ns(parts: Iterable[Part]) -> int:
    """GPU-nanoseconds of the parts that no rate covers: they are in no amount of money."""
    return sum(part.gpu_ns for part in parts if part.currency is None)
