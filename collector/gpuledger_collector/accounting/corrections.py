"""Corrections: what a closed day would be charged now, less what it has been charged so far.

A closed period never changes. When evidence, a price or a rule changes a day of it afterwards, the
day is rated again and the difference is booked in an open period, line by line: closed charges +
all corrections = the charges rated anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuledger_collector.accounting.measures import MEASURES
from gpuledger_collector.accounting.rating import Charge


def difference(before: Iterable[Charge], after: Iterable[Charge]) -> list[Charge]:
    """Return a charge per changed line with the amounts of `after` less `before`: negative where
    less is due now.

    Charges are compared by everything but their amounts and the exact start and end of their line,
    prices by their terms: a price book that was written anew with the same rates changes nothing.
    An amount that was known and is not any more (or the reverse) counts in full.
    """
    old, new = _by_key(before), _by_key(after)
    lines = []
    # Keys of both sides: a line that is gone now must be taken back, one that is new must be
    # charged.
    for key in {**old, **new}:
        was, now = old.get(key), new.get(key)
        # Identity comes from the new line where there is one, so that a correction names the price
        # that holds now.
        sample = now or was
        assert sample is not None
        amounts = {
            name: _difference(getattr(now, name, None), getattr(was, name, None))
            for name in MEASURES
        }
        # What it was billed at contracted rates is not known, so the change of it is not known
        # either.
        if was is not None and was.contracted_cost_micro is None:
            amounts["contracted_cost_micro"] = None
        # A correction carries the change at contracted rates, but that alone is no reason for one.
        if any(value for name, value in amounts.items() if name != "contracted_cost_micro"):
            lines.append(sample.with_amounts(amounts))
    return sorted(lines, key=_order)


def total(charges: Iterable[Charge]) -> list[Charge]:
    """Add up the charges of one day with equal keys: closed lines and their corrections in one."""
    return sorted(
        (charge for charge in _by_key(charges).values() if any(charge.amounts.values())), key=_order
    )


def _by_key(charges: Iterable[Charge]) -> dict[object, Charge]:
    sums: dict[object, Charge] = {}
    for charge in charges:
        price, commitment = charge.price, charge.commitment
        key = (
            charge.day_ms,
            charge.accelerator_id,
            charge.workload_id,
            charge.owner,
            charge.state,
            charge.pool,
            charge.gpu_model,
            charge.node,
            # The terms of the price and not its id: importing the same price book again must not
            # make corrections.
            None if price is None else (price.purchase, price.rate, price.list_rate, price.region),
            charge.currency,
            None if commitment is None else replace(commitment, id=None),
            # By name: another percentage of the same policy changes an amount, and makes no second
            # line.
            "" if charge.adjustment is None else charge.adjustment.name,
            # The terms, as of prices: a correction is so many node-hours at one price.
            None if charge.node_cost is None else (charge.node_cost.name, charge.node_cost.rate),
            # Weights are left out, as percentages are: they change an amount, and make no line.
            None if charge.inference is None else charge.inference._replace(weights=""),
        )
        known = sums.get(key)
        sums[key] = charge if known is None else _add_charges(known, charge)
    return sums


def _add_charges(known: Charge, charge: Charge) -> Charge:
    start_ms, end_ms = min(known.start_ms, charge.start_ms), max(known.end_ms, charge.end_ms)
    return replace(known.plus(charge), start_ms=start_ms, end_ms=end_ms)


def _difference(now: int | None, was: int | None) -> int | None:
    # An amount known on one side only counts in full. Closed lines and corrections then add up to
    # the new amount.
    return None if now is None and was is None else (now or 0) - (was or 0)


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
        "" if charge.adjustment is None else charge.adjustment.name,
        "" if charge.node_cost is None else charge.node_cost.name,
        repr(charge.inference),
    )
