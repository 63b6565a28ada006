"""The chargeback report: charges added up for people, rounded so that the rows add up to the
totals.

Hours are shown to six places and money in the currency's minor unit, both split by largest
remainder per currency. Time that nobody held and usage without an owner or a rate have rows of
their own: nothing is dropped, and amounts of two currencies are never added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeVar

from gpuledger_collector.accounting.adjustments import BESIDE_CAPACITY, PAID_BY_OWNERS
from gpuledger_collector.accounting.carbon import MJ_PER_KWH
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.measures import add_known
from gpuledger_collector.accounting.money import Money, minor_unit
from gpuledger_collector.accounting.node_costs import NODE_COST
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import (
    GPU_NS_PER_HOUR,
    round_half_even_div,
    round_in_lists,
)
from gpuledger_collector.accounting.reserved_names import escape_name, is_reserved
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.accounting.usage import HELD, STRANDED, UNALLOCATED

_Number = TypeVar("_Number", int, Decimal)

UNATTRIBUTED = "(unattributed)"
UNPRICED = "(unpriced)"
NO_QUEUE = "(no queue)"
WASTED_STATES = (UNALLOCATED, STRANDED, COMMITMENT_UNUSED)
"""States whose whole cost is waste; of held time only the idle part is (accounting.waste)."""
DIMENSIONS = (*LEVELS, "workload", "job", "queue", "pool", "model", "node", "region")
"""What a report can be grouped by."""
_HOURS_UNIT = GPU_NS_PER_HOUR // 10**6
_OWNER_DIMENSIONS = frozenset((*LEVELS, "workload", "job", "queue"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One row as printed, with the exact amounts behind it.

    None: not known, or not applicable; never zero instead.

    Printed are GPU-hours, minor units of the currency, kWh and grams; exact are GPU-nanoseconds,
    micro-units, millijoules and micrograms. `shared` is the row's share of common costs
    (accounting.shared_costs), which is not part of its direct cost; negative where cost was moved
    away. `list` and `contracted` cost are what `compared`, the part of the cost for which both are
    known, would have been at those rates. Carbon is None where the energy is unknown or some of it
    has no carbon intensity.
    """

    keys: tuple[str, ...]
    currency: str | None
    correction_of: str = ""
    """The closed month that this row amends, its amounts may be negative; empty: the period's own
    time.
    """
    exchange: str = ""
    """In another currency's view: the ledger's currency and the rate at which this row was
    converted.
    """
    state: str = ""
    """Whether the time was held, or what it was instead; empty in a total, and where it was
    several.
    """
    gpu_hours: Decimal
    gpu_hours_held_idle: Decimal | None = None
    cost_minor: int | None = None
    cost_held_idle_minor: int | None = None
    shared_minor: int | None = None
    energy_kwh: Decimal | None = None
    co2e_grams: Decimal | None = None
    list_minor: int | None = None
    contracted_minor: int | None = None
    compared_minor: int | None = None
    effective_minor: int | None = None
    waste_minor: int | None = None
    gpu_ns: int
    unknown_ns: int = 0
    idle_ns: int | None = None
    cost_micro: int | None = None
    idle_cost_micro: int | None = None
    shared_micro: int | None = None
    energy_mj: int | None = None
    co2e_micrograms: int | None = None
    list_micro: int | None = None
    contracted_micro: int | None = None
    compared_micro: int | None = None
    effective_micro: int | None = None
    waste_micro: int | None = None
    adjusted_minor: int | None = None
    """How much of the direct cost is adjustments (accounting.adjustments), and what moves of shared
    model servers.
    """
    adjusted_micro: int | None = None
    node_minor: int | None = None
    """How much of an owner's direct cost is node costs; what nobody held does not tell them apart.
    """
    node_micro: int | None = None
    cost_center: str = ""
    gl_code: str = ""
    """Where the owner is booked (accounting.cost_centers); several are joined where they changed or
    differ below it.
    """

    @property
    def total_minor(self) -> int | None:
        """Direct cost and shares."""
        return add_known(self.cost_minor, self.shared_minor)

    @property
    def is_billed(self) -> bool | None:
        """Whether an owner pays the row; None for a total and for usage without a price."""
        if self.currency is None or not (self.state or any(self.keys)):
            return None
        return self.state == HELD or (not self.state and not any(map(is_reserved, self.keys)))


PRINTED = (
    ("gpu_hours", "gpu_ns", _HOURS_UNIT, 6),
    ("gpu_hours_held_idle", "idle_ns", _HOURS_UNIT, 6),
    ("cost_minor", "cost_micro", None, 0),
    ("cost_held_idle_minor", "idle_cost_micro", None, 0),
    ("shared_minor", "shared_micro", None, 0),
    ("energy_kwh", "energy_mj", MJ_PER_KWH // 10**6, 6),
    ("co2e_grams", "co2e_micrograms", 1000, 3),
    ("list_minor", "list_micro", None, 0),
    ("contracted_minor", "contracted_micro", None, 0),
    ("compared_minor", "compared_micro", None, 0),
    ("effective_minor", "effective_micro", None, 0),
    ("adjusted_minor", "adjusted_micro", None, 0),
    ("node_minor", "node_micro", None, 0),
)
"""What is printed of which exact amount, the unit to which it is rounded (None: the minor unit),
and its decimals.
"""


@dataclass(frozen=True, slots=True)
class SharedOut:
    """How much of a shared cost a report splits, in micro-units."""

    cost: SharedCost
    currency: str
    micro: int


@dataclass(frozen=True, slots=True)
class SharedPart:
    """What one row pays of a shared cost for a part of a month, in micro-units; negative: what was
    moved away.
    """

    cost: SharedCost
    period: Period
    currency: str
    keys: tuple[str, ...]
    micro: int


@dataclass(slots=True)
class Allocations:
    """Shared cost (micro-units) and carbon (micrograms) that are added to rows, by currency and
    cells of a row.

    `parts` holds the same shares cost by cost; they add up to `shared`.
    """

    shared: dict[tuple[str | None, tuple[str, ...]], int] = field(default_factory=dict)
    emitted: dict[tuple[str | None, tuple[str, ...]], int | None] = field(default_factory=dict)
    costs: list[SharedOut] = field(default_factory=list)
    parts: list[SharedPart] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows by cost, dearest first, and one total per currency (`keys` of a total are empty).

    In the cash view the cost is what is paid, in any other it is what is borne.
    """

    by: tuple[str, ...]
    rows: tuple[ReportRow, ...]
    totals: tuple[ReportRow, ...]
    shared: tuple[SharedOut, ...] = ()
    exchanged: bool = False
    """Whether this is another currency's view."""
    view: str = "amortized"

    @property
    def has_unpriced(self) -> bool:
        """Whether some usage has no rate."""
        return any(row.currency is None for row in self.rows)

    @property
    def has_no_price(self) -> bool:
        """Whether nothing of it has a price: there are hours, and no bill."""
        return bool(self.rows) and all(row.currency is None for row in self.rows)


_Key = tuple[tuple[str, ...], str]
"""The cells of a row, and the month that it corrects (empty: none)."""


@dataclass(slots=True)
class _RowSums:
    state: str = ""
    gpu_ns: int = 0
    unknown_ns: int = 0
    idle_ns: int | None = None
    cost_micro: int | None = None
    idle_cost_micro: int | None = None
    energy_mj: int | None = None
    shared_micro: int | None = None
    co2e_micrograms: int | None = None
    list_micro: int | None = None
    contracted_micro: int | None = None
    compared_micro: int | None = None
    effective_micro: int | None = None
    adjusted_micro: int | None = None
    node_micro: int | None = None

    def add(self, line: ChargedLine) -> None:
        """Add a line; idle time counts where some activity of held time is known."""
        self.gpu_ns += line.gpu_ns
        self.unknown_ns += line.unknown_ns
        if line.state == HELD and line.has_known_activity:
            self.idle_ns = add_known(self.idle_ns, line.idle_ns)
            self.idle_cost_micro = add_known(self.idle_cost_micro, line.idle_cost_micro)
        if line.state in BESIDE_CAPACITY:
            self.adjusted_micro = add_known(self.adjusted_micro, line.cost_micro)
        if line.state == NODE_COST:
            self.node_micro = add_known(self.node_micro, line.cost_micro)
        self.cost_micro = add_known(self.cost_micro, line.cost_micro)
        borne = line.cost_micro if line.effective_cost_micro is None else line.effective_cost_micro
        self.effective_micro = add_known(self.effective_micro, borne)
        self.energy_mj = add_known(self.energy_mj, line.energy_mj)
        # A part of the list cost beside the whole cost would look like a saving, so the part of the
        # cost that it is compared with is summed along. What a commitment left unused has neither:
        # it would hide what the rest saved.
        compared = line.compared_cost_micro
        if (
            compared is None
            and line.contracted_cost_micro is not None
            and line.list_cost_micro is not None
        ):
            compared = line.cost_micro
        if compared is not None and line.state != COMMITMENT_UNUSED:
            self.compared_micro = add_known(self.compared_micro, compared)
            self.list_micro = add_known(self.list_micro, line.list_cost_micro)
            self.contracted_micro = add_known(self.contracted_micro, line.contracted_cost_micro)


def report(
    lines: Iterable[ChargedLine],
    by: Sequence[str],
    allocations: Allocations | None = None,
    *,
    unpriced_by_holder: bool = False,
    separate_corrections: bool = True,
) -> Report:
    """Make the report of lines that carry the dimensions `by` as keys.

    Raises ValueError for an unknown dimension.

    `unpriced_by_holder` gives usage without a price the rows of who held it, instead of one row of
    its own.

    Lines that name the month that they correct have rows of their own, next to the row of the same
    cells. The rows of each such month are rounded by themselves, so what a correction shows does
    not change with the open month. Without `separate_corrections` the rows of the same cells are
    added up after that: an invoice is the sum of its rows.
    """
    for name in by:
        if name not in DIMENSIONS:
            raise ValueError(f"cannot group by {name!r}; choose from {', '.join(DIMENSIONS)}")
    allocations = allocations or Allocations()
    sums: dict[tuple[str | None, _Key], _RowSums] = {}
    for line in lines:
        # Corrections may cancel out; a line without time and money is no row.
        if (
            line.gpu_ns
            or line.cost_micro
            or line.effective_cost_micro
            or line.idle_ns
            or line.idle_cost_micro
        ):
            cells = holder_keys(line, by) if unpriced_by_holder else shown_keys(line, by)
            key = (line.currency, (cells, line.correction_of))
            state = HELD if line.state in PAID_BY_OWNERS else line.state
            sums.setdefault(key, _RowSums(state)).add(line)
    _add_allocations(sums, allocations)
    currencies = sorted({currency for currency, _ in sums if currency is not None})
    rows: list[ReportRow] = []
    totals: list[ReportRow] = []
    # Each currency is rounded and totaled by itself; unpriced usage comes last, as a group without
    # a currency.
    for currency in [*currencies, *([None] if any(key[0] is None for key in sums) else [])]:
        # Remainders are given out in the order of `_ordered`; the sort after it is for display
        # only.
        own_rows = _rows(
            currency,
            _by_falling_cost({key: entry for (of, key), entry in sums.items() if of == currency}),
        )
        if not separate_corrections:
            own_rows = add_up_corrections(own_rows)
        own_rows.sort(key=lambda row: (-(row.cost_micro or 0), row.keys, row.correction_of))
        rows += own_rows
        totals.append(_total(currency, own_rows, len(by)))
    return Report(tuple(by), tuple(rows), tuple(totals), tuple(allocations.costs))


def _add_allocations(
    sums: dict[tuple[str | None, _Key], _RowSums], allocations: Allocations
) -> None:
    """Add shares and carbon to the row of the period's own time; carbon to a correction where there
    is no such row.
    """
    for (currency, keys), micro in allocations.shared.items():
        sums.setdefault((currency, (keys, "")), _RowSums()).shared_micro = micro
    # The empty month sorts first, so the row of the period's own time wins where there is one.
    first: dict[tuple[str | None, tuple[str, ...]], str] = {}
    for currency, (keys, correction_of) in sums:
        first[currency, keys] = min(correction_of, first.get((currency, keys), correction_of))
    for (currency, keys), grams in allocations.emitted.items():
        # Carbon never makes a row of its own: without a row there was no usage to show it with.
        if (currency, keys) in first:
            sums[currency, (keys, first[currency, keys])].co2e_micrograms = grams


def _by_falling_cost(sums: Mapping[_Key, _RowSums]) -> list[tuple[_Key, _RowSums]]:
    """By cost, dearest first: the order in which remainders are given out."""
    return sorted(sums.items(), key=lambda item: (-(item[1].cost_micro or 0), item[0]))


def add_up_corrections(rows: Iterable[ReportRow]) -> list[ReportRow]:
    """One row of all rows of the same cells, with the sums of what they print."""
    cells: dict[tuple[str, ...], list[ReportRow]] = defaultdict(list)
    for row in rows:
        cells[row.keys].append(row)
    return [
        (
            same[0]
            if len(same) == 1 and not same[0].correction_of
            else replace(_sum(same), correction_of="")
        )
        for same in cells.values()
    ]


def _sum(rows: Sequence[ReportRow]) -> ReportRow:
    """Rows of the same cells as one; its state is that of the first, which is the period's own
    where there is one.
    """
    first = min(rows, key=lambda row: row.correction_of)
    return replace(
        _total(first.currency, rows, len(first.keys)), keys=first.keys, state=first.state
    )


def shown_keys(line: ChargedLine, by: Sequence[str]) -> tuple[str, ...]:
    """The cells of a line; of time that nobody held, the first owner column (else the first) shows
    its state.

    Levels of owners were escaped when they were attributed (accounting.attribution); other names
    are escaped here.
    """
    # All unpriced usage is one row, whoever used it: the row is about the missing rate.
    if line.currency is None:
        return (UNPRICED, *[""] * (len(by) - 1)) if by else ()
    return holder_keys(line, by)


def holder_keys(line: ChargedLine, by: Sequence[str]) -> tuple[str, ...]:
    """The cells of a line by who held it, whether it has a price or not."""
    if line.state in PAID_BY_OWNERS:
        named = zip(line.keys, by, strict=True)
        # An adjustment is paid by an owner and is no workload's: in that column stands its kind.
        kind = UNATTRIBUTED if line.state in {HELD, NODE_COST} else f"({line.state})"
        queue = NO_QUEUE if line.state in {HELD, NODE_COST} else kind
        nobody = {"workload": kind, "job": kind, "queue": queue}
        return tuple(
            [
                _show_key(key, name)
                or nobody.get(name, UNATTRIBUTED if name in _OWNER_DIMENSIONS else "")
                for key, name in named
            ]
        )
    # Parentheses mark names that no owner can have: owners' names that look like this are escaped.
    marked = next((at for at, name in enumerate(by) if name in _OWNER_DIMENSIONS), 0)
    cells = [
        "" if name in _OWNER_DIMENSIONS else _show_key(key, name)
        for key, name in zip(line.keys, by, strict=True)
    ]
    if cells:
        cells[marked] = f"({line.state})"
    return tuple(cells)


def _show_key(key: str, dimension: str) -> str:
    return key if dimension in LEVELS else escape_name(key)


def _rows(currency: str | None, group: Sequence[tuple[_Key, _RowSums]]) -> list[ReportRow]:
    """Rows with what is printed of them; those of each corrected month are rounded by themselves."""
    months = [correction_of for (_, correction_of), _ in group]
    rounded: dict[str, list[Any]] = {}
    for printed, exact, unit, digits in PRINTED:
        counts = _round_known(
            [getattr(entry, exact) for _, entry in group],
            months,
            unit or minor_unit(currency or ""),
        )
        if unit is not None:
            rounded[printed] = [
                None if count is None else Decimal(count).scaleb(-digits) for count in counts
            ]
        else:
            rounded[printed] = list(counts)
    return [
        ReportRow(
            keys=keys,
            currency=currency,
            correction_of=correction_of,
            state=entry.state,
            unknown_ns=entry.unknown_ns,
            **_with_waste(
                entry.state,
                {printed: values[at] for printed, values in rounded.items()}
                | {exact: getattr(entry, exact) for _, exact, _, _ in PRINTED},
            ),
        )
        for at, ((keys, correction_of), entry) in enumerate(group)
    ]


def _with_waste(state: str, sums: dict[str, Any]) -> dict[str, Any]:
    """The sums of a row with its waste: the idle part of held time, or the whole cost of what
    nobody held.
    """
    if sums["compared_micro"] == sums["cost_micro"]:
        # The same amount is the same cents, whichever other rows it was rounded with.
        sums["compared_minor"] = sums["cost_minor"]
    if state == HELD:
        sums |= {
            "waste_minor": sums["cost_held_idle_minor"],
            "waste_micro": sums["idle_cost_micro"],
        }
    elif state in WASTED_STATES:
        sums |= {"waste_minor": sums["effective_minor"], "waste_micro": sums["effective_micro"]}
    return sums


def _round_known(
    values: Sequence[int | None], months: Sequence[str], unit: int
) -> list[int | None]:
    """Round what is known together, month by month, and leave the unknown unknown."""
    known = [
        (value, month) for value, month in zip(values, months, strict=True) if value is not None
    ]
    rounded = iter(
        round_in_lists([value for value, _ in known], [month for _, month in known], unit)
    )
    return [None if value is None else next(rounded) for value in values]


@dataclass(frozen=True, slots=True)
class PlaceInList:
    """An amount of one row, and what its rounding needs of the list in which it is rounded."""

    value: int
    total: int
    """The sum of the list."""
    floors: int
    """The sum of its amounts in whole units, each rounded toward minus infinity."""
    before: int
    """How many amounts have a larger remainder, or an equal one and an earlier row."""

    def round_in_list(self, unit: int) -> int:
        """The amount in units, as `round_together` rounds it among the whole list."""
        left = round_half_even_div(self.total, unit) - self.floors
        return self.value // unit + (self.before < left)


def row_of_list(
    cells: tuple[str, ...],
    currency: str,
    correction_of: str,
    state: str,
    unknown_ns: int,
    places: Mapping[str, PlaceInList | None],
) -> ReportRow:
    """A row of a report of which the other rows are not known, only its place among them (exact
    amount -> place).
    """
    sums: dict[str, Any] = {}
    for printed, exact, unit, digits in PRINTED:
        place = places[exact]
        sums[exact] = None if place is None else place.value
        units = None if place is None else place.round_in_list(unit or minor_unit(currency))
        sums[printed] = units if unit is None or units is None else Decimal(units).scaleb(-digits)
    return ReportRow(
        keys=cells,
        currency=currency,
        correction_of=correction_of,
        state=state,
        unknown_ns=unknown_ns,
        **_with_waste(state, sums),
    )


@dataclass(frozen=True, slots=True)
class UnbilledPart:
    """A part of what nobody pays: time of one state, or the corrections of a closed month (then
    `name` is empty).
    """

    name: str
    correction_of: str
    amount: Money


@dataclass(frozen=True, slots=True)
class CostByPayer:
    """What capacity costs in a currency, shares included: what owners pay of it, and what nobody
    pays.

    `unbilled` are the rows that nobody pays, by the name that people know them by; `parts` add up
    to what nobody pays.
    """

    whole: Money
    billed: Money
    not_billed: Money
    unbilled: tuple[str, ...]
    parts: tuple[UnbilledPart, ...]


def cost_by_payer(report: Report, total: ReportRow) -> CostByPayer | None:
    """Who pays a total of a report, as printed; None for what has no price."""
    if total.currency is None:
        return None
    rows = [
        row
        for row in report.rows
        if (row.currency, row.exchange) == (total.currency, total.exchange)
        and row.is_billed is False
    ]
    minor, whole = sum_known(row.total_minor for row in rows) or 0, total.total_minor or 0
    parts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        name = "" if row.correction_of else _reserved_name(row)
        parts[row.correction_of, name] += row.total_minor or 0
    return CostByPayer(
        whole=Money.from_minor(whole, total.currency),
        billed=Money.from_minor(whole - minor, total.currency),
        not_billed=Money.from_minor(minor, total.currency),
        unbilled=tuple(dict.fromkeys(map(_reserved_name, rows))),
        parts=tuple(
            UnbilledPart(name, month, Money.from_minor(amount, total.currency))
            for (month, name), amount in sorted(parts.items(), key=lambda part: part[0][0])
        ),
    )


def _reserved_name(row: ReportRow) -> str:
    """The name that stands in place of an owner; empty where there is none."""
    return next(filter(is_reserved, row.keys), "")


def most_held_idle(rows: Sequence[ReportRow]) -> ReportRow | None:
    """Of rows in one currency that owners pay, the one whose held idle time costs most; None where
    there are not two of them to compare, or no idle cost is known.
    """
    billed = [row for row in rows if row.is_billed and not row.correction_of]
    known = [row for row in billed if row.idle_cost_micro]
    if len(billed) < 2 or not known:
        return None
    return max(known, key=lambda row: row.idle_cost_micro or 0)


def sum_corrections_by_owner(rows: Iterable[ReportRow]) -> dict[str, tuple[int, int]]:
    """Sum the corrections of closed months in rows of one currency by owner, in minor units: what
    they cost, and what of it is idle time.
    """
    sums: dict[str, tuple[int, int]] = {}
    for row in rows:
        if row.correction_of and row.is_billed:
            cost, idle = sums.get(row.keys[0], (0, 0))
            sums[row.keys[0]] = (
                cost + (row.cost_minor or 0),
                idle + (row.cost_held_idle_minor or 0),
            )
    return sums


def only_rows(report: Report, condition: Callable[[ReportRow], bool]) -> Report:
    """A report with some of its rows and their totals, each row as it is printed in the whole."""
    rows = tuple(row for row in report.rows if condition(row))
    return replace(report, rows=rows, totals=totals(rows))


def totals(rows: Sequence[ReportRow]) -> tuple[ReportRow, ...]:
    """One total for each currency of some rows of a report, in the order of the rows."""
    currencies = dict.fromkeys(row.currency for row in rows)
    return tuple(
        _total(name, [row for row in rows if row.currency == name], len(rows[0].keys))
        for name in currencies
    )


def _total(currency: str | None, rows: Sequence[ReportRow], width: int) -> ReportRow:
    """The sum of rows as printed, so that a reader who adds them up gets it exactly."""
    sums: dict[str, Any] = {}
    printed_and_exact = (name for printed, exact, _, _ in PRINTED for name in (printed, exact))
    for name in (*printed_and_exact, "waste_minor", "waste_micro"):
        values = [getattr(row, name) for row in rows]
        sums[name] = sum_known(values)
    return ReportRow(
        keys=("",) * width,
        currency=currency,
        unknown_ns=sum(row.unknown_ns for row in rows),
        **sums,
    )


def sum_known(values: Iterable[_Number | None]) -> _Number | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
