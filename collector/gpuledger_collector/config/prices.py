"""The price book: [[price]] tables, and the CSV of `gpuledger import prices` (design.md §3)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.pricing import PURCHASES, Price
from gpuledger_collector.config.csv_rows import Parsed, read_records
from gpuledger_collector.config.fields import (
    Currency,
    DatedInstant,
    EffectiveTo,
    Name,
    Rate,
    Text,
    one_of,
)
from gpuledger_collector.config.model import Declaration


class DeclaredPrice(Declaration):
    """A rate per GPU-hour."""

    pool: Name = ""
    gpu_model: Name = ""
    purchase: Annotated[str, one_of(PURCHASES)]
    rate: Rate = Field(alias="rate_per_gpu_hour")
    currency: Currency
    effective_from_ms: DatedInstant = Field(alias="effective_from")
    effective_to_ms: EffectiveTo = Field(None, alias="effective_to")
    list_rate: Rate | None = None
    region: Text = ""
    node: Name = ""

    value_type = Price
    blank_columns = ("pool", "gpu_model")
    # without the rate and the end: what makes two prices versions of one (`Price.identity`)
    identity = ("pool", "gpu_model", "purchase", "region", "node", "effective_from_ms")
    conflict = ("rate_per_gpu_hour", "line {line} gives the same price other values")
    may_repeat = True


def read_prices(path: Path, on_line: OnRow = tell_nobody) -> Parsed[Price]:
    """Every price of a CSV file, or the problems of all bad rows.

    Raises OSError when it cannot be opened.
    """
    parsed: Parsed[Price] = Parsed()
    parsed.rows = DeclaredPrice.collect(
        read_records(path, DeclaredPrice, parsed, on_line), parsed.problems
    )
    return parsed
