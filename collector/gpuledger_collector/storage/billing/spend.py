"""What owners have spent by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.spend_series import SpendCell
from gpuledger_collector.storage.billing.reports import AMENDS, LEVEL_COLUMNS
from gpuledger_collector.storage.cancellation import admit_lines, line_limit
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as

DailyCosts = Mapping[tuple[str, str], Mapping[int, int]]
"""Micro-units by the start of the day, by owner ("": nobody) and currency."""
_KEYS = {
    **{level: f"coalesce({column}, '')" for level, column in LEVEL_COLUMNS.items()},
    "pool": "coalesce(l.pool, '')",
    "model": "coalesce(l.gpu_model, '')",
    "state": "''",
}
_CELLS = """
    WITH own AS MATERIALIZED (
        SELECT key, state, currency, correction_of, bucket, sum(cost_micro) AS cost_micro,
            sum(idle_micro) AS idle_micro
        FROM ({lines}) line GROUP BY 1, 2, 3, 4, 5
    ), dearest AS (
        SELECT DISTINCT ON (currency, bucket) currency, bucket, key
        FROM (SELECT currency, bucket, key, sum(cost_micro) AS cost FROM own
            WHERE state = ANY(%(paid)s) AND correction_of = '' GROUP BY 1, 2, 3) paid
        ORDER BY currency, bucket, cost DESC, key
    )
    SELECT CASE WHEN %(names)s::text[] IS NULL OR c.key = ANY(%(names)s)
            OR (c.currency, c.bucket, c.key) IN (SELECT currency, bucket, key FROM dearest)
        THEN c.key END AS key, c.state, c.currency, c.correction_of, c.bucket,
        sum(c.cost_micro)::bigint AS cost_micro, sum(c.idle_micro)::bigint AS idle_micro
    FROM own c GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5"""
_LINES = """
    SELECT {key} AS key, l.state, l.currency, {correction_of} AS correction_of,
        width_bucket({day}, %(starts)s::bigint[]) - 1 AS bucket, coalesce(l.cost_micro, 0) AS cost_micro,
        coalesce(l.idle_cost_micro, 0) AS idle_micro
    FROM {table} l LEFT JOIN owner o ON o.id = l.owner_id
    WHERE {day} >= %(start)s AND {day} < %(end)s AND l.currency IS NOT NULL{own}"""
# A charge of a day counts in proportion to its overlap with each hour, as in the pace of a budget.
_HOURS = """
    SELECT {key} AS key, l.state, l.currency, '' AS correction_of, b.number - 1 AS bucket,
        abs(l.cost_micro)::numeric * (least(l.end_ms, b.end_ms) - greatest(l.start_ms, b.start_ms))
            / (l.end_ms - l.start_ms) AS cost_micro, 0 AS idle_micro
    FROM charge l LEFT JOIN owner o ON o.id = l.owner_id
    JOIN unnest(%(starts)s::bigint[], %(ends)s::bigint[]) WITH ORDINALITY AS b (start_ms, end_ms, number)
        ON l.start_ms < b.end_ms AND l.end_ms > b.start_ms
    WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s AND l.end_ms > l.start_ms
        AND l.currency IS NOT NULL AND l.cost_micro IS NOT NULL{own}
    UNION ALL
    SELECT {key} AS key, l.state, l.currency, {amends} AS correction_of,
        width_bucket(l.recorded_ms, %(starts)s::bigint[]) - 1 AS bucket,
        abs(l.cost_micro)::numeric AS cost_micro, 0 AS idle_micro
    FROM correction l LEFT JOIN owner o ON o.id = l.owner_id
    WHERE l.booked_day_ms >= %(start)s AND l.booked_day_ms < %(end)s
        AND l.recorded_ms >= %(start)s AND l.recorded_ms < %(end)s
        AND l.currency IS NOT NULL AND l.cost_micro IS NOT NULL{own}"""


def spend_by_bucket(
    connection: Connection,
    by: str,
    buckets: Sequence[Period],
    names: Sequence[str] | None,
    owner: Mapping[str, str] | None,
) -> list[SpendCell]:
    """Sum what the days of each bucket bill, and the corrections booked in it, by one dimension.

    `names` (as stored) and who paid most of a bucket are told apart, all others have no key; None:
    all are told apart. `owner`
    (level -> value) reads that owner's lines alone. Buckets adjoin and consist of whole days.
    """
    own, values = _own(owner)
    lines = " UNION ALL ".join(
        _LINES.format(key=_KEYS[by], table=table, day=day, correction_of=amends, own=own)
        for table, day, amends in (
            ("ledger_day", "l.day_ms", "''"),
            ("correction", "l.booked_day_ms", AMENDS),
        )
    )
    return _read_cells(connection, lines, buckets, names, values)


def spend_by_hour(
    connection: Connection,
    by: str,
    hours: Sequence[Period],
    owner: Mapping[str, str] | None,
) -> list[SpendCell]:
    """Weigh each hour of the charges of some days, as if each were spread evenly over the time from
    its start to its end; a correction belongs to the hour in which it was found.

    The weights of a day add up to about what it cost; only their proportion means something.
    """
    own, values = _own(owner)
    return _read_cells(
        connection, _HOURS.format(key=_KEYS[by], amends=AMENDS, own=own), hours, None, values
    )


def _own(owner: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
    levels = owner or {}
    where = "".join(
        f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %(own_{level})s" for level in levels
    )
    # What no owner pays is in no owner's part, not even in that of those whom nobody knows.
    only = " AND l.owner_id IS NOT NULL" if levels else ""
    return only + where, {f"own_{level}": name for level, name in levels.items()}


def _read_cells(
    connection: Connection,
    lines: str,
    buckets: Sequence[Period],
    names: Sequence[str] | None,
    values: Mapping[str, str],
) -> list[SpendCell]:
    cells = select_as(
        connection,
        SpendCell,
        f"{_CELLS.format(lines=lines)}{line_limit()}",
        {
            **values,
            "names": None if names is None else list(names),
            "paid": sorted(PAID_BY_OWNERS),
            "starts": [bucket.start_ms for bucket in buckets],
            "ends": [bucket.end_ms for bucket in buckets],
            "start": buckets[0].start_ms,
            "end": buckets[-1].end_ms,
        },
    )
    admit_lines(len(cells))
    return cells


def daily_costs(connection: Connection, level: str, period: Period) -> DailyCosts:
    """What every owner of a level pays for each day of a period, without corrections."""
    costs: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    rows = select(
        connection,
        f"SELECT coalesce({LEVEL_COLUMNS[level]}, '') AS owner, l.currency, l.day_ms,"
        " sum(l.cost_micro)::bigint AS cost FROM ledger_day l LEFT JOIN owner o ON o.id ="
        " l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s AND l.state = ANY(%s) AND"
        " l.currency IS NOT NULL GROUP BY 1, 2, 3",
        (period.start_ms, period.end_ms, sorted(PAID_BY_OWNERS)),
    )
    for row in rows:
        costs[row.owner, row.currency][row.day_ms] = row.cost
    return costs
