"""Lines of shared model servers: what each tenant of a server pays on a day, and sums of them.

A line is of one server, day, claimant and currency. Tokens stand on the line of the first currency
alone, so that sums count them once. Grouping adds lines up; amounts that are shown are rounded
together, so that the rows of a list add up to its total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from decimal import Decimal
from fractions import Fraction

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.inference import Tokens, add_tokens
from gpuledger_collector.accounting.inference_split import IDLE, Claimant
from gpuledger_collector.accounting.money import MICRO, Money, round_amounts
from gpuledger_collector.accounting.period import Calendar, format_instant
from gpuledger_collector.accounting.quantity import round_half_even_div
from gpuledger_collector.accounting.token_prices import (
    NO_TOKENS,
    UNKNOWN,
    PricedDay,
    Prices,
    TokenKinds,
    price_tokens,
)

KEYS = ("server", "tenant", "model", "gateway", "owner", "day", "hour", "month")
"""What lines may be grouped by."""
DEFAULT_KEYS = ("server", "tenant", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceLine:
    """What a claimant pays for a server on a day, in one currency.

    `owner`: levels of the tree, empty where none is declared. `weighted`: its tokens by their
    weights, scaled to those of the server, on the lines of all currencies. `hour_ms`: of a line
    that is spread over hours. `is_charged`: its owner is charged for it, and not only shown it.
    """

    server: str
    day_ms: int
    claimant: Claimant
    owner: Mapping[str, str] = field(default_factory=dict)
    tokens: Tokens
    weighted: int
    currency: str
    used_micro: int
    idle_micro: int
    borrowed_micro: int = 0
    lent_micro: int = 0
    hour_ms: int | None = None
    is_charged: bool = False


@dataclass(frozen=True, slots=True)
class ServerLine:
    """What a server cost and counted on a day, in one currency; counts stand on its first line.

    `counted_input`, `counted_output`: by its own counters; None: not known.
    """

    server: str
    day_ms: int
    currency: str
    cost_micro: int
    used_micro: int
    counted_input: int | None
    counted_output: int | None
    is_scaled: bool
    weights: str
    measured_share: Fraction | None = field(default=None, compare=False)
    """The part of the held time that measured weights rest on; None: declared ones, or not known."""


@dataclass(frozen=True, slots=True)
class ServerDay:
    """What a server cost and counted on a day, in one currency, with the sums of its lines.

    `asked`: input and output tokens of gateways, on its first line; `counted`: the same by the
    server itself, None: not known. `weighted`: as on the lines. `computed`, `cached`, `output`:
    tokens by what they weigh, scaled to those of the server, in millionths, on the lines of all
    currencies.
    """

    server: str
    day_ms: int
    currency: str
    cost_micro: int
    used_micro: int
    asked: int
    counted: int | None
    weighted: int
    weights: str
    computed: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class GroupedLine:
    """Lines of one group and currency, added up; `keys` by name. `trust`: of all of its tokens, if
    they have the same.
    """

    keys: Mapping[str, str]
    owner: Mapping[str, str]
    trust: str
    tokens: Tokens
    used: Money | None
    idle: Money | None
    cost: Money | None
    borrowed: Money | None
    lent: Money | None
    charged: Money | None


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """What a server cost in a period and one currency, and what a million of its tokens did.

    Counts of tokens and `coverage` stand on the first currency of each day alone. `coverage`: tokens
    of gateways over those of the server, on days on which both are known; None: not known. Prices
    are of an input, a cached and an output token, at held and at used cost.
    """

    server: str
    cost: Money | None
    used: Money | None
    platform: Money | None
    tenants: int
    asked: Tokens
    counted_input: int | None
    counted_output: int | None
    coverage: Decimal | None
    scaled_days: int
    held_prices: Prices
    used_prices: Prices
    bought: Money | None = None
    """What the tokens of gateways would have cost at the declared price of an API."""


@dataclass
class _Dates:
    """Days and months by their begin; a month has thousands of lines of each of its days."""

    calendar: Calendar
    days: dict[int, str] = field(default_factory=dict)

    def day(self, day_ms: int) -> str:
        """The date of a day."""
        if day_ms not in self.days:
            self.days[day_ms] = str(self.calendar.date_of(day_ms))
        return self.days[day_ms]


def _key_of(line: InferenceLine, name: str, dates: _Dates) -> str:
    """The value of a key of a line, for people."""
    if name == "owner":
        levels = " ".join(f"{level}={value}" for level, value in line.owner.items())
        return levels or (UNATTRIBUTED if line.claimant.is_tenant else line.claimant.tenant)
    if name == "tenant":
        return line.claimant.tenant or UNATTRIBUTED
    if name in ("model", "gateway"):
        return str(getattr(line.claimant, name))
    if name == "day":
        return dates.day(line.day_ms)
    if name == "month":
        return dates.day(line.day_ms)[:7]
    if name == "hour":
        return "" if line.hour_ms is None else format_instant(line.hour_ms)
    return line.server


def group_lines(
    lines: Iterable[InferenceLine],
    names: Sequence[str],
    calendar: Calendar,
    hidden: Iterable[InferenceLine] = (),
) -> list[GroupedLine]:
    """Add lines up by keys and currency, the greatest cost first.

    `hidden`: lines that are rounded with these, and not in the answer, so that a group has the same
    cents whoever sees it.
    """
    groups: dict[tuple[tuple[str, ...], str, bool], list[InferenceLine]] = defaultdict(list)
    dates = _Dates(calendar)
    for is_hidden, of_group in ((False, lines), (True, hidden)):
        for line in of_group:
            keys = tuple(_key_of(line, name, dates) for name in names)
            groups[keys, line.currency, is_hidden].append(line)
    by_currency: dict[str, list[tuple[tuple[str, ...], bool]]] = defaultdict(list)
    for keys, currency, is_hidden in sorted(groups):
        by_currency[currency].append((keys, is_hidden))
    grouped: list[tuple[int, tuple[str, ...], GroupedLine]] = []
    for currency, all_keys in by_currency.items():
        rows = [groups[keys, currency, is_hidden] for keys, is_hidden in all_keys]
        amounts = [_amounts(rows, currency, value) for value in _VALUES]
        for at, (keys, is_hidden) in enumerate(all_keys):
            if is_hidden:
                continue
            used, idle, cost, borrowed, lent, charged = (column[at] for column in amounts)
            trusts = {line.claimant.trust for line in rows[at] if line.claimant.is_tenant}
            owner = rows[at][0].owner
            grouped.append(
                (
                    -(cost.micro if cost is not None else 0),
                    (*keys, currency),
                    GroupedLine(
                        dict(zip(names, keys, strict=True)),
                        owner if all(line.owner == owner for line in rows[at]) else {},
                        trusts.pop() if len(trusts) == 1 else "",
                        add_tokens(line.tokens for line in rows[at]),
                        used,
                        idle,
                        cost,
                        borrowed,
                        lent,
                        charged,
                    ),
                )
            )
    return [line for *_, line in sorted(grouped, key=lambda each: each[:2])]


_VALUES: Sequence[Callable[[InferenceLine], int]] = (
    lambda line: line.used_micro,
    lambda line: line.idle_micro,
    lambda line: line.used_micro + line.idle_micro,
    lambda line: line.borrowed_micro,
    lambda line: line.lent_micro,
    lambda line: line.used_micro + line.idle_micro if line.is_charged else 0,
)


def _amounts(
    rows: Sequence[Sequence[InferenceLine]],
    currency: str,
    value: Callable[[InferenceLine], int],
) -> Sequence[Money | None]:
    """An amount of each row, rounded together; None where nothing has a price."""
    if not currency:
        return [None] * len(rows)
    return round_amounts([sum(map(value, row)) for row in rows], currency)


def summarize_servers(
    servers: Sequence[ServerLine], lines: Sequence[InferenceLine]
) -> list[ServerSummary]:
    """Sum servers over the days of a period, by name and currency."""
    days: dict[tuple[str, str], list[ServerLine]] = defaultdict(list)
    for server in servers:
        days[server.server, server.currency].append(server)
    parts: dict[str, list[InferenceLine]] = defaultdict(list)
    for line in lines:
        parts[line.server].append(line)
    scale = TokenScale(servers, lines)
    return [
        _summarize(name, currency, rows, parts[name], scale)
        for (name, currency), rows in sorted(days.items())
    ]


def _summarize(
    name: str,
    currency: str,
    days: Sequence[ServerLine],
    parts: Sequence[InferenceLine],
    scale: TokenScale,
) -> ServerSummary:
    own = [line for line in parts if line.currency == currency]
    asked = _asked_by_day(own)
    known = [day for day in days if day.counted_input is not None]
    counted_input = sum(day.counted_input or 0 for day in known) if known else None
    counted_output = sum(day.counted_output or 0 for day in known) if known else None
    cost = sum(day.cost_micro for day in days)
    used = sum(day.used_micro for day in days)
    left = sum(line.idle_micro for line in own if line.claimant.tenant == IDLE)
    # Of days of the same weights prices follow from weighted tokens alone.
    is_varied = len({day.weights for day in days}) > 1
    held_prices, used_prices = _prices(days, own, scale.sum_kinds(parts) if is_varied else {})
    return ServerSummary(
        name,
        Money(cost, currency) if currency else None,
        Money(used, currency) if currency else None,
        Money(left, currency) if currency else None,
        len(_tenants_who_asked(own)),
        add_tokens(asked.values()),
        counted_input,
        counted_output,
        _coverage(known, asked),
        sum(day.is_scaled for day in days),
        held_prices,
        used_prices,
    )


def sum_days(servers: Sequence[ServerLine], lines: Sequence[InferenceLine]) -> list[ServerDay]:
    """What servers cost and counted by day, with the sums of their lines."""
    kinds = TokenScale(servers, lines).sum_kinds(lines)
    asked: dict[tuple[str, int, str], int] = defaultdict(int)
    weighted: dict[tuple[str, int, str], int] = defaultdict(int)
    for line in lines:
        key = line.server, line.day_ms, line.currency
        weighted[key] += line.weighted
        if line.claimant.is_tenant:
            asked[key] += line.tokens.input + line.tokens.output
    return [
        ServerDay(
            *(key := (day.server, day.day_ms, day.currency)),
            day.cost_micro,
            day.used_micro,
            asked[key],
            None if day.counted_input is None else day.counted_input + (day.counted_output or 0),
            weighted[key],
            day.weights,
            *_in_millionths(kinds.get((day.server, day.day_ms), NO_TOKENS)),
        )
        for day in servers
    ]


def _in_millionths(kinds: TokenKinds) -> list[int]:
    """Tokens of each kind, as stored: scaled ones are no whole numbers."""
    return [
        round_half_even_div(tokens.numerator * MICRO, tokens.denominator)
        for tokens in astuple(kinds)
    ]


def _tenants_who_asked(lines: Iterable[InferenceLine]) -> set[str]:
    """The tenants with tokens. Beyond the first currency of a day their weight alone says so."""
    return {
        line.claimant.tenant
        for line in lines
        if line.claimant.is_tenant and (line.tokens or line.weighted)
    }


def _asked_by_day(lines: Iterable[InferenceLine]) -> dict[int, Tokens]:
    asked: dict[int, Tokens] = defaultdict(Tokens)
    for line in lines:
        if line.claimant.is_tenant:
            asked[line.day_ms] += line.tokens
    return asked


def _coverage(known: Sequence[ServerLine], asked: Mapping[int, Tokens]) -> Decimal | None:
    """Tokens that gateways know over those that servers counted, to four places, cut off."""
    counted = sum((day.counted_input or 0) + (day.counted_output or 0) for day in known)
    if not counted:
        return None
    of_gateways = sum(
        asked[day.day_ms].input + asked[day.day_ms].output for day in known if day.day_ms in asked
    )
    return Decimal(of_gateways * 10_000 // counted).scaleb(-4)


class TokenScale:
    """Tokens of lines by what they weigh, those of gateways scaled down to what their server counted
    on the day, as the split has them.
    """

    def __init__(self, servers: Iterable[ServerLine], lines: Iterable[InferenceLine]) -> None:
        """`servers`, `lines`: of all tenants and currencies."""
        scaled = {(day.server, day.day_ms): day for day in servers if day.is_scaled}
        asked: dict[tuple[str, int], Tokens] = defaultdict(Tokens)
        for line in lines:
            if line.claimant.is_tenant and (line.server, line.day_ms) in scaled:
                asked[line.server, line.day_ms] += line.tokens
        self._factors = {
            key: (
                _at_most_one(scaled[key].counted_input, tokens.input),
                _at_most_one(scaled[key].counted_output, tokens.output),
            )
            for key, tokens in asked.items()
        }

    def sum_kinds(self, lines: Iterable[InferenceLine]) -> dict[tuple[str, int], TokenKinds]:
        """The tokens of lines of all currencies by server and day."""
        sums: dict[tuple[str, int], Tokens] = defaultdict(Tokens)
        for line in lines:
            sums[line.server, line.day_ms] += line.tokens
        kinds = {}
        for key, tokens in sums.items():
            of_input, of_output = self._factors.get(key, (Fraction(1), Fraction(1)))
            kinds[key] = TokenKinds(
                (tokens.input - tokens.cached) * of_input,
                tokens.cached * of_input,
                tokens.output * of_output,
            )
        return kinds


def _at_most_one(counted: int | None, asked: int) -> Fraction:
    """The part of what gateways counted that the server counted as well."""
    return Fraction(counted or 0, asked) if asked and (counted or 0) < asked else Fraction(1)


def _prices(
    days: Sequence[ServerLine],
    lines: Sequence[InferenceLine],
    kinds: Mapping[tuple[str, int], TokenKinds],
) -> tuple[Prices, Prices]:
    """Prices of a million tokens by kind, at held and at used cost; `days`, `lines`: of one server
    and currency.
    """
    if not days[0].currency:
        return UNKNOWN, UNKNOWN
    weighted: dict[int, int] = defaultdict(int)
    for line in lines:
        weighted[line.day_ms] += line.weighted
    held, used = (
        [
            PricedDay(
                cost_of(day),
                day.weights,
                weighted[day.day_ms],
                kinds.get((day.server, day.day_ms), NO_TOKENS),
            )
            for day in days
        ]
        for cost_of in _COSTS
    )
    return price_tokens(held), price_tokens(used)


_COSTS: Sequence[Callable[[ServerLine], int]] = (
    lambda day: day.cost_micro,
    lambda day: day.used_micro,
)
