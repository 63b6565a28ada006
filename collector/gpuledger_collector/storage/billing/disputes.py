"""Rows of disputes in Postgres: what is contested, what was said, and the evidence as it was sealed.

Which steps a dispute may take, and what each of them writes, is services.disputes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from psycopg.rows import DictRow, dict_row

from gpuledger_collector.accounting.contested_lines import Contest
from gpuledger_collector.accounting.dispute_moves import Costs
from gpuledger_collector.accounting.disputes import (
    UNDECIDED,
    Dispute,
    DisputeEntry,
    DisputeRefused,
    NoDispute,
)
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.usage import UNAVAILABLE
from gpuledger_collector.storage.billing.reports import OWNER_LEVELS
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_as,
    select_dicts,
    select_number,
    select_text,
    select_value,
    to_object,
)

_SELECT = """SELECT d.id, d.owner, d.start_ms, d.end_ms, a.uuid AS accelerator, w.key AS workload, d.line, d.reason,
    d.state, d.opened_ms, d.opened_by, d.gpu_ns, d.cost, d.seal, d.resolved_ms
    FROM dispute d LEFT JOIN accelerator a ON a.id = d.accelerator_id LEFT JOIN workload w ON w.id = d.workload_id"""
_NAMED = {
    "accelerator": "SELECT id FROM accelerator WHERE uuid = %(name)s",
    "workload": "SELECT id FROM workload WHERE key = %(name)s OR external_id = %(name)s",
}
"""SQL of what a name in a contest can be."""
Ids = tuple[int | None, int | None]
"""The database's numbers of an accelerator and a workload; None: not named."""


def ids_of(connection: Connection, contest: Contest) -> Ids:
    """The numbers of the accelerator and the workload that a contest names.

    Raises DisputeRefused for what is not known, or not one.
    """
    return (
        _id_of(connection, "accelerator", contest.accelerator),
        _id_of(connection, "workload", contest.workload),
    )


def _id_of(connection: Connection, kind: str, name: str | None) -> int | None:
    if name is None:
        return None
    rows = connection.execute(_NAMED[kind].encode(), {"name": name}).fetchall()
    if len(rows) != 1:
        many = f"{len(rows)} are called {name}: give the whole key, such as slurm:cluster:42"
        raise DisputeRefused(f"{kind}: {many if rows else f'none is called {name}'}")
    return int(rows[0][0])


def ids_by_name(
    connection: Connection, table: str, column: str, names: Iterable[str | None]
) -> dict[str, int]:
    """The numbers of accelerators or workloads by what names them."""
    wanted = [name for name in names if name is not None]
    return dict(
        connection.execute(
            f"SELECT {column}, id FROM {table} WHERE {column} = ANY(%s)", (wanted,)
        ).fetchall()
    )


def lock_openings(connection: Connection) -> None:
    """Let nobody else open a dispute until the transaction ends; of two at once the second one sees
    the first.
    """
    connection.execute("LOCK TABLE dispute IN SHARE ROW EXCLUSIVE MODE")


def undecided_like(connection: Connection, contest: Contest, ids: Ids) -> int | None:
    """The undecided dispute about exactly the same, if there is one."""
    return select_number(
        connection,
        "SELECT id FROM dispute WHERE state = ANY(%s) AND owner = %s::jsonb AND start_ms = %s AND"
        " end_ms = %s AND (accelerator_id, workload_id, line) IS NOT DISTINCT FROM (%s::bigint,"
        " %s::bigint, %s::text)",
        (
            list(UNDECIDED),
            json.dumps(dict(contest.owner)),
            contest.period.start_ms,
            contest.period.end_ms,
            *ids,
            contest.line,
        ),
    )


def count_undecided(connection: Connection, owner: Mapping[str, str]) -> int:
    """How many undecided disputes an owner and those below it have."""
    query = "SELECT count(*) FROM dispute WHERE state = ANY(%s) AND owner @> %s::jsonb"
    return int(select_value(connection, query, (list(UNDECIDED), json.dumps(dict(owner)))))


def insert(connection: Connection, dispute: Dispute, ids: Ids, evidence: str) -> int:
    """Write a new dispute with its evidence; return its number."""
    number: int = select_value(
        connection,
        "INSERT INTO dispute (owner, start_ms, end_ms, accelerator_id, workload_id, line, reason,"
        " state, opened_ms, opened_by, gpu_ns, cost, evidence, seal) VALUES (%s::jsonb, %s, %s, %s,"
        " %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s) RETURNING id",
        (
            json.dumps(dict(dispute.owner)),
            dispute.period.start_ms,
            dispute.period.end_ms,
            *ids,
            dispute.line,
            dispute.reason,
            dispute.state,
            dispute.opened_ms,
            dispute.opened_by,
            dispute.gpu_ns,
            json.dumps(dict(dispute.cost)),
            evidence,
            dispute.seal,
        ),
    )
    return number


def insert_entry(connection: Connection, number: int, entry: DisputeEntry) -> None:
    """Write what was said."""
    connection.execute(
        "INSERT INTO dispute_entry (dispute_id, at_ms, who, kind, words) VALUES (%s, %s, %s,"
        " %s, %s)",
        (number, entry.at_ms, entry.who, entry.kind, entry.words),
    )


def lock(connection: Connection, number: int) -> Dispute:
    """Read a dispute that nobody else changes until the transaction ends. Raises NoDispute."""
    connection.execute("SELECT FROM dispute WHERE id = %s FOR UPDATE", (number,))
    return read(connection, number)


def update_state(
    connection: Connection, number: int, state: str, resolved_ms: int | None = None
) -> None:
    """Write the state of a dispute, and when it was decided."""
    connection.execute(
        "UPDATE dispute SET state = %s, resolved_ms = %s WHERE id = %s",
        (state, resolved_ms, number),
    )


def in_states(connection: Connection, states: Sequence[str]) -> list[Dispute]:
    """Disputes in these states, newest first, without what was said."""
    return [
        _dispute(row)
        for row in select_dicts(
            connection,
            f"{_SELECT} WHERE d.state = ANY(%s) ORDER BY d.id DESC",
            (list(states),),
        )
    ]


def waiting(connection: Connection, period: Period) -> list[Dispute]:
    """Disputes about time in the period that are not decided yet, by number."""
    return [
        dispute
        for dispute in reversed(in_states(connection, UNDECIDED))
        if dispute.period.clip(period)
    ]


def read(connection: Connection, number: int) -> Dispute:
    """A dispute with all that was said. Raises NoDispute."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(f"{_SELECT} WHERE d.id = %s".encode(), (number,)).fetchone()
    if row is None:
        raise NoDispute(number)
    entries = select_as(
        connection,
        DisputeEntry,
        "SELECT at_ms, who, kind, words FROM dispute_entry WHERE dispute_id = %s ORDER BY id",
        (number,),
    )
    return replace(_dispute(row), entries=entries)


def _dispute(row: DictRow) -> Dispute:
    period = Period(row.pop("start_ms"), row.pop("end_ms"))
    return Dispute(**{**row, "period": period, "gpu_ns": int(row["gpu_ns"])})


def evidence(connection: Connection, number: int) -> str:
    """The evidence of a dispute as it was sealed. Raises NoDispute."""
    text = select_value(connection, "SELECT evidence FROM dispute WHERE id = %s", (number,))
    if text is None:
        raise NoDispute(number)
    return str(text)


def seal_at_opening(connection: Connection, number: int) -> str | None:
    """The seal that the audit log has of the opening of a dispute."""
    where = "what = 'dispute' AND subject = %s AND before IS NULL"
    query = f"SELECT after->>'seal' FROM audit WHERE {where}"
    return select_text(connection, query, (str(number),))


def is_rated(connection: Connection, period: Period) -> bool:
    """Whether no day or hour of a period waits to be rated again."""
    return not select_value(
        connection,
        "SELECT EXISTS (SELECT FROM day_recompute WHERE day_ms < %(end)s AND day_ms > %(start)s -"
        " 86400000) OR EXISTS (SELECT FROM hour_recompute WHERE hour_ms < %(end)s AND hour_ms >"
        " %(start)s - 3600000)",
        {"start": period.start_ms, "end": period.end_ms},
    )


def costs_of_days(connection: Connection, days: Sequence[Period]) -> Costs:
    """What owners pay for these days, and what unavailable time costs, with all corrections."""
    columns = "day_ms, owner_id, state, currency, cost_micro"
    return {
        (None if row.id is None else to_object(OwnerPath, row), row.currency): row.micro
        for row in select(
            connection,
            f"SELECT o.id, {OWNER_LEVELS}, l.currency, sum(l.cost_micro)::bigint AS micro FROM"
            f" (SELECT"
            f" {columns} FROM ledger_day UNION ALL SELECT {columns} FROM correction) l LEFT JOIN"
            f" owner"
            " o ON o.id = l.owner_id WHERE l.day_ms = ANY(%s) AND l.currency IS NOT NULL AND"
            " (o.id IS"
            " NOT NULL OR l.state = %s) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8",
            ([day.start_ms for day in days], UNAVAILABLE),
        )
    }
