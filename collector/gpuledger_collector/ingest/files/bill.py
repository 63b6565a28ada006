"""A provider's bill in FOCUS 1.0 to 1.4, as CSV (also .gz) or Parquet: lines by provider and
billing period.

Only what a reconciliation needs is read. Amounts stay the decimals that were written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainValidator

from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.accounting.provider_bill import PLACES, BillLine
from gpuledger_collector.config import bounded_process
from gpuledger_collector.config.csv_rows import decode, missing_columns, split_rows
from gpuledger_collector.config.fields import (
    Currency,
    Instant,
    Text,
    end_after,
    read_decimal,
    read_text,
    refusal,
)
from gpuledger_collector.config.files import lines_of, sha256_of
from gpuledger_collector.config.model import Record, Row
from gpuledger_collector.extras import install_command

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
    end_ms: Annotated[Instant, end_after("start_ms", "ChargePeriodStart", or_at=True)] = Field(
        alias="ChargePeriodEnd"
    )
    bill_start_ms: Instant = Field(alias="BillingPeriodStart")
    bill_end_ms: Annotated[
        Instant, end_after("bill_start_ms", "BillingPeriodStart", or_at=True)
    ] = Field(alias="BillingPeriodEnd")
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
    if find_spec("pyarrow") is None:
        raise NoArrow(
            f"Parquet needs pyarrow, which is not installed: {install_command('parquet')}"
        )
    keys = _Line.cell_names()
    output = bounded_process.run("gpuledger_collector.ingest.files.parquet_process", path, keys)
    lines = lines_of(output.text)
    try:
        # A process that was ended may have left its last line in the middle.
        first = json.loads(next(lines, "null")) if output.code == 0 else None
    except ValueError:
        first = None
    problem = first.get("problem") if isinstance(first, dict) else _unreadable(output)
    if problem is not None:
        problems.append(Problem("bad_parquet", str(path), problem))
        return [], iter(())
    assert first is not None
    header: list[str] = first["header"]
    columns = [name for name in header if name in keys]

    def records() -> Iterator[Record]:
        for line, text in enumerate(tell_each(lines, first["rows"], on_line), 1):
            cells = json.loads(text)
            if isinstance(cells, dict):
                problems.append(Problem("bad_parquet", str(path), cells["problem"]))
                return
            yield Record(str(path), line, dict(zip(columns, cells, strict=True)))

    return header, records()


def _unreadable(output: bounded_process.Output) -> str:
    """Why a process that read Parquet ended without an answer."""
    if output.is_out_of_bounds:
        return (
            f"takes over {bounded_process.MAX_MEMORY_BYTES // 2**30} GiB to read, or is damaged;"
            " write it as CSV"
        )
    last = next(reversed(output.errors.strip().splitlines()), f"code {output.code}")
    return f"cannot be read as Parquet: {last[:500]}"
