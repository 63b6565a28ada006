"""A provider's bill in FOCUS 1.0 to 1.4, as CSV (also .gz) or Parquet: lines by provider and billing period.

Of FOCUS only what a reconciliation needs is read. Amounts stay the decimals that they were written as.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from gpuledger_collector.accounting.bill import PLACES, BillLine
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.table import RowReader, missing_columns, read_text, rows_of

REQUIRED = (
    "BilledCost",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargePeriodStart",
    "ChargePeriodEnd",
)
PROVIDERS = ("ServiceProviderName", "ProviderName")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?")
MOST_MISTAKES = 100


class NoArrow(Exception):
    """Parquet needs pyarrow, which is not installed: pip install 'gpuledger[parquet]'"""


@dataclass(frozen=True, slots=True)
class BillPeriod:
    """Whose bill, and for which billing period."""

    provider: str
    start_ms: int
    end_ms: int


@dataclass
class BillFile:
    """The lines of a file by bill, or the problems of all bad rows."""

    sha256: str
    bills: dict[BillPeriod, list[BillLine]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_bill(path: Path, provider: str | None = None) -> BillFile:
    """Every line of the file; `provider` names it where the file does not. Raises OSError and NoArrow."""
    made = BillFile(hashlib.sha256(path.read_bytes()).hexdigest())
    if path.suffix == ".parquet":
        header, rows = _parquet(path, made.problems)
    else:
        text, made.problems = read_text(path)
        header, rows = ([], iter(())) if made.problems else rows_of(path, text, made.problems)
    if made.problems:
        return made
    made.problems += missing_columns(path, header, REQUIRED)
    if provider is None and not set(PROVIDERS) & set(header):
        told = "the header names no provider (ServiceProviderName or ProviderName): say --provider NAME"
        made.problems.append(Problem("no_column", f"{path}:1:ProviderName", told))
    if made.problems:
        return made
    for row in rows:
        found = _line(row, provider)
        if found is not None:
            made.bills.setdefault(found[0], []).append(found[1])
        if len(made.problems) >= MOST_MISTAKES:
            break
    if not made.bills and not made.problems:
        made.problems.append(Problem("empty", str(path), "holds no line"))
    return made


def _line(row: RowReader, provider: str | None) -> tuple[BillPeriod, BillLine] | None:
    name = provider or row.text(PROVIDERS[0]) or row.text(PROVIDERS[1])
    if not name:
        row.refuse("ProviderName", "empty", "is empty")
    start, end = row.instant("ChargePeriodStart", required=True), row.instant("ChargePeriodEnd", required=True)
    first, last = row.instant("BillingPeriodStart", required=True), row.instant("BillingPeriodEnd", required=True)
    for column, begin, stop in (("ChargePeriodEnd", start, end), ("BillingPeriodEnd", first, last)):
        if begin is not None and stop is not None and stop < begin:
            row.refuse(column, "order", "lies before its start")
    currency = row.currency("BillingCurrency")
    billed, effective = _amount(row, "BilledCost", required=True), _amount(row, "EffectiveCost")
    priced = bool(row.text("PricingQuantity"))
    quantity = _amount(row, "PricingQuantity" if priced else "ConsumedQuantity")
    category = row.text("ChargeCategory", required=True)
    if row.bad or billed is None or start is None or end is None or first is None or last is None:
        return None
    return BillPeriod(name, first, last), BillLine(
        line=row.line,
        start_ms=start,
        end_ms=end,
        category=category,
        charge_class=row.text("ChargeClass"),
        description=row.text("ChargeDescription"),
        sku=row.text("SkuId"),
        resource=row.text("ResourceId"),
        resource_name=row.text("ResourceName"),
        region=row.text("RegionId"),
        service=row.text("ServiceName"),
        commitment=row.text("CommitmentDiscountStatus"),
        quantity=quantity,
        unit=row.text("PricingUnit" if priced else "ConsumedUnit"),
        currency=currency,
        billed=billed,
        effective=effective,
    )


def _amount(row: RowReader, column: str, *, required: bool = False) -> Decimal | None:
    """A number as it is written, negative ones too; None where it is empty or bad."""
    text = row.text(column, required=required)
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        row.refuse(column, "bad_number", f"{text!r} is not a decimal number such as 1.25")
        return None
    number = Decimal(text)
    if abs(number) >= 10**15 or number != round(number, PLACES):
        row.refuse(
            column, "out_of_range", f"{text} has more than {PLACES} decimals, or more than 15 digits before them"
        )
        return None
    return number


def _parquet(path: Path, problems: list[Problem]) -> tuple[list[str], Iterator[RowReader]]:
    """Header and rows of a Parquet file, their values as the text that a CSV would hold."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise NoArrow("Parquet needs pyarrow, which is not installed: pip install 'gpuledger[parquet]'") from error
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, pa.ArrowIOError) as error:
        problems.append(Problem("bad_parquet", str(path), f"is not Parquet: {error}"))
        return [], iter(())
    header = list(file.schema_arrow.names)
    read = {
        *REQUIRED,
        *PROVIDERS,
        "EffectiveCost",
        "PricingQuantity",
        "ConsumedQuantity",
        "ChargeClass",
        "ResourceId",
        "ChargeDescription",
        "SkuId",
        "ResourceName",
        "RegionId",
        "ServiceName",
        "CommitmentDiscountStatus",
        "PricingUnit",
        "ConsumedUnit",
    }

    def rows() -> Iterator[RowReader]:
        line = 0
        for batch in file.iter_batches(columns=[name for name in header if name in read]):
            for values in batch.to_pylist():
                line += 1
                yield RowReader(str(path), line, _cells(values), problems)

    return header, rows()


def _cells(values: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value) if isinstance(value, float) else str(value)
