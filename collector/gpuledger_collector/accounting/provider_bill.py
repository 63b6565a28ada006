"""A provider's bill against the ledger: every difference has a kind, and the kinds add up to the
whole difference.

Idea: a line of the bill is matched to a pool (or a node), its hours become GPU-time, and its cost
is laid on the days that it covers. Per pool (or node), day and currency, with h and c for hours and
cost of bill (b) and ledger (l):

    c_b - c_l = (h_b - h_l) x rate of the side that has more  +  min(h_b, h_l) x (rate_b - rate_l)

The first term is time that was billed and not observed (or observed and not billed), the second
another price; what is smaller than the digits in which the bill is written is rounding. Lines that
are no usage of this period (taxes, credits, refunds, commitments, other months), of other
currencies or of no pool of ours have kinds of their own.

Observed is what somebody or something saw: held, unallocated and unavailable; time that the
inventory alone knows of is no evidence against a bill. Amounts are integers of 1e-18 (as FOCUS
costs are written), so nothing is ever lost.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fnmatch import fnmatchcase
from fractions import Fraction

from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.money import minor_digits
from gpuledger_collector.accounting.period import HOUR_MS, UTC_DAYS, Calendar, Period
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_common.largest_remainder import split

PLACES = 18
# FOCUS writes costs with up to 18 decimals; integers of 1e-18 hold every bill exactly.
ATTO_PER_MICRO = 1_000_000_000_000
ATTO = 1_000_000_000_000_000_000
KINDS: Mapping[str, str] = {
    "price": "another rate than the price book's",
    "unobserved": "billed, and observed by nobody",
    "unbilled": "observed, and not billed",
    "commitment": "commitments: bought, unused, or a rate that they changed",
    "credit": "credits",
    "tax": "taxes",
    "refund": "refunds and corrections",
    "adjustment": "adjustments",
    "currency": "in another currency than the other side",
    "other period": "charged for other days than this period's",
    "unmatched": "lines that no pool or node is named for",
    "left out": "lines that are declared to be nothing of ours",
    "rounding": "digits that the bill does not write",
}
"""Every kind of difference, and what it says."""
EXPLAINED = frozenset(
    ("credit", "tax", "refund", "adjustment", "other period", "left out", "rounding", "commitment")
)
"""Kinds that are no question to anybody: a bill has them, and a ledger of usage does not."""
_CATEGORIES = {
    "Purchase": "commitment",
    "Credit": "credit",
    "Tax": "tax",
    "Adjustment": "adjustment",
}
_UNIT_MS = {
    "hour": HOUR_MS,
    "hr": HOUR_MS,
    "h": HOUR_MS,
    "minute": 60_000,
    "min": 60_000,
    "second": 1000,
    "sec": 1000,
    "s": 1000,
    "day": 24 * HOUR_MS,
}
_UNIT = re.compile(
    r"(?:1 )?(?:(?P<what>.*?)[-\s])?(?P<time>hour|hr|h|minute|min|second|sec|s|day)s?",
    re.IGNORECASE,
)
# Half of the third decimal: a quantity written as `24` is not taken as 24 give or take half an
# hour.
SMALLEST_HOURS = Decimal("0.0005")
"""Hours that a line's own digits may be off by at most, whatever few it is written with."""


@dataclass(frozen=True, slots=True)
class BillLine:
    """A line of a provider's bill in FOCUS; `quantity` None where it has none, `effective` where it
    says none.
    """

    line: int
    start_ms: int
    end_ms: int
    category: str
    charge_class: str
    description: str
    sku: str
    resource: str
    resource_name: str
    region: str
    service: str
    commitment: str
    quantity: Decimal | None
    unit: str
    currency: str
    billed: Decimal
    effective: Decimal | None


@dataclass(frozen=True, slots=True)
class BillMatch:
    """Which pool or node lines are about: all that is given must fit (`*` as wildcard).

    `gpus` is that of one unit.
    """

    provider: str = ""
    sku: str = ""
    resource: str = ""
    region: str = ""
    service: str = ""
    pool: str = ""
    node: str = ""
    gpus: Decimal | None = None
    leave_out: bool = False

    def fits(self, provider: str, line: BillLine) -> bool:
        """Whether it is about this line."""
        given = (
            (self.provider.casefold(), provider.casefold()),
            (self.sku, line.sku),
            (self.region, line.region),
            (self.service, line.service),
        )
        # Providers write paths or names: the last element of a path is what an operator knows the
        # machine by.
        resources = (line.resource, line.resource.rpartition("/")[2], line.resource_name)
        return all(not pattern or fnmatchcase(value, pattern) for pattern, value in given) and (
            not self.resource or any(fnmatchcase(name, self.resource) for name in resources)
        )


@dataclass(frozen=True, slots=True)
class ObservedUsage(Measures):
    """What the ledger has of one day, pool and node in one currency; `currency` None: no rate
    covers it.
    """

    day_ms: int
    pool: str
    node: str
    currency: str | None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Where a node stood on a day, and how many millionths of a GPU it had."""

    pool: str
    gpu_micro: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of the difference, bill less ledger: `amount` of the currency, `hours` where time
    differs.
    """

    kind: str
    currency: str
    day_ms: int | None
    pool: str
    node: str
    sku: str
    region: str
    amount: Decimal
    hours: Decimal | None = None


@dataclass(frozen=True)
class Comparison:
    """A bill against the ledger of its pools.

    By currency `bill` - `ledger` = the sum of `differences`, exactly.
    """

    provider: str
    period: Period
    pools: Sequence[str]
    bill: Mapping[str, Decimal]
    ledger: Mapping[str, Decimal]
    differences: Sequence[Difference]
    calendar: Calendar = UTC_DAYS
    """In which its days have their names."""

    def by_kind(self) -> dict[tuple[str, str], Decimal]:
        """Amounts by currency and kind, in the order of KINDS."""
        # 60 digits: the default of 28 would round sums of costs with 18 decimals.
        sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        with localcontext(prec=60):
            for difference in self.differences:
                sums[(difference.currency, difference.kind)] += difference.amount
        return {
            (currency, kind): sums[(currency, kind)]
            for currency in sorted({*self.bill, *self.ledger})
            for kind in KINDS
            if sums.get((currency, kind))
        }

    @property
    def questions(self) -> list[Difference]:
        """Differences that somebody must look at: neither what a bill has by its nature, nor
        rounding.
        """
        return [difference for difference in self.differences if difference.kind not in EXPLAINED]

    @property
    def holds(self) -> bool:
        """Whether the kinds add up to the difference in every currency: a check of this module by
        itself.
        """
        with localcontext(prec=60):
            return all(
                sum(
                    (
                        difference.amount
                        for difference in self.differences
                        if difference.currency == currency
                    ),
                    Decimal(0),
                )
                == self.bill.get(currency, Decimal(0)) - self.ledger.get(currency, Decimal(0))
                for currency in {*self.bill, *self.ledger}
            )


_Key = tuple[str, str, int]
"""Pool, node (empty: all of the pool that no line names), start of the day."""


@dataclass(slots=True)
class _Part:
    """The lines of one SKU and region in a group: GPU-time and cost in units of 1e-18."""

    gpu_ns: int = 0
    cost: int = 0
    slack: Fraction = Fraction(0)
    slack_ns: Fraction = Fraction(0)


@dataclass(slots=True)
class _Group:
    """Both sides of one pool (or node), day and currency."""

    parts: dict[tuple[str, str, bool], _Part] = field(default_factory=dict)
    """By SKU, region and whether a commitment covered it."""
    gpu_ns: int = 0
    cost: int = 0
    pieces: int = 0


def gpu_unit(unit: str) -> tuple[int, bool] | None:
    """Milliseconds of one unit of time, and whether it is counted per GPU already; None for what is
    no time.
    """
    parsed = _UNIT.fullmatch(unit.strip())
    if parsed is None:
        return None
    return _UNIT_MS[parsed["time"].lower()], "gpu" in (parsed["what"] or "").lower()


def compare(
    provider: str,
    lines: Iterable[BillLine],
    matches: Sequence[BillMatch],
    observed: Sequence[ObservedUsage],
    places: Mapping[tuple[str, int], NodeCapacity],
    days: Sequence[Period],
    *,
    effective: bool = False,
) -> Comparison:
    """Compare a bill with what the ledger observed in the pools that it names.

    `places` says where each node (and day) stood; `effective` compares amortized costs instead of
    billed ones.
    """
    comparing = _Comparing(provider, matches, places, days, effective)
    for line in lines:
        comparing.add(line)
    return comparing.result(observed)


class _Comparing:
    def __init__(
        self,
        provider: str,
        matches: Sequence[BillMatch],
        places: Mapping[tuple[str, int], NodeCapacity],
        days: Sequence[Period],
        effective: bool,
    ) -> None:
        self._provider, self._places, self._days, self._effective = (
            provider,
            places,
            days,
            effective,
        )
        self._matches = [
            match
            for match in matches
            if not match.provider or match.provider.casefold() == provider.casefold()
        ]
        self._nodes = {node for node, _ in places}
        self._groups: dict[tuple[_Key, str], _Group] = defaultdict(_Group)
        self._bill: dict[str, int] = defaultdict(int)
        self._told: dict[tuple[str, str, int | None, str, str, str, str], list[int]] = defaultdict(
            lambda: [0, 0]
        )
        self._pools = {match.pool for match in self._matches if match.pool}
        self._billed_nodes: set[str] = set()

    def add(self, line: BillLine) -> None:
        """One more line of the bill."""
        # Every line counts in the bill's total before anything is decided about it: no later rule
        # can lose an amount.
        written = line.effective if self._effective and line.effective is not None else line.billed
        total = atto(written)
        self._bill[line.currency] += total
        kind = _kind(line)
        match = None if kind else self._match(line)
        if kind is None and match is None:
            kind = "unmatched"
        elif match is not None and match.leave_out:
            kind = "left out"
        if kind is not None or match is None:
            self._tell(kind or "unmatched", line.currency, "", "", line, total)
            return
        self._lay(line, match, total, written)

    def _match(self, line: BillLine) -> BillMatch | None:
        """The first declared match, else the node that is called as the resource is."""
        # Storage, traffic or licenses have no GPU-time to compare; they can only be declared to be
        # left out.
        if line.quantity is None or gpu_unit(line.unit) is None:
            declared = next(
                (match for match in self._matches if match.fits(self._provider, line)), None
            )
            return declared if declared is not None and declared.leave_out else None
        for match in self._matches:
            if match.fits(self._provider, line):
                return match
        for name in (line.resource, line.resource.rpartition("/")[2], line.resource_name):
            if name in self._nodes:
                return BillMatch(node=name)
        return None

    def _lay(self, line: BillLine, match: BillMatch, total: int, written: Decimal) -> None:
        """Spread a line's time and cost over the days that it covers; other days are their own kind
        of difference.
        """
        unit_ms, per_gpu = gpu_unit(line.unit) or (HOUR_MS, False)
        # A line of no length (a one-time charge) still falls on a day.
        span = Period(line.start_ms, max(line.end_ms, line.start_ms + 1))
        inside = [(day, part) for day in self._days if (part := day.clip(span)) is not None]
        outside_ms = span.ms - sum(part.ms for _, part in inside)
        sign, weights = (-1 if total < 0 else 1), [*(part.ms for _, part in inside), outside_ms]
        # `split` takes no negative totals; the days of a credit are split as those of a charge.
        costs = [sign * cost for cost in split(abs(total), weights)]
        # The last weight is the time outside the period; a line that lies outside entirely is shown
        # even if it costs nothing.
        if costs[-1] or outside_ms == span.ms:
            self._tell("other period", line.currency, match.pool, match.node, line, costs[-1])
        if match.node:
            self._billed_nodes.add(match.node)
        for (day, part), cost in zip(inside, costs, strict=False):
            place = self._places.get((match.node, day.start_ms))
            pool = match.pool or (place.pool if place is not None else "")
            # GPUs of one billed unit: declared, else one where the unit is already per GPU, else
            # those of the node.
            gpus = Fraction(match.gpus) if match.gpus is not None else Fraction(1)
            if match.gpus is None and not per_gpu and place is not None:
                gpus = Fraction(place.gpu_micro, 1_000_000)
            self._pools.add(pool)
            # Fractions, since a third of a node-hour has no finite decimal; rounded once, to
            # GPU-nanoseconds.
            share = Fraction(part.ms, span.ms) * gpus * unit_ms * 1_000_000
            own = self._groups[
                ((pool if not match.node else "", match.node, day.start_ms), line.currency)
            ]
            entry = own.parts.setdefault(
                (line.sku, line.region, line.commitment == "Used"), _Part()
            )
            quantity = line.quantity or Decimal(0)
            entry.gpu_ns += round(Fraction(quantity) * share)
            entry.cost += cost
            entry.slack += _slack(written, line.currency)
            entry.slack_ns += (
                Fraction(min(_half_digit(quantity), SMALLEST_HOURS)) * gpus * GPU_NS_PER_HOUR
            )

    def result(self, observed: Sequence[ObservedUsage]) -> Comparison:
        """All differences, once the whole bill was added."""
        ledger: dict[str, int] = defaultdict(int)
        unpriced: dict[_Key, int] = defaultdict(int)
        # A billed node's usage counts in every pool in which it stood, else its move would look
        # unobserved.
        self._pools |= {
            place.pool for (node, _), place in self._places.items() if node in self._billed_nodes
        }
        for usage in observed:
            if usage.pool not in self._pools:
                continue
            named = usage.node in self._billed_nodes
            key = ("" if named else usage.pool, usage.node if named else "", usage.day_ms)
            if usage.currency is None:
                unpriced[key] += usage.gpu_ns
                continue
            cost = (usage.cost_micro or 0) * ATTO_PER_MICRO
            ledger[usage.currency] += cost
            group = self._groups[(key, usage.currency)]
            group.gpu_ns += usage.gpu_ns
            group.cost += cost
            # The ledger rounds each accelerator-hour once, by half a micro-unit at most.
            group.pieces += usage.gpu_ns // GPU_NS_PER_HOUR + 1
        # Unpriced time was observed all the same: it counts against the bill's hours, in one
        # currency so that it counts once.
        for key, gpu_ns in unpriced.items():
            billed_groups = [
                group for (where, _), group in self._groups.items() if where == key and group.parts
            ]
            for group in billed_groups[:1]:
                group.gpu_ns += gpu_ns
        self._explain()
        totals = {name: _decimal(total) for name, total in sorted(self._bill.items())}
        period = Period(self._days[0].start_ms, self._days[-1].end_ms)
        charged = {name: _decimal(total) for name, total in sorted(ledger.items())}
        return Comparison(
            provider=self._provider,
            period=period,
            pools=sorted(self._pools - {""}),
            bill=totals,
            ledger=charged,
            differences=self._differences(),
        )

    def _explain(self) -> None:
        by_key: dict[_Key, dict[str, _Group]] = defaultdict(dict)
        for (key, currency), group in self._groups.items():
            by_key[key][currency] = group
        for key, groups in by_key.items():
            billed = {currency for currency, group in groups.items() if group.parts}
            charged = {currency for currency, group in groups.items() if group.gpu_ns}
            for currency, group in groups.items():
                # Both sides have amounts and no currency in common: rates cannot be compared, so
                # the entire amounts are the difference.
                if billed and charged and not billed & charged:
                    self._put("currency", key, currency, ("", ""), _cost(group) - group.cost, 0)
                else:
                    self._group(key, currency, group)

    def _group(self, key: _Key, currency: str, group: _Group) -> None:
        """The law of the module's docstring, SKU by SKU; what its rounded parts leave is rounding."""
        # Each explained part is taken off; what is left in the end is rounding. So the kinds add up
        # whatever is decided below.
        rest = _cost(group) - group.cost
        billed_ns = sum(part.gpu_ns for part in group.parts.values())
        # The ledger's mean rate of the group, as an exact fraction.
        rate = Fraction(group.cost, group.gpu_ns) if group.gpu_ns else Fraction(0)
        slack_ns = sum((part.slack_ns for part in group.parts.values()), Fraction(0))
        matched = Fraction(1)
        # Hours that differ by less than the bill's own digits are no difference in time.
        if abs(billed_ns - group.gpu_ns) > slack_ns:
            if billed_ns > group.gpu_ns:
                matched = Fraction(group.gpu_ns, billed_ns)
            elif group.gpu_ns:
                missing = group.gpu_ns - billed_ns
                rest -= self._put(
                    "unbilled", key, currency, ("", ""), -_micro(missing * rate), -missing
                )
        for (sku, region, committed), part in group.parts.items():
            if matched != 1:
                over = _micro(part.cost * (1 - matched))
                rest -= self._put(
                    "unobserved",
                    key,
                    currency,
                    (sku, region),
                    over,
                    round(part.gpu_ns * (1 - matched)),
                )
            # Only the matched time is compared by price; the rest was explained as unobserved, at
            # the bill's rate.
            price = matched * (part.cost - part.gpu_ns * rate)
            # Tolerance: the digits that the bill writes, and one micro-unit for each amount that
            # the ledger rounded.
            if abs(price) > part.slack + ATTO_PER_MICRO * group.pieces:
                kind = "commitment" if committed else "price"
                rest -= self._put(kind, key, currency, (sku, region), _micro(price), 0)
        self._put("rounding", key, currency, ("", ""), rest, 0)

    def _put(
        self, kind: str, key: _Key, currency: str, what: tuple[str, str], amount: int, gpu_ns: int
    ) -> int:
        """Record a part of a difference and return its amount, for the caller to subtract."""
        pool, node, day_ms = key
        if node and (place := self._places.get((node, day_ms))) is not None:
            pool = place.pool
        entry = self._told[(kind, currency, day_ms, pool, node, *what)]
        entry[0] += amount
        entry[1] += gpu_ns
        return amount

    def _tell(
        self,
        kind: str,
        currency: str,
        pool: str,
        node: str,
        line: BillLine,
        amount: int,
    ) -> None:
        entry = self._told[
            (kind, currency, None, pool, node, line.sku or line.description, line.region)
        ]
        entry[0] += amount

    def _differences(self) -> list[Difference]:
        differences = [
            Difference(*key, _decimal(amount), _hours(gpu_ns) if gpu_ns else None)
            for key, (amount, gpu_ns) in self._told.items()
            if amount or gpu_ns
        ]
        order = list(KINDS)
        return sorted(
            differences,
            key=lambda difference: (
                difference.currency,
                order.index(difference.kind),
                difference.day_ms or 0,
                difference.pool,
                difference.node,
                difference.sku,
                difference.region,
            ),
        )


def _kind(line: BillLine) -> str | None:
    """The kind of a line that is no usage to be compared; None for one that is."""
    # The class before the category: a correction of usage is no usage of this period.
    if line.charge_class == "Correction":
        return "refund"
    if line.category != "Usage":
        return _CATEGORIES.get(line.category, "adjustment")
    if line.commitment == "Unused":
        return "commitment"
    return "refund" if line.billed < 0 else None


def _cost(group: _Group) -> int:
    return sum(part.cost for part in group.parts.values())


def atto(amount: Decimal) -> int:
    """An amount in units of 1e-18. Raises ValueError for one with more places."""
    with localcontext(prec=80):
        scaled = amount.scaleb(PLACES)
        if scaled != scaled.to_integral_value():
            raise ValueError(f"{amount} has more than {PLACES} decimals")
        return int(scaled)


def _decimal(atto: int) -> Decimal:
    with localcontext(prec=80):
        text = format(Decimal(atto).scaleb(-PLACES), "f")
    return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


def _micro(atto: Fraction) -> int:
    """Rounded to micro-units, in units of 1e-18."""
    return round(atto * Fraction(1, ATTO_PER_MICRO)) * ATTO_PER_MICRO


def _hours(gpu_ns: int) -> Decimal:
    return Decimal(round(Fraction(gpu_ns, GPU_NS_PER_HOUR) * 1_000_000)).scaleb(-6)


def _half_digit(number: Decimal) -> Decimal:
    """Half of the last digit that a number is written with."""
    exponent = number.as_tuple().exponent
    return Decimal(5).scaleb((exponent if isinstance(exponent, int) else 0) - 1)


def _slack(amount: Decimal, currency: str) -> Fraction:
    """How far a line's cost may be off by its own digits, in units of 1e-18; never more than half a
    minor unit.
    """
    return Fraction(min(_half_digit(amount), Decimal(5).scaleb(-minor_digits(currency) - 1))) * ATTO
