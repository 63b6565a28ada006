"""What follows from no other table: when a day was rated, from when to when the lines of a
correction are, and whether their list and contracted costs are known, which no sum of a day tells.

Rating hashes them beside the check of the day; migration 0020 did so for days that were rated
before. So a check without a hash was changed, or is of an earlier version that rated beside the
newer schema: both are said.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from collections.abc import Iterable

from gpuledger_collector.accounting.identities import TIMES, Mismatch
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.instants import to_datetime

TABLES = ("conservation_check", "corrected_day")
"""Tables of checks; only that of corrected days is about lines of corrections."""
_LINES = (
    "SELECT day_ms, id, recorded_ms, start_ms, end_ms, list_cost_micro, contracted_cost_micro FROM"
    " correction WHERE day_ms >= %s AND day_ms < %s"
)

Line = tuple[int | None, ...]
"""Number of a correction, when it was found, from when to when it is, and its costs at list and
contracted rates.
"""


def hash_check(connection: Connection, table: str, day_ms: int, proved_ms: int) -> str:
    """Hash the instants of a day's check, and what its corrections are hashed by, as they are now."""
    lines = _lines(connection, Period(day_ms, day_ms + 1)) if table == "corrected_day" else {}
    return _hash(to_datetime(proved_ms), lines.get(day_ms, ()))


def find_changed_times(
    connection: Connection, period: Period, calendar: Calendar
) -> list[Mismatch]:
    """Where the instants of a period's days are not those that rating hashed, or the hash is
    missing.
    """
    lines = _lines(connection, period)
    return [
        Mismatch(
            identity=TIMES,
            place={"table": table, "day": calendar.date_of(day_ms).isoformat()},
            measure="times_sha256" if recorded is None else "",
            expected=None,
            stored=None,
        )
        for table in TABLES
        for day_ms, proved_at, recorded in connection.execute(
            f"SELECT day_ms, proved_at, times_sha256 FROM {table} WHERE day_ms >= %s AND day_ms <"
            " %s ORDER BY day_ms",
            (period.start_ms, period.end_ms),
        )
        if _hash(proved_at, lines.get(day_ms, ()) if table == "corrected_day" else ()) != recorded
    ]


def _lines(connection: Connection, period: Period) -> dict[int, list[Line]]:
    lines: dict[int, list[Line]] = defaultdict(list)
    for day_ms, *line in connection.execute(_LINES, (period.start_ms, period.end_ms)):
        lines[day_ms].append(tuple(line))
    return lines


def _hash(proved_at: dt.datetime, lines: Iterable[Line]) -> str:
    texts = [
        proved_at.astimezone(dt.UTC).isoformat(),
        *(" ".join(map(str, line)) for line in sorted(lines)),
    ]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
