"""Spend over time: the amounts of a chargeback, cut into hours, days, weeks or months.

The rows are those of the chargeback of the same range, to the minor unit. The series behind them
are exact, and each adds up to its row: what a bar shows is never another number than the table
below it. Corrections of closed months have series of their own, in the bucket in which they are
booked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpuledger_collector.accounting.adjustments import KINDS, PAID_BY_OWNERS
from gpuledger_collector.accounting.chargeback import (
    UNATTRIBUTED,
    Report,
    ReportRow,
    sum_known,
)
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.money import Money, minor_unit
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.quantity import round_to_sum
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.accounting.usage import HELD
from gpuledger_common.largest_remainder import split_signed

STATE = "state"
GROUPINGS = ("team", "project", "model", "pool", STATE)
"""What spend over time can be grouped by."""
HOUR, DAY, WEEK, MONTH = "hour", "day", "week", "month"
HOURS_UP_TO_DAYS, DAYS_UP_TO, WEEKS_UP_TO_DAYS = 2, 62, 400
MOST_DAYS = 3660
MOST_SERIES = 8
"""Groups of a chart; the others are one series."""
BILLED, NOBODY, CORRECTION, REST = "billed", "nobody", "correction", "rest"
"""Kinds of rows and series: of somebody who pays, of nobody, of a closed month, and of all groups
that have no series of their own.
"""
IDLE, ADJUSTMENTS, SHARED = "held_idle", "adjustments", "shared_costs"
"""Rows by state, besides the states of charges."""


@dataclass(frozen=True, slots=True)
class SpendCell:
    """What lines of one key, state, currency and corrected month cost in a bucket, in micro-units.

    `key` is the name as it is stored; None: of one of the groups that were not asked for.
    """

    key: str | None
    state: str
    currency: str
    correction_of: str
    bucket: int
    cost_micro: int
    idle_micro: int


@dataclass(frozen=True, slots=True)
class SpendRow:
    """A row of the chargeback: its direct cost, and its shares of common costs (None: it has none)."""

    name: str
    kind: str
    correction_of: str
    gpu_ns: int
    cost: Money
    shared: Money | None = None

    @property
    def total(self) -> Money:
        """Direct cost and shares, as printed."""
        if self.shared is None:
            return self.cost
        return Money(
            self.cost.micro + self.shared.micro,
            self.cost.currency,
            self.cost.minor + self.shared.minor,
        )


@dataclass(frozen=True, slots=True)
class Series:
    """One color of a chart: exact micro-units by bucket; None: nothing is known of the bucket."""

    name: str
    kind: str
    micros: tuple[int | None, ...]
    count: int = 1
    """How many groups it stands for."""

    @property
    def total_micro(self) -> int:
        """The sum of what is known."""
        return sum(micro or 0 for micro in self.micros)


@dataclass(frozen=True, slots=True)
class StepSpend:
    """What a bucket cost: the part of those who pay, of nobody, and of corrections of closed months,
    each rounded so that the buckets of a range add up to its rows.
    """

    billed: Money
    nobody: Money
    corrections: Money
    largest: str | None
    """The group that paid most of it; None: nobody paid."""
    largest_cost: Money


def choose_step(calendar: Calendar, period: Period) -> str:
    """Choose how long the buckets of a range are. Raises ValueError for a range that is too long."""
    days = len(calendar.days(period)) if period.ms <= (MOST_DAYS + 1) * DAY_MS else MOST_DAYS + 1
    if days > MOST_DAYS:
        raise ValueError(f"spend over time is shown for at most {MOST_DAYS:,} days at once")
    if days <= HOURS_UP_TO_DAYS:
        return HOUR
    if days <= DAYS_UP_TO:
        return DAY
    return WEEK if days <= WEEKS_UP_TO_DAYS else MONTH


def cut_range(calendar: Calendar, period: Period, step: str) -> list[Period]:
    """Cut a range into buckets; the first and the last may be shorter."""
    days = calendar.days(period)
    if step == HOUR:
        # From the midnight of each day: in zones of half and quarter hours no hour of UTC begins
        # with one of the day.
        return [
            Period(start_ms, min(start_ms + HOUR_MS, day.end_ms))
            for day in days
            for start_ms in range(day.start_ms, day.end_ms, HOUR_MS)
        ]

    def bucket_of(day: Period) -> object:
        date = calendar.date_of(day.start_ms)
        if step == WEEK:
            return date.isocalendar()[:2]
        return date if step == DAY else (date.year, date.month)

    groups = [list(group) for _, group in groupby(days, bucket_of)]
    return [Period(group[0].start_ms, group[-1].end_ms) for group in groups]


def name_of_cell(cell: SpendCell, by: str) -> tuple[str, str]:
    """The name and the kind of the row that a cell belongs to, but for a correction's month.

    By state, held time is one row here; its idle part is cut off by `split_idle`.
    """
    if cell.correction_of:
        return "", CORRECTION
    is_paid = cell.state in PAID_BY_OWNERS
    if by == STATE:
        name = ADJUSTMENTS if cell.state in KINDS else cell.state
        return name, BILLED if is_paid else NOBODY
    if not is_paid:
        return f"({cell.state})", NOBODY
    if cell.key is None:
        return "", REST
    if by in LEVELS:
        return cell.key or UNATTRIBUTED, BILLED
    return escape_name(cell.key), BILLED


def split_idle(cells: Iterable[SpendCell]) -> list[SpendCell]:
    """Cut the idle part off held time, as cells of a state of their own."""
    parts = []
    for cell in cells:
        if cell.state != HELD or cell.correction_of or not cell.idle_micro:
            parts.append(cell)
            continue
        parts.append(replace(cell, cost_micro=cell.cost_micro - cell.idle_micro, idle_micro=0))
        parts.append(replace(cell, state=IDLE, cost_micro=cell.idle_micro, idle_micro=0))
    return parts


def rows_of_report(report: Report, currency: str) -> list[SpendRow]:
    """The rows of a chargeback by one dimension in a currency, dearest first: who pays, then what
    nobody pays, then one row for the corrections of each closed month.
    """
    own = [row for row in report.rows if row.currency == currency]
    rows = [
        SpendRow(
            name=row.keys[0],
            kind=NOBODY if row.is_billed is False else BILLED,
            correction_of="",
            gpu_ns=row.gpu_ns,
            cost=Money(row.cost_micro or 0, currency, row.cost_minor or 0),
            shared=_shared_money([row], currency),
        )
        for row in own
        if not row.correction_of
    ]
    rows.sort(key=lambda row: row.kind == NOBODY)
    return rows + _corrections(own, currency)


def rows_by_state(report: Report, lines: Iterable[ChargedLine], currency: str) -> list[SpendRow]:
    """The rows of the same chargeback by state, from its lines by state; they add up to its rows.

    Shares of common costs that owners pay are a row of their own.
    """
    own = [row for row in report.rows if row.currency == currency]
    micros: dict[tuple[str, str], int] = defaultdict(int)
    times: dict[tuple[str, str], int] = defaultdict(int)
    for line in lines:
        if line.currency != currency or line.correction_of:
            continue
        is_known = line.state == HELD and line.has_known_activity
        idle_micro = (line.idle_cost_micro or 0) if is_known else 0
        cell = SpendCell(None, line.state, currency, "", 0, line.cost_micro or 0, idle_micro)
        for part in split_idle([cell]):
            micros[_state_of(part)] += part.cost_micro
        idle_ns = line.idle_ns if is_known else 0
        times[_state_of(cell)] += line.gpu_ns - idle_ns
        if idle_ns:
            times[IDLE, BILLED] += idle_ns
    names = sorted(micros.keys() | times.keys(), key=lambda key: (key[1] == NOBODY, -micros[key]))
    whole = sum(row.cost_minor or 0 for row in own if not row.correction_of)
    minors = round_to_sum([micros[key] for key in names], minor_unit(currency), whole)
    rows = []
    for key, minor in zip(names, minors, strict=True):
        name, kind = key
        same = [row for row in own if kind == NOBODY and row.state == name]
        cost = Money(micros[key], currency, minor)
        shared = _shared_money([row for row in same if not row.correction_of], currency)
        rows.append(SpendRow(name, kind, "", times[key], cost, shared))
    named = {name for name, kind in names if kind == NOBODY}
    others = [row for row in own if not row.correction_of and row.state not in named]
    shared = _shared_money(others, currency)
    if shared is not None:
        rows.append(SpendRow(SHARED, BILLED, "", 0, Money(0, currency, 0), shared))
    return rows + _corrections(own, currency)


def _state_of(cell: SpendCell) -> tuple[str, str]:
    if cell.state == IDLE:
        return IDLE, BILLED
    return name_of_cell(cell, STATE)


def _shared_money(rows: Sequence[ReportRow], currency: str) -> Money | None:
    micro = sum_known(row.shared_micro for row in rows)
    minor = sum_known(row.shared_minor for row in rows)
    return None if micro is None else Money(micro, currency, minor)


def _corrections(rows: Sequence[ReportRow], currency: str) -> list[SpendRow]:
    """One row for the corrections of each closed month that somebody pays, and one for others."""
    found = []
    for month in sorted({row.correction_of for row in rows if row.correction_of}):
        for is_paid in (True, False):
            own = [
                row
                for row in rows
                if row.correction_of == month and (row.is_billed is not False) == is_paid
            ]
            if not own:
                continue
            micro = sum(row.cost_micro or 0 for row in own)
            cost = Money(micro, currency, sum(row.cost_minor or 0 for row in own))
            gpu_ns = sum(row.gpu_ns for row in own)
            name, shared = name_corrections(month, is_paid), _shared_money(own, currency)
            found.append(SpendRow(name, CORRECTION, month, gpu_ns, cost, shared))
    return found


def name_corrections(month: str, is_paid: bool) -> str:
    """The name of the row of corrections of a closed month."""
    return f"corrections of {month}" if is_paid else f"corrections of {month} that nobody pays"


def largest_groups(rows: Sequence[SpendRow]) -> list[str]:
    """The names of the groups that have a series of their own."""
    billed = [row for row in rows if row.kind == BILLED and row.name != SHARED]
    ordered = sorted(billed, key=lambda row: (-row.cost.micro, row.name))
    # One group more is shown instead of a rest that consists of it.
    shown = ordered if len(ordered) <= MOST_SERIES + 1 else ordered[:MOST_SERIES]
    return [row.name for row in shown]


def shorten_rows(rows: Sequence[SpendRow], most: int) -> list[tuple[SpendRow, int]]:
    """The dearest rows of those who pay and all others, each with how many groups it stands for:
    what is left over is one row, so that they still add up.
    """
    billed = [row for row in rows if row.kind == BILLED]
    kept = billed if len(billed) <= most + 1 else billed[:most]
    shown = [(row, 1) for row in kept]
    if rest := billed[len(kept) :]:
        currency = rest[0].cost.currency
        shared = [row.shared for row in rest if row.shared is not None]
        whole = SpendRow(
            "",
            REST,
            "",
            sum(row.gpu_ns for row in rest),
            add_moneys([row.cost for row in rest], currency),
            add_moneys(shared, currency) if shared else None,
        )
        shown.append((whole, len(rest)))
    return shown + [(row, 1) for row in rows if row.kind != BILLED]


def sum_rows(rows: Sequence[SpendRow], currency: str) -> SpendRow:
    """The total of rows as printed."""
    shared = [row.shared for row in rows if row.shared is not None]
    return SpendRow(
        "",
        "",
        "",
        sum(row.gpu_ns for row in rows if row.kind != CORRECTION),
        add_moneys([row.cost for row in rows], currency),
        add_moneys(shared, currency) if shared else None,
    )


def add_moneys(moneys: Sequence[Money], currency: str) -> Money:
    """The sum of amounts, exact and as printed."""
    micro, minor = sum(money.micro for money in moneys), sum(money.minor for money in moneys)
    return Money(micro, currency, minor)


def make_series(
    cells: Iterable[SpendCell],
    by: str,
    currency: str,
    rows: Sequence[SpendRow],
    is_known: Sequence[bool],
) -> list[Series]:
    """The series of a chart, from the bottom: the largest groups, the other ones as one, what
    nobody pays (by state each state of it), and corrections.

    `is_known` says of which buckets anything is known.
    """
    own = [cell for cell in cells if cell.currency == currency]
    names = largest_groups(rows)
    sums: dict[tuple[str, str], dict[int, int]] = {(name, BILLED): {} for name in names}
    if by == STATE:
        own = split_idle(own)
    for cell in own:
        name, kind = _state_of(cell) if by == STATE else name_of_cell(cell, by)
        if kind == BILLED and name not in names:
            name, kind = "", REST
        if kind == CORRECTION or (kind == NOBODY and by != STATE):
            name = ""
        buckets = sums.setdefault((name, kind), {})
        buckets[cell.bucket] = buckets.get(cell.bucket, 0) + cell.cost_micro
    order = {BILLED: 0, REST: 1, NOBODY: 2, CORRECTION: 3}
    others = sum(row.kind == BILLED and row.name not in names for row in rows)
    return [
        Series(
            name,
            kind,
            tuple(buckets.get(at, 0 if known else None) for at, known in enumerate(is_known)),
            others if kind == REST else 1,
        )
        for (name, kind), buckets in sorted(sums.items(), key=lambda item: order[item[0][1]])
        if any(buckets.values())
    ]


def largest_in_buckets(
    cells: Iterable[SpendCell], by: str, currency: str
) -> dict[int, tuple[str, int]]:
    """The group that paid most in each bucket in which anybody did, and what it paid, in
    micro-units; of equals the first by name.
    """
    sums: dict[int, dict[str, int]] = defaultdict(dict)
    for cell in split_idle(cells) if by == STATE else cells:
        name, kind = _state_of(cell) if by == STATE else name_of_cell(cell, by)
        if cell.currency == currency and kind == BILLED:
            own = sums[cell.bucket]
            own[name] = own.get(name, 0) + cell.cost_micro
    dearest = {
        at: min(own.items(), key=lambda item: (-item[1], item[0])) for at, own in sums.items()
    }
    return {at: (name, micro) for at, (name, micro) in dearest.items() if micro > 0}


def make_steps(
    series: Sequence[Series],
    rows: Sequence[SpendRow],
    largest: Mapping[int, tuple[str, int]],
    currency: str,
    buckets: int,
) -> list[StepSpend]:
    """What each of the buckets cost; they add up to the direct cost of the rows."""

    def parts_of(kinds: Collection[str]) -> list[Money]:
        own = [each.micros for each in series if each.kind in kinds]
        micros = [sum(each[at] or 0 for each in own) for at in range(buckets)]
        whole = sum(row.cost.minor for row in rows if row.kind in kinds)
        # What nothing was charged in has no part of what is rounded.
        places = [at for at, micro in enumerate(micros) if micro] or list(range(buckets))
        minors = round_to_sum([micros[at] for at in places], minor_unit(currency), whole)
        minor_at = dict(zip(places, minors, strict=True))
        return [Money(micro, currency, minor_at.get(at, 0)) for at, micro in enumerate(micros)]

    columns = zip(
        *(parts_of(kinds) for kinds in ((BILLED, REST), (NOBODY,), (CORRECTION,))), strict=True
    )
    steps = []
    for at, (billed, nobody, corrections) in enumerate(columns):
        name, micro = largest.get(at, (None, 0))
        # Whoever pays all of it pays what is printed of all of it.
        cost = billed if micro == billed.micro else Money(micro, currency)
        steps.append(StepSpend(billed, nobody, corrections, name, cost))
    return steps


@dataclass(frozen=True, slots=True)
class SpendAmount:
    """A cell of the table of all groups by bucket, rounded so that the cells of a row add up to it."""

    bucket: Period
    name: str
    kind: str
    correction_of: str
    cost: Money


def list_amounts(
    cells: Iterable[SpendCell],
    by: str,
    currency: str,
    rows: Sequence[SpendRow],
    buckets: Sequence[Period],
) -> list[SpendAmount]:
    """Every group in every bucket, in the order of the rows."""
    micros: dict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
    parts = split_idle(cells) if by == STATE else cells
    for cell in parts:
        if cell.currency != currency:
            continue
        name, kind = _state_of(cell) if by == STATE else name_of_cell(cell, by)
        if cell.correction_of:
            name = name_corrections(cell.correction_of, cell.state in PAID_BY_OWNERS)
        own = micros[name, kind, cell.correction_of]
        own[cell.bucket] = own.get(cell.bucket, 0) + cell.cost_micro
    amounts = []
    for row in rows:
        own = micros.get((row.name, row.kind, row.correction_of), {})
        places = sorted(own)
        minors = round_to_sum([own[at] for at in places], minor_unit(currency), row.cost.minor)
        for at, minor in zip(places, minors, strict=True):
            cost = Money(own[at], currency, minor)
            amounts.append(SpendAmount(buckets[at], row.name, row.kind, row.correction_of, cost))
    return amounts


def spread_over_hours(
    day_cells: Iterable[SpendCell],
    weights: Mapping[tuple[str, ...], Mapping[int, int]],
    hours_of_day: Sequence[Sequence[int]],
) -> list[SpendCell]:
    """Spread what each day cost over its hours, in proportion to weights by `weight_key` and hour;
    evenly where there are none. The parts add up to the day.

    `hours_of_day`: the numbers of the hours of each day.
    """
    parts = []
    for cell in day_cells:
        hours = hours_of_day[cell.bucket]
        known = weights.get(weight_key(cell), {})
        shares = [known.get(hour, 0) for hour in hours]
        if not any(shares):
            shares = [1] * len(hours)
        costs, idles = (split_signed(micro, shares) for micro in (cell.cost_micro, cell.idle_micro))
        parts += [
            replace(cell, bucket=hour, cost_micro=cost, idle_micro=idle)
            for hour, cost, idle in zip(hours, costs, idles, strict=True)
            if cost or idle
        ]
    return parts


def weight_key(cell: SpendCell) -> tuple[str, ...]:
    """By what the time of day of charges is told apart; None is no name, and stands for itself."""
    key = "rest" if cell.key is None else f"={cell.key}"
    return key, cell.state, cell.currency, cell.correction_of
