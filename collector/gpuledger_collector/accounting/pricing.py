"""The price book: dated rates, and which one is in force for an accelerator at an instant.

The most specific rate wins (node before pool before model before region; an exact model before a
model named by its tokens), then the latest one to have become effective. Versions are added, never
edited. Which way of buying applies is chosen by pool, node, model or tag where somebody says so.
Else it is what the node itself says, by the labels of its cloud, where a rate of that kind covers
it; else an order of preference decides.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache

from gpuledger_collector.accounting.locations import NOWHERE, Locations
from gpuledger_collector.accounting.period import Period

PURCHASES = ("on_demand", "reserved", "owned", "spot")
"""Ways of buying capacity, in the order of preference where nothing says which one applies."""


SaidPurchases = Mapping[str, Sequence[tuple[int, str]]]
"""Ways of buying that nodes say themselves: by node, each from an hour on (unix ms), oldest first."""


@dataclass(frozen=True, slots=True)
class Price:
    """A rate per GPU-hour, from `effective_from_ms` (in) to `effective_to_ms` (out).

    Empty fields match any.
    """

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
    basis: Mapping[str, object] | None = field(default=None, compare=False)
    """Of a derived rate: what it was derived from, and its parts."""
    source: str = field(default="", compare=False)
    """File and line that it was read from; empty for a price of the book."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two prices versions of one; they have one currency."""
        return (
            self.pool,
            self.gpu_model,
            self.purchase,
            self.region,
            self.node,
            self.effective_from_ms,
        )

    def in_force(self, at_ms: int) -> bool:
        """Whether the rate holds at an instant."""
        return self.effective_from_ms <= at_ms and (
            self.effective_to_ms is None or at_ms < self.effective_to_ms
        )


@lru_cache(maxsize=4096)
def model_tokens(model: str) -> frozenset[str]:
    """The words and numbers of a model's name, lower case: `NVIDIA A100-SXM4-80GB` has nvidia,
    a100, sxm4, 80gb.
    """
    return frozenset(re.findall(r"[a-z0-9]+", model.lower()))


@lru_cache(maxsize=65536)
def model_match(wanted: str, model: str) -> int:
    """2 for the same name, 1 when every token of `wanted` is one of the model's, 0 for any model,
    -1 for another.
    """
    if not wanted:
        return 0
    # The exact name beats tokens: a rate for `NVIDIA A100` must not lose against one for any board
    # with these tokens.
    if wanted.casefold() == model.casefold():
        return 2
    # A subset, in any order: price lists write `A100 80GB` where the driver says `NVIDIA
    # A100-SXM4-80GB`.
    tokens = model_tokens(wanted)
    return 1 if tokens and tokens <= model_tokens(model) else -1


@dataclass(frozen=True, slots=True)
class PurchaseChoice:
    """Which way of buying applies in a place, from an instant (in) to an instant (out); empty
    fields match any.

    `tags` (`*` as wildcard) choose for usage imported as counts only: an accelerator was bought in
    one way, whoever holds it.
    """

    id: int | None
    name: str
    position: int
    purchase: str
    pool: str = ""
    gpu_model: str = ""
    node: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    effective_from_ms: int | None = None
    effective_to_ms: int | None = None

    def holds(
        self, pool: str, gpu_model: str, node: str, tags: Mapping[str, str], at_ms: int
    ) -> bool:
        """Whether it chooses for this place, these tags and this instant."""
        if any(
            wanted and wanted != actual for wanted, actual in ((self.pool, pool), (self.node, node))
        ):
            return False
        if self.effective_from_ms is not None and at_ms < self.effective_from_ms:
            return False
        if self.effective_to_ms is not None and at_ms >= self.effective_to_ms:
            return False
        if model_match(self.gpu_model, gpu_model) < 0:
            return False
        return all(fnmatchcase(tags.get(name, ""), pattern) for name, pattern in self.tags.items())


class _Timeline:
    """The best price of a place for every instant: found once, then asked by bisection."""

    def __init__(self, ranked: Sequence[Price]) -> None:
        """`ranked` best first."""
        # The best price can only change where one begins or ends, so it is looked up once for each
        # such edge.
        edges = {price.effective_from_ms for price in ranked}
        edges |= {price.effective_to_ms for price in ranked if price.effective_to_ms is not None}
        self._edges = sorted(edges)
        # The entry before the first edge: nothing is in force yet.
        self._best: list[Price | None] = [None]
        # Ranks stand for prices: the smallest rank in the heap is the best of those that have
        # begun.
        waiting = sorted(
            range(len(ranked)), key=lambda at: ranked[at].effective_from_ms, reverse=True
        )
        running: list[int] = []
        for edge in self._edges:
            while waiting and ranked[waiting[-1]].effective_from_ms <= edge:
                heapq.heappush(running, waiting.pop())
            # Prices that have ended are removed only when they reach the top of the heap.
            while running and not ranked[running[0]].in_force(edge):
                heapq.heappop(running)
            self._best.append(ranked[running[0]] if running else None)

    def price_at(self, at_ms: int) -> Price | None:
        """The price in force."""
        return self._best[bisect_right(self._edges, at_ms)]


class PriceBook:
    """Prices that can be asked, and the choices between ways of buying.

    Prices of one place are laid out along time once, and places with the same prices share that: a
    series of ten thousand spot rates costs an hour of a fleet no more than one rate does.
    """

    def __init__(
        self,
        prices: Iterable[Price],
        choices: Iterable[PurchaseChoice] = (),
        also_cut: Iterable[int] = (),
        locations: Locations = NOWHERE,
        said: SaidPurchases | None = None,
    ) -> None:
        """`also_cut`: instants at which something else that rating goes by begins or ends to hold,
        such as a rule.

        `said`: how nodes are bought as they say it, from whole hours on, which need no cut.

        `locations` says in which region a pool stands. They change between days of the bill, so
        they cut no hour.
        """
        self.prices = tuple(prices)
        self.locations = locations
        self.said = said or {}
        # Choices apply in the order of the file; the first that holds wins, like rules.
        self.choices = tuple(sorted(choices, key=lambda choice: (choice.position, choice.id or 0)))
        edges = {price.effective_from_ms for price in self.prices}
        edges |= {
            price.effective_to_ms for price in self.prices if price.effective_to_ms is not None
        }
        edges |= {
            at
            for choice in self.choices
            for at in (choice.effective_from_ms, choice.effective_to_ms)
            if at is not None
        }
        self._edges = sorted(edges | set(also_cut))
        # Prices by what they name. A book has few such places, however many dated versions each of
        # them has.
        self._places: dict[tuple[str, str, str, str], list[Price]] = {}
        for price in self.prices:
            self._places.setdefault(
                (price.node, price.pool, price.region, price.gpu_model), []
            ).append(price)
        self._named = {price.node for price in self.prices}
        self._named |= {choice.node for choice in self.choices}
        self._timelines: dict[tuple[str, str, str, str, str | None], _Timeline] = {}
        self._shared: dict[object, _Timeline] = {}

    def price_at(
        self,
        pool: str,
        gpu_model: str,
        node: str,
        at_ms: int,
        purchase: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Price | None:
        """The rate in force, None when no rate covers this place and instant: *unpriced*, never
        zero.

        Without `purchase` the first choice that holds decides it, else what the node says. What a
        choice names and no rate covers is unpriced; a node that says what no rate covers has the
        rate that it would have had.
        """
        if purchase is None and self.choices:
            purchase = self.purchase_at(pool, gpu_model, node, tags or {}, at_ms)
        if purchase is None and node in self.said:
            said = self.said_purchase(node, at_ms)
            if said and (price := self._price_at(pool, gpu_model, node, at_ms, said)) is not None:
                return price
        return self._price_at(pool, gpu_model, node, at_ms, purchase)

    def node_key(self, node: str) -> Hashable:
        """What a node is for prices: nodes of one key have the same ones, in each pool and for each
        model, at every instant. A fleet has many nodes, and few that a price names.
        """
        return node if node in self._named else tuple(self.said.get(node, ()))

    def said_purchase(self, node: str, at_ms: int) -> str | None:
        """How a node says that it is bought; None where it has said nothing until then."""
        rows = self.said.get(node, ())
        place = bisect_right(rows, at_ms, key=lambda row: row[0])
        return rows[place - 1][1] if place else None

    def _price_at(
        self, pool: str, gpu_model: str, node: str, at_ms: int, purchase: str | None
    ) -> Price | None:
        region = self.locations.region(pool, at_ms)
        # A node that no price names is any other one.
        node = node if node in self._named else ""
        key = (pool, gpu_model, node, region, purchase)
        timeline = self._timelines.get(key)
        if timeline is None:
            timeline = self._timelines[key] = self._timeline(
                pool, gpu_model, node, region, purchase
            )
        return timeline.price_at(at_ms)

    def purchase_at(
        self, pool: str, gpu_model: str, node: str, tags: Mapping[str, str], at_ms: int
    ) -> str | None:
        """The way of buying that is chosen here, None where nothing chooses: the order of PURCHASES
        prefers then.
        """
        chosen = (
            choice.purchase
            for choice in self.choices
            if choice.holds(pool, gpu_model, node, tags, at_ms)
        )
        return next(chosen, None)

    def _timeline(
        self, pool: str, gpu_model: str, node: str, region: str, purchase: str | None
    ) -> _Timeline:
        """The prices that match this place, along time."""
        matching = []
        for place in self._places:
            of_node, of_pool, of_region, of_model = place
            model = model_match(of_model, gpu_model)
            named = ((of_node, node), (of_pool, pool), (of_region, region))
            if model >= 0 and all(not wanted or wanted == actual for wanted, actual in named):
                # The order of specificity: node before pool before model before region.
                matching.append(((bool(of_node), bool(of_pool), model, bool(of_region)), place))
        key = (purchase, tuple(matching))
        # Places with the same prices share one timeline: a fleet has many nodes and few rates.
        timeline = self._shared.get(key)
        if timeline is None:
            scored = [
                # Specificity first, then the preferred way of buying, then the latest to become
                # effective; the id makes a later version of the same instant win.
                (
                    (
                        specific,
                        -PURCHASES.index(price.purchase),
                        price.effective_from_ms,
                        price.id or 0,
                    ),
                    price,
                )
                for specific, place in matching
                for price in self._places[place]
                if purchase is None or price.purchase == purchase
            ]
            ranked = [
                price for _, price in sorted(scored, key=lambda entry: entry[0], reverse=True)
            ]
            timeline = self._shared[key] = _Timeline(ranked)
        return timeline

    def cuts(self, period: Period) -> list[int]:
        """Instants strictly inside the period at which a rate, or what else cuts hours, begins or
        ends to hold.
        """
        return self._edges[
            bisect_right(self._edges, period.start_ms) : bisect_left(self._edges, period.end_ms)
        ]
