"""Evidence that arrived after the search for idle accelerators had passed its hour: which of them are
searched again, and from when on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger_collector.accounting.period import HOUR_MS, MINUTE_MS
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_number, select_values

EXPECTED_WITHIN_MS = 10 * MINUTE_MS
"""Evidence of an hour arrives within this time after it: until then the search looks at it anyway."""
_IDLE, _CHANGES = "idle", "idle_changes"
_OF_ALL = ("idle_late", "idle_again")
"""How the version before notes the first hour, of the whole fleet."""


def first_hour(connection: Connection) -> int | None:
    """Start of the first hour that was not searched again yet (unix ms)."""
    return select_number(
        connection,
        "SELECT min(ms) FROM (SELECT least(late_ms, again_ms) AS ms FROM late_evidence UNION ALL"
        " SELECT until_ms FROM finding_progress WHERE kind = ANY(%s)) AS noted",
        (list(_OF_ALL),),
    )


def note(connection: Connection, hours: Iterable[tuple[int, int]]) -> None:
    """Note that evidence of these accelerators and hours (unix ms) changed, where the search has
    passed them.
    """
    done_ms = findings.progress(connection, _IDLE)
    if done_ms is None:
        return
    first: dict[int, int] = {}
    for accelerator_id, hour_ms in hours:
        if hour_ms + HOUR_MS + EXPECTED_WITHIN_MS <= done_ms:
            first[accelerator_id] = min(hour_ms, first.get(accelerator_id, hour_ms))
    if not first:
        return
    ordered = sorted(first.items())
    # The row of the counter is locked until the end: numbers become visible in their order.
    connection.execute(
        """
        WITH change AS (
            INSERT INTO finding_progress AS old (kind, until_ms) VALUES (%s, 1)
            ON CONFLICT (kind) DO UPDATE SET until_ms = old.until_ms + 1 RETURNING until_ms
        )
        INSERT INTO late_evidence AS old (accelerator_id, late_ms, change)
        SELECT noted.accelerator_id, noted.hour_ms, change.until_ms
        FROM unnest(%s::bigint[], %s::bigint[]) AS noted (accelerator_id, hour_ms), change
        ON CONFLICT (accelerator_id) DO UPDATE SET
            late_ms = least(old.late_ms, excluded.late_ms), change = excluded.change
        """,
        (_CHANGES, [number for number, _ in ordered], [hour_ms for _, hour_ms in ordered]),
    )


def changed_since(connection: Connection, change: int) -> tuple[int, set[int]]:
    """The number of the last change, and the accelerators whose evidence was late after an earlier
    one.
    """
    numbers = select_values(
        connection, "SELECT accelerator_id FROM late_evidence WHERE change > %s", (change,)
    )
    return findings.progress(connection, _CHANGES) or 0, set(numbers)


def take(connection: Connection) -> Mapping[int, int]:
    """Begin to search again, also what an interrupted search has left: accelerator -> start of its
    first hour (unix ms).

    What arrives from now on is noted apart, so that clearing this does not forget it.
    """
    of_all_ms = select_number(
        connection,
        "WITH noted AS (DELETE FROM finding_progress WHERE kind = ANY(%s) RETURNING until_ms)"
        " SELECT min(until_ms) FROM noted",
        (list(_OF_ALL),),
    )
    if of_all_ms is not None:
        known = select_values(connection, "SELECT id FROM accelerator")
        note(connection, [(number, of_all_ms) for number in known])
    connection.execute(
        "UPDATE late_evidence SET again_ms = least(again_ms, late_ms), late_ms = NULL"
        " WHERE late_ms IS NOT NULL"
    )
    rows = select(
        connection,
        "SELECT accelerator_id, again_ms FROM late_evidence WHERE again_ms IS NOT NULL",
    )
    return {row.accelerator_id: row.again_ms for row in rows}


def clear(connection: Connection, taken: Mapping[int, int]) -> None:
    """Record that these were searched again, each from its hour on."""
    connection.execute(
        "UPDATE late_evidence AS noted SET again_ms = NULL FROM unnest(%s::bigint[], %s::bigint[])"
        " AS searched (accelerator_id, hour_ms) WHERE noted.accelerator_id ="
        " searched.accelerator_id AND noted.again_ms = searched.hour_ms",
        (list(taken), list(taken.values())),
    )
