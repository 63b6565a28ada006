"""A provider's bill in FOCUS 1.0 to 1.4, as CSV (also .gz) or Parquet: lines by provider and
billing period.

Only what a reconciliation needs is read. Amounts stay the decimals that were written.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainValidator

from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.accounting.provider_bill import PLACES, BillLine
from gpuledger_collector.config.csv_rows import decode, missing_columns, split_rows
from gpuledger_collector.config.fields import (
    Currency,
    Instant,
    Text,
    after,
    read_decimal,
    read_text,
    refusal,
)
from gpuledger_collector.config.files import MAX_FILE_BYTES, PARQUET_ROWS, bounded_rows, sha256_of
from gpuledger_collector.config.model import Record, Row
from gpuledger_collector.extras import install_command
from gpuledger_common.bounded_file import FileTooLarge

PROVIDERS = ("ServiceProviderName", "ProviderName")
MAX_PROBLEMS = 100


class NoArrow(Exception):
    """Parquet needs pyarrow, which is not installed."""


@dataclass(frozen=True, slots=True)
class BillPeriod:
    """The provider of a bill and its billing period."""

    provider: str
    start_ms: int
    end_ms: int


@dataclass
class BillFile:
    """The lines of a file by bill, or the problems of all bad rows."""

    sha256: str
    bills: dict[BillPeriod, list[BillLine]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _read_amount(value: object) -> Decimal:
    """A number as written, negative ones too."""
    text = read_text(value)
    number = read_decimal(text)
    if abs(number) >= 10**15 or number != round(number, PLACES):
        message = f"{text} has more than {PLACES} decimals, or more than 15 digits before them"
        raise refusal("out_of_range", message)
    return number


_Amount = Annotated[Decimal, PlainValidator(_read_amount)]


class _Line(Row):
    """A line under the names of `BillLine`, with its billing period, its provider and both of its
    quantities.
    """

    provider: Text = Field("", alias="ProviderName")
    service_provider: Text = Field("", alias="ServiceProviderName")
    start_ms: Instant = Field(alias="ChargePeriodStart")
    end_ms: Annotated[Instant, after("start_ms", "ChargePeriodStart", or_at=True)] = Field(
        alias="ChargePeriodEnd"
    )
    bill_start_ms: Instant = Field(alias="BillingPeriodStart")
    bill_end_ms: Annotated[Instant, after("bill_start_ms", "BillingPeriodStart", or_at=True)] = (
        Field(alias="BillingPeriodEnd")
    )
    category: Text = Field(alias="ChargeCategory")
    charge_class: Text = Field("", alias="ChargeClass")
    description: Text = Field("", alias="ChargeDescription")
    sku: Text = Field("", alias="SkuId")
    resource: Text = Field("", alias="ResourceId")
    resource_name: Text = Field("", alias="ResourceName")
    region: Text = Field("", alias="RegionId")
    service: Text = Field("", alias="ServiceName")
    commitment: Text = Field("", alias="CommitmentDiscountStatus")
    priced_quantity: _Amount | None = Field(None, alias="PricingQuantity")
    priced_unit: Text = Field("", alias="PricingUnit")
    consumed_quantity: _Amount | None = Field(None, alias="ConsumedQuantity")
    consumed_unit: Text = Field("", alias="ConsumedUnit")
    currency: Currency = Field(alias="BillingCurrency")
    billed: _Amount = Field(alias="BilledCost")
    effective: _Amount | None = Field(None, alias="EffectiveCost")

    def bill_line(self, line: int) -> BillLine:
        """The line; its quantity is the priced one, else the consumed one."""
        is_priced = self.priced_quantity is not None
        return BillLine(
            line=line,
            quantity=self.priced_quantity if is_priced else self.consumed_quantity,
            unit=self.priced_unit if is_priced else self.consumed_unit,
            **{name: value for name, value in vars(self).items() if name in _TAKEN_OVER},
        )


_TAKEN_OVER = frozenset(BillLine.__dataclass_fields__) & frozenset(_Line.model_fields)


def read_bill(path: Path, provider: str | None = None, on_line: OnRow = tell_nobody) -> BillFile:
    """Every line of the file; `provider` names it where the file does not.

    Raises OSError and NoArrow.

    `on_line` is told how many of how many lines are read.
    """
    bill = BillFile(sha256_of(path))
    if path.suffix == ".parquet":
        header, records = _read_parquet(path, bill.problems, on_line)
    else:
        header, records = _read_csv(path, bill, on_line)
    if not bill.problems:
        bill.problems += missing_columns(path, header, _Line.needed_columns())
        if provider is None and not set(PROVIDERS) & set(header):
            message = (
                "the header names no provider (ServiceProviderName or ProviderName): say --provider"
                " NAME"
            )
            bill.problems.append(Problem("no_column", f"{path}:1:ProviderName", message))
    if bill.problems:
        return bill
    keys = set(_Line.cell_names())
    for record in records:
        cells = {name: cell for name, cell in record.cells.items() if name in keys}
        line = _Line.read(Record(record.file, record.line, cells), bill.problems)
        name = provider or (line and (line.service_provider or line.provider))
        if line is not None and name:
            period = BillPeriod(name, line.bill_start_ms, line.bill_end_ms)
            bill.bills.setdefault(period, []).append(line.bill_line(record.line))
        elif line is not None:
            bill.problems.append(Problem("empty", f"{record.source}:ProviderName", "is empty"))
        # every line of a file in a wrong dialect is bad, and bills have millions of lines
        if len(bill.problems) >= MAX_PROBLEMS:
            break
    if not bill.bills and not bill.problems:
        bill.problems.append(Problem("empty", str(path), "holds no line"))
    return bill


def _read_csv(path: Path, bill: BillFile, on_line: OnRow) -> tuple[list[str], Iterator[Record]]:
    """Header and rows of a CSV file; none after adding the problem of a file that is no text."""
    text = decode(path, bill.problems, bill.notes)
    return (
        ([], iter(())) if text is None else split_rows(path, text, bill.problems, on_line=on_line)
    )


def _read_parquet(
    path: Path, problems: list[Problem], on_line: OnRow
) -> tuple[list[str], Iterator[Record]]:
    """Header and rows of a Parquet file, their values as the text that a CSV would hold."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise NoArrow(
            f"Parquet needs pyarrow, which is not installed: {install_command('parquet')}"
        ) from error
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, pa.ArrowIOError) as error:
        problems.append(Problem("bad_parquet", str(path), f"is not Parquet: {error}"))
        return [], iter(())
    groups = [
        file.metadata.row_group(number).total_byte_size
        for number in range(file.metadata.num_row_groups)
    ]
    if sum(groups) > MAX_FILE_BYTES:
        raise FileTooLarge(path, f"larger than {MAX_FILE_BYTES} bytes when it is decompressed")
    header = list(file.schema_arrow.names)
    keys = _Line.cell_names()

    def records() -> Iterator[Record]:
        # bills have dozens of columns; only the needed ones are read
        batches = file.iter_batches(PARQUET_ROWS, columns=[name for name in header if name in keys])
        rows = (values for batch in batches for values in batch.to_pylist())
        told = tell_each(rows, file.metadata.num_rows, on_line)
        for line, values in enumerate(bounded_rows(path, told), 1):
            yield Record(str(path), line, {name: _text(value) for name, value in values.items()})

    return header, records()


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        # FOCUS dates are UTC, and a timestamp of Parquet may carry no zone
        return (value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value) if isinstance(value, float) else str(value)
