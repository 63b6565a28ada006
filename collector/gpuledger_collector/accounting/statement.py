"""The statement of one owner for one month: the row of the chargeback, taken apart so that every
part adds up to it.

Cents are those of the chargeback: each table splits the amount that its row shows, by largest
remainder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuledger_collector.accounting.budgets import Driver, HolderSpend, drivers
from gpuledger_collector.accounting.change_causes import ChangeCause, find_main_cause
from gpuledger_collector.accounting.chargeback import ReportRow, SharedPart
from gpuledger_collector.accounting.disputes import Dispute
from gpuledger_collector.accounting.measures import Measures, total
from gpuledger_collector.accounting.money import minor_unit
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rate_changes import (
    RateChange,
    RatedHours,
    find_rate_changes,
    find_rates_within,
    other_price_micro,
)
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.accounting.shared_costs import SharedCost

_Line = TypeVar("_Line", bound=Measures)
MAX_JOBS = 10
CORRECTION_OF = "correction of "
"""Before the month that a line corrects, in its label."""
UNNAMED = "(not named)"
DAYS_OF_A_WEEK = 7
SATURDAY = 5


@dataclass(frozen=True, slots=True)
class OwnerDay(Measures):
    """What an owner held of one model on one day, in one currency.

    `amended_ms`: the closed day that it corrects; None: it is the day's own. `below`: the next
    level of the tree.
    """

    at_ms: int
    amended_ms: int | None
    below: str
    model: str
    currency: str | None


@dataclass(frozen=True, slots=True)
class OwnerJob(Measures):
    """What the jobs of one name, user and project held of a model, in one currency.

    `correction_of`: the closed month that it corrects; empty: it is the period's own. `price_id`:
    the price that it was charged by, where jobs are asked for by price; None: none, or not asked.
    `runs`: how many of them there are; of time without a job there is none.
    """

    name: str
    user: str
    project: str
    model: str
    currency: str | None
    correction_of: str = ""
    price_id: int | None = None
    runs: int = 0

    @property
    def holder(self) -> tuple[str, str, str]:
        """Name, user and project."""
        return self.name, self.user, self.project


@dataclass(frozen=True, slots=True)
class Contested:
    """A dispute that waits for a decision, and the name and user of the job that it is about, where
    it names one.
    """

    dispute: Dispute
    job: tuple[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine(Measures):
    """A line of a table.

    `cost_minor` and `idle_cost_minor` add up over the table to what the chargeback shows. `runs`:
    of how many runs it is, where it is about jobs; else 0.
    """

    label: tuple[str, ...]
    cost_minor: int
    idle_cost_minor: int | None
    runs: int = 0


@dataclass(frozen=True, slots=True)
class SharedAmount:
    """What the owner pays of a shared cost; the minor units of all add up to the row's
    `shared_minor`.
    """

    cost: SharedCost
    micro: int
    minor: int


@dataclass(frozen=True, slots=True)
class StatementDay:
    """One day of the month; `measures` None: it is not rated (yet)."""

    day_ms: int
    measures: Measures | None


@dataclass(frozen=True, slots=True)
class SpendChange:
    """Two ranges of days compared: the drivers add up to `after` less `before` to the micro-unit.

    Days of closed months count with what was corrected since, wherever that is billed: evidence
    that came late is no change of use. `corrected_micro` is how much that is, before and after.

    `rate_changes` are part of what the price did.
    """

    before: Period
    after: Period
    before_micro: int
    after_micro: int
    drivers: tuple[Driver, ...]
    corrected_micro: tuple[int, int] = (0, 0)
    rate_changes: tuple[RateChange, ...] = ()

    @property
    def other_price_micro(self) -> int:
        """What of the price's part no change of a rate explains."""
        return other_price_micro(self.parts[0], self.rate_changes)

    @property
    def change_micro(self) -> int:
        """After less before."""
        return self.after_micro - self.before_micro

    @property
    def main_cause(self) -> ChangeCause | None:
        """The largest cause that goes the way of the change; None: nothing changed."""
        return find_main_cause(self.drivers, self.rate_changes)

    @property
    def parts(self) -> tuple[int, int, int]:
        """Price, volume and mix over all drivers, in micro-units."""
        return (
            sum(driver.price_micro for driver in self.drivers),
            sum(driver.volume_micro for driver in self.drivers),
            sum(driver.mix_micro for driver in self.drivers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementSection:
    """What an owner was billed in one currency.

    `row` is the row of the chargeback: direct cost, shares, both.

    Tables split the direct cost, corrections in lines of their own; `shared` splits the shares,
    cost by cost. `held` is the period's own time, without corrections of closed months; `idle_ns`
    is None where its activity is unknown.
    """

    currency: str
    row: ReportRow
    held: Measures
    idle_ns: int | None
    energy_mj: int | None
    days: tuple[StatementDay, ...]
    below: tuple[TableLine, ...]
    models: tuple[TableLine, ...]
    jobs: tuple[TableLine, ...]
    corrections: tuple[TableLine, ...]
    shared: tuple[SharedAmount, ...] = ()


def make_section(
    row: ReportRow,
    owner_days: Sequence[OwnerDay],
    jobs: Sequence[OwnerJob],
    month: Period,
    rated: frozenset[int],
    calendar: Calendar = UTC_DAYS,
    shares: Iterable[SharedPart] = (),
) -> StatementSection:
    """Take a chargeback row that has a currency apart.

    `rated`: days (unix ms) of the month that are rated.
    """
    assert row.currency is not None
    owner_days = [part for part in owner_days if part.currency == row.currency]
    jobs = [job for job in jobs if job.currency == row.currency]
    own = [part for part in owner_days if part.amended_ms is None]
    known_idle = [part.idle_ns for part in own if part.has_known_activity]
    corrections = _table(row, owner_days, lambda part: _corrected_month(part, calendar))
    return StatementSection(
        currency=row.currency,
        row=row,
        held=total(own),
        idle_ns=sum(known_idle) if known_idle else None,
        energy_mj=total(owner_days).energy_mj,
        days=tuple(_day(day.start_ms, own, rated) for day in calendar.days(month)),
        below=_table(
            row, owner_days, lambda part: (part.below or UNNAMED, *_correction(part, calendar))
        ),
        models=_table(
            row,
            owner_days,
            lambda part: (escape_name(part.model) or UNNAMED, *_correction(part, calendar)),
        ),
        jobs=_table(row, jobs, _job_label, MAX_JOBS, lambda job: job.runs),
        corrections=tuple(
            sorted((line for line in corrections if line.label), key=lambda line: line.label)
        ),
        shared=_shares_of_row(row, shares),
    )


def _shares_of_row(row: ReportRow, shares: Iterable[SharedPart]) -> tuple[SharedAmount, ...]:
    """The shares of a row, cost by cost, dearest first; costs that differ in key or dates are not
    added up.
    """
    sums: list[tuple[SharedCost, int]] = []
    for part in shares:
        if part.currency != row.currency or part.keys != row.keys:
            continue
        # A shared cost holds mappings, so it cannot be the key of a dictionary.
        at = next((at for at, (cost, _) in enumerate(sums) if cost == part.cost), None)
        if at is None:
            sums.append((part.cost, part.micro))
        else:
            sums[at] = (part.cost, sums[at][1] + part.micro)
    sums.sort(key=lambda item: (-item[1], item[0].name))
    unit = minor_unit(row.currency or "")
    minors = split_minor([micro for _, micro in sums], unit, row.shared_minor or 0)
    return tuple(
        SharedAmount(cost, micro, minor) for (cost, micro), minor in zip(sums, minors, strict=True)
    )


def _corrected_month(part: OwnerDay, calendar: Calendar) -> tuple[str, ...]:
    return () if part.amended_ms is None else (calendar.month_of(part.amended_ms),)


def _correction(part: OwnerDay, calendar: Calendar) -> tuple[str, ...]:
    return tuple(f"{CORRECTION_OF}{month}" for month in _corrected_month(part, calendar))


def _job_label(job: OwnerJob) -> tuple[str, ...]:
    correction = (f"{CORRECTION_OF}{job.correction_of}",) if job.correction_of else ()
    return (job.name, job.user, job.project, job.model, *correction)


def _day(day_ms: int, own: Iterable[OwnerDay], rated: frozenset[int]) -> StatementDay:
    parts = [part for part in own if part.at_ms == day_ms]
    if not parts and day_ms not in rated:
        return StatementDay(day_ms, None)
    # A rated day without parts cost nothing, which is known; a day that is not rated is unknown.
    return StatementDay(day_ms, Measures(cost_micro=0).plus(total(parts)))


def _table(
    row: ReportRow,
    lines: Iterable[_Line],
    label: Callable[[_Line], tuple[str, ...]],
    limit: int | None = None,
    runs: Callable[[_Line], int] = lambda _: 0,
) -> tuple[TableLine, ...]:
    """Lines added up by label, dearest first; their minor units add up to those of the row.

    What exceeds `limit` is one line with a label of one word. `runs`: of how many runs a line is.
    """
    groups: dict[tuple[str, ...], list[_Line]] = defaultdict(list)
    for line in lines:
        groups[label(line)].append(line)
    sums = [(key, total(group), _idle_cost(group)) for key, group in groups.items()]
    sums.sort(key=lambda item: (-(item[1].cost_micro or 0), item[0]))
    unit = minor_unit(row.currency or "")
    # Split from the booked cents of the row, not rounded anew: each table of a statement adds up to
    # the invoice.
    costs = split_minor(
        [measures.cost_micro or 0 for _, measures, _ in sums], unit, row.cost_minor or 0
    )
    known_idle = iter(
        split_minor(
            [idle for *_, idle in sums if idle is not None], unit, row.cost_held_idle_minor or 0
        )
    )
    idle_costs = [None if idle is None else next(known_idle) for *_, idle in sums]
    shown = [(key, measures) for key, measures, _ in sums]
    # One line more than the limit is shown as it is: `1 others` would take the same space.
    if limit is not None and len(shown) > limit + 1:
        others = (
            (f"{len(shown) - limit:,} others",),
            total(measures for _, measures in shown[limit:]),
        )
        known = [idle for idle in idle_costs[limit:] if idle is not None]
        costs = [*costs[:limit], sum(costs[limit:])]
        idle_costs = [*idle_costs[:limit], sum(known) if known else None]
        shown = [*shown[:limit], others]
    return tuple(
        TableLine(
            label=key,
            cost_minor=cost,
            idle_cost_minor=idle,
            runs=sum(map(runs, groups.get(key, ()))),
            **measures.amounts,
        )
        for (key, measures), cost, idle in zip(shown, costs, idle_costs, strict=True)
    )


def _idle_cost(lines: Iterable[Measures]) -> int | None:
    """Known as the chargeback knows it: of lines of which some activity is known."""
    known = [
        line.idle_cost_micro
        for line in lines
        if line.has_known_activity and line.idle_cost_micro is not None
    ]
    return sum(known) if known else None


def split_minor(micros: Sequence[int], unit: int, total: int) -> list[int]:
    """Split a total into minor units of `unit` micro-units, each about as its own amount.

    `total` is the sum rounded down or up, or a unit beside it for each corrected month in it. What
    the floors leave goes to the largest remainders (ties: the earlier); what they have too much is
    taken from the smallest.
    """
    floors = [micro // unit for micro in micros]
    left = total - sum(floors)
    by_remainder = sorted(range(len(micros)), key=lambda at: (-(micros[at] % unit), at))
    for place, at in enumerate(by_remainder if left > 0 else by_remainder[::-1]):
        rounds, more = divmod(abs(left), len(micros))
        floors[at] += (rounds + (place < more)) * (1 if left > 0 else -1)
    return floors


def explain_change(
    currency: str,
    before: Sequence[OwnerJob],
    after: Sequence[OwnerJob],
    windows: tuple[Period, Period],
    prices: Mapping[int, Price],
) -> SpendChange:
    """Explain why what days cost in a currency differs between two windows (before, after);
    `prices` by id are those that the jobs were charged by.
    """
    old, new = (_spend(jobs, currency) for jobs in (before, after))
    corrected_before, corrected_after = (
        sum(job.cost_micro or 0 for job in jobs if job.currency == currency and job.correction_of)
        for jobs in (before, after)
    )
    return SpendChange(
        *windows,
        before_micro=sum(spend.cost_micro for spend in old),
        after_micro=sum(spend.cost_micro for spend in new),
        drivers=tuple(drivers(old, new)),
        corrected_micro=(corrected_before, corrected_after),
        rate_changes=tuple(
            find_rate_changes(*(_rated(jobs, currency, prices) for jobs in (before, after)))
        ),
    )


def explain_rates(
    currency: str, jobs: Sequence[OwnerJob], prices: Mapping[int, Price]
) -> tuple[RateChange, ...]:
    """Explain what changes of rates within a period did to what its days cost in a currency."""
    return tuple(find_rates_within(_rated(jobs, currency, prices)))


def _rated(
    jobs: Iterable[OwnerJob], currency: str, prices: Mapping[int, Price]
) -> list[RatedHours]:
    return [
        RatedHours(
            job.holder,
            job.model,
            None if job.price_id is None else prices.get(job.price_id),
            job.gpu_ns,
        )
        for job in jobs
        if job.currency == currency
    ]


def _spend(jobs: Iterable[OwnerJob], currency: str) -> list[HolderSpend]:
    """Jobs with the corrections of their days."""
    sums: dict[tuple[tuple[str, str, str], str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for job in jobs:
        if job.currency == currency:
            key = (job.holder, job.model)
            gpu_ns, cost_micro = sums[key]
            sums[key] = (gpu_ns + job.gpu_ns, cost_micro + (job.cost_micro or 0))
    return [HolderSpend(*key, *amounts) for key, amounts in sums.items()]


def compared_windows(
    month: Period, known_ms: int, rated_before: frozenset[int], calendar: Calendar = UTC_DAYS
) -> tuple[Period, Period] | None:
    """Which days are compared, before and after: the month before and this month, whole, or as many
    whole days of each as this month has; where the ledger lacks some of those before, as many days
    on both sides of the month's begin.

    `rated_before`: days (unix ms) before the month that are rated. None when there is nothing to
    compare.
    """
    end_ms = min(month.end_ms, calendar.day_of(known_ms).start_ms)
    if end_ms <= month.start_ms:
        return None
    before, after = month_before(month, calendar), Period(month.start_ms, end_ms)
    earlier, later = calendar.days(before), calendar.days(after)
    # An unfinished month is compared with as many days: a full month before would always look
    # dearer.
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


def days_left_out(
    before: Period, after: Period, asked: Period, known_ms: int, calendar: Calendar = UTC_DAYS
) -> str:
    """Say in a sentence why fewer whole days of a period are compared than it has; empty where all
    of them are.
    """
    end_ms = min(asked.end_ms, calendar.day_of(known_ms).start_ms)
    whole = len(calendar.days(Period(asked.start_ms, end_ms))) if end_ms > asked.start_ms else 0
    compared = len(calendar.days(after))
    if compared >= whole:
        return ""
    reason = f"the month before has {compared} days"
    if before.start_ms != month_before(asked, calendar).start_ms:
        known = "only the day" if compared == 1 else f"only the {compared} days"
        reason = f"of what was before, the ledger has {known} right before it"
    last = calendar.date_of(after.end_ms - 1)
    return f"Of {whole} whole days so far, those up to {last} are compared: {reason}."


def weekdays_unlike(before: Period, after: Period, calendar: Calendar = UTC_DAYS) -> str:
    """Say in a sentence by what the weekdays of two ranges differ; empty where they do not."""
    spans = [
        [calendar.date_of(day.start_ms) for day in calendar.days(span)] for span in (before, after)
    ]
    if all(len(span) < DAYS_OF_A_WEEK for span in spans):
        if sorted(day.weekday() for day in spans[0]) == sorted(day.weekday() for day in spans[1]):
            return ""
        old, new = (
            f"{span[0]:%A} to {span[-1]:%A}" if len(span) > 1 else f"{span[0]:%A}" for span in spans
        )
        return f"Their weekdays differ: {old} before, {new} after."
    free = [sum(day.weekday() >= SATURDAY for day in span) for span in spans]
    if free[0] == free[1]:
        return ""
    return (
        f"Their weekdays differ: {free[0]} of {len(spans[0])} days before and {free[1]} of"
        f" {len(spans[1])} after are Saturdays or Sundays."
    )


def month_before(month: Period, calendar: Calendar = UTC_DAYS) -> Period:
    """The calendar month before a month."""
    last = calendar.date_of(month.start_ms - 1)
    return Period(calendar.start_of(last.replace(day=1)), month.start_ms)


def unpriced_ns(parts: Iterable[OwnerDay]) -> int:
    """GPU-nanoseconds of the parts that no rate covers: they are in no amount of money."""
    return sum(part.gpu_ns for part in parts if part.currency is None)
