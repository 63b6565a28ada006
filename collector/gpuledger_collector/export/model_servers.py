"""Shared model servers for the page *Models*: what each cost by day and tenant, as a chart and in
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.inference_lines import GroupedLine
from gpuledger_collector.accounting.inference_split import IDLE, NOBODY
from gpuledger_collector.accounting.model_servers import (
    REST,
    TENANT,
    ModelServer,
    TenantSeries,
)
from gpuledger_collector.accounting.money import MICRO, Money
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.spend_series import DAY
from gpuledger_collector.export.spend import OTHERS, bucket_label
from gpuledger_collector.export.spend_plots import Bar, Segment, draw_bars
from gpuledger_common.plurals import plural

KINDS = ("input", "cached input", "output")
"""Tokens that have a price, in the order of prices."""
WORDS = {
    NOBODY: "tokens that the server counted and no gateway knows",
    IDLE: "idle time that stays with the platform",
}
LinkOf = Callable[[Period, str], str]
"""Where a day leads, and a tenant of it (empty: all)."""


def name_tenant(name: str) -> str:
    """What people call a tenant; a key without a team is unattributed."""
    return name or UNATTRIBUTED


def _name_series(series: TenantSeries) -> str:
    return f"{series.count:,} {OTHERS}" if series.kind == REST else name_tenant(series.name)


def css_of(server: ModelServer) -> dict[tuple[str, str], str]:
    """The CSS class of each series, by its name and kind."""
    fixed = {REST: "group-rest", NOBODY: "fill-nobody", IDLE: "fill-idle"}
    return {
        (series.name, series.kind): fixed.get(series.kind, f"group-{at}")
        for at, series in enumerate(server.series)
    }


def cost_bars(server: ModelServer, calendar: Calendar, link: LinkOf) -> Markup | None:
    """What a server cost on each day, by tenant; None where it has no price."""
    if not server.currency or not server.days:
        return None
    classes = css_of(server)
    bars: list[Bar] = []
    totals: list[Money] = []
    for at, day in enumerate(server.days):
        name = bucket_label(day, DAY, calendar)
        parts = [(series, Money(series.micros[at], server.currency)) for series in server.series]
        total = Money(sum(amount.micro for _, amount in parts), server.currency)
        segments = [
            Segment(
                classes[series.name, series.kind],
                amount.micro / MICRO,
                f"{name}, {_name_series(series)}: {amount.grouped()} {server.currency}",
                link(day, series.name if series.kind == TENANT else ""),
            )
            for series, amount in parts
            if amount.micro
        ]
        if segments:
            totals.append(total)
            title = f"{name}: {total.grouped()} {server.currency}"
            bars.append(Bar(name, segments, title, link(day, "")))
        else:
            bars.append(Bar(name, (), "", ""))
    if not totals:
        return None
    totals.sort(key=lambda total: total.micro)
    words = (
        f"{plural(len(totals), 'day')} with a cost, from {totals[0].grouped()} to"
        f" {totals[-1].grouped()} {server.currency}"
    )
    title = f"Cost of {server.name} by day and tenant"
    return draw_bars(bars, title, words, f"{server.currency} a day")


def server_facts(server: ModelServer, calendar: Calendar, link: LinkOf) -> Mapping[str, Any]:
    """A server for the template."""
    classes = css_of(server)
    summary = server.summary
    return {
        "name": server.name,
        "currency": server.currency,
        "cost": server.cost if summary is None else summary.cost,
        "own": server.cost,
        "summary": summary,
        "idle": None if server.idle_share is None else percent(server.idle_share),
        "coverage": None
        if summary is None or summary.coverage is None
        else percent(summary.coverage),
        "prices": [] if summary is None else price_rows(server),
        "bars": cost_bars(server, calendar, link),
        "tenants": [_tenant_facts(line, classes) for line in server.tenants],
        "tokens": server.tokens,
    }


def price_rows(server: ModelServer) -> list[tuple[str, str, str]]:
    """Of each kind of tokens what a million cost, held and used; none where nothing is known."""
    summary = server.summary
    if summary is None or all(price is None for price in summary.held_prices):
        return []
    return [
        (kind, price_text(held), price_text(used))
        for kind, held, used in zip(KINDS, summary.held_prices, summary.used_prices, strict=True)
    ]


def price_text(price: Decimal | None) -> str:
    """A price of a million tokens, to four places."""
    return "" if price is None else f"{price:,.4f}"


def percent(share: Decimal) -> str:
    """A share of one in percent, to one place."""
    return f"{share * 100:.1f} %"


def _tenant_facts(line: GroupedLine, classes: Mapping[tuple[str, str], str]) -> Mapping[str, Any]:
    tenant = line.keys["tenant"]
    name = "" if tenant == UNATTRIBUTED else tenant
    kind = tenant if tenant in {NOBODY, IDLE} else TENANT
    return {
        "name": tenant,
        "css": classes.get((tenant if kind != TENANT else name, kind), "group-rest"),
        "about": WORDS.get(tenant, ""),
        "team": line.owner.get("team", ""),
        "owner": " · ".join(line.owner.values()),
        "trust": line.trust,
        "is_tenant": kind == TENANT,
        "line": line,
    }
