"""Shared model servers as a page shows them: each with its prices, its tenants, and who had what of
each day.

Lines come from accounting/inference_lines.py. Amounts of a server's tenants are rounded together,
so that they add up to its total; whoever sees some of them alone sees the same amounts, and their
sum. Those of its days are exact, for a chart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_lines import (
    GroupedLine,
    InferenceLine,
    ServerSummary,
    group_lines,
)
from gpuledger_collector.accounting.inference_split import IDLE, NOBODY
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Calendar, Period

MOST_SERIES = 8
"""Tenants with a color of their own; the others share one."""
TENANT, REST = "tenant", "rest"
_NOT_TENANTS = {NOBODY: 1, IDLE: 2}


@dataclass(frozen=True, slots=True)
class TenantSeries:
    """What a tenant had of each day, in micro-units.

    `kind`: TENANT, REST for `count` others together, or NOBODY or IDLE for what no tenant pays.
    """

    name: str
    kind: str
    micros: Sequence[int]
    count: int = 1


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A shared server in a period and a currency (empty: without a price).

    `summary`: for readers of the whole fleet alone. `tokens`, `cost`: of all of its lines. `days`: of
    the period, up to the last that has a line.
    """

    name: str
    currency: str
    summary: ServerSummary | None
    tenants: Sequence[GroupedLine]
    tokens: Tokens
    cost: Money | None
    days: Sequence[Period]
    series: Sequence[TenantSeries]

    @property
    def idle_share(self) -> Decimal | None:
        """The part of the server's cost that is idle time, to three places; None: not known."""
        summary = self.summary
        if (
            summary is None
            or summary.cost is None
            or summary.used is None
            or not summary.cost.micro
        ):
            return None
        idle_micro = summary.cost.micro - summary.used.micro
        return Decimal(idle_micro * 1000 // summary.cost.micro).scaleb(-3)


def list_model_servers(
    lines: Sequence[InferenceLine],
    summaries: Sequence[ServerSummary],
    period: Period,
    calendar: Calendar,
    hidden: Iterable[InferenceLine] = (),
) -> list[ModelServer]:
    """Servers with their tenants, the dearest first; those without a line of a tenant too.

    `hidden`: lines that are rounded with these, and not in the answer.
    """
    own, beside = _by_server(lines), _by_server(hidden)
    by_key = {
        (summary.server, summary.cost.currency if summary.cost else ""): summary
        for summary in summaries
    }
    servers = [
        _model_server(
            *key, by_key.get(key), own.get(key, []), period, calendar, beside.get(key, [])
        )
        for key in sorted(own.keys() | by_key.keys())
    ]
    return sorted(servers, key=lambda server: -_micro(server))


def _by_server(
    lines: Iterable[InferenceLine],
) -> Mapping[tuple[str, str], Sequence[InferenceLine]]:
    """Lines by server and currency."""
    by_server: dict[tuple[str, str], list[InferenceLine]] = defaultdict(list)
    for line in lines:
        by_server[line.server, line.currency].append(line)
    return by_server


def _micro(server: ModelServer) -> int:
    amount = server.cost if server.summary is None else server.summary.cost
    return amount.micro if amount is not None else 0


def _model_server(
    name: str,
    currency: str,
    summary: ServerSummary | None,
    lines: Sequence[InferenceLine],
    period: Period,
    calendar: Calendar,
    hidden: Sequence[InferenceLine],
) -> ModelServer:
    grouped = group_lines(lines, ("tenant",), calendar, hidden)
    # In the order of the chart: who asked, the dearest first, then what no tenant pays.
    tenants = sorted(grouped, key=lambda line: _NOT_TENANTS.get(line.keys["tenant"], 0))
    micro = sum(line.used_micro + line.idle_micro for line in lines)
    minor = sum(line.cost.minor for line in grouped if line.cost is not None)
    last_ms = max((line.day_ms for line in lines), default=period.start_ms)
    days = [day for day in calendar.days(period) if day.start_ms <= last_ms]
    return ModelServer(
        name,
        currency,
        summary,
        tenants,
        sum((line.tokens for line in lines), Tokens()),
        Money(micro, currency, minor) if currency else None,
        days,
        _list_series(lines, days),
    )


def _list_series(lines: Sequence[InferenceLine], days: Sequence[Period]) -> list[TenantSeries]:
    """The dearest tenants, the others together, then what no tenant pays."""
    number = {day.start_ms: at for at, day in enumerate(days)}
    micros: dict[str, list[int]] = defaultdict(lambda: [0] * len(days))
    for line in lines:
        name = line.claimant.tenant
        micros[name][number[line.day_ms]] += line.used_micro + line.idle_micro
    names = sorted(micros.keys() - {NOBODY, IDLE}, key=lambda name: (-sum(micros[name]), name))
    # One beyond the limit has a color of its own as well: "1 other" says less than its name.
    most = MOST_SERIES if len(names) > MOST_SERIES + 1 else len(names)
    series = [TenantSeries(name, TENANT, micros[name]) for name in names[:most]]
    if rest := names[most:]:
        together = [sum(amounts) for amounts in zip(*(micros[name] for name in rest), strict=True)]
        series.append(TenantSeries("", REST, together, len(rest)))
    return [
        *series,
        *(TenantSeries(name, name, micros[name]) for name in (NOBODY, IDLE) if name in micros),
    ]


def matches(line: InferenceLine, words: str) -> bool:
    """Whether all the words stand in the names of a line."""
    names = (line.server, line.claimant.tenant, line.claimant.model, *line.owner.values())
    text = " ".join(names).casefold()
    return all(word in text for word in words.casefold().split())
