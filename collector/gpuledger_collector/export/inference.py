"""Shared model servers as lists: what tenants pay, and what servers cost and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from gpuledger_collector.accounting.inference_lines import (
    DEFAULT_KEYS,
    GroupedLine,
    ServerSummary,
)
from gpuledger_collector.export.report import Column, Kind, Report


def _key(name: str) -> Column[GroupedLine]:
    return Column(name, lambda line: line.keys[name])


def inference_report(keys: Sequence[str]) -> Report[GroupedLine]:
    """What tenants pay, by keys."""
    return Report(
        "inference",
        (
            *map(_key, keys),
            Column("input_tokens", lambda line: line.tokens.input, Kind.COUNT),
            Column(
                "cached_tokens",
                lambda line: line.tokens.cached,
                Kind.COUNT,
                about="Contained in input_tokens.",
                is_optional=True,
            ),
            Column("output_tokens", lambda line: line.tokens.output, Kind.COUNT),
            Column("requests", lambda line: line.tokens.requests, Kind.COUNT, is_optional=True),
            Column("cost", lambda line: line.cost, Kind.MONEY),
            Column(
                "cost_used",
                lambda line: line.used,
                Kind.MONEY,
                about="Its part of the time in which the accelerators worked.",
            ),
            Column(
                "cost_idle",
                lambda line: line.idle,
                Kind.MONEY,
                about="Its part of idle time, by the server's rule.",
            ),
            Column(
                "cost_borrowed",
                lambda line: line.borrowed,
                Kind.MONEY,
                about="Contained in cost_used: beyond its reservation, lent by others.",
                is_optional=True,
            ),
            Column(
                "cost_lent",
                lambda line: line.lent,
                Kind.MONEY,
                about="What others borrowed of its reservation, and pay in its place.",
                is_optional=True,
            ),
            Column(
                "cost_charged",
                lambda line: line.charged,
                Kind.MONEY,
                about="How much of it is charged to the owner; the rest is only shown.",
                is_optional=True,
            ),
            Column("currency", lambda line: line.cost and line.cost.currency),
            Column(
                "trust",
                lambda line: line.trust,
                about="authenticated, or a claim of the caller; empty where both are added up.",
                is_optional=True,
            ),
            Column("paid_by", lambda line: line.owner or None, Kind.OWNER, is_optional=True),
        ),
    )


INFERENCE = inference_report(DEFAULT_KEYS)


def _prices(
    value: Callable[[ServerSummary], Sequence[Decimal | None]], basis: str
) -> list[Column[ServerSummary]]:
    def price(at: int) -> Callable[[ServerSummary], Decimal | None]:
        return lambda server: value(server)[at]

    return [
        Column(
            f"{kind}_price_{basis}",
            price(at),
            Kind.DECIMAL,
            about=f"Of a million {kind} tokens, at {basis} cost.",
            is_optional=True,
        )
        for at, kind in enumerate(("input", "cached", "output"))
    ]


INFERENCE_SERVERS: Report[ServerSummary] = Report(
    "inference_servers",
    (
        Column("server", lambda server: server.server),
        Column("cost", lambda server: server.cost, Kind.MONEY),
        Column("cost_used", lambda server: server.used, Kind.MONEY),
        Column(
            "cost_platform",
            lambda server: server.platform,
            Kind.MONEY,
            about="Idle cost that no tenant pays.",
        ),
        Column(
            "cost_bought",
            lambda server: server.bought,
            Kind.MONEY,
            about=(
                "What the tokens of gateways would have cost at the declared [[api_price]]; beside"
                " cost at today's load, beside cost_used at full load. Empty: not known."
            ),
            is_optional=True,
        ),
        Column("currency", lambda server: server.cost and server.cost.currency),
        Column("tenants", lambda server: server.tenants, Kind.COUNT),
        Column("input_tokens", lambda server: server.asked.input, Kind.COUNT),
        Column("output_tokens", lambda server: server.asked.output, Kind.COUNT),
        Column(
            "server_input_tokens",
            lambda server: server.counted_input,
            Kind.COUNT,
            about="By the server's own counters; empty: not known.",
            is_optional=True,
        ),
        Column(
            "server_output_tokens",
            lambda server: server.counted_output,
            Kind.COUNT,
            is_optional=True,
        ),
        Column(
            "coverage",
            lambda server: server.coverage,
            Kind.DECIMAL,
            about="Tokens of gateways over those of the server.",
        ),
        Column(
            "scaled_days",
            lambda server: server.scaled_days,
            Kind.COUNT,
            about="Days on which gateways counted more than the server, and were scaled down.",
            is_optional=True,
        ),
        *_prices(lambda server: server.held_prices, "held"),
        *_prices(lambda server: server.used_prices, "used"),
    ),
)
