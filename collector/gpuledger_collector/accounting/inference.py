"""Who asked: tokens that gateways counted by tenant, model and backend, as evidence by the hour.

A record is one request (or the sum of several) with its begin and end. Its tokens are spread over
the hours that it touches by time, by largest remainder, so that hours add up to the record. A
record is told by its gateway and its source id: the same record again changes nothing, and of two
contents of one id the greater holds, so that neither order nor repetition matters.

`cached` is the part of `input` that was not computed again. A tenant is what the gateway set after
it had authenticated the caller (a key, a team), or a claim of the caller, as `trust` says: claims
are shown and never charged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_common.largest_remainder import split

AUTHENTICATED, CLAIM = "authenticated", "claim"
TRUST = (AUTHENTICATED, CLAIM)
"""How a gateway knows its tenant: by what it checked, or by what the caller wrote."""
MAX_TOKENS = 2**53
"""Of one record: pages carry numbers as doubles, which are not exact above it."""
MAX_RECORD_MS = 32 * 24 * HOUR_MS
"""A record covers at most a month: a longer one is a mistake of its units."""


@dataclass(frozen=True, slots=True, order=True)
class Asker:
    """Who asked for what, in the words of the gateway.

    `tenant`: the id of a key's team; empty: a key without a team. `backend`: the address or
    namespace/name that answered; empty: not known.
    """

    gateway: str
    tenant: str
    model: str
    backend: str = ""
    trust: str = AUTHENTICATED


@dataclass(frozen=True, slots=True, order=True)
class Tokens:
    """Counts of tokens and requests; `cached` is a part of `input`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    requests: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.requests + other.requests,
        )

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input - other.input,
            self.cached - other.cached,
            self.output - other.output,
            self.requests - other.requests,
        )

    def bounded(self) -> Tokens:
        """These counts with no more cached than input: counters of a gateway come one by one, and
        of one of them a part may be missing.
        """
        return self if self.cached <= self.input else replace(self, cached=self.input)

    def __bool__(self) -> bool:
        return bool(self.input or self.cached or self.output or self.requests)


def add_tokens(parts: Iterable[Tokens]) -> Tokens:
    """All of these together; a month of a server has tens of thousands."""
    given = cached = output = requests = 0
    for part in parts:
        given += part.input
        cached += part.cached
        output += part.output
        requests += part.requests
    return Tokens(given, cached, output, requests)


COUNTERS = ("input", "cached", "output", "requests")
"""What a gateway counts, as the fields of `Tokens` are called."""


TOKEN_COUNTERS = ("prompt_tokens", "generated_tokens")
"""What counters of servers count of tokens."""
GPU_COUNTERS = (
    "prefill_gpu_ms",
    "decode_gpu_ms",
    "other_gpu_ms",
    "computed_tokens",
    "decoded_tokens",
)
"""How long the GPUs of a server computed prompts, answers and other things, and how many prompt and
answer tokens that were, as the fields of `GpuTime` are called.
"""
SPLIT_COUNTERS = TOKEN_COUNTERS + GPU_COUNTERS
"""Counters of servers that a split may follow from."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One record of a gateway: a request, or the sum of several, from its begin to its end.

    `source_id`: what tells it from other records of its gateway, such as the id of the request.
    """

    asker: Asker
    source_id: str
    start_ms: int
    end_ms: int
    tokens: Tokens

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of two contents of one record, of which the greater holds."""
        return self.tokens, self.end_ms, self.start_ms, self.asker


@dataclass(frozen=True, slots=True)
class TokenHour:
    """What an asker was answered in an hour."""

    asker: Asker
    hour_ms: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class TokenDay:
    """What an asker was answered on a day of the bill."""

    asker: Asker
    day_ms: int
    tokens: Tokens


def record_problem(record: TokenRecord) -> str | None:
    """Why a record is refused, in a sentence; None when it is fine."""
    tokens = record.tokens
    if min(astuple(tokens)) < 0:
        return "a count is negative"
    if max(astuple(tokens)) > MAX_TOKENS:
        return f"a count is over {MAX_TOKENS:,}, above which gateways do not count exactly"
    if tokens.cached > tokens.input:
        return f"{tokens.cached:,} cached tokens are more than its {tokens.input:,} input tokens"
    if record.end_ms < record.start_ms:
        return "ends before it starts"
    if record.end_ms - record.start_ms > MAX_RECORD_MS:
        return "covers more than 32 days"
    if record.asker.trust not in TRUST:
        return f"trust must be {' or '.join(TRUST)}"
    if not record.source_id:
        return "has no id, by which it would be known when it comes again"
    return None


def unknown_model(model: str) -> str:
    """What is said of a record whose model no declared server answers."""
    return f"no [[inference]] table names {model!r}; declare which server answers it"


def spread_record(record: TokenRecord) -> list[tuple[int, Tokens]]:
    """The tokens of a record by hour; one without length lies in the hour of its instant.

    What was cached and what was not are spread apart, so that no hour has more cached than input.
    """
    tokens = record.tokens
    computed, cached, output, requests = (
        spread_units(record.start_ms, record.end_ms, units)
        for units in (tokens.input - tokens.cached, tokens.cached, tokens.output, tokens.requests)
    )
    return [
        (hour_ms, Tokens(computed[hour_ms] + part, part, output[hour_ms], requests[hour_ms]))
        for hour_ms, part in cached.items()
    ]


def spread_units(start_ms: int, end_ms: int, units: int) -> dict[int, int]:
    """Spread units over the hours of a time, by time; the hours add up to them."""
    pieces = Period(start_ms, end_ms).hours() or [Period(start_ms, start_ms + 1)]
    parts = split(units, [piece.ms for piece in pieces])
    return {
        piece.start_ms - piece.start_ms % HOUR_MS: part
        for piece, part in zip(pieces, parts, strict=True)
    }
