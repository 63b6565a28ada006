"""Raw samples as CSV: `ts,uuid` and a column for each metric; what was absent is empty, floats are
the shortest.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import TextIO

import numpy as np

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.export.cells import neutral
from gpuledger_collector.insight.readings import Column, Readings


def write_csv(samples: Iterable[tuple[str, Readings]], file: TextIO, names: Iterable[str]) -> None:
    """Write samples by the UUID of their accelerator, with these metrics as columns."""
    metrics = list(names)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["ts", "uuid", *metrics])
    for uuid, part in samples:
        instants = [format_instant(int(at)) for at in part.at_ms]
        cells = [_cells(part.columns.get(name), len(instants)) for name in metrics]
        writer.writerows(zip(instants, [neutral(uuid)] * len(instants), *cells, strict=True))


def _cells(column: Column | None, rows: int) -> list[str]:
    if column is None:
        return [""] * rows
    texts: list[str] = np.where(column.present, column.values.astype(str), "").tolist()
    return texts
