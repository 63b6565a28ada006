"""Tables as Parquet: money and quantities as exact decimals, instants as UTC timestamps, and never
a float for money.

pyarrow is needed for this alone (the extra `parquet`), and is imported when the first file is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from gpuledger_collector.accounting.chargeback import Report
from gpuledger_collector.export.chargeback import NUMBERED, csv_rows
from gpuledger_collector.export.focus_check import INSTANTS, NUMBERS
from gpuledger_collector.extras import install_command

if TYPE_CHECKING:
    from gpuledger_collector.insight.readings import Readings

ROWS = 20_000
"""Rows of one row group: what is held in memory at a time."""
COST, QUANTITY, HOURS = "decimal(38, 18)", "decimal(38, 9)", "decimal(38, 6)"
Kind = Literal["text", "instant", "decimal(38, 18)", "decimal(38, 9)", "decimal(38, 6)"]
_PLACES: Mapping[str, int] = {COST: 18, QUANTITY: 9, HOURS: 6}


class ArrowMissing(Exception):
    """pyarrow is not installed; the message says how to get it."""

    def __init__(self) -> None:
        super().__init__(
            f"Parquet needs pyarrow, which is not installed: {install_command('parquet')}"
        )


def arrow() -> tuple[ModuleType, ModuleType]:
    """pyarrow and pyarrow.parquet. Raises ArrowMissing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ArrowMissing from error
    return pa, pq


def focus_kinds(columns: Sequence[str]) -> dict[str, Kind]:
    """What each column of FOCUS holds; our own that are numbers begin with x_ and end with what
    they count.
    """
    kinds: dict[str, Kind] = {}
    for name in columns:
        if name in INSTANTS or name in {"BillingPeriodCreated", "BillingPeriodLastUpdated"}:
            kinds[name] = "instant"
        elif name.endswith("Cost"):
            kinds[name] = "decimal(38, 18)"
        elif name in NUMBERS or name in {"x_BusyGpuSeconds", "x_HeldIdleGpuSeconds", "x_EnergyWh"}:
            kinds[name] = "decimal(38, 9)"
        else:
            kinds[name] = "text"
    return kinds


def write_chargeback(report: Report, notices: Sequence[str], path: Path) -> None:
    """The rows of a chargeback's CSV as typed columns: amounts of six places at most, and texts.

    Raises ArrowMissing.
    """
    lines = csv_rows(report, notices)
    columns = list(map(str, next(lines)))
    kinds: dict[str, Kind] = {
        name: "decimal(38, 6)" if name in NUMBERED and name not in report.by else "text"
        for name in columns
    }
    write((dict(zip(columns, map(str, line), strict=True)) for line in lines), path, kinds)


def write(rows: Iterable[Mapping[str, str]], path: Path, kinds: Mapping[str, Kind]) -> int:
    """Rows of text cells as typed columns; an empty cell is null.

    How many were written. Raises ArrowMissing.
    """
    pa, pq = arrow()
    schema = pa.schema([(name, _type(pa, kind)) for name, kind in kinds.items()])
    written = 0
    waiting = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        # Row group by row group: an export of a year is never in memory at once.
        while part := list(islice(waiting, ROWS)):
            columns = [
                pa.array([_value(row.get(name, ""), kind) for row in part], schema.field(name).type)
                for name, kind in kinds.items()
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            written += len(part)
    return written


def _type(pa: ModuleType, kind: Kind) -> Any:
    if kind == "text":
        return pa.string()
    return pa.timestamp("ms", tz="UTC") if kind == "instant" else pa.decimal128(38, _PLACES[kind])


def _value(text: str, kind: Kind) -> object:
    """A cell's value; pyarrow refuses a decimal that has more places than its column, so nothing is
    ever rounded.
    """
    if not text:
        return None
    if kind == "text":
        return text
    return datetime.fromisoformat(text) if kind == "instant" else Decimal(text)


def write_samples(
    samples: Iterable[tuple[str, Readings]], path: Path, names: Mapping[str, str]
) -> int:
    """Samples by the UUID of their accelerator; readings keep the kind in which they are stored
    (f4, f8, i8).
    """
    pa, pq = arrow()
    types = {"f4": pa.float32(), "f8": pa.float64(), "i8": pa.int64()}
    schema = pa.schema(
        [
            ("ts", pa.timestamp("ms", tz="UTC")),
            ("uuid", pa.string()),
            *((name, types[kind]) for name, kind in names.items()),
        ]
    )
    written = 0
    with pq.ParquetWriter(path, schema) as writer:
        for uuid, part in samples:
            rows = len(part.at_ms)
            instants = pa.array(part.at_ms.astype("i8"), pa.int64()).cast(schema.field("ts").type)
            columns = [
                instants,
                pa.array([uuid] * rows, pa.string()),
                *_readings(pa, part, names, schema),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            written += rows
    return written


def _readings(pa: ModuleType, part: Readings, names: Iterable[str], schema: Any) -> Iterator[Any]:
    for name in names:
        column = part.columns.get(name)
        kind = schema.field(name).type
        if column is None:
            yield pa.nulls(len(part.at_ms), kind)
        else:
            yield pa.array(column.values, mask=~column.present).cast(kind)
