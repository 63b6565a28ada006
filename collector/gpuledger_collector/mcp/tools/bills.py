"""The chargeback behind an answer: rows by dimensions, narrowed by conditions, as this reader may
see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.export.site import statement_path
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import name, notices
from gpuledger_collector.mcp.ledger import Snapshot
from gpuledger_collector.services.chargeback import Bill, read_bill
from gpuledger_collector.services.runs import name_workloads

NO_ROWS = "the ledger has no usage for this period, these conditions and this token"


def read(snapshot: Snapshot, period: Period, by: tuple[str, ...], where: Mapping[str, str]) -> Bill:
    """The chargeback of a period by these dimensions, narrowed by conditions, whose dimensions come
    last.
    """
    ledger = snapshot.ledger
    every = (*by, *(dimension for dimension in where if dimension not in by))
    bill = read_bill(snapshot.connection, period, every, ledger.now_ms, ledger.reader.owner)
    bill = replace(bill, notices=notices(bill.notices))
    return bill.only(lambda row: meets(row.keys, every, where)) if where else bill


def meets(keys: Sequence[str], by: Sequence[str], where: Mapping[str, str]) -> bool:
    """Whether the cells of a row meet every condition, by a name as it is or as answers show it."""
    cells = dict(zip(by, keys, strict=True))
    return all(
        value in {cells[dimension], name(cells[dimension])} for dimension, value in where.items()
    )


def workload_names(
    snapshot: Snapshot, by: Sequence[str], cells: Iterable[Sequence[str]]
) -> Mapping[str, tuple[str, str]]:
    """Name and user of the workloads in these cells, by key; nothing where rows are not by
    workload.
    """
    if "workload" not in by:
        return {}
    keys = [row[by.index("workload")] for row in cells]
    return name_workloads(snapshot.connection, keys, snapshot.ledger.reader.owner)


def link(snapshot: Snapshot, period: Period, by: Sequence[str], where: Mapping[str, str]) -> str:
    """The page of a month by one level of the tree; for anything else the same rows as JSON."""
    month = snapshot.calendar.month_named(period)
    if month is not None and len(by) == 1 and by[0] in LEVELS:
        if not where:
            return snapshot.ledger.link(f"/statements/{by[0]}/{month}")
        if tuple(where) == tuple(by):
            return snapshot.ledger.link(statement_path(by[0], where[by[0]], month))
    start, end = periods.dates(snapshot.calendar, period)
    every = ",".join(dict.fromkeys((*by, *where)))
    return snapshot.ledger.link("/v1/chargeback", {"from": start, "to": end, "by": every})
