"""The price book CSV (design.md §3)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuledger_collector.accounting.pricing import PURCHASES, Price
from gpuledger_collector.config.table import (
    Parsed,
    RowReader,
    missing_columns,
    read_text,
    rows_of,
    unknown_columns,
)

REQUIRED = ("pool", "gpu_model", "purchase", "rate_per_gpu_hour", "currency", "effective_from")
OPTIONAL = ("effective_to", "list_rate", "region", "node")
MAX_RATE = 1_000_000


def read_prices(path: Path) -> Parsed[Price]:
    """Every price of the file, or the problems of all bad rows. Instants may be bare dates (their UTC midnight)."""
    parsed: Parsed[Price] = Parsed()
    text, parsed.problems = read_text(path)
    if parsed.problems:
        return parsed
    header, rows = rows_of(path, text, parsed.problems)
    parsed.problems.extend(missing_columns(path, header, REQUIRED))
    if parsed.problems:
        return parsed
    parsed.notes.extend(unknown_columns(header, (*REQUIRED, *OPTIONAL)))
    parsed.rows = read_once(rows)
    return parsed


def read_once(rows: Iterable[RowReader]) -> list[Price]:
    """The prices of these rows, each identity once; one that says something else than an earlier row is refused."""
    first: dict[tuple[object, ...], tuple[int, Price]] = {}
    for row in rows:
        price = read_price(row)
        if price is None:
            continue
        line, earlier = first.setdefault(price.identity, (row.line, price))
        if earlier != price:
            row.refuse("rate_per_gpu_hour", "double_price", f"line {line} gives the same price other values")
    return [price for _, price in first.values()]


def refuse_region(row: RowReader) -> None:
    """Refuse a price or a commitment of one region.

    No accelerator has a region in this ledger (neither agents nor the inventory say one), so it would match nothing: a
    rate would leave its time unpriced, and a commitment would be billed whole as unused.
    """
    region = row.text("region")
    if region:
        row.refuse("region", "no_region", f"{region!r} matches nothing: no accelerator has a region yet; name its pool")


def read_price(row: RowReader) -> Price | None:
    """One price of a row of cells, None (and problems noted) when it is bad."""
    purchase = row.text("purchase", required=True)
    if purchase and purchase not in PURCHASES:
        row.refuse("purchase", "bad_purchase", f"{purchase!r} is not one of {', '.join(PURCHASES)}")
    currency = row.currency("currency")
    rate = row.decimal("rate_per_gpu_hour", digits=9, most=MAX_RATE, required=True)
    starts = row.instant("effective_from", required=True, dates=True)
    ends = row.instant("effective_to", dates=True)
    if starts is not None and ends is not None and ends <= starts:
        row.refuse("effective_to", "order", "does not lie after effective_from")
    list_rate = row.decimal("list_rate", digits=9, most=MAX_RATE)
    refuse_region(row)
    texts = {name: row.name(name) for name in ("pool", "gpu_model", "node")}
    if row.bad or rate is None or starts is None:
        return None
    return Price(
        id=None,
        pool=texts["pool"],
        gpu_model=texts["gpu_model"],
        purchase=purchase,
        rate=rate,
        currency=currency,
        effective_from_ms=starts,
        effective_to_ms=ends,
        list_rate=list_rate,
        node=texts["node"],
        source=f"{row.file}:{row.line}",
    )
