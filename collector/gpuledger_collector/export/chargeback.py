"""The chargeback as a table for a terminal, as CSV and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import attrgetter

from gpuledger_collector.accounting.cash import CASH, PURCHASE
from gpuledger_collector.accounting.chargeback import (
    Report,
    ReportRow,
    SharedOut,
    cost_by_payer,
    sum_known,
)
from gpuledger_collector.accounting.measures import add_known
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.shared_costs import AMOUNT, COST, SharedCost
from gpuledger_collector.accounting.state_words import word_of
from gpuledger_collector.accounting.usage import UNOBSERVED
from gpuledger_collector.accounting.waste import IMPORTED, UNREAD, WholeWaste
from gpuledger_collector.export.cells import EXCHANGE, NOTICE, neutral
from gpuledger_collector.export.pieces import json_pieces
from gpuledger_collector.export.report import Column, Kind, cells_of


def _printed_amount(units: str, micro: str) -> Callable[[ReportRow], Money | None]:
    """An amount of a row in the minor units that are printed, which add up, with the exact amount
    behind it.
    """
    read = attrgetter(units, micro, "currency")

    def value(row: ReportRow) -> Money | None:
        minor, exact, currency = read(row)
        if minor is None or exact is None or currency is None:
            return None
        return Money(exact, currency, minor)

    return value


def _total(row: ReportRow) -> Money | None:
    minor, exact = row.total_minor, add_known(row.cost_micro, row.shared_micro)
    if minor is None or exact is None or row.currency is None:
        return None
    return Money(exact, row.currency, minor)


def _places(name: str, places: int) -> Callable[[ReportRow], str | None]:
    """A quantity of a row with its decimals."""

    def value(row: ReportRow) -> str | None:
        quantity = getattr(row, name)
        return None if quantity is None else f"{quantity:.{places}f}"

    return value


MEASURES: tuple[Column[ReportRow], ...] = (
    Column("gpu_hours", _places("gpu_hours", 6), Kind.HOURS),
    Column("gpu_hours_held_idle", _places("gpu_hours_held_idle", 6), Kind.HOURS, is_optional=True),
    Column("cost", _printed_amount("cost_minor", "cost_micro"), Kind.MONEY),
    Column(
        "cost_held_idle",
        _printed_amount("cost_held_idle_minor", "idle_cost_micro"),
        Kind.MONEY,
        is_optional=True,
    ),
    Column("currency", lambda row: row.currency),
)
ALLOCATIONS: tuple[Column[ReportRow], ...] = (
    Column(
        "cost_shared",
        _printed_amount("shared_minor", "shared_micro"),
        Kind.MONEY,
        about="Share of common costs.",
    ),
    Column("cost_total", _total, Kind.MONEY, about="Direct cost and share of common costs."),
    Column("energy_kwh", _places("energy_kwh", 6), Kind.SIZE),
    Column("co2e_grams", _places("co2e_grams", 3), Kind.SIZE),
    Column(
        "cost_list",
        _printed_amount("list_minor", "list_micro"),
        Kind.MONEY,
        about="The compared cost at list rates.",
    ),
    Column(
        "cost_contracted",
        _printed_amount("contracted_minor", "contracted_micro"),
        Kind.MONEY,
        about="The compared cost at the rates of the price book.",
    ),
    Column(
        "cost_compared",
        _printed_amount("compared_minor", "compared_micro"),
        Kind.MONEY,
        about="The part of the cost of which both are known.",
    ),
    Column(
        "cost_effective",
        _printed_amount("effective_minor", "effective_micro"),
        Kind.MONEY,
        about="The cost as it is borne: with commitments amortized, the same as the cost.",
    ),
    Column(
        "cost_waste",
        _printed_amount("waste_minor", "waste_micro"),
        Kind.MONEY,
        about="The part that is waste.",
    ),
    Column(
        "billed",
        lambda row: {True: "yes", False: "no", None: None}[row.is_billed],
        about="If an owner pays it.",
    ),
    Column(
        "correction_of", lambda row: row.correction_of, about="The closed month that it corrects."
    ),
    Column(
        "cost_adjustments",
        _printed_amount("adjusted_minor", "adjusted_micro"),
        Kind.MONEY,
        about="How much of the direct cost is adjustments, and what moves of shared model servers.",
    ),
    Column("cost_center", lambda row: row.cost_center),
    Column("gl_code", lambda row: row.gl_code),
)
RATE: Column[ReportRow] = Column(
    EXCHANGE, lambda row: row.exchange, about="Of the view in another currency alone."
)
NODES: Column[ReportRow] = Column(
    "cost_nodes",
    _printed_amount("node_minor", "node_micro"),
    Kind.MONEY,
    about="How much of the direct cost is node costs.",
)
PAID: Column[ReportRow] = Column(
    "cost_cash",
    _printed_amount("cost_minor", "cost_micro"),
    Kind.MONEY,
    about="What is paid, in the cash view alone.",
)
NOT_PAID: Column[ReportRow] = Column("cost_cash", lambda _: None, Kind.MONEY)
COLUMNS = (*MEASURES, *ALLOCATIONS, RATE, NODES, NOT_PAID)
"""All amounts of a row, as a terminal may show them: of the cash view, the line below the table
says what is paid.
"""
ALWAYS_SHOWN = {"gpu_hours", "cost", "currency"}
"""Columns for which there is room in every terminal."""
NUMBERED = {column.name for column in COLUMNS if column.is_number}


def _last(view: str) -> tuple[Column[ReportRow], ...]:
    return NODES, PAID if view == CASH else NOT_PAID


def csv_rows(report: Report, notices: Sequence[str] = ()) -> Iterator[list[object]]:
    """Rows as CSV: the `by` columns, MEASURES, ALLOCATIONS and NOTICE, then node costs and what is
    paid; no total.

    In another currency's view the rate of each row comes before the last columns. Notices are about
    the whole report, and stand in every row: whoever keeps a part of the rows keeps them.
    """
    first, last = (
        (*MEASURES, *ALLOCATIONS),
        (*([RATE] if report.exchanged else []), *_last(report.view)),
    )
    yield [
        *report.by,
        *(column.name for column in first),
        NOTICE,
        *(column.name for column in last),
    ]
    notice = neutral("; ".join(notices))
    first_cells, last_cells = cells_of(first), cells_of(last)
    for row in report.rows:
        yield [*map(neutral, row.keys), *first_cells(row), notice, *last_cells(row)]


def stranded_text(total: ReportRow) -> str:
    """What a reader of `(stranded)` must know."""
    currency = total.currency or ""
    cost = (
        ""
        if total.cost_minor is None
        else f"{Money.from_minor(total.cost_minor, currency).grouped()} {currency} of "
    )
    return (
        f"{cost}capacity ({total.gpu_hours:.1f} GPU-hours) lies outside every MIG slice: it is the"
        " row (stranded)"
    )


def as_json(
    report: Report, period: Period, notes: Sequence[str], waste: Sequence[WholeWaste] = ()
) -> Iterator[str]:
    """Rows, totals and waste as JSON in pieces: amounts as printed (text), and exact (`gpu_ns`,
    `cost_micro`).
    """
    return json_pieces(
        {
            "from": format_instant(period.start_ms),
            "to": format_instant(period.end_ms),
            "view": report.view,
            "by": list(report.by),
            "rows": (_object(row, report.by, report.view) for row in report.rows),
            "totals": [
                _object(row, (), report.view) | _unbilled_amounts(report, row)
                for row in report.totals
            ],
            "waste": [_waste_object(one) for one in waste],
            "notes": list(notes),
        }
    )


def _object(row: ReportRow, by: Sequence[str], view: str) -> dict[str, object]:
    return {
        **dict(zip(by, row.keys, strict=False)),
        **{column.name: column.text(row) or None for column in (*MEASURES, *ALLOCATIONS)},
        "gpu_ns": row.gpu_ns,
        "held_idle_gpu_ns": row.idle_ns,
        "cost_micro": row.cost_micro,
        "held_idle_cost_micro": row.idle_cost_micro,
        "waste_cost_micro": row.waste_micro,
        "shared_cost_micro": row.shared_micro,
        "energy_mj": row.energy_mj,
        "co2e_micrograms": row.co2e_micrograms,
        "list_cost_micro": row.list_micro,
        "contracted_cost_micro": row.contracted_micro,
        "compared_cost_micro": row.compared_micro,
        "effective_cost_micro": row.effective_micro,
        "adjusted_cost_micro": row.adjusted_micro,
        **({EXCHANGE: row.exchange} if row.exchange else {}),
        **{column.name: column.text(row) or None for column in _last(view)},
        "node_cost_micro": row.node_micro,
    }


def cash_line(report: Report, total: ReportRow) -> str:
    """The whole of the cash view in one line, and what of the other view stands beside it."""
    rows = [row for row in report.rows if row.currency == total.currency and row.state == PURCHASE]
    paid, bought, borne = (
        Money.from_minor(minor or 0, total.currency or "").grouped()
        for minor in (
            total.cost_minor,
            sum_known(row.cost_minor for row in rows),
            total.effective_minor,
        )
    )
    return (
        f"cash view: {paid} {total.currency} paid, of it {bought} in purchases; {borne} borne"
        " (cost_effective)"
    )


def _unbilled_amounts(report: Report, total: ReportRow) -> dict[str, object]:
    """What of a total no owner pays, and what owners pay."""
    paid = cost_by_payer(report, total)
    return {
        "cost_billed": None if paid is None else paid.billed.plain(),
        "cost_not_billed": None if paid is None else paid.not_billed.plain(),
    }


def unbilled_line(report: Report, total: ReportRow) -> str:
    """How much of a total no owner pays, in one line; empty where owners pay all of it."""
    paid = cost_by_payer(report, total)
    if paid is None or not paid.unbilled:
        return ""
    rate = f" ({total.exchange})" if total.exchange else ""
    return (
        f"not billed to any owner: {paid.not_billed.grouped()} of {paid.whole.grouped()}"
        f" {total.currency}{rate}: {', '.join(paid.unbilled)}"
    )


def _waste_object(waste: WholeWaste) -> dict[str, object]:
    def amount(minor: int | None) -> str | None:
        return None if minor is None else Money.from_minor(minor, waste.currency).plain()

    return {
        "currency": waste.currency,
        "cost_waste": amount(waste.minor),
        "waste_cost_micro": waste.micro,
        "parts": {name: amount(minor) for name, minor in waste.parts},
        "unknown_gpu_ns": waste.unknown_ns,
        "unknown_parts_gpu_ns": dict(waste.unknown.parts),
        **({EXCHANGE: waste.exchange} if waste.exchange else {}),
    }


UNKNOWN_WORDS = {
    UNOBSERVED: "that nobody observed",
    UNREAD: "held without a reading",
    IMPORTED: "imported from records that say nothing of work",
}
"""What is said of GPU-hours whose activity is not known."""


@dataclass(frozen=True, slots=True)
class SaidWaste:
    """The whole waste in words: the amount and what it consists of, then the GPU-hours of which it
    is not known, with their parts by name, in words that follow their hours.

    One part alone has no hours of its own: they are those of the whole.
    """

    words: str
    unknown_hours: str
    unknown: Sequence[tuple[str, str, str]]

    @property
    def text(self) -> str:
        """All of it in one line."""
        if not self.unknown:
            return self.words
        whole = f"{self.words}; not known of {self.unknown_hours} GPU-hours"
        if len(self.unknown) == 1:
            return f"{whole} {self.unknown[0][2]}"
        return f"{whole}: " + ", ".join(f"{hours} {words}" for _, hours, words in self.unknown)


def say_waste(waste: WholeWaste) -> SaidWaste:
    """Say the whole waste: the amount, what it consists of, and what is unknown."""

    def amount(minor: int | None) -> str:
        return "not known" if minor is None else Money.from_minor(minor, waste.currency).grouped()

    parts = ", ".join(f"{word_of(name)} {amount(minor)}" for name, minor in waste.parts)
    names = [name for name, _ in waste.unknown.parts]
    hours = hours_decimal([gpu_ns for _, gpu_ns in waste.unknown.parts], 1)
    whole = sum(hours, Decimal(0))
    return SaidWaste(
        f"waste: {amount(waste.minor)} of {amount(waste.cost_minor)} {waste.currency}"
        + (f" ({waste.exchange})" if waste.exchange else "")
        + (f": {parts}" if parts else ""),
        f"{whole:,}",
        [
            (name, f"{own:,}", UNKNOWN_WORDS[name])
            for name, own in zip(names, hours, strict=True)
            if own > 0
        ]
        if whole > 0
        else [],
    )


def waste_line(waste: WholeWaste) -> str:
    """The whole waste in one line."""
    return say_waste(waste).text


def shared_notes(shared: Sequence[SharedOut]) -> list[str]:
    """A sentence for each shared cost: what it is, how much, and by which key."""
    return [
        f"shared cost {cost.cost.name!r} ({source_text(cost.cost)}):"
        f" {Money(cost.micro, cost.currency)} by {key_text(cost.cost)}, per {cost.cost.level}"
        for cost in shared
    ]


def key_text(cost: SharedCost) -> str:
    """What a shared cost is split by, in words: a credit or a discount moves none of it."""
    return "cost of time and nodes before adjustments" if cost.key == COST else cost.key


def source_text(cost: SharedCost) -> str:
    """Where a shared cost comes from, in words."""
    if cost.source == AMOUNT:
        return "an amount a month"
    return f"cost of {cost.source} time" + (f" of pool {cost.pool}" if cost.pool else "")


def table_columns(report: Report) -> list[Column[ReportRow]]:
    """The amounts that a terminal shows: beside the measures those that say something; a total with
    shares. They are called as in a file.
    """
    more = (*ALLOCATIONS, NODES)
    filled = {column.name for row in report.rows for column in more if column.text(row)}
    # The line below the table says the waste, and where it is.
    filled -= {
        *(() if report.view == CASH else ("cost_effective",)),
        "cost_waste",
        *([] if "cost_shared" in filled else ["cost_total"]),
    }
    if all(row.list_minor == row.compared_minor for row in report.rows):
        filled.discard("cost_list")
    if all(row.contracted_minor == row.compared_minor for row in report.rows):
        filled.discard("cost_contracted")
    is_whole = all(row.compared_minor == row.cost_minor for row in report.rows)
    if is_whole or not filled & {"cost_list", "cost_contracted"}:
        filled.discard("cost_compared")
    if all(row.is_billed is not False for row in report.rows):
        filled.discard("billed")
    names = {
        *(column.name for column in MEASURES),
        *filled,
        *([EXCHANGE] if report.exchanged else []),
    }
    return [
        replace(column, heading=column.name, is_optional=column.name not in ALWAYS_SHOWN)
        for column in COLUMNS
        if column.name in names
    ]
