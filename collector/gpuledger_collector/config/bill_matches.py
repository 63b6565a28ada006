"""Which pool or node a line of a provider's bill is about, as a TOML file declares it ([[bill_match]] tables)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuledger_collector.accounting.bill import BillMatch
from gpuledger_collector.config.table import RowReader

PATTERNS = ("provider", "sku", "resource", "region", "service")
KEYS = (*PATTERNS, "pool", "node", "gpus", "leave_out")
MOST_GPUS = 100_000


def read_bill_matches(rows: Iterable[tuple[RowReader, Mapping[str, Any]]]) -> list[BillMatch]:
    """The matches of the rows that are good, in their order; problems are noted at the others."""
    made = (_match(row, given) for row, given in rows)
    return [one for one in made if one is not None]


def _match(row: RowReader, given: Mapping[str, Any]) -> BillMatch | None:
    texts = {name: row.text(name) for name in PATTERNS} | {name: row.name(name) for name in ("pool", "node")}
    leave_out = given.get("leave_out", False)
    if not isinstance(leave_out, bool):
        row.refuse("leave_out", "bad_value", "is neither true nor false")
    if not any(texts[name] for name in PATTERNS[1:]):
        row.refuse("sku", "empty", f"says nothing of the line: give one of {', '.join(PATTERNS[1:])}")
    if bool(texts["pool"] or texts["node"]) == bool(leave_out):
        row.refuse("pool", "empty", "name a pool or a node, or say leave_out = true")
    gpus = row.decimal("gpus", digits=6, most=MOST_GPUS)
    if gpus is not None and gpus == 0:
        row.refuse("gpus", "out_of_range", "is 0: a line of no GPU is left out by leave_out = true")
    return None if row.bad else BillMatch(**texts, gpus=gpus, leave_out=bool(leave_out))
