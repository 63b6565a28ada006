"""Split what a shared model server cost on a day among those who asked.

Gateways count at the end of a request and servers as they generate, so both are compared by sums of
the billing day. A server's charge C of a day is

    C = the tenants' parts + (nobody) + (idle)

to the micro-unit, for each currency. The part of C in which the accelerators worked is split by
weighted tokens, by largest remainder. Tokens that the server counted and no gateway knows are one
more claimant, `(nobody)`: aborted requests, calls past the gateway. Where gateways counted more
than the server, their counts are scaled down to it, never up. Time of unknown activity counts as
worked: unknown is not idle.

Who pays for the idle part is declared:
- `tokens`: all claimants by the tokens of the day; without any token it stays with the platform.
- `reservations`: a tenant pays for what it reserved and did not use, less what others borrowed of
  it, as in accounting/fair_share.py; what nobody reserved stays with the platform.
- `platform`: it stays with the platform.

What tokens weigh is declared. A server may be declared to take what an output token weighs, day by
day, from the time that its GPUs computed prompts and answers; a day that does not tell keeps the
declared weight.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.inference import (
    AUTHENTICATED,
    GPU_COUNTERS,
    SPLIT_COUNTERS,
    TOKEN_COUNTERS,
    Asker,
    Tokens,
    add_tokens,
)
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DatedDays
from gpuledger_collector.accounting.quantity import round_half_even_div
from gpuledger_collector.accounting.reserved_names import booked_name
from gpuledger_common.largest_remainder import split, split_signed

BY_TOKENS, BY_RESERVATIONS, BY_PLATFORM = "tokens", "reservations", "platform"
IDLE_RULES = (BY_TOKENS, BY_RESERVATIONS, BY_PLATFORM)
SHOWBACK, CHARGED = "showback", "charged"
MODES = (SHOWBACK, CHARGED)
SHOWN = "shown"
CLAIMS = (SHOWN, CHARGED)
"""What becomes of tenants that callers only claim to be: shown, or charged like the others."""
NOBODY, IDLE = "(nobody)", "(idle)"
"""Tokens that a server counted and no gateway knows; idle cost that stays with the platform."""
WEIGHT_DIGITS = 6
DECLARED, GPU_SECONDS = "declared", "gpu_seconds"
WEIGHTS_FROM = (DECLARED, GPU_SECONDS)
"""Where the weight of an output token comes from."""
MEASURED_STEP = 1_000
"""Millionths to which a weight is rounded that a day's GPU-time says."""
MIN_GPU_MS = 60_000
"""GPU-time of prompts and of answers from which a day says what a token takes: of less, the first
reading of a new series is too great a part.
"""
MOST_OTHER = 20
"""A day says nothing where more than one part of so many of its GPU-time mixes both, or does neither."""
UNCOVERED_MS = 600_000
"""Counters of a server that miss no more of a day than this cover it: a restart loses a minute."""


@dataclass(frozen=True, slots=True)
class SharedServer(DatedDays):
    """A declared model server that several tenants share: which tokens are its, and which workloads
    it is.

    `gateway` empty: every one. `models`, `backends`: as gateways call them, `*` as wildcard, with
    commas between; no backends: any. `served_by`: tags and facts of its workloads, as rules match
    them; `served_model`: the `model_name` of their counters, empty: any. `weights`: of an input, a
    cached and an output token, as `1 : 0.1 : 4`; `reserved`: tenant -> share of the server.
    `claims`: `charged`, or empty: what callers only claim to be is shown. `weights_from`:
    `gpu_seconds`, or empty: declared.
    """

    name: str
    gateway: str
    models: str
    backends: str
    served_by: Mapping[str, str]
    served_model: str
    weights: str
    idle: str
    reserved: Mapping[str, str] = field(default_factory=dict)
    mode: str = SHOWBACK
    claims: str = ""
    weights_from: str = ""
    from_on: dt.date | None = None
    to_on: dt.date | None = None

    @property
    def is_charged(self) -> bool:
        """Whether tenants' owners are charged their parts, and not only shown them."""
        return self.mode == CHARGED

    @property
    def charges_claims(self) -> bool:
        """Whether owners also pay for tenants that callers only claim to be."""
        return self.claims == CHARGED

    @property
    def split_counters(self) -> Sequence[str]:
        """The counters of its workloads that a split follows from."""
        return SPLIT_COUNTERS if self.weights_from == GPU_SECONDS else TOKEN_COUNTERS

    def answers(self, asker: Asker) -> bool:
        """Whether tokens of an asker are this server's."""
        if self.gateway not in ("", asker.gateway):
            return False
        backends = split_patterns(self.backends)
        if backends and not matches_any(asker.backend, backends):
            return False
        return matches_any(asker.model, split_patterns(self.models))

    def weights_of(self, counted: ServerCount | None) -> str:
        """What tokens weigh on a day on which it counted this."""
        return self.measured_weights(counted) or self.weights

    def measured_weights(self, counted: ServerCount | None) -> str:
        """What tokens weigh by what it counted on a day; empty where that does not tell."""
        if self.weights_from != GPU_SECONDS or counted is None:
            return ""
        ratio = counted.gpu.output_ratio
        if ratio is None:
            return ""
        declared = parse_weights(self.weights)
        output = round_half_even_div(declared.input * ratio[0], MEASURED_STEP * ratio[1])
        measured = replace(declared, output=output * MEASURED_STEP)
        # A weight of nothing, or beyond what can be declared, is none.
        return measured.text if 0 < measured.output <= MICRO * MICRO else ""

    @property
    def reservations(self) -> dict[str, int]:
        """Shares of the server by tenant as it is booked, in millionths."""
        shares: dict[str, int] = defaultdict(int)
        for name, share in sorted(self.reserved.items()):
            shares[booked_name(name)] += int(Decimal(share) * MICRO)
        return dict(shares)

    @property
    def rule(self) -> Rule:
        """What its workloads match, as a rule."""
        return Rule(None, self.name, 0, self.served_by, {})


@dataclass(frozen=True, slots=True)
class TenantOwner(DatedDays):
    """Who pays for a tenant of a gateway (empty: of every gateway): levels of the owner tree."""

    gateway: str
    tenant: str
    owner: Mapping[str, str]
    from_on: dt.date | None = None
    to_on: dt.date | None = None


@lru_cache(maxsize=1024)
def split_patterns(text: str) -> tuple[str, ...]:
    """The patterns of a text with commas between them."""
    return tuple(pattern for part in text.split(",") if (pattern := part.strip()))


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """Whether a text is one of these, in which `*` is the only wildcard: addresses of IPv6 have
    brackets.
    """
    return any(
        fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]")) for pattern in patterns
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """What an input, a cached and an output token weigh, in millionths."""

    input: int
    cached: int
    output: int

    def weigh(self, tokens: Tokens) -> int:
        """The weighted sum of tokens; cached ones are not counted as input again."""
        computed = max(tokens.input - tokens.cached, 0)
        return computed * self.input + tokens.cached * self.cached + tokens.output * self.output

    @property
    def text(self) -> str:
        """These as they are declared: `1 : 0.1 : 4`."""
        numbers = (Decimal(weight).scaleb(-WEIGHT_DIGITS) for weight in astuple(self))
        return " : ".join(f"{number.normalize():f}" for number in numbers)


EVEN = Weights(MICRO, MICRO, MICRO)
"""All tokens weigh the same."""


def parse_weights(text: str) -> Weights:
    """Read `1 : 0.1 : 4`, the weights of input, cached and output. Raises ValueError with a sentence."""
    parts = [part.strip() for part in text.split(":")]
    try:
        numbers = [Decimal(part) for part in parts]
    except ArithmeticError:
        numbers = []
    if len(numbers) != 3 or not all(
        number.is_finite() and 0 <= number <= MICRO and number == round(number, WEIGHT_DIGITS)
        for number in numbers
    ):
        raise ValueError(
            f"{text!r} is not three weights of input, cached and output such as 1 : 0.1 : 4, with"
            f" at most {WEIGHT_DIGITS} decimals"
        )
    if not numbers[0] and not numbers[2]:
        raise ValueError("input and output cannot both weigh nothing")
    return Weights(*(int(number * MICRO) for number in numbers))


class Claimant(NamedTuple):
    """A tenant of a gateway that asked for a model; a tuple, since a server has thousands of them,
    as keys and in order.
    """

    gateway: str
    tenant: str
    model: str = ""
    trust: str = AUTHENTICATED

    @property
    def is_tenant(self) -> bool:
        """Whether it is a tenant, and not the row of what nobody asked for or of idle time."""
        return self.tenant not in (NOBODY, IDLE)


NOBODYS = Claimant("", NOBODY, "")
IDLES = Claimant("", IDLE, "")


@dataclass(frozen=True, slots=True)
class GpuTime:
    """How long GPUs computed prompts, answers, and what is both or neither; and how many prompt and
    answer tokens that were, as a server counts them while it computes.
    """

    prefill_gpu_ms: int = 0
    decode_gpu_ms: int = 0
    other_gpu_ms: int = 0
    computed_tokens: int = 0
    decoded_tokens: int = 0

    def __add__(self, other: GpuTime) -> GpuTime:
        return GpuTime(*map(int.__add__, astuple(self), astuple(other)))

    @property
    def output_ratio(self) -> tuple[int, int] | None:
        """What an answer token takes over what a computed prompt token takes, as a fraction; None:
        not known.
        """
        tokens = min(self.computed_tokens, self.decoded_tokens)
        if tokens <= 0 or min(self.prefill_gpu_ms, self.decode_gpu_ms) < MIN_GPU_MS:
            return None
        if MOST_OTHER * self.other_gpu_ms > (
            self.prefill_gpu_ms + self.decode_gpu_ms + self.other_gpu_ms
        ):
            return None
        return (
            self.decode_gpu_ms * self.computed_tokens,
            self.prefill_gpu_ms * self.decoded_tokens,
        )


NO_GPU_TIME = GpuTime()
_COMPARED = ("prefill_gpu_ms", "decode_gpu_ms", "computed_tokens", "decoded_tokens")
"""Counters that a ratio compares."""


def gpu_time_of_hour(counted: Mapping[str, tuple[int, int]]) -> tuple[GpuTime, int]:
    """What the counters of a server's GPUs say of an hour, and for how many milliseconds of it;
    `counted`: units and covered milliseconds by counter.

    Nothing, where those of time and of tokens do not cover the same of the hour: time over fewer
    tokens than were computed in it would weigh too much. A server that mixes nothing never counts
    other time.
    """
    covered = {counted.get(counter, (0, 0))[1] for counter in _COMPARED}
    if len(covered) > 1:
        return NO_GPU_TIME, 0
    return GpuTime(*(counted.get(counter, (0, 0))[0] for counter in GPU_COUNTERS)), covered.pop()


@dataclass(frozen=True, slots=True)
class ServerCount:
    """What a server counted on a day; `is_whole`: its counters cover the day.

    `gpu`: in hours in which its counters of time and of tokens cover the same; `held_ms`,
    `unmeasured_ms`: how long its workloads held accelerators, and how much of it is not in `gpu`.
    """

    input: int
    output: int
    is_whole: bool = True
    gpu: GpuTime = NO_GPU_TIME
    held_ms: int = 0
    unmeasured_ms: int = 0


@dataclass(frozen=True, slots=True)
class ServerCost:
    """What a server cost on a day in one currency, and what its accelerators did."""

    cost_micro: int
    busy_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0

    @property
    def used_and_idle(self) -> tuple[int, int]:
        """The cost of the time that is not known to be idle, and of idle time.

        Where nothing is known of what the accelerators did, all of it counts as used.
        """
        weights = [self.busy_ns + self.unknown_ns, self.idle_ns]
        if not any(weights):
            return self.cost_micro, 0
        used, idle = split_signed(self.cost_micro, weights)
        return used, idle


@dataclass(frozen=True, slots=True)
class Part:
    """What a claimant pays: for its tokens, and of idle time; what it borrowed and lent of
    reservations is contained in that.
    """

    claimant: Claimant
    tokens: Tokens
    used_micro: int = 0
    idle_micro: int = 0
    borrowed_micro: int = 0
    lent_micro: int = 0

    @property
    def micro(self) -> int:
        """All that it pays."""
        return self.used_micro + self.idle_micro


@dataclass(frozen=True, slots=True)
class DayTokens:
    """The tokens by which a day is split.

    `asked`: as gateways counted them; `weighted`: scaled down to what the server counted, with
    `(nobody)` for the rest. `is_scaled`: gateways counted more than the server.
    """

    asked: Mapping[Claimant, Tokens]
    weighted: Mapping[Claimant, Tokens]
    is_scaled: bool = False


def compare_tokens(asked: Mapping[Claimant, Tokens], counted: ServerCount | None) -> DayTokens:
    """Compare what gateways counted with what the server did (None: not known)."""
    bounded = {claimant: asked[claimant].bounded() for claimant in sorted(asked)}
    asked = {claimant: tokens for claimant, tokens in bounded.items() if tokens}
    if counted is None:
        return DayTokens(asked, asked)
    total = add_tokens(asked.values())
    # Counters that miss a part of the day say too little: they prove more tokens, never fewer.
    too_much_input = counted.is_whole and total.input > counted.input
    too_much_output = counted.is_whole and total.output > counted.output
    weighted = dict(asked)
    if too_much_input:
        weighted = _scale_input(weighted, counted.input)
    if too_much_output:
        outputs = split(counted.output, [tokens.output for tokens in weighted.values()])
        weighted = {
            claimant: Tokens(tokens.input, tokens.cached, output, tokens.requests)
            for (claimant, tokens), output in zip(weighted.items(), outputs, strict=True)
        }
    rest = Tokens(max(counted.input - total.input, 0), 0, max(counted.output - total.output, 0))
    if rest:
        weighted[NOBODYS] = rest
    return DayTokens(asked, weighted, too_much_input or too_much_output)


def _scale_input(asked: Mapping[Claimant, Tokens], most: int) -> dict[Claimant, Tokens]:
    """Scale input down to what the server counted, cached and computed tokens alike."""
    kinds = [(tokens.input - tokens.cached, tokens.cached) for tokens in asked.values()]
    parts = split(most, [count for pair in kinds for count in pair])
    return {
        claimant: Tokens(
            parts[2 * at] + parts[2 * at + 1], parts[2 * at + 1], tokens.output, tokens.requests
        )
        for at, (claimant, tokens) in enumerate(asked.items())
    }


def split_day(
    cost: ServerCost,
    tokens: DayTokens,
    weights: Weights,
    idle_rule: str,
    reserved: Mapping[str, int],
    gateway: str = "",
) -> list[Part]:
    """Split a day's cost of a server; the parts, `(nobody)` and `(idle)` among them, add up to it.

    `reserved`: millionths of the server by tenant of its gateway (empty: of every gateway).
    """
    used_micro, idle_micro = cost.used_and_idle
    shares = {claimant: weights.weigh(each) for claimant, each in tokens.weighted.items()}
    has_tokens = any(shares.values())
    if not has_tokens:
        # The accelerators worked, and nobody counted a token.
        shares = {**shares, NOBODYS: 1} if used_micro else shares
    claimants = sorted(shares)
    used = dict.fromkeys(claimants, 0)
    if used_micro:
        amounts = split_signed(used_micro, [shares[claimant] for claimant in claimants])
        used = dict(zip(claimants, amounts, strict=True))
    if idle_rule == BY_RESERVATIONS and cost.cost_micro > 0:
        return _by_reservations(cost.cost_micro, used, tokens, reserved, gateway)
    idle = dict.fromkeys(claimants, 0)
    left = idle_micro
    if idle_rule == BY_TOKENS and has_tokens:
        amounts = split_signed(idle_micro, [shares[claimant] for claimant in claimants])
        idle, left = dict(zip(claimants, amounts, strict=True)), 0
    return _list_parts(tokens, used, idle, left)


def split_server(
    server: SharedServer, cost: ServerCost, tokens: DayTokens, weights: str
) -> list[Part]:
    """Split a day's cost of a server as it is declared, by the day's weights."""
    return split_day(
        cost, tokens, parse_weights(weights), server.idle, server.reservations, server.gateway
    )


class _User(NamedTuple):
    """Who uses a server: a tenant that reserved a share of it, or one of a gateway that did not."""

    tenant: str
    gateway: str = ""
    trust: str = AUTHENTICATED
    has_reserved: bool = False


def _user_of(claimant: Claimant, reserved: Mapping[str, int], gateway: str) -> _User:
    """The user behind a claimant. Whoever only claims to be a tenant uses nothing of its share."""
    if (
        claimant.is_tenant
        and claimant.trust == AUTHENTICATED
        and claimant.tenant in reserved
        and gateway in ("", claimant.gateway)
    ):
        return _User(claimant.tenant, has_reserved=True)
    return _User(claimant.tenant, claimant.gateway, claimant.trust)


def _by_reservations(
    cost_micro: int,
    used: Mapping[Claimant, int],
    tokens: DayTokens,
    reserved: Mapping[str, int],
    gateway: str,
) -> list[Part]:
    """What tenants pay where they reserved shares of a server.

    Use beyond a reservation is taken first from what nobody reserved, then borrowed from those who
    used less than theirs, and lent by them in proportion to what each left unused.
    """
    own_of: dict[_User, list[Claimant]] = {_User(name, has_reserved=True): [] for name in reserved}
    for claimant in sorted(used):
        own_of.setdefault(_user_of(claimant, reserved, gateway), []).append(claimant)
    users = sorted(own_of)
    used_by = [sum(used[claimant] for claimant in own_of[user]) for user in users]
    wanted = [
        cost_micro * reserved[user.tenant] // MICRO if user.has_reserved else 0 for user in users
    ]
    if sum(wanted) > cost_micro:
        wanted = split(cost_micro, wanted)
    over = [max(own - share, 0) for own, share in zip(used_by, wanted, strict=True)]
    under = [max(share - own, 0) for own, share in zip(used_by, wanted, strict=True)]
    unreserved = cost_micro - sum(wanted)
    moved = max(sum(over) - unreserved, 0)
    borrowed = split(moved, over) if moved else [0] * len(users)
    lent = split(moved, under) if moved else [0] * len(users)
    left = max(unreserved - sum(over), 0)
    idle: dict[Claimant, int] = {}
    moves: dict[Claimant, tuple[int, int]] = {}
    for at, user in enumerate(users):
        own = own_of[user] or [Claimant(gateway, user.tenant)]
        by = [max(used.get(claimant, 0), 0) for claimant in own]
        weights = by if any(by) else [1] + [0] * (len(own) - 1)
        for claimant, *amounts in zip(
            own,
            split(under[at] - lent[at], weights),
            split(borrowed[at], weights),
            split(lent[at], weights),
            strict=True,
        ):
            idle[claimant] = amounts[0]
            moves[claimant] = amounts[1], amounts[2]
    return _list_parts(tokens, used, idle, left, moves)


def _list_parts(
    tokens: DayTokens,
    used: Mapping[Claimant, int],
    idle: Mapping[Claimant, int],
    left_micro: int,
    moves: Mapping[Claimant, tuple[int, int]] | None = None,
) -> list[Part]:
    parts = [
        Part(
            claimant,
            tokens.asked.get(claimant) or tokens.weighted.get(claimant) or Tokens(),
            used.get(claimant, 0),
            idle.get(claimant, 0),
            *(moves or {}).get(claimant, (0, 0)),
        )
        for claimant in sorted({**used, **idle, **tokens.asked})
    ]
    parts = [part for part in parts if part.micro or part.tokens or part.lent_micro]
    return [*parts, Part(IDLES, Tokens(), 0, left_micro)] if left_micro else parts


def spread_part(
    part: Part, asked: Mapping[int, int], cost: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """What a part of a day is in each hour: used by the weighted tokens of the hour, where there
    are any, and idle by the hour's cost. The hours add up to the day.

    `asked`, `cost`: by hour, not negative; every hour of the day that cost anything is in `cost`.
    """
    hours = sorted(cost.keys() | asked.keys())
    by_cost = [max(cost.get(hour, 0), 0) for hour in hours]
    by_cost = by_cost if any(by_cost) else [1] * len(hours)
    by_tokens = [asked.get(hour, 0) for hour in hours]
    used = split_signed(part.used_micro, by_tokens if any(by_tokens) else by_cost)
    idle = split_signed(part.idle_micro, by_cost)
    return {
        hour: (used_micro, idle_micro)
        for hour, used_micro, idle_micro in zip(hours, used, idle, strict=True)
    }


def spread_tokens(
    tokens: Tokens, asked: Mapping[int, Tokens], cost: Mapping[int, int], weights: Weights
) -> dict[int, Tokens]:
    """The tokens of a day in each hour, as they were asked, and else as `spread_part` spreads their
    cost: of tokens that no gateway knows no hour is known. The hours add up to the day.
    """
    hours = sorted(cost.keys() | asked.keys())
    known = [asked.get(hour, Tokens()).bounded() for hour in hours]
    by_cost = [max(cost.get(hour, 0), 0) for hour in hours]
    by_tokens = [weights.weigh(each) for each in known]
    otherwise = next((each for each in (by_tokens, by_cost) if any(each)), [1] * len(hours))

    def spread(count: int, counts: list[int]) -> list[int]:
        return split(count, counts if any(counts) else otherwise)

    cached = spread(tokens.cached, [each.cached for each in known])
    computed = spread(tokens.input - tokens.cached, [each.input - each.cached for each in known])
    output = spread(tokens.output, [each.output for each in known])
    requests = spread(tokens.requests, [each.requests for each in known])
    return {
        hour: Tokens(computed[at] + cached[at], cached[at], output[at], requests[at])
        for at, hour in enumerate(hours)
    }


def price_per_million(cost_micro: int, weight: int, weighted: int) -> Decimal | None:
    """Major units for a million tokens of one weight, where `weighted` units cost so much, to six
    places; None where nothing was counted.
    """
    if not weighted:
        return None
    # micro-units x 1e6 tokens / 1e6 micro-units in a major unit
    return Decimal(round_half_even_div(cost_micro * weight * MICRO, weighted)).scaleb(-6)
