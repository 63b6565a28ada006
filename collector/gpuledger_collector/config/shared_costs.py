"""Shared costs and carbon intensities as a TOML file declares them ([[shared_cost]], [[carbon]] of `declared`).

    [[shared_cost]]
    name = "support"
    amount_per_month = 1200
    currency = "USD"
    key = "cost"

    [[shared_cost]]
    name = "idle capacity of the research pool"
    source = "unallocated"
    pool = "research"
    key = "weights"
    weights = { vision = 60, nlp = 40 }
    scope = { org = "acme" }

    [[carbon]]
    region = "eu-north"
    pool = "h100"
    grams_per_kwh = 24.5
    pue = 1.15
    effective_from = 2026-01-01

Dates are days of the bill, in its zone; `effective_to` is not included.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.budgets import parse_amount
from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.names import is_reserved, reserved_message
from gpuledger_collector.accounting.shared_costs import AMOUNT, KEYS, SOURCES, SharedCost
from gpuledger_collector.accounting.tags import LEVELS
from gpuledger_collector.config.table import RowReader

SHARED_KEYS = (
    "name",
    "source",
    "amount_per_month",
    "currency",
    "pool",
    "key",
    "level",
    "weights",
    "scope",
    "effective_from",
    "effective_to",
)
CARBON_KEYS = ("region", "pool", "grams_per_kwh", "pue", "effective_from", "effective_to")
MOST_GRAMS = 10_000
MOST_PUE = 10
MOST_WEIGHT = 10**12


def read_shared_costs(rows: Iterable[tuple[RowReader, Mapping[str, Any]]]) -> list[SharedCost]:
    """The shared costs of the rows that are good; problems are noted at the others."""
    found: list[SharedCost] = []
    for row, given in rows:
        cost = _shared(row, given)
        if cost is None:
            continue
        if any(_overlap(cost, other) for other in found if other.name == cost.name):
            row.refuse("name", "double_name", f"{cost.name!r} is shared already on some of these days")
        found.append(cost)
    return found


def _shared(row: RowReader, given: Mapping[str, Any]) -> SharedCost | None:
    name = row.text("name", required=True)
    source = row.text("source") or AMOUNT
    if source not in SOURCES:
        row.refuse("source", "bad_source", f"{source!r} is not one of {', '.join(SOURCES)}")
    key = row.text("key", required=True)
    if key and key not in KEYS:
        row.refuse("key", "bad_key", f"{key!r} is not one of {', '.join(KEYS)}")
    level = row.text("level") or "team"
    if level not in LEVELS:
        row.refuse("level", "bad_level", f"{level!r} is no level of the owner tree; levels are {', '.join(LEVELS)}")
    amount, currency = _amount(row, source)
    pool = row.name("pool")
    if pool and source == AMOUNT:
        row.refuse("pool", "not_a_state", f"belongs to source = {', '.join(repr(one) for one in SOURCES[1:])}")
    weights = _weights(row, given, key)
    scope = _scope(row, given)
    starts, ends = dates(row)
    if row.bad:
        return None
    return SharedCost(name, source, amount, currency, pool, key, level, weights, scope, starts, ends)


def _amount(row: RowReader, source: str) -> tuple[int | None, str | None]:
    """Micro-units a month and their currency; neither for the cost of a state."""
    text = row.text("amount_per_month")
    if source != AMOUNT:
        for column, value in (("amount_per_month", text), ("currency", row.text("currency"))):
            if value:
                row.refuse(column, "not_an_amount", f"belongs to source = {AMOUNT!r}, not to {source!r}")
        return None, None
    currency = row.currency("currency")
    try:
        return parse_amount(text), currency
    except ValueError as error:
        row.refuse("amount_per_month", "bad_amount", str(error))
        return None, None


def _weights(row: RowReader, given: Mapping[str, Any], key: str) -> dict[str, int]:
    found = given.get("weights", {})
    if key != "weights":
        if "weights" in given:
            row.refuse("weights", "not_weighed", 'belongs to key = "weights"')
        return {}
    good = isinstance(found, dict) and all(
        isinstance(weight, int) and not isinstance(weight, bool) and 0 <= weight <= MOST_WEIGHT
        for weight in found.values()
    )
    if not good or not any(found.values()):
        row.refuse("weights", "bad_weights", "must be whole numbers by owner, such as { vision = 60, nlp = 40 }")
        return {}
    _refuse_reserved(row, "weights", found)
    return dict(found)


def _scope(row: RowReader, given: Mapping[str, Any]) -> dict[str, str]:
    found = given.get("scope", {})
    if not isinstance(found, dict) or not all(isinstance(owner, str) and owner for owner in found.values()):
        row.refuse("scope", "bad_table", 'is not a table of texts, such as { org = "acme" }')
        return {}
    for level in found:
        if level not in LEVELS:
            row.refuse("scope", "bad_level", f"{level!r} is no level of the owner tree")
    _refuse_reserved(row, "scope", found.values())
    return dict(found)


def _refuse_reserved(row: RowReader, column: str, owners: Iterable[str]) -> None:
    for owner in owners:
        if is_reserved(owner):
            row.refuse(column, "reserved_name", reserved_message(owner))


def read_carbon(rows: Iterable[tuple[RowReader, Mapping[str, Any]]]) -> list[Intensity]:
    """The carbon intensities of the rows that are good; problems are noted at the others."""
    found: list[Intensity] = []
    for row, _ in rows:
        grams = row.decimal("grams_per_kwh", digits=3, most=MOST_GRAMS, required=True)
        pue = row.decimal("pue", digits=3, most=MOST_PUE)
        if pue is not None and pue < 1:
            row.refuse("pue", "out_of_range", f"{pue} is under 1: a building uses what its machines use, and more")
        starts, ends = dates(row)
        texts = row.text("region"), row.name("pool")
        if row.bad or grams is None:
            continue
        one = Intensity(*texts, grams, Decimal(1) if pue is None else pue, starts, ends)
        if any(other.pool == one.pool and other.from_on == one.from_on for other in found):
            row.refuse("effective_from", "double_intensity", "this pool has an intensity from that day already")
        found.append(one)
    return found


def dates(row: RowReader) -> tuple[dt.date | None, dt.date | None]:
    """`effective_from` and `effective_to` of a row as days."""
    starts, ends = (_date(row, column) for column in ("effective_from", "effective_to"))
    if starts is not None and ends is not None and ends <= starts:
        row.refuse("effective_to", "order", "does not lie after effective_from")
    return starts, ends


def _date(row: RowReader, column: str) -> dt.date | None:
    text = row.text(column)
    if not text:
        return None
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        row.refuse(column, "bad_date", f"{text!r} is not a day; write it as 2026-10-31")
        return None


def _overlap(one: SharedCost, other: SharedCost) -> bool:
    def before(end: dt.date | None, start: dt.date | None) -> bool:
        return end is not None and start is not None and end <= start

    return not before(one.to_on, other.from_on) and not before(other.to_on, one.from_on)
