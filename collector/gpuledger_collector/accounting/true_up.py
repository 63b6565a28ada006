"""True-up: the difference to a provider's bill is booked to owners, so that they pay what the
provider asks.

A comparison (accounting.provider_bill) says by kind, place and day what the bill has more or less
than the ledger. The kinds that are booked are split over those who held something, by one of three
keys:

- `sku`: each difference over what was held in its pool (or on its node) on its day, by cost; one
  without a place (a tax, a credit) over all pools of the bill.
- `cost`, `gpu_hours`: the whole over what was held in the pools of the bill, by cost or by time.

Every step is a split by largest remainder of an integer of micro-units: the parts of all owners add
up to the difference, rounded once. What nobody held anything to pay for is not booked, and said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.adjustments import OwnerShare
from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.provider_bill import (
    ATTO_PER_MICRO,
    KINDS,
    Comparison,
    Difference,
    atto,
)
from gpuledger_collector.accounting.quantity import round_together
from gpuledger_common.largest_remainder import split_signed

KEYS = ("sku", "cost", "gpu_hours")
BOOKED = ("price", "commitment", "credit", "tax", "refund", "adjustment", "rounding")
"""The kinds that are booked unless others are named: another price of the same hours, and items of
a bill that a ledger of usage does not have. Hours that only one side knows have to be explained
first.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLine(Measures):
    """What an owner held on a day in one place, in one currency."""

    owner: OwnerPath
    day_ms: int
    pool: str
    node: str
    gpu_model: str
    currency: str


@dataclass(frozen=True, slots=True)
class TrueUp:
    """What owners pay by currency, and the differences that are not booked."""

    shares: Mapping[str, Sequence[OwnerShare]]
    left: Sequence[Difference]

    def totals(self) -> dict[str, int]:
        """What is booked, in micro-units by currency."""
        return {
            currency: sum(share.micro for share in shares)
            for currency, shares in self.shares.items()
        }


_Scope = tuple[str, ...]
"""Which lines pay: of a node or a pool on a day, of a pool, or (empty) all."""
_Scoped = Mapping[tuple[str, _Scope], Sequence["HeldLine"]]
"""Lines by currency and scope."""


def true_up(
    comparison: Comparison, held: Iterable[HeldLine], key: str, kinds: Collection[str] = BOOKED
) -> TrueUp:
    """Split the differences of these kinds over what owners held.

    Raises ValueError for an unknown key or kind.
    """
    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None or key not in KEYS:
        known = KINDS if unknown is not None else KEYS
        raise ValueError(f"{unknown or key!r} is none of {', '.join(known)}")
    scopes: dict[tuple[str, _Scope], list[HeldLine]] = defaultdict(list)
    for line in held:
        if line.gpu_ns > 0 and (not comparison.pools or line.pool in comparison.pools):
            for scope in ((), (line.pool,), *_places(line.pool, line.node, line.day_ms)):
                scopes[line.currency, scope].append(line)
    amounts: dict[tuple[str, _Scope], int] = defaultdict(int)
    left: list[Difference] = []
    for difference in comparison.differences:
        payers = _scope(difference, key, scopes) if difference.kind in kinds else None
        if payers is None:
            left.append(difference)
        else:
            amounts[difference.currency, payers] += atto(difference.amount)
    shares: dict[str, list[OwnerShare]] = {}
    for currency in sorted({currency for currency, _ in amounts}):
        groups = sorted(scope for of, scope in amounts if of == currency)
        # Rounded together: the groups add up to the difference of the currency, rounded once to
        # micro-units.
        micros = round_together([amounts[currency, scope] for scope in groups], ATTO_PER_MICRO)
        paid: dict[tuple[OwnerPath, str, str], int] = defaultdict(int)
        for scope, micro in zip(groups, micros, strict=True):
            for where, part in _split(micro, scopes[currency, scope], key):
                paid[where] += part
        shares[currency] = [
            OwnerShare(*where, micro) for where, micro in sorted(paid.items()) if micro
        ]
    return TrueUp({currency: parts for currency, parts in shares.items() if parts}, left)


def _places(pool: str, node: str, day_ms: int) -> list[_Scope]:
    whole = (pool, "", str(day_ms))
    return [whole, (pool, node, str(day_ms))] if node else [whole]


def _scope(difference: Difference, key: str, scopes: _Scoped) -> _Scope | None:
    """Who pays a difference: the narrowest scope in which somebody held something; None: nobody
    did.
    """
    wanted: list[_Scope] = [()]
    if key == "sku" and difference.pool:
        wanted.insert(0, (difference.pool,))
        if difference.day_ms is not None:
            wanted = [
                *reversed(_places(difference.pool, difference.node, difference.day_ms)),
                *wanted,
            ]
    return next((scope for scope in wanted if scopes.get((difference.currency, scope))), None)


def _split(
    micro: int, lines: Sequence[HeldLine], key: str
) -> Iterable[tuple[tuple[OwnerPath, str, str], int]]:
    sums: dict[tuple[OwnerPath, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for line in lines:
        entry = sums[line.owner, line.pool, line.gpu_model]
        entry[0] += line.gpu_ns
        entry[1] += max(line.cost_micro or 0, 0)
    # In the order of names, so that equal remainders fall the same whatever the order of the lines.
    places = sorted(sums)
    # Where nothing cost anything (a rate of zero), by time.
    by_time = key == "gpu_hours" or not any(sums[place][1] for place in places)
    return zip(
        places,
        split_signed(micro, [sums[place][0 if by_time else 1] for place in places]),
        strict=True,
    )
