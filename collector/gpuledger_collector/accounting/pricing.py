"""The price book: dated rates, and which one is in force for an accelerator at an instant.

The most specific rate wins (node before pool before model before region; an exact model before a model named by its
tokens), then the latest one to have become effective. Versions are added, never edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from gpuledger_collector.accounting.period import Period

PURCHASES = ("on_demand", "reserved", "owned", "spot")
"""Ways of buying capacity, in the order of preference where nothing says which one applies."""


@dataclass(frozen=True, slots=True)
class Price:
    """A rate per GPU-hour, from `effective_from_ms` (in) to `effective_to_ms` (out). Empty fields match any."""

    id: int | None
    pool: str
    gpu_model: str
    purchase: str
    rate: Decimal
    currency: str
    effective_from_ms: int
    effective_to_ms: int | None = None
    list_rate: Decimal | None = None
    region: str = ""
    node: str = ""

    def in_force(self, at_ms: int) -> bool:
        """Whether the rate holds at an instant."""
        return self.effective_from_ms <= at_ms and (self.effective_to_ms is None or at_ms < self.effective_to_ms)


@lru_cache(maxsize=4096)
def model_tokens(model: str) -> frozenset[str]:
    """The words and numbers of a model's name, lower case: `NVIDIA A100-SXM4-80GB` has nvidia, a100, sxm4, 80gb."""
    return frozenset(re.findall(r"[a-z0-9]+", model.lower()))


@lru_cache(maxsize=65536)
def model_match(wanted: str, model: str) -> int:
    """2 for the same name, 1 when every token of `wanted` is one of the model's, 0 for any model, -1 for another."""
    if not wanted:
        return 0
    if wanted.casefold() == model.casefold():
        return 2
    tokens = model_tokens(wanted)
    return 1 if tokens and tokens <= model_tokens(model) else -1


@dataclass
class PriceBook:
    """Prices that can be asked; the answers for one place are kept, since a fleet asks the same again and again."""

    prices: tuple[Price, ...]
    _candidates: dict[tuple[str, str, str, str, str | None], list[Price]] = field(default_factory=dict, repr=False)

    def __init__(self, prices: Iterable[Price]) -> None:
        self.prices = tuple(prices)
        self._candidates = {}

    def price_at(
        self, pool: str, gpu_model: str, node: str, region: str, at_ms: int, purchase: str | None = None
    ) -> Price | None:
        """The rate in force, None when no rate covers this place and instant: *unpriced*, never zero."""
        key = (pool, gpu_model, node, region, purchase)
        ranked = self._candidates.get(key)
        if ranked is None:
            ranked = self._candidates[key] = self._ranked(pool, gpu_model, node, region, purchase)
        return next((price for price in ranked if price.in_force(at_ms)), None)

    def _ranked(self, pool: str, gpu_model: str, node: str, region: str, purchase: str | None) -> list[Price]:
        """The prices that match this place, best first."""
        scored = []
        for price in self.prices:
            model = model_match(price.gpu_model, gpu_model)
            named = ((price.node, node), (price.pool, pool), (price.region, region))
            if model < 0 or any(wanted and wanted != actual for wanted, actual in named):
                continue
            if purchase is not None and price.purchase != purchase:
                continue
            specific = (bool(price.node), bool(price.pool), model, bool(price.region))
            preferred = -PURCHASES.index(price.purchase)
            scored.append(((specific, preferred, price.effective_from_ms, price.id or 0), price))
        return [price for _, price in sorted(scored, key=lambda entry: entry[0], reverse=True)]

    def cuts(self, period: Period) -> list[int]:
        """Instants strictly inside the period at which some rate begins or ends to hold."""
        edges = {price.effective_from_ms for price in self.prices}
        edges |= {price.effective_to_ms for price in self.prices if price.effective_to_ms is not None}
        return sorted(edge for edge in edges if period.start_ms < edge < period.end_ms)
