"""Providers' bills in Postgres: kept as they came, a newer file of a billing period superseding the
one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.provider_bill import (
    BillLine,
    BillMatch,
    NodeCapacity,
    ObservedUsage,
)
from gpuledger_collector.accounting.true_up import HeldLine
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing.reports import OWNER_LEVELS
from gpuledger_collector.storage.foreign_keys import checks_planned_once
from gpuledger_collector.storage.ledger import inventory
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import columns_of, select, select_as, select_value, to_object
from gpuledger_common.instants import to_datetime

_LINE = columns_of(BillLine)
_MATCH = columns_of(BillMatch)


@dataclass(frozen=True, slots=True)
class StoredBill:
    """A bill that is in force."""

    id: int
    provider: str
    start_ms: int
    end_ms: int
    file_name: str
    sha256: str
    lines: int


def add(
    connection: Connection,
    bills: Sequence[tuple[str, Period, Sequence[BillLine]]],
    file_name: str,
    sha256: str,
    now_ms: int,
    on_line: OnRow = tell_nobody,
) -> ImportOutcome:
    """Keep these bills (provider, billing period, lines); the same file again changes nothing.

    Counted in bills.

    `on_line` is told how many lines of how many are written.
    """
    added = updated = unchanged = 0
    done, total = 0, sum(len(lines) for _, _, lines in bills)
    changes: list[audit.Change] = []
    connection.execute("LOCK TABLE bill IN SHARE ROW EXCLUSIVE MODE")
    for provider, period, lines in bills:
        done += len(lines)
        before = _in_force(connection, provider, period)
        if before is not None and before.sha256 == sha256:
            unchanged += 1
            continue
        if before is None:
            added += 1
        else:
            updated += 1
            connection.execute(
                "UPDATE bill SET superseded_at = %s WHERE id = %s", (to_datetime(now_ms), before.id)
            )
        bill_id = select_value(
            connection,
            "INSERT INTO bill (provider, period_start_ms, period_end_ms, file_name, sha256, lines,"
            " imported_at) VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING id",
            (
                provider,
                period.start_ms,
                period.end_ms,
                file_name,
                sha256,
                len(lines),
                to_datetime(now_ms),
            ),
        )
        with (
            checks_planned_once(connection),
            connection.cursor().copy(f"COPY bill_line (bill_id, {_LINE}) FROM STDIN") as copy,
        ):
            for line in tell_each(lines, total, on_line, done - len(lines)):
                copy.write_row((bill_id, *astuple(line)))
        old = None if before is None else {"file": before.file_name, "sha256": before.sha256}
        changes.append(
            audit.Change(
                "bill", provider, old, {"file": file_name, "sha256": sha256, "lines": len(lines)}
            )
        )
    audit.record(connection, changes, now_ms)
    on_line(total, total)
    return ImportOutcome(added, updated, unchanged)


def _in_force(connection: Connection, provider: str, period: Period) -> StoredBill | None:
    rows = [bill for bill in in_force(connection) if bill.provider == provider]
    return next(
        (bill for bill in rows if (bill.start_ms, bill.end_ms) == (period.start_ms, period.end_ms)),
        None,
    )


def in_force(connection: Connection) -> list[StoredBill]:
    """Every bill that no newer file superseded, by provider and time."""
    return select_as(
        connection,
        StoredBill,
        "SELECT id, provider, period_start_ms AS start_ms, period_end_ms AS end_ms, file_name,"
        " sha256, lines FROM bill WHERE superseded_at IS NULL ORDER BY provider, period_start_ms,"
        " id",
    )


def lines_of(connection: Connection, ids: Sequence[int]) -> list[BillLine]:
    """The lines of some bills, in the order of their files."""
    query = f"SELECT {_LINE} FROM bill_line WHERE bill_id = ANY(%s) ORDER BY bill_id, line"
    return select_as(connection, BillLine, query, (list(ids),))


def matches(connection: Connection) -> list[BillMatch]:
    """The matches in force, in their order."""
    where = "superseded_at IS NULL ORDER BY position, id"
    return select_as(connection, BillMatch, f"SELECT {_MATCH} FROM bill_match WHERE {where}")


def replace_matches(
    connection: Connection, wanted: Sequence[BillMatch], now_ms: int
) -> ImportOutcome:
    """The matches in force become these, in this order; the same again changes nothing."""
    known = matches(connection)
    if known == list(wanted):
        return ImportOutcome(unchanged=len(known))
    connection.execute(
        "UPDATE bill_match SET superseded_at = %s WHERE superseded_at IS NULL",
        (to_datetime(now_ms),),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO bill_match (position, {_MATCH}, recorded_at) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [(at, *astuple(match), to_datetime(now_ms)) for at, match in enumerate(wanted, 1)],
        )
    changes = [
        audit.Change("bill_match", _name(match), _facts(match), None)
        for match in known
        if match not in wanted
    ]
    changes += [
        audit.Change("bill_match", _name(match), None, _facts(match))
        for match in wanted
        if match not in known
    ]
    audit.record(connection, changes, now_ms)
    new = sum(match not in known for match in wanted)
    return ImportOutcome(new, sum(match not in wanted for match in known), len(wanted) - new)


def _name(match: BillMatch) -> str:
    return " ".join(
        part
        for part in (match.provider, match.sku, match.resource, match.region, match.service)
        if part
    )


def _facts(match: BillMatch) -> Mapping[str, object]:
    names = [name.strip() for name in _MATCH.split(",")]
    return {
        name: value
        for name, value in zip(names, astuple(match), strict=True)
        if value not in ("", None, False)
    }


def observed_usage(connection: Connection, period: Period) -> list[ObservedUsage]:
    """What was seen in the period's days, corrections included: held, unallocated and unavailable
    time at its rate.
    """
    columns = "day_ms, pool, node, currency, gpu_ns, cost_micro"
    seen = "state IN ('held', 'unallocated', 'unavailable') AND node_cost_id IS NULL"
    rows = connection.execute(
        "SELECT day_ms, pool, node, currency, sum(gpu_ns)::bigint, coalesce(sum(cost_micro),"
        f" 0)::bigint FROM (SELECT {columns} FROM charge WHERE {seen} AND day_ms >= %(start)s AND"
        f" day_ms < %(end)s UNION ALL SELECT {columns} FROM correction WHERE {seen} AND day_ms >="
        " %(start)s AND day_ms < %(end)s) AS c GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        {"start": period.start_ms, "end": period.end_ms},
    )
    return [ObservedUsage(*key, gpu_ns=gpu_ns, cost_micro=cost) for *key, gpu_ns, cost in rows]


def held_lines(connection: Connection, period: Period) -> list[HeldLine]:
    """What owners held on the period's days, corrections included, by place and currency."""
    columns = "day_ms, owner_id, state, pool, node, gpu_model, currency, gpu_ns, cost_micro"
    rows = select(
        connection,
        f"SELECT {OWNER_LEVELS}, l.day_ms, l.pool, l.node, l.gpu_model, l.currency,"
        " sum(l.gpu_ns)::bigint AS gpu_ns, coalesce(sum(l.cost_micro), 0)::bigint AS cost_micro"
        f" FROM (SELECT {columns} FROM charge UNION ALL SELECT {columns} FROM correction) l JOIN"
        f" owner o ON o.id"
        " = l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s AND l.state = 'held' AND l.currency"
        " IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
        (period.start_ms, period.end_ms),
    )
    return [to_object(HeldLine, row, owner=to_object(OwnerPath, row)) for row in rows]


def places(connection: Connection, days: Sequence[Period]) -> dict[tuple[str, int], NodeCapacity]:
    """Where each node stood on each day, and the GPUs that were there at any time of it."""
    whole = Period(days[0].start_ms, days[-1].end_ms)
    placements = inventory.capacity(connection, whole)
    accelerators: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}
    for day in days:
        for placement in placements:
            if (
                placement.node
                and placement.in_ms < day.end_ms
                and (placement.out_ms is None or placement.out_ms > day.start_ms)
            ):
                on_node = accelerators.setdefault((placement.node, day.start_ms), {})
                on_node[placement.accelerator_id] = (placement.pool, placement.gpu_micro)
    return {
        key: NodeCapacity(
            next(iter(on_node.values()))[0], sum(micro for _, micro in on_node.values())
        )
        for key, on_node in accelerators.items()
    }
