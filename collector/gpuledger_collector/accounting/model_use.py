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
    TokenScale,
    group_lines,
    summarize_servers,
)
from gpuledger_collector.accounting.period import Calendar
from gpuledger_collector.accounting.token_prices import (
    NO_TOKENS,
    UNKNOWN,
    PricedDay,
    Prices,
    price_tokens,
)

KEYS = ("server", "model")


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What an owner's tenants asked of a model on a server, and what it cost them, in one currency.

    `prices`: what a million input, cached and output tokens cost them; None: not known, since
    nothing was counted or charged. `coverage`: of the server, None: not known.
    """

    line: GroupedLine
    prices: Prices
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
    scale = TokenScale(servers, lines)
    weights = {(day.server, day.day_ms): day.weights for day in servers}
    by_owner: dict[str, list[InferenceLine]] = defaultdict(list)
    for line in lines:
        if line.claimant.is_tenant and line.owner.get(level):
            by_owner[line.owner[level]].append(line)
    uses: dict[str, list[ModelUse]] = {}
    for owner, own in by_owner.items():
        by_model: dict[tuple[str, str], list[InferenceLine]] = defaultdict(list)
        for line in own:
            by_model[line.server, line.claimant.model].append(line)
        uses[owner] = [
            ModelUse(
                grouped,
                _prices(
                    grouped,
                    by_model[grouped.keys["server"], grouped.keys["model"]],
                    weights,
                    scale,
                ),
                coverage.get(grouped.keys["server"]),
            )
            for grouped in group_lines(own, KEYS, calendar)
        ]
    return uses


def _prices(
    grouped: GroupedLine,
    lines: Sequence[InferenceLine],
    weights: Mapping[tuple[str, int], str],
    scale: TokenScale,
) -> Prices:
    """Prices of a million tokens by kind, at what the lines of a group cost; `lines`: of its server
    and model, in all currencies.
    """
    if grouped.cost is None:
        return UNKNOWN
    kinds = scale.sum_kinds(lines)
    days: dict[tuple[str, int], list[InferenceLine]] = defaultdict(list)
    for line in lines:
        if line.currency == grouped.cost.currency:
            days[line.server, line.day_ms].append(line)
    return price_tokens(
        [
            PricedDay(
                sum(line.used_micro + line.idle_micro for line in own),
                weights[key],
                sum(line.weighted for line in own),
                kinds.get(key, NO_TOKENS),
            )
            for key, own in sorted(days.items())
        ]
    )
