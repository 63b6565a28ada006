"""Corrections: what a closed day would be charged now, less what it has been charged so far.

A closed period never changes. When evidence, a price or a rule changes a day of it afterwards, the day is rated again
and the difference is booked in an open period, line by line: closed charges + all corrections = the charges rated anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.ledger import add_known
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rating import Charge

_AMOUNTS = (
    "gpu_ns",
    "busy_ns",
    "idle_ns",
    "unknown_ns",
    "cost_micro",
    "idle_cost_micro",
    "list_cost_micro",
    "energy_mj",
    "contracted_cost_micro",
)


def difference(before: Iterable[Charge], after: Iterable[Charge]) -> list[Charge]:
    """Lines that turn the charges `before` into those `after`; amounts may be negative, and none is all zero.

    Charges are compared by everything but their amounts and the exact start and end of their line, prices by their
    terms: a price book that was written anew with the same rates changes nothing. An amount that was known and is not
    any more (or the other way round) counts as the whole of it.
    """
    old, new = _by_key(before), _by_key(after)
    lines = []
    for key in {**old, **new}:
        was, now = old.get(key), new.get(key)
        sample = now or was
        assert sample is not None
        amounts: dict[str, Any] = {
            name: _less(None if now is None else getattr(now, name), None if was is None else getattr(was, name))
            for name in _AMOUNTS
        }
        if was is not None and was.contracted_cost_micro is None:
            amounts["contracted_cost_micro"] = None
        # What the price book would have asked is told with a correction, and is no reason for one.
        if any(value for name, value in amounts.items() if name != "contracted_cost_micro"):
            lines.append(replace(sample, **amounts))
    return sorted(lines, key=_order)


def total(charges: Iterable[Charge]) -> list[Charge]:
    """Charges of one day with equal keys added up: closed lines and their corrections as one state of affairs."""
    return sorted((charge for charge in _by_key(charges).values() if _says_something(charge)), key=_order)


def _by_key(charges: Iterable[Charge]) -> dict[object, Charge]:
    found: dict[object, Charge] = {}
    for charge in charges:
        key = (
            charge.day_ms,
            charge.accelerator_id,
            charge.workload_id,
            charge.owner,
            charge.state,
            charge.pool,
            charge.gpu_model,
            charge.node,
            _terms(charge.price),
            charge.currency,
            _committed(charge.commitment),
        )
        known = found.get(key)
        found[key] = charge if known is None else _sum(known, charge)
    return found


def _terms(price: Price | None) -> object:
    return None if price is None else (price.purchase, price.rate, price.list_rate, price.region)


def _committed(commitment: Commitment | None) -> object:
    return None if commitment is None else replace(commitment, id=None)


def _sum(one: Charge, other: Charge) -> Charge:
    amounts: dict[str, Any] = {name: add_known(getattr(one, name), getattr(other, name)) for name in _AMOUNTS}
    return replace(one, start_ms=min(one.start_ms, other.start_ms), end_ms=max(one.end_ms, other.end_ms), **amounts)


def _less(now: int | None, was: int | None) -> int | None:
    if now is None and was is None:
        return None
    return (now or 0) - (was or 0)


def _says_something(charge: Charge) -> bool:
    return any(getattr(charge, name) for name in _AMOUNTS)


def _order(charge: Charge) -> tuple[object, ...]:
    price = charge.price
    return (
        charge.day_ms,
        charge.accelerator_id or 0,
        charge.workload_id or 0,
        charge.state,
        charge.pool,
        charge.gpu_model,
        charge.node,
        charge.start_ms,
        price.id if price is not None and price.id is not None else 0,
        str(charge.owner),
        "" if charge.commitment is None else charge.commitment.name,
    )
