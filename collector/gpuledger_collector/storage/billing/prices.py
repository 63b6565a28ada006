"""The price book in Postgres: versions are added and superseded, never edited."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from gpuledger_collector.accounting.import_progress import OnRow, RowStages, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.problems import CurrencyChanged, Problem
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import commitments, locations, node_purchases
from gpuledger_collector.storage.ledger import usage, zones
from gpuledger_collector.storage.ledger.usage import request_days_with_evidence
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_as, select_value
from gpuledger_common.instants import to_datetime

_SELECT = """SELECT id, pool, gpu_model, purchase, rate_per_gpu_hour AS rate, currency, effective_from_ms,
    effective_to_ms, list_rate, region, node, basis FROM price"""
_WRITTEN = """pool, gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms, effective_to_ms, list_rate,
    region, node, basis, recorded_at"""
PRICE_STAGES = 3
"""What every price passes: comparing, writing, and the days to be rated again."""


def current(connection: Connection) -> list[Price]:
    """The price book in force, oldest first."""
    where = "superseded_at IS NULL ORDER BY effective_from_ms, id"
    return select_as(connection, Price, f"{_SELECT} WHERE {where}")


def price_book(connection: Connection, period: Period | None) -> PriceBook:
    """Prices and purchase choices in force, and what nodes say of a period; hours are not cut where
    attribution rules change.

    `period`: what is priced; None: no node is.
    """
    return PriceBook(
        current(connection),
        commitments.CHOICES.in_force(connection),
        locations=locations.current(connection),
        said=None if period is None else node_purchases.during(connection, period),
    )


def by_id(connection: Connection, ids: Iterable[int]) -> dict[int | None, Price]:
    """Prices by id, superseded ones too: charges name the version that they were rated by."""
    return {
        price.id: price
        for price in select_as(connection, Price, f"{_SELECT} WHERE id = ANY(%s)", (list(ids),))
    }


def in_force_during(connection: Connection, period: Period) -> dict[int, Price]:
    """Prices that held at some time in a period, superseded ones too, by id."""
    return {
        price.id: price
        for price in select_as(
            connection,
            Price,
            f"{_SELECT} WHERE effective_from_ms < %s AND (effective_to_ms IS NULL OR effective_to_ms > %s)",
            (period.end_ms, period.start_ms),
        )
        if price.id is not None
    }


def has_change(connection: Connection, period: Period) -> bool:
    """Whether any price, superseded ones too, begins within a period."""
    return bool(
        select_value(
            connection,
            "SELECT EXISTS (SELECT FROM price WHERE effective_from_ms > %s AND effective_from_ms < %s)",
            (period.start_ms, period.end_ms),
        )
    )


def currency_changes(connection: Connection, prices: Sequence[Price]) -> list[Problem]:
    """A problem for each price that the book has in another currency: a rate is superseded, a
    currency is not.
    """
    # Until COMMIT: two imports would otherwise both find no price in force and both add one.
    locks.take(connection, Lock.PRICES)
    known = {price.identity: price for price in current(connection)}
    problems = []
    for price in prices:
        old = known.setdefault(price.identity, price)
        if old.currency != price.currency:
            message = (
                f"{_place(price)} is priced in {old.currency} and cannot become {price.currency}:"
                " end that rate by its effective_to, and start the other currency at a later"
                " instant"
            )
            problems.append(
                Problem("currency_changed", f"{price.source or 'price'}:currency", message)
            )
    return problems


def add(
    connection: Connection, prices: Sequence[Price], now_ms: int, on_row: OnRow = tell_nobody
) -> ImportOutcome:
    """Add these prices; a row that says the same as the one in force changes nothing, another one
    supersedes it.

    `on_row` is told how far it is. Raises CurrencyChanged.
    """
    problems = currency_changes(connection, prices)
    if problems:
        raise CurrencyChanged(problems)
    # Under the lock that `currency_changes` has taken.
    known = {price.identity: price for price in current(connection)}
    changed: list[Price] = []
    new: list[Price] = []
    changes: list[audit.Change] = []
    added = updated = 0
    stages = RowStages(prices, PRICE_STAGES, on_row)
    for price in stages.one_by_one():
        old = known.get(price.identity)
        if old is not None and _says_the_same(old, price):
            continue
        if old is None:
            added += 1
        else:
            updated += 1
            changed.append(old)
        changed.append(price)
        new.append(price)
        changes.append(
            audit.Change(
                "price", _place(price), None if old is None else _facts(old), _facts(price)
            )
        )
    _supersede(connection, [price.id for price in changed if price.id is not None], now_ms)
    _insert(connection, new, now_ms)
    audit.record(connection, changes, now_ms)
    stages.pass_stage()
    # Old and new versions: days that only the old one covered must be rated again as well.
    days = _request_days(connection, changed, now_ms)
    stages.pass_stage()
    return ImportOutcome(added, updated, len(prices) - added - updated, days)


def add_derived(connection: Connection, prices: Sequence[Price], now_ms: int) -> ImportOutcome:
    """Add these derived prices; others that were derived from hardware of the same names are
    superseded.
    """
    locks.take(connection, Lock.PRICES)
    names = {price.basis["name"] for price in prices if price.basis is not None}
    wanted = {price.identity for price in prices}
    derived = (
        price
        for price in current(connection)
        if price.basis is not None and price.basis.get("name") in names
    )
    removed = [price for price in derived if price.identity not in wanted]
    _supersede(connection, [price.id for price in removed if price.id is not None], now_ms)
    audit.record(
        connection,
        [audit.Change("price", _place(price), _facts(price), None) for price in removed],
        now_ms,
    )
    days = _request_days(connection, removed, now_ms)
    done = add(connection, prices, now_ms)
    return ImportOutcome(
        done.added, done.updated + len(removed), done.unchanged, done.days_to_recompute + days
    )


def _supersede(connection: Connection, ids: Sequence[int], now_ms: int) -> None:
    if ids:
        connection.execute(
            "UPDATE price SET superseded_at = %s WHERE id = ANY(%s)", (to_datetime(now_ms), ids)
        )


def _insert(connection: Connection, prices: Sequence[Price], now_ms: int) -> None:
    with connection.cursor().copy(f"COPY price ({_WRITTEN}) FROM STDIN") as copy:
        for price in prices:
            copy.write_row(
                (
                    price.pool,
                    price.gpu_model,
                    price.purchase,
                    price.rate,
                    price.currency,
                    price.effective_from_ms,
                    price.effective_to_ms,
                    price.list_rate,
                    price.region,
                    price.node,
                    None if price.basis is None else json.dumps(price.basis),
                    to_datetime(now_ms),
                )
            )


def _facts(price: Price) -> dict[str, object]:
    """What the audit log keeps of a price; rates as text, for they are exact."""
    unsaid = {"id", "source"} if price.basis is not None else {"id", "source", "basis"}
    return {name: value for name, value in asdict(price).items() if name not in unsaid}


def _place(price: Price) -> str:
    """Where a price holds, for people."""
    names = (price.pool, price.gpu_model, price.purchase, price.region, price.node)
    return (
        f"{' '.join(name for name in names if name)} from {format_instant(price.effective_from_ms)}"
    )


def _says_the_same(old: Price, new: Price) -> bool:
    """Whether both ask the same; a rate that is written without its derivation does not say that it
    had none.
    """
    return _amounts(old) == _amounts(new) and (new.basis is None or old.basis == new.basis)


def _amounts(price: Price) -> tuple[object, ...]:
    return (price.rate, price.currency, price.effective_to_ms, price.list_rate)


def _request_days(connection: Connection, changed: Sequence[Price], now_ms: int) -> int:
    """Mark the days that these prices touch, and the hours inside which one begins or ends; how
    many days.
    """
    if not changed:
        return 0
    bounds = {price.effective_from_ms for price in changed} | {
        price.effective_to_ms for price in changed
    }
    usage.request_recompute_at(connection, [at for at in bounds if at is not None])
    first = min(price.effective_from_ms for price in changed)
    last = max(
        now_ms if price.effective_to_ms is None else price.effective_to_ms for price in changed
    )
    return request_days_with_evidence(connection, first, min(last, now_ms))


def request_dated_days(
    connection: Connection, from_on: dt.date | None, to_on: dt.date | None, now_ms: int
) -> int:
    """Mark the days with evidence for which a dated declaration holds, up to now."""
    calendar = zones.calendar(connection)
    first = 0 if from_on is None else calendar.start_of(from_on)
    last = now_ms if to_on is None else min(now_ms, calendar.start_of(to_on))
    return request_days_with_evidence(connection, first, last) if last >= first else 0
