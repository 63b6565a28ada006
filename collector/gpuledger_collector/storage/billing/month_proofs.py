"""What the proof said of each month when it was asked last, for pages that cannot ask it at each
view.

Asking it costs a pass over the charges of the month. The state of a month's ledger is the
transactions that wrote the checks of its days: rating and corrections rewrite them, whatever clock
they go by. Nothing that decides (close, verify, reconcile) reads this table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.identities import Depth
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.month_proof import (
    DEPTHS,
    MonthProof,
    PeriodProof,
    SealComparison,
)
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.storage.billing import reports
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_dicts, select_row, select_value, select_values

_STATE = """SELECT md5(string_agg(concat_ws(' ', kind, day_ms, wrote), ',' ORDER BY kind, day_ms)) FROM (
    SELECT 0 AS kind, day_ms, xmin::text AS wrote FROM conservation_check
    UNION ALL SELECT 1, day_ms, xmin::text FROM corrected_day) AS c
    WHERE c.day_ms >= m.start_ms AND c.day_ms < m.end_ms"""
# A request may name a UTC day that only ends in the month.
_REQUESTED = f"""EXISTS (SELECT FROM day_recompute r WHERE r.day_ms > m.start_ms - {DAY_MS} AND r.day_ms < m.end_ms)
    OR EXISTS (SELECT FROM hour_recompute r WHERE r.hour_ms > m.start_ms - {HOUR_MS} AND r.hour_ms < m.end_ms)"""
_MONTHS = f"""SELECT m.start_ms, m.end_ms, p.asked_ms, p.holds, p.wrong_days, p.depth, p.ledger_state,
    p.seal_asked_ms, p.seal_holds, p.ledger_state = ({_STATE}) AND NOT ({_REQUESTED}) AS is_current
    FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS m (start_ms, end_ms)
    LEFT JOIN month_proof p USING (start_ms, end_ms)"""
# What a deeper question found wrong is not taken back by one that compares less.
_KEEP = """INSERT INTO month_proof AS kept (start_ms, end_ms, asked_ms, holds, wrong_days, depth, ledger_state)
    VALUES (%(start)s, %(end)s, %(asked)s, %(holds)s, %(wrong)s, %(depth)s, %(state)s)
    ON CONFLICT (start_ms, end_ms) DO UPDATE SET asked_ms = excluded.asked_ms, holds = excluded.holds,
    wrong_days = excluded.wrong_days, depth = excluded.depth, ledger_state = excluded.ledger_state
    WHERE kept.holds OR NOT excluded.holds OR array_position(%(depths)s::text[], excluded.depth)
        >= array_position(%(depths)s::text[], kept.depth)"""


def checks_and_proof(
    connection: Connection, period: Period, calendar: Calendar
) -> tuple[list[ConservationCheck], PeriodProof]:
    """Read the checks of a period's days and what the proof said of their months, in one statement."""
    months = _whole_months(calendar, period)
    # Materialized, so that the state of a month is read once and not for each of its days.
    query = (
        f"WITH m AS MATERIALIZED ({_MONTHS}), c AS ({reports.CHECKS}) SELECT c.*, m.start_ms,"
        " m.end_ms, m.asked_ms, m.holds AS proof_holds, m.wrong_days, m.depth, m.ledger_state,"
        " m.seal_asked_ms, m.seal_holds, m.is_current FROM c JOIN m ON c.day_ms >= m.start_ms AND"
        " c.day_ms < m.end_ms ORDER BY c.day_ms"
    )
    rows = select_dicts(
        connection, query, {**_bounds(months), "start": period.start_ms, "end": period.end_ms}
    )
    kept = {row["start_ms"]: _month_proof({**row, "holds": row["proof_holds"]}) for row in rows}
    return [reports.conservation_check(row) for row in rows], PeriodProof(list(kept.values()))


def read(connection: Connection, months: Sequence[Period]) -> dict[Period, MonthProof | None]:
    """Read what the proof said of months; None: it was not asked."""
    return {
        Period(row["start_ms"], row["end_ms"]): _month_proof(row)
        for row in select_dicts(connection, _MONTHS, _bounds(months))
    }


def seals_compared(connection: Connection) -> dict[Period, int | None]:
    """Months whose proof was asked, and when the seal of each was compared last; None: never."""
    rows = connection.execute("SELECT start_ms, end_ms, seal_asked_ms FROM month_proof")
    return {Period(start_ms, end_ms): asked_ms for start_ms, end_ms, asked_ms in rows}


def state(connection: Connection, month: Period) -> str:
    """The state of a month's ledger; empty where none of its days is rated."""
    month_state = select_value(
        connection,
        f"SELECT ({_STATE}) FROM (SELECT %s::bigint AS start_ms, %s::bigint AS end_ms) AS m",
        (month.start_ms, month.end_ms),
    )
    return month_state or ""


def upsert(connection: Connection, proof: MonthProof) -> None:
    """Store what the proof said of a month."""
    connection.execute(
        _KEEP,
        {
            "start": proof.month.start_ms,
            "end": proof.month.end_ms,
            "asked": proof.asked_ms,
            "holds": proof.holds,
            "wrong": json.dumps(list(proof.wrong_days)),
            "depth": proof.depth.value,
            "state": proof.ledger_state,
            "depths": [depth.value for depth in DEPTHS],
        },
    )


def update_seal(connection: Connection, month: Period, seal: SealComparison) -> None:
    """Store what became of the seal of a closed month whose proof was asked."""
    connection.execute(
        "UPDATE month_proof SET seal_asked_ms = %s, seal_holds = %s WHERE start_ms = %s AND"
        " end_ms = %s",
        (seal.asked_ms, seal.holds, month.start_ms, month.end_ms),
    )


def rated_months(connection: Connection, calendar: Calendar) -> list[Period]:
    """List the months that have a rated day, the latest first."""
    first_ms, last_ms = select_row(
        connection, "SELECT min(day_ms), max(day_ms) FROM conservation_check"
    )
    if first_ms is None:
        return []
    # Asked by month: of ten years not each day is read.
    months = _whole_months(calendar, Period(first_ms, last_ms + 1))
    rated = set(
        select_values(
            connection,
            "SELECT m.start_ms FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS m (start_ms,"
            " end_ms) WHERE EXISTS (SELECT FROM conservation_check WHERE day_ms >= m.start_ms AND day_ms"
            " < m.end_ms)",
            _bounds(months),
        )
    )
    return [month for month in reversed(months) if month.start_ms in rated]


def _whole_months(calendar: Calendar, period: Period) -> list[Period]:
    """The months that a period touches."""
    months, at_ms = [], period.start_ms
    while at_ms < period.end_ms:
        months.append(calendar.month(calendar.month_of(at_ms)))
        at_ms = months[-1].end_ms
    return months


def _bounds(months: Sequence[Period]) -> dict[str, list[int]]:
    return {
        "starts": [month.start_ms for month in months],
        "ends": [month.end_ms for month in months],
    }


def _month_proof(row: Mapping[str, Any]) -> MonthProof | None:
    if row["asked_ms"] is None:
        return None
    return MonthProof(
        month=Period(row["start_ms"], row["end_ms"]),
        asked_ms=row["asked_ms"],
        holds=row["holds"],
        wrong_days=row["wrong_days"],
        depth=Depth(row["depth"]),
        ledger_state=row["ledger_state"],
        is_current=bool(row["is_current"]),
        seal=(
            None
            if row["seal_asked_ms"] is None
            else SealComparison(row["seal_asked_ms"], row["seal_holds"])
        ),
    )
