"""The chargeback of a period: what each owner pays, as the command, the API and the pages show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger_collector.accounting.cash import AMORTIZED, CASH
from gpuledger_collector.accounting.chargeback import (
    UNATTRIBUTED,
    Allocations,
    Report,
    ReportRow,
    SharedPart,
    add_up_corrections,
    report,
    shown_keys,
    totals,
)
from gpuledger_collector.accounting.exchange import Exchange, ExchangeByMonth, view
from gpuledger_collector.accounting.fair_share import ShareUse
from gpuledger_collector.accounting.ledger import ChargedLine, ConservationCheck
from gpuledger_collector.accounting.locations import NOWHERE
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.accounting.reserved_names import is_reserved
from gpuledger_collector.accounting.shared_costs import AMOUNT
from gpuledger_collector.accounting.usage import HELD, STRANDED
from gpuledger_collector.accounting.waste import NO_IMPORTS, WholeWaste, whole_waste
from gpuledger_collector.export.chargeback import shared_notes, stranded_text
from gpuledger_collector.export.disputes import amounts, owner_text
from gpuledger_collector.export.focus import Notices
from gpuledger_collector.storage.billing import (
    cash,
    commitments,
    disputes,
    locations,
    periods,
    reports,
)
from gpuledger_collector.storage.billing.allocation import allocate, own_carbon, own_shared
from gpuledger_collector.storage.billing.cost_centers import BilledCodes
from gpuledger_collector.storage.billing.owner_rows import owner_rows
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer
from gpuledger_common.plurals import plural

NO_INVENTORY = (
    "there is no inventory for these days, so unallocated and unobserved time is unknown "
    "(agents report one, or `gpuledger import inventory`)"
)


@dataclass(frozen=True, slots=True)
class Chargeback:
    """The report, every share of a common cost in it, and what teams held of their shares of pools
    where asked for.
    """

    report: Report
    shares: Sequence[SharedPart] = field(default_factory=list)
    pool_use: Sequence[ShareUse] = ()


@dataclass(frozen=True, slots=True)
class Bill:
    """A report of a period with what its reader must know of it.

    `notices` change how a number is read, and every form has them; whoever sees one owner's part is
    told nothing of others' imports and disputes. `notes` are all sentences about it.
    """

    report: Report
    period: Period
    months: Sequence[str]
    has_inventory: bool
    rated_ms: int
    notices: Sequence[str]
    notes: Sequence[str]
    imported_ns: Mapping[str, int] = field(default_factory=dict)
    """By currency, the time that was imported as counts of GPUs; none of a part of the rows."""

    @property
    def waste(self) -> Sequence[WholeWaste]:
        """Waste by currency."""
        return whole_waste(self.report.rows, self.has_inventory, self.months, self.imported_ns)

    def only(self, condition: Callable[[ReportRow], bool]) -> Bill:
        """The rows that meet a condition, with their totals."""
        rows = tuple(row for row in self.report.rows if condition(row))
        narrowed = replace(self.report, rows=rows, totals=totals(rows))
        return replace(self, report=narrowed, imported_ns=NO_IMPORTS)


def read_bill(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    now_ms: int,
    owner: Mapping[str, str] | None = None,
    view: str = AMORTIZED,
) -> Bill:
    """Report a period with its notices, as borne (`read_chargeback`) or as paid (`read_cash`).

    Raises ValueError for a viewer's cash view.
    """
    if view == CASH:
        if owner is not None:
            raise ValueError(
                "view=cash is what is paid to providers, which is no owner's: ask with a token that"
                " sees all"
            )
        found = read_cash(connection, period, by, now_ms).report
    else:
        found = read_chargeback(connection, period, by, now_ms, owner).report
    has_inventory = reports.has_capacity(connection, period)
    checks = reports.conservation_checks(connection, period)
    told = [] if has_inventory else [NO_INVENTORY]
    if owner is None:
        told = notices(connection, period, now_ms, found)
    return Bill(
        report=found,
        period=period,
        months=zones.calendar(connection).months_of(period),
        has_inventory=has_inventory,
        rated_ms=max((check.until_ms for check in checks), default=period.start_ms),
        notices=told,
        notes=told + shared_notes(found.shared),
        imported_ns=read_imported_ns(connection, period, checks, owner),
    )


def read_imported_ns(
    connection: Connection,
    period: Period,
    checks: Sequence[ConservationCheck],
    owner: Mapping[str, str] | None,
) -> Mapping[str, int]:
    """The time of a period that was imported as counts of GPUs, by currency; of an owner its own.

    `checks` are those of the period: most fleets import nothing, and no charge is read for them.
    """
    if not any(check.imported_ns for check in checks):
        return NO_IMPORTS
    with as_viewer(connection, owner):
        return reports.imported_ns(connection, period, owner)


def read_priced_bill(
    connection: Connection, period: Period, by: Sequence[str], now_ms: int, view: str, currency: str
) -> Bill:
    """Report a period to everybody, in another currency where one is given (else empty).

    While nothing has a price, it is hours by who held them. Raises ValueError without any exchange
    rate into the currency.
    """
    bill = read_bill(connection, period, by, now_ms, view=view)
    if bill.report.has_no_price and view != CASH:
        hours = _read_before_prices(connection, period, by)
        bill = replace(bill, report=hours, notes=[*bill.notes, _no_price_note(period)])
    if not currency:
        return bill
    converted, missing = convert_chargeback(connection, period, by, currency, now_ms)
    return replace(
        bill,
        report=converted,
        notices=[*bill.notices, *missing],
        notes=[*bill.notes, *missing],
    )


def read_chargeback(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    now_ms: int,
    owner: Mapping[str, str] | None = None,
    *,
    separate_corrections: bool = True,
) -> Chargeback:
    """Report what a period bills by these dimensions, from what is rated by now; call `refresh`
    before it.

    `owner` (levels of the tree) restricts the report to what that owner pays, read under row-level
    security. Shares of common costs are computed from the full ledger in either case: a share
    depends on what everybody else held. By the level of such an owner its rows are those of the
    full report, to the cent; by anything else they are rounded by themselves.
    """
    if owner is not None and len(owner) == 1 and tuple(owner) == tuple(by):
        found = _owner_report(
            connection, period, owner, now_ms, separate_corrections=separate_corrections
        )
        return Chargeback(_with_codes(connection, period, found, owner))
    lines = visible_lines(connection, period, by, owner, separate_corrections=True)
    # Outside of the viewer's rights: shares of one owner depend on what everybody else held.
    allocations = allocate(connection, period, by, now_ms, owner)
    if owner is not None:
        allocations = _visible_allocations(allocations, {shown_keys(line, by) for line in lines})
    found = report(lines, by, allocations, separate_corrections=separate_corrections)
    return Chargeback(_with_codes(connection, period, found, owner), allocations.parts)


def _owner_report(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    now_ms: int,
    *,
    separate_corrections: bool,
) -> Report:
    """The rows of one owner (level -> value) in the full report by its level, and its usage without
    a price.
    """
    ((level, name),) = owner.items()
    rows = _rows_of(
        connection, period, level, name, now_ms, separate_corrections=separate_corrections
    )
    lines = visible_lines(connection, period, (level,), owner, separate_corrections=True)
    # Usage without a price is one row of everybody's, of which a viewer sees its own part.
    unpriced = [line for line in lines if line.currency is None]
    if unpriced:
        carbon = own_carbon(connection, period, (level,), owner)
        carbon.emitted = {key: grams for key, grams in carbon.emitted.items() if key[0] is None}
        rows += report(unpriced, (level,), carbon, separate_corrections=separate_corrections).rows
    return Report((level,), tuple(rows), totals(rows))


def read_owner_chargeback(
    connection: Connection,
    period: Period,
    level: str,
    owner: str,
    now_ms: int,
    *,
    separate_corrections: bool = True,
) -> Chargeback:
    """The rows of one owner in the full report by its level, and its shares; usage without a price
    is left out.
    """
    name = "" if owner == UNATTRIBUTED else owner
    rows = _rows_of(
        connection, period, level, name, now_ms, separate_corrections=separate_corrections
    )
    parts = own_shared(connection, period, (level,), now_ms, {level: name}).parts
    found = _with_codes(
        connection, period, Report((level,), tuple(rows), totals(rows)), {level: name}
    )
    return Chargeback(found, [part for part in parts if part.keys == (owner or UNATTRIBUTED,)])


def _rows_of(
    connection: Connection,
    period: Period,
    level: str,
    owner: str,
    now_ms: int,
    *,
    separate_corrections: bool,
) -> list[ReportRow]:
    """The rows of an owner (empty: of nobody known) in the full report by its level."""
    rows = owner_rows(connection, period, level, owner, now_ms)
    if separate_corrections:
        return rows
    currencies = dict.fromkeys(row.currency for row in rows)
    return [
        row
        for currency in currencies
        for row in add_up_corrections(row for row in rows if row.currency == currency)
    ]


def _with_codes(
    connection: Connection,
    period: Period,
    chargeback: Report,
    owner: Mapping[str, str] | None = None,
) -> Report:
    """The report with the cost centers and GL codes of its owners; `owner`: all of them are below
    this one.
    """
    codes = BilledCodes(connection).of_rows(period, chargeback.by, owner)
    if not codes:
        return chargeback
    levels = [at for at, name in enumerate(chargeback.by) if name in LEVELS]
    rows = []
    for row in chargeback.rows:
        names = tuple("" if row.keys[at] == UNATTRIBUTED else row.keys[at] for at in levels)
        own = codes.get(names) if row.state == HELD else None
        rows.append(
            row if own is None else replace(row, cost_center=own.cost_center, gl_code=own.gl_code)
        )
    return replace(chargeback, rows=tuple(rows))


def read_cash(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    now_ms: int,
    *,
    separate_corrections: bool = True,
) -> Chargeback:
    """Report what is paid for a period, as `read_chargeback` reports what is borne.

    Payments are rows of nobody; of shared costs only amounts are paid, what is moved between owners
    is not.
    """
    paid = cash.payments(connection, period, now_ms)
    lines = cash.lines(connection, period, by, apart=True)
    calendar, places = zones.calendar(connection), locations.by_month(connection, period)
    lines += cash.purchase_lines(
        paid, by, lambda at_ms: places.get(calendar.month_of(at_ms), NOWHERE), apart=True
    )
    allocations = allocate(connection, period, by, now_ms)
    parts = [part for part in allocations.parts if part.cost.source == AMOUNT]
    shared: Counter[tuple[str | None, tuple[str, ...]]] = Counter()
    for part in parts:
        shared[part.currency, part.keys] += part.micro
    costs = [out for out in allocations.costs if out.cost.source == AMOUNT]
    parted = Allocations(dict(shared), allocations.emitted, costs, parts)
    found = report(lines, by, parted, separate_corrections=separate_corrections)
    return Chargeback(replace(found, view=CASH), parts)


def direct_costs_by_team(
    connection: Connection, period: Period, owner: Mapping[str, str] | None
) -> Report:
    """Report the direct cost by team as an owner may see it, without shares and carbon; corrections
    in rows apart.

    A team's row is that of the full report, so that its cents agree with it; a smaller subtree has
    a report of its own.
    """
    if owner is not None and set(owner) != {"team"}:
        lines = visible_lines(connection, period, ("team",), owner, separate_corrections=True)
        return report(lines, ("team",))
    if owner is None:
        return report(reports.charged_lines(connection, period, ("team",), apart=True), ("team",))
    rows = owner_rows(connection, period, "team", owner["team"], 0, is_allocated=False)
    return Report(("team",), tuple(rows), totals(rows))


def convert_chargeback(
    connection: Connection, period: Period, by: Sequence[str], currency: str, now_ms: int
) -> tuple[Report, list[str]]:
    """Report a period in another currency, with notes on what has no rate.

    Raises ValueError without any rate into it.

    Each range of days is converted at the rate that is in force then; of a closed month, as
    declared at its close.
    """
    known = sorted({rate.to_currency for rate in commitments.EXCHANGE_RATES.in_force(connection)})
    exchange, notes = _exchange(connection, period, currency)
    if exchange is None:
        raise ValueError(
            f"there is no exchange rate into {currency!r}; there are [[exchange]] rates into "
            f"{', '.join(known) or 'none'} (gpuledger apply)"
        )
    parts = [
        (
            span,
            reports.charged_lines(connection, span, by, apart=True),
            allocate(connection, span, by, now_ms),
        )
        for span in exchange.spans()
    ]
    converted = view(parts, by, exchange)
    kept = sorted(
        {row.currency for row in converted.rows if row.currency not in {None, currency}} - {None}
    )
    notes += [
        f"no rate from {name} to {currency} holds on some of these days: they stay in {name}"
        for name in kept
    ]
    return converted, notes


def _exchange(
    connection: Connection, period: Period, currency: str
) -> tuple[ExchangeByMonth | None, list[str]]:
    """The rates into a currency by month, None where there never was one; with notes on closed
    months at today's.
    """
    calendar = zones.calendar(connection)
    months: list[tuple[Period, Exchange]] = []
    today: list[str] = []
    has_rate = False
    for name, closed_ms in periods.declarations_at(connection, calendar, period).items():
        rates = [
            rate
            for rate in commitments.EXCHANGE_RATES.in_force(connection, closed_ms)
            if rate.to_currency == currency
        ]
        if not rates and closed_ms is not None:
            rates = [
                rate
                for rate in commitments.EXCHANGE_RATES.in_force(connection)
                if rate.to_currency == currency
            ]
            today.append(name)
        has_rate = has_rate or bool(rates)
        month = period.clip(calendar.month(name))
        assert month is not None
        months.append((month, Exchange(rates, currency, calendar)))
    notes = [
        f"{name} is at today's rate: none into {currency} was declared when it was closed"
        for name in today
    ]
    return (ExchangeByMonth(months), notes) if has_rate else (None, [])


def _no_price_note(period: Period) -> str:
    """What makes the hours of a period a bill."""
    price = (
        "gpuledger prices set --rate 2.50 --currency USD --from"
        f" {format_instant(period.start_ms)[:10]}"
    )
    return f"these are hours: nothing has a price yet. One makes them a bill: {price}"


def _read_before_prices(connection: Connection, period: Period, by: Sequence[str]) -> Report:
    """Report who held what while nothing has a price: hours by these dimensions, cost unknown, most
    hours first.
    """
    held = report(reports.charged_lines(connection, period, by), by, unpriced_by_holder=True)
    return replace(held, rows=tuple(sorted(held.rows, key=lambda row: (-row.gpu_ns, row.keys))))


def displaced_notices(connection: Connection, period: Period) -> dict[str, str]:
    """By pool, a sentence about imported usage that is not counted."""
    return {
        pool: (
            f"accelerators were seen in pool {pool!r}: their time takes the place of as much usage"
            f" of {plural(count, 'imported workload')} in it"
        )
        for pool, count in reports.displaced_imports(connection, period)
    }


def standing_notices(connection: Connection, period: Period) -> Notices:
    """What a reader of exported rows of a period must know, whoever contests what and however far
    it is rated.
    """
    whole = [] if reports.has_capacity(connection, period) else [NO_INVENTORY]
    return Notices(whole, displaced_notices(connection, period))


def notices_by_month(connection: Connection, period: Period, now_ms: int) -> dict[str, Notices]:
    """For an export; a closed month keeps those of its close, so that its export stays the same."""
    calendar = zones.calendar(connection)
    closed = {month.name for month in periods.list_closed(connection)}
    found: dict[str, Notices] = {}
    for name in dict.fromkeys(calendar.month_of(day.start_ms) for day in calendar.days(period)):
        if name in closed:
            kept = (periods.receipt(connection, name) or {}).get("notices", {})
            found[name] = Notices(kept.get("whole", ()), kept.get("of_pool", {}))
            continue
        part = calendar.month(name).clip(period)
        assert part is not None
        standing = standing_notices(connection, part)
        found[name] = Notices(
            [*standing.whole, *_rated_until(connection, part, now_ms)], standing.of_pool
        )
    return found


def _rated_until(connection: Connection, period: Period, now_ms: int) -> list[str]:
    """A sentence where the range has not ended."""
    if now_ms >= period.end_ms:
        return []
    # On a read replica the primary rated last, which is not now.
    checks = reports.conservation_checks(connection, period)
    rated_ms = max((check.until_ms for check in checks), default=now_ms)
    return [f"the range has not ended: rated up to {format_instant(rated_ms - rated_ms % 1000)}"]


def notices(connection: Connection, period: Period, now_ms: int, chargeback: Report) -> list[str]:
    """What changes how a number of the full bill is read; every form of it has them."""
    notes = _standing(connection, period, now_ms)
    notes += [
        f"{owner_text(dispute.owner)} contests {amounts(dispute.cost)} of it (dispute {dispute.id},"
        f" {dispute.state})"
        for dispute in disputes.waiting(connection, period)
    ]
    notes += [text for text in _rated_until(connection, period, now_ms) if text not in notes]
    stranded = totals([row for row in chargeback.rows if row.state == STRANDED])
    notes += [stranded_text(total) for total in stranded]
    notes += [
        f"{total.gpu_hours} GPU-hours have no price (`gpuledger prices list` shows the price book)"
        for total in chargeback.totals
        if total.currency is None
    ]
    return notes


def _standing(connection: Connection, period: Period, now_ms: int) -> list[str]:
    """Standing notices of a period; closed months in it keep those of their close, whatever was
    seen since.
    """
    calendar = zones.calendar(connection)
    names = {calendar.month_of(day.start_ms) for day in calendar.days(period)}
    if names.isdisjoint(month.name for month in periods.list_closed(connection)):
        standing = standing_notices(connection, period)
        return [*standing.whole, *standing.of_pool.values()]
    months = notices_by_month(connection, period, now_ms).values()
    return list(
        dict.fromkeys(text for month in months for text in (*month.whole, *month.of_pool.values()))
    )


@dataclass(frozen=True, slots=True)
class HeldName:
    """A name that the ledger has in a dimension, and the GPU-nanoseconds under it."""

    name: str
    gpu_ns: int


def list_names(
    connection: Connection,
    period: Period,
    dimension: str,
    owner: Mapping[str, str] | None,
    *,
    contains: str = "",
) -> list[HeldName]:
    """Names of a dimension in what an owner is charged, most time first; `contains`, in any case."""
    held: Counter[str] = Counter()
    for line in visible_lines(connection, period, (dimension,), owner):
        held[line.keys[0]] += line.gpu_ns
    names = [
        HeldName(name, gpu_ns)
        for name, gpu_ns in held.items()
        if name and not is_reserved(name) and contains.casefold() in name.casefold()
    ]
    return sorted(names, key=lambda item: (-item.gpu_ns, item.name))


def visible_lines(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    owner: Mapping[str, str] | None,
    *,
    separate_corrections: bool = False,
) -> list[ChargedLine]:
    """The charged lines of an owner (None: of everybody), by these dimensions, read with its rights."""
    with as_viewer(connection, owner):
        return reports.charged_lines(
            connection, period, by, apart=separate_corrections, owner=owner
        )


def _visible_allocations(allocations: Allocations, cells: set[tuple[str, ...]]) -> Allocations:
    """The allocations to these rows alone."""
    return Allocations(
        shared={key: micro for key, micro in allocations.shared.items() if key[1] in cells},
        emitted={key: grams for key, grams in allocations.emitted.items() if key[1] in cells},
    )
