"""What models on shared servers cost an owner: tokens, prices of a million, and idle cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.inference_lines import (
    GroupedLine,
    InferenceLine,
    ServerLine,
    group_lines,
    summarize_servers,
)
from gpuledger_collector.accounting.inference_split import parse_weights, price_per_million
from gpuledger_collector.accounting.period import Calendar

KEYS = ("server", "model")


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What an owner's tenants asked of a model on a server, and what it cost them, in one currency.

    `prices`: what a million input, cached and output tokens cost them; None: not known, since
    weights changed or nothing was charged. `coverage`: of the server, None: not known.
    """

    line: GroupedLine
    prices: tuple[Decimal | None, ...]
    coverage: Decimal | None

    @property
    def server(self) -> str:
        """The server's name."""
        return self.line.keys["server"]

    @property
    def model(self) -> str:
        """The model as its gateway calls it."""
        return self.line.keys["model"]


def list_model_use(
    servers: Sequence[ServerLine],
    lines: Sequence[InferenceLine],
    level: str,
    calendar: Calendar,
) -> dict[str, list[ModelUse]]:
    """By owners of a level what they asked of models, the greatest cost first."""
    coverage = {
        summary.server: summary.coverage
        for summary in reversed(summarize_servers(servers, lines))
        if summary.coverage is not None
    }
    weights: dict[str, set[str]] = defaultdict(set)
    for day in servers:
        weights[day.server].add(day.weights)
    by_owner: dict[str, list[InferenceLine]] = defaultdict(list)
    for line in lines:
        if line.claimant.is_tenant and line.owner.get(level):
            by_owner[line.owner[level]].append(line)
    uses: dict[str, list[ModelUse]] = {}
    for owner, own in by_owner.items():
        by_model: dict[tuple[str, str, str], list[InferenceLine]] = defaultdict(list)
        for line in own:
            by_model[line.server, line.claimant.model, line.currency].append(line)
        uses[owner] = [
            ModelUse(
                grouped,
                _prices(grouped, by_model, weights[grouped.keys["server"]]),
                coverage.get(grouped.keys["server"]),
            )
            for grouped in group_lines(own, KEYS, calendar)
        ]
    return uses


def _prices(
    grouped: GroupedLine,
    lines: Mapping[tuple[str, str, str], Sequence[InferenceLine]],
    texts: set[str],
) -> tuple[Decimal | None, ...]:
    """Prices of a million tokens by kind, at what the lines of a group cost."""
    if grouped.cost is None or len(texts) != 1:
        return (None,) * 3
    weights = parse_weights(next(iter(texts)))
    own = lines[grouped.keys["server"], grouped.keys["model"], grouped.cost.currency]
    cost = sum(line.used_micro + line.idle_micro for line in own)
    weighted = sum(line.weighted for line in own)
    return tuple(
        price_per_million(cost, weight, weighted)
        for weight in (weights.input, weights.cached, weights.output)
    )
