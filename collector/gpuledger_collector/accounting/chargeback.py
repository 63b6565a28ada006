"""The chargeback report: charges added up as people read them, rounded so that the rows add up to the totals.

Hours are shown to six places and money in the currency's minor unit, both split by largest remainder per currency.
Time that nobody held, and usage that nobody is known to pay or that no rate covers, are rows of their own: nothing is
dropped, and amounts of two currencies are never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol, TypeVar

from gpuledger_collector.accounting.carbon import MJ_PER_KWH
from gpuledger_collector.accounting.ledger import add_known
from gpuledger_collector.accounting.money import MICRO, minor_digits
from gpuledger_collector.accounting.names import escaped
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_in_groups
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.accounting.tags import LEVELS
from gpuledger_collector.accounting.usage import HELD

_Number = TypeVar("_Number", int, Decimal)

UNATTRIBUTED = "(unattributed)"
UNPRICED = "(unpriced)"
DIMENSIONS = (*LEVELS, "workload", "pool", "model", "node")
"""What a report can be grouped by."""
_HOURS_UNIT = GPU_NS_PER_HOUR // 10**6
_OWNER_DIMENSIONS = frozenset((*LEVELS, "workload"))


class Line(Protocol):
    """What the report reads of a sum of charges; `keys` stand in the order of the report's dimensions."""

    @property
    def keys(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def currency(self) -> str | None: ...  # noqa: D102
    @property
    def gpu_ns(self) -> int: ...  # noqa: D102
    @property
    def busy_ns(self) -> int: ...  # noqa: D102
    @property
    def idle_ns(self) -> int: ...  # noqa: D102
    @property
    def unknown_ns(self) -> int: ...  # noqa: D102
    @property
    def cost_micro(self) -> int | None: ...  # noqa: D102
    @property
    def idle_cost_micro(self) -> int | None: ...  # noqa: D102
    @property
    def energy_mj(self) -> int | None: ...  # noqa: D102
    @property
    def list_cost_micro(self) -> int | None: ...  # noqa: D102
    @property
    def contracted_cost_micro(self) -> int | None: ...  # noqa: D102
    @property
    def correction_of(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Row:
    """One row as printed, with the exact amounts behind it. None: not known, or not applicable; never zero instead."""

    keys: tuple[str, ...]
    currency: str | None
    gpu_hours: Decimal
    gpu_hours_idle: Decimal | None
    cost_minor: int | None
    cost_idle_minor: int | None
    gpu_ns: int
    idle_ns: int | None
    cost_micro: int | None
    idle_cost_micro: int | None
    shared_minor: int | None = None
    """Shares of common costs (accounting.shared_costs), beside the direct cost; negative where cost was moved away."""
    shared_micro: int | None = None
    energy_kwh: Decimal | None = None
    """As measured at the accelerators; None where nothing measured it."""
    energy_mj: int | None = None
    co2e_grams: Decimal | None = None
    """None where the energy is unknown, or some of it has no carbon intensity."""
    co2e_micrograms: int | None = None
    list_minor: int | None = None
    """At list rates, at contracted ones where there are none; None where any part of it is unknown."""
    list_micro: int | None = None
    contracted_minor: int | None = None
    """At the rates of the price book, as if no commitment covered anything; None where any part of it is unknown."""
    contracted_micro: int | None = None
    exchange: str = ""
    """In another currency's view: the ledger's currency and the rate at which this row was converted."""
    correction_of: str = ""
    """The closed month that this row amends, its amounts may be negative; empty: the period's own time."""

    @property
    def total_minor(self) -> int | None:
        """Direct cost and shares."""
        return add_known(self.cost_minor, self.shared_minor)


@dataclass(frozen=True, slots=True)
class SharedOut:
    """How much of a shared cost a report splits, in micro-units."""

    cost: SharedCost
    currency: str
    micro: int


@dataclass(frozen=True, slots=True)
class SharedPart:
    """What one row bears of a shared cost for a usage interval of a month, in micro-units; negative: what was moved
    away.
    """

    cost: SharedCost
    period: Period
    currency: str
    keys: tuple[str, ...]
    micro: int


@dataclass(slots=True)
class Allocations:
    """What stands beside the direct cost, by currency and cells of a row: shares in micro-units, CO2e in micrograms.

    `parts` are the shares again, cost by cost: they add up to `shared`.
    """

    shared: dict[tuple[str | None, tuple[str, ...]], int] = field(default_factory=dict)
    emitted: dict[tuple[str | None, tuple[str, ...]], int | None] = field(default_factory=dict)
    costs: list[SharedOut] = field(default_factory=list)
    parts: list[SharedPart] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows by cost, dearest first, and one total per currency (`keys` of a total are empty)."""

    by: tuple[str, ...]
    rows: tuple[Row, ...]
    totals: tuple[Row, ...]
    shared: tuple[SharedOut, ...] = ()
    exchanged: bool = False
    """Whether this is another currency's view."""

    @property
    def unpriced(self) -> bool:
        """Whether some usage has no rate."""
        return any(row.currency is None for row in self.rows)


_Key = tuple[tuple[str, ...], str]
"""The cells of a row, and the month that it corrects (empty: none)."""


@dataclass(slots=True)
class _Sum:
    gpu_ns: int = 0
    idle_ns: int | None = None
    cost_micro: int | None = None
    idle_cost_micro: int | None = None
    energy_mj: int | None = None
    shared_micro: int | None = None
    co2e_micrograms: int | None = None
    list_micro: int | None = 0
    contracted_micro: int | None = 0


def report(lines: Iterable[Line], by: Sequence[str], beside: Allocations | None = None) -> Report:
    """The report over lines that carry the dimensions `by` as keys. Raises ValueError for an unknown dimension.

    Lines that say what they correct have rows of their own, beside the row of the same cells: the two together are
    rounded to what one row would show.
    """
    for name in by:
        if name not in DIMENSIONS:
            raise ValueError(f"{name!r} is nothing to group by; choose from {', '.join(DIMENSIONS)}")
    sums: dict[tuple[str | None, _Key], _Sum] = {}
    for line in lines:
        if line.gpu_ns == 0 and not line.cost_micro and not line.idle_ns:
            continue
        entry = sums.setdefault((line.currency, (shown_keys(line, by), line.correction_of)), _Sum())
        entry.gpu_ns += line.gpu_ns
        if line.state == HELD and (line.unknown_ns != line.gpu_ns or line.idle_ns):
            entry.idle_ns = add_known(entry.idle_ns, line.idle_ns)
            entry.idle_cost_micro = add_known(entry.idle_cost_micro, line.idle_cost_micro)
        entry.cost_micro = add_known(entry.cost_micro, line.cost_micro)
        entry.energy_mj = add_known(entry.energy_mj, line.energy_mj)
        entry.list_micro = _add_all(entry.list_micro, line.list_cost_micro)
        entry.contracted_micro = _add_all(entry.contracted_micro, line.contracted_cost_micro)
    _add_beside(sums, beside or Allocations())
    currencies = sorted({currency for currency, _ in sums if currency is not None})
    rows: list[Row] = []
    totals: list[Row] = []
    for currency in [*currencies, *([None] if any(key[0] is None for key in sums) else [])]:
        made = _rows(currency, _ordered({key: entry for (of, key), entry in sums.items() if of == currency}))
        made.sort(key=lambda row: (-(row.cost_micro or 0), row.keys, row.correction_of))
        rows += made
        totals.append(_total(currency, made, len(by)))
    return Report(tuple(by), tuple(rows), tuple(totals), tuple(beside.costs) if beside is not None else ())


def _add_beside(sums: dict[tuple[str | None, _Key], _Sum], beside: Allocations) -> None:
    """Shares and grams stand in the row of the period's own time; grams in a correction's where there is no other."""
    for (currency, keys), micro in beside.shared.items():
        sums.setdefault((currency, (keys, "")), _Sum()).shared_micro = micro
    first: dict[tuple[str | None, tuple[str, ...]], str] = {}
    for currency, (keys, correction_of) in sums:
        first[currency, keys] = min(correction_of, first.get((currency, keys), correction_of))
    for (currency, keys), grams in beside.emitted.items():
        if (currency, keys) in first:
            sums[currency, (keys, first[currency, keys])].co2e_micrograms = grams


def _ordered(sums: Mapping[_Key, _Sum]) -> list[tuple[_Key, _Sum]]:
    """By the cost of all rows of the same cells, dearest first: the order in which remainders are given out."""
    costs: dict[tuple[str, ...], int] = {}
    for (keys, _), entry in sums.items():
        costs[keys] = costs.get(keys, 0) + (entry.cost_micro or 0)
    return sorted(sums.items(), key=lambda item: (-costs[item[0][0]], item[0]))


def shown_keys(line: Line, by: Sequence[str]) -> tuple[str, ...]:
    """The cells of a line: where nobody holds it, a marker stands in the first owner column (else in the first).

    Levels of owners were escaped when they were attributed (accounting.attribution); other names are escaped here.
    """
    if line.currency is None:
        return (UNPRICED, *[""] * (len(by) - 1)) if by else ()
    if line.state == HELD:
        named = zip(line.keys, by, strict=True)
        return tuple([_shown(key, name) or (UNATTRIBUTED if name in _OWNER_DIMENSIONS else "") for key, name in named])
    marked = next((at for at, name in enumerate(by) if name in _OWNER_DIMENSIONS), 0)
    cells = ["" if name in _OWNER_DIMENSIONS else _shown(key, name) for key, name in zip(line.keys, by, strict=True)]
    if cells:
        cells[marked] = f"({line.state})"
    return tuple(cells)


def _shown(key: str, dimension: str) -> str:
    return key if dimension in LEVELS else escaped(key)


def _add_all(total: int | None, value: int | None) -> int | None:
    """The sum when every part of it is known."""
    return None if total is None or value is None else total + value


def _rows(currency: str | None, group: Sequence[tuple[_Key, _Sum]]) -> list[Row]:
    """Rows with what is printed of them: rows of the same cells add up to what one row of them would print."""
    minor = MICRO // 10 ** (minor_digits(currency) if currency is not None else 0)
    cells = [keys for (keys, _), _ in group]

    def rounded(values: Sequence[int | None], unit: int) -> list[int | None]:
        return _known(values, cells, unit)

    hours = rounded([entry.gpu_ns for _, entry in group], _HOURS_UNIT)
    idle_hours = rounded([entry.idle_ns for _, entry in group], _HOURS_UNIT)
    costs = rounded([entry.cost_micro for _, entry in group], minor)
    idle_costs = rounded([entry.idle_cost_micro for _, entry in group], minor)
    shared = rounded([entry.shared_micro for _, entry in group], minor)
    energy = rounded([entry.energy_mj for _, entry in group], MJ_PER_KWH // 10**6)
    listed = rounded([entry.list_micro for _, entry in group], minor)
    contracted = rounded([entry.contracted_micro for _, entry in group], minor)
    grams = rounded([entry.co2e_micrograms for _, entry in group], 1000)
    return [
        Row(
            keys=keys,
            currency=currency,
            gpu_hours=_decimal(hours[at] or 0, 6),
            gpu_hours_idle=_decimal_or_none(idle_hours[at], 6),
            cost_minor=costs[at],
            cost_idle_minor=idle_costs[at],
            gpu_ns=entry.gpu_ns,
            idle_ns=entry.idle_ns,
            cost_micro=entry.cost_micro,
            idle_cost_micro=entry.idle_cost_micro,
            shared_minor=shared[at],
            shared_micro=entry.shared_micro,
            energy_kwh=_decimal_or_none(energy[at], 6),
            energy_mj=entry.energy_mj,
            co2e_grams=_decimal_or_none(grams[at], 3),
            co2e_micrograms=entry.co2e_micrograms,
            list_minor=listed[at],
            list_micro=entry.list_micro,
            contracted_minor=contracted[at],
            contracted_micro=entry.contracted_micro,
            correction_of=correction_of,
        )
        for at, ((keys, correction_of), entry) in enumerate(group)
    ]


def _decimal(count: int, digits: int) -> Decimal:
    return Decimal(count).scaleb(-digits)


def _decimal_or_none(count: int | None, digits: int) -> Decimal | None:
    return None if count is None else _decimal(count, digits)


def _known(values: Sequence[int | None], cells: Sequence[tuple[str, ...]], unit: int) -> list[int | None]:
    """Round what is known together, by the cells of its rows, and leave the unknown unknown."""
    known = [(value, keys) for value, keys in zip(values, cells, strict=True) if value is not None]
    made = iter(round_in_groups([value for value, _ in known], [keys for _, keys in known], unit))
    return [None if value is None else next(made) for value in values]


def _total(currency: str | None, rows: Sequence[Row], width: int) -> Row:
    """The sum of rows as printed, so that a reader who adds them up gets it exactly."""
    return Row(
        keys=("",) * width,
        currency=currency,
        gpu_hours=sum((row.gpu_hours for row in rows), Decimal(0)),
        gpu_hours_idle=_sum_known(row.gpu_hours_idle for row in rows),
        cost_minor=_sum_known(row.cost_minor for row in rows),
        cost_idle_minor=_sum_known(row.cost_idle_minor for row in rows),
        gpu_ns=sum(row.gpu_ns for row in rows),
        idle_ns=_sum_known(row.idle_ns for row in rows),
        cost_micro=_sum_known(row.cost_micro for row in rows),
        idle_cost_micro=_sum_known(row.idle_cost_micro for row in rows),
        shared_minor=_sum_known(row.shared_minor for row in rows),
        shared_micro=_sum_known(row.shared_micro for row in rows),
        energy_kwh=_sum_known(row.energy_kwh for row in rows),
        energy_mj=_sum_known(row.energy_mj for row in rows),
        co2e_grams=_sum_known(row.co2e_grams for row in rows),
        co2e_micrograms=_sum_known(row.co2e_micrograms for row in rows),
        list_minor=_sum_all([row.list_minor for row in rows]),
        list_micro=_sum_all([row.list_micro for row in rows]),
        contracted_minor=_sum_all([row.contracted_minor for row in rows]),
        contracted_micro=_sum_all([row.contracted_micro for row in rows]),
    )


def _sum_all(values: Sequence[int | None]) -> int | None:
    """The sum when every part of it is known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_known(values: Iterable[_Number | None]) -> _Number | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
