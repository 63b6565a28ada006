"""The billing zone in Postgres: the time zone in which days and months of the bill begin, and since
when.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, UTC_DAYS, Calendar, Period, Zone
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_row, select_value
from gpuledger_common.instants import to_datetime


def calendar(connection: Connection) -> Calendar:
    """Read the calendar of the bill; UTC while no zone is declared."""
    rows = connection.execute(
        "SELECT zone, from_ms, 0 FROM billing_zone WHERE superseded_at IS NULL UNION ALL SELECT '',"
        " 0, first_month FROM fiscal_year WHERE superseded_at IS NULL ORDER BY 2"
    )
    calendar, fiscal_month = UTC_DAYS, None
    for name, from_ms, first_month in rows:
        if first_month:
            fiscal_month = first_month
        else:
            calendar = _then(calendar, name, from_ms)
    return dataclasses.replace(calendar, fiscal_month=fiscal_month) if fiscal_month else calendar


def _then(before: Calendar, name: str, from_ms: int) -> Calendar:
    """Append a zone to the calendar; the first one applies from the beginning."""
    if from_ms <= 0:
        return Calendar((Zone(name, zone_of(name)),))
    return Calendar((*before.zones, Zone(name, zone_of(name), from_ms, before.date_of(from_ms))))


def zone_of(name: str) -> dt.tzinfo:
    """Return the zone of an IANA name. Raises ValueError with a sentence."""
    if name == "UTC":
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is not a zone that this machine knows; write it as Europe/Berlin"
        ) from None


def is_known(name: str) -> bool:
    """Whether this machine has data of a zone."""
    try:
        zone_of(name)
    except ValueError:
        return False
    return True


def replace_fiscal_year(connection: Connection, first_month: int, now_ms: int) -> ImportOutcome:
    """Set the month in which fiscal years begin. No charge changes: it names periods."""
    before = calendar(connection).fiscal_month
    if before == first_month:
        return ImportOutcome(0, 0, 1)
    gone = connection.execute(
        "UPDATE fiscal_year SET superseded_at = %s WHERE superseded_at IS NULL",
        (to_datetime(now_ms),),
    ).rowcount
    connection.execute(
        "INSERT INTO fiscal_year (first_month, recorded_at) VALUES (%s, %s)",
        (first_month, to_datetime(now_ms)),
    )
    old = None if before is None else {"first_month": before}
    change = audit.Change("fiscal_year", "fiscal year", old, {"first_month": first_month})
    audit.record(connection, [change], now_ms)
    return ImportOutcome(1, gone, 0)


def zone_in_force(connection: Connection) -> str:
    """The name of the zone in force."""
    return calendar(connection).zones[-1].name


def replace_zone(connection: Connection, name: str, now_ms: int) -> ImportOutcome:
    """Set the billing zone from the end of the last closed month on, and rate open days again.

    Closed months keep their bounds. Call it in one transaction: it holds the ledger lock until the
    commit.
    """
    # Rating and closing hold this lock as well: no day is rated by the old zone while it is
    # replaced.
    locks.take(connection, Lock.LEDGER)
    before = calendar(connection)
    if before.zones[-1].name == name:
        return ImportOutcome(0, 0, 1)
    from_ms = select_value(connection, "SELECT coalesce(max(end_ms), 0) FROM billing_period")
    gone = connection.execute(
        "UPDATE billing_zone SET superseded_at = %s WHERE superseded_at IS NULL AND from_ms >= %s"
        " RETURNING 1",
        (to_datetime(now_ms), from_ms),
    ).rowcount
    if name != zone_in_force(connection) or from_ms == 0:
        connection.execute(
            "INSERT INTO billing_zone (zone, from_ms, recorded_at) VALUES (%s, %s, %s)",
            (name, from_ms, to_datetime(now_ms)),
        )
    changes = [
        audit.Change(
            "billing_zone",
            name,
            {"zone": before.zones[-1].name},
            {"zone": name, "from_ms": from_ms},
        )
    ]
    audit.record(connection, changes, now_ms)
    return ImportOutcome(1, gone, 0, _make_again(connection, calendar(connection), from_ms))


def _make_again(connection: Connection, days: Calendar, from_ms: int) -> int:
    """Remove open days from the ledger and request their UTC days, and the hours cut by a midnight,
    before or after.

    Corrections booked in open days stay, on the day that now contains their instant.
    """
    hours = connection.execute(
        "SELECT DISTINCT hour_ms - hour_ms %% %s FROM usage_hour WHERE hour_ms >= %s AND hour_ms %%"
        " %s <> 0",
        (HOUR_MS, from_ms, HOUR_MS),
    )
    # Hours that a midnight of the old zone cuts into several rating intervals are folded again, as
    # are those (below) that a midnight of the new zone will cut.
    cut = {int(hour) for (hour,) in hours}
    first_ms, last_ms = select_row(
        connection,
        "SELECT min(day_ms), max(until_ms) FROM conservation_check WHERE day_ms >= %s",
        (from_ms,),
    )
    if first_ms is not None:
        rated = Period(first_ms - 2 * 24 * HOUR_MS, last_ms)
        cut |= {at - at % HOUR_MS for at in days.cuts(rated)}
    usage.request_recompute_of_hours(
        connection, sorted(hour for hour in cut if hour + HOUR_MS > from_ms)
    )
    marked = connection.execute(
        """
        INSERT INTO day_recompute (day_ms) SELECT DISTINCT at - at %% %(day)s FROM (
            SELECT day_ms AS at FROM conservation_check WHERE day_ms >= %(from)s
            UNION ALL SELECT until_ms - 1 FROM conservation_check WHERE day_ms >= %(from)s AND until_ms > day_ms
            UNION ALL SELECT day_ms FROM day_recompute UNION ALL SELECT day_ms + %(day)s - 1 FROM day_recompute
        ) AS touched
        """,
        {"day": DAY_MS, "from": from_ms},
    ).rowcount
    connection.execute("DELETE FROM day_recompute WHERE day_ms %% %s <> 0", (DAY_MS,))
    for table in ("charge", "ledger_day", "conservation_check"):
        connection.execute(f"DELETE FROM {table} WHERE day_ms >= %s", (from_ms,))
    return marked
