"""The chargeback behind an answer: rows by dimensions, narrowed by conditions, as this reader may
see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.chargeback import Report, ReportRow, totals
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.waste import WholeWaste, whole_waste
from gpuledger_collector.export.site import statement_path
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import name
from gpuledger_collector.mcp.answers import notices as cut_notices
from gpuledger_collector.mcp.ledger import Snapshot
from gpuledger_collector.services.chargeback import NO_INVENTORY, notices, read_chargeback
from gpuledger_collector.storage.billing import reports
from gpuledger_collector.storage.ledger import workloads, zones

NO_ROWS = "the ledger has no usage for this period, these conditions and this token"


@dataclass(frozen=True, slots=True)
class Bill:
    """Rows of the chargeback.

    `by`: the dimensions of their cells; those of conditions come last.
    """

    by: tuple[str, ...]
    rows: Sequence[ReportRow]
    totals: Sequence[ReportRow]
    has_inventory: bool
    notices: Sequence[str]
    months: Sequence[str]

    @property
    def waste(self) -> Sequence[WholeWaste]:
        """Waste by currency."""
        return whole_waste(self.rows, self.has_inventory, self.months)


def read(snapshot: Snapshot, period: Period, by: tuple[str, ...], where: Mapping[str, str]) -> Bill:
    """The chargeback of a period by these dimensions, narrowed by conditions."""
    ledger, connection = snapshot.ledger, snapshot.connection
    every = (*by, *(dimension for dimension in where if dimension not in by))
    report = read_chargeback(connection, period, every, ledger.now_ms, ledger.reader.owner).report
    rows = [row for row in report.rows if meets(row.keys, every, where)]
    has_capacity = reports.has_capacity(connection, period)
    return Bill(
        by=every,
        rows=rows,
        totals=totals(rows) if where else report.totals,
        has_inventory=has_capacity,
        notices=_notices(snapshot, period, report, has_capacity),
        months=zones.calendar(connection).months_of(period),
    )


def meets(keys: Sequence[str], by: Sequence[str], where: Mapping[str, str]) -> bool:
    """Whether the cells of a row meet every condition, by a name as it is or as answers show it."""
    cells = dict(zip(by, keys, strict=True))
    return all(
        value in {cells[dimension], name(cells[dimension])} for dimension, value in where.items()
    )


def called(
    snapshot: Snapshot, by: Sequence[str], cells: Iterable[Sequence[str]]
) -> Mapping[str, tuple[str, str]]:
    """Name and user of the workloads in these cells, by key; nothing where rows are not by
    workload.
    """
    if "workload" not in by:
        return {}
    with snapshot.restricted() as connection:
        return workloads.names(connection, [keys[by.index("workload")] for keys in cells])


def _notices(
    snapshot: Snapshot, period: Period, report: Report, has_capacity: bool
) -> Sequence[str]:
    # Whoever sees one owner's part is told nothing of others' imports and disputes.
    if snapshot.ledger.reader.owner is not None:
        return () if has_capacity else (NO_INVENTORY,)
    return cut_notices(notices(snapshot.connection, period, snapshot.ledger.now_ms, report))


def link(snapshot: Snapshot, period: Period, by: Sequence[str], where: Mapping[str, str]) -> str:
    """The page of a month by one level of the tree; for anything else the same rows as JSON."""
    month = periods.month_name(snapshot.calendar, period)
    if month is not None and len(by) == 1 and by[0] in LEVELS:
        if not where:
            return snapshot.ledger.link(f"/statements/{by[0]}/{month}")
        if tuple(where) == tuple(by):
            return snapshot.ledger.link(statement_path(by[0], where[by[0]], month))
    start, end = periods.dates(snapshot.calendar, period)
    every = ",".join(dict.fromkeys((*by, *where)))
    return snapshot.ledger.link("/v1/chargeback", {"from": start, "to": end, "by": every})
