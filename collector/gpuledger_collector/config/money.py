"""What is declared of money beside the price book: commitments, owned hardware, ways of buying, exchange rates.

[[commitment]]
name = "three years of H100"
pool = "train"
gpu_model = "H100"
gpus = 64
upfront = 1200000
rate_per_gpu_hour = 0.85          # recurring, paid for every committed GPU-hour
currency = "USD"
starts = 2026-01-01
ends = 2029-01-01

[[owned]]
name = "DGX of 2025"
node = "dgx1"
per = "node"                      # what the amounts are for: gpu or node
gpus = 8
capex = 280000
salvage = 28000
months = 48
watts = 10200
pue = 1.3
price_per_kwh = 0.19
opex_per_month = 900
currency = "EUR"
starts = 2025-07-01

[[purchase]]
pool = "preemptible"
purchase = "spot"

[[exchange]]
from = "USD"
to = "EUR"
rate = 0.92
effective_from = 2026-10-01
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.exchange import ExchangeRate
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.owned import ENERGY, PER, Owned
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.pricing import PURCHASES, Price, PurchaseChoice
from gpuledger_collector.config.prices import refuse_region
from gpuledger_collector.config.table import RowReader

_PLACE = ("pool", "gpu_model", "node")
COMMITMENT_KEYS = (
    "name",
    "gpus",
    "upfront",
    "rate_per_gpu_hour",
    "currency",
    "starts",
    "ends",
    *_PLACE,
    "region",
)
OWNED_KEYS = (
    "name",
    "per",
    "gpus",
    "capex",
    "salvage",
    "months",
    "watts",
    "pue",
    "price_per_kwh",
    "opex_per_month",
    "energy",
    "currency",
    "starts",
    "list_rate",
    *_PLACE,
    "region",
)
PURCHASE_KEYS = ("name", "purchase", "tags", "effective_from", "effective_to", *_PLACE)
EXCHANGE_KEYS = ("from", "to", "rate", "effective_from")
MOST = 1_000_000_000
"""Of an amount in major units, and of GPUs: a slip of the keyboard is told, not billed."""
MOST_RATE = 1_000_000
MOST_MONTHS = 600
Rows = Sequence[tuple[RowReader, Mapping[str, Any]]]


def read_commitments(rows: Rows) -> list[Commitment]:
    """The commitments of these tables; names are unique, terms go from one whole hour (UTC) to a later one."""
    made: list[Commitment] = []
    for row, _ in rows:
        name = _name(row, {one.name for one in made})
        gpus = _whole(row, "gpus", required=True)
        upfront = row.decimal("upfront", digits=6, most=MOST) or Decimal(0)
        rate = row.decimal("rate_per_gpu_hour", digits=9, most=MOST_RATE) or Decimal(0)
        currency = row.currency("currency")
        starts, ends = _hour(row, "starts", required=True), _hour(row, "ends", required=True)
        if starts is not None and ends is not None and ends <= starts:
            row.refuse("ends", "order", "does not lie after starts")
        if not upfront and not rate and not row.bad:
            row.refuse("upfront", "free", "is missing, and so is rate_per_gpu_hour: a commitment costs something")
        refuse_region(row)
        place = [row.name(column) for column in _PLACE]
        if row.bad or starts is None or ends is None or gpus is None:
            continue
        made.append(Commitment(None, name, gpus, int(upfront * MICRO), rate, currency, starts, ends, *place))
    return made


def read_owned(rows: Rows) -> list[Price]:
    """The price-book entries that these tables of owned hardware lead to; each says how it was derived."""
    made: list[Owned] = []
    prices: list[Price] = []
    for row, _ in rows:
        owned = _owned(row, {one.name for one in made})
        if owned is not None:
            made.append(owned)
            prices += [replace(price, source=f"{row.file}:{row.line}") for price in owned.prices()]
    return prices


def _owned(row: RowReader, known: set[str]) -> Owned | None:
    name, per = _name(row, known), row.text("per") or "gpu"
    energy = row.text("energy") or ENERGY[0]
    for column, value, allowed in (("per", per, PER), ("energy", energy, ENERGY)):
        if value not in allowed:
            row.refuse(column, "bad_choice", f"{value!r} is not one of {', '.join(allowed)}")
    gpus = _whole(row, "gpus", required=per == "node")
    if per == "gpu" and gpus not in {None, 1}:
        row.refuse("gpus", "not_asked", 'is only for per = "node"')
    months = _whole(row, "months", required=True, most=MOST_MONTHS)
    starts = row.instant("starts", required=True, dates=True)
    capex = row.decimal("capex", digits=6, most=MOST, required=True)
    salvage = row.decimal("salvage", digits=6, most=MOST) or Decimal(0)
    if capex is not None and salvage > capex:
        row.refuse("salvage", "out_of_range", "is more than capex")
    pue = row.decimal("pue", digits=6, most=10)
    if pue is not None and pue < 1:
        row.refuse("pue", "out_of_range", "is below 1: a building takes no less than its machines")
    opex, watts, kwh = (
        row.decimal(column, digits=6, most=MOST) or Decimal(0)
        for column in ("opex_per_month", "watts", "price_per_kwh")
    )
    list_rate = row.decimal("list_rate", digits=9, most=MOST_RATE)
    currency = row.currency("currency")
    refuse_region(row)
    place = {column: row.name(column) for column in _PLACE}
    if row.bad or capex is None or months is None or starts is None:
        return None
    return Owned(
        name=name,
        capex=capex,
        months=months,
        currency=currency,
        starts_ms=starts,
        per=per,
        gpus=gpus or 1,
        salvage=salvage,
        opex_per_month=opex,
        watts=watts,
        pue=Decimal(1) if pue is None else pue,
        price_per_kwh=kwh,
        energy=energy,
        list_rate=list_rate,
        **place,
    )


def read_purchases(rows: Rows) -> list[PurchaseChoice]:
    """The choices between ways of buying, in the order of the file; they begin and end on whole hours (UTC)."""
    made = []
    for position, (row, given) in enumerate(rows, 1):
        purchase = row.text("purchase", required=True)
        if purchase and purchase not in PURCHASES:
            row.refuse("purchase", "bad_purchase", f"{purchase!r} is not one of {', '.join(PURCHASES)}")
        tags = given.get("tags", {})
        if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
            row.refuse("tags", "bad_table", 'is not a table of texts, such as { qos = "preempt*" }')
            tags = {}
        starts, ends = _hour(row, "effective_from"), _hour(row, "effective_to")
        if starts is not None and ends is not None and ends <= starts:
            row.refuse("effective_to", "order", "does not lie after effective_from")
        pool, model, node = (row.name(column) for column in _PLACE)
        if not row.bad:
            made.append(
                PurchaseChoice(None, row.text("name"), position, purchase, pool, model, node, tags, starts, ends)
            )
    return made


def read_exchange(rows: Rows) -> list[ExchangeRate]:
    """Dated exchange rates; a rate begins at a midnight (UTC), for it converts whole days."""
    made: dict[tuple[str, str, int], ExchangeRate] = {}
    for row, _ in rows:
        of, to = row.currency("from"), row.currency("to")
        if of and of == to:
            row.refuse("to", "same", "is the same currency as from")
        rate = row.decimal("rate", digits=9, most=MOST_RATE, required=True)
        if rate is not None and not rate:
            row.refuse("rate", "out_of_range", "is 0")
        starts = row.instant("effective_from", required=True, dates=True)
        if starts is not None and starts % (24 * HOUR_MS):
            row.refuse("effective_from", "not_a_day", "is not a date: a rate holds for whole days")
        if row.bad or rate is None or starts is None:
            continue
        if made.setdefault((of, to, starts), one := ExchangeRate(of, to, rate, starts)) != one:
            row.refuse("rate", "double_rate", "another table gives the same day another rate")
    return list(made.values())


def _name(row: RowReader, known: set[str]) -> str:
    name = row.text("name", required=True)
    if name in known:
        row.refuse("name", "double_name", f"{name!r} is named twice")
    return name


def _whole(row: RowReader, column: str, *, required: bool = False, most: int = MOST) -> int | None:
    number = row.decimal(column, digits=0, most=most, required=required)
    if number is not None and number < 1:
        row.refuse(column, "out_of_range", "is less than 1")
    return None if number is None else int(number)


def _hour(row: RowReader, column: str, *, required: bool = False) -> int | None:
    at_ms = row.instant(column, required=required, dates=True)
    if at_ms is not None and at_ms % HOUR_MS:
        row.refuse(column, "not_an_hour", "is not on a whole hour (UTC)")
    return at_ms
