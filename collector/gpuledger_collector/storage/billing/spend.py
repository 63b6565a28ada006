"""What owners have spent by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.spend_series import SpendCell
from gpuledger_collector.storage.billing.reports import AMENDS, LEVEL_COLUMNS
from gpuledger_collector.storage.cancellation import admit_lines, line_limit
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as

WORKLOAD = "workload"
"""What held a GPU, by its number: hours are weighed by it, days are added up without it."""
_KEYS = {
    **{level: f"coalesce({column}, '')" for level, column in LEVEL_COLUMNS.items()},
    "pool": "coalesce(l.pool, '')",
    "model": "coalesce(l.gpu_model, '')",
    "state": "''",
    WORKLOAD: "coalesce(l.workload_id::text, '')",
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
# A charge of a day counts in each hour by its GPU-time of the hour. What has none there (node costs,
# adjustments, time that nobody observed) counts by its overlap, as in the pace of a budget. Time is
# looked at by quarters of hours, since zones have their midnights at any of them; an hour that a
# midnight cuts is stored in two parts.
_HOURS = """
    WITH used AS MATERIALIZED (
        SELECT accelerator_id, workload_id, state, hour_ms, sum(held_ms) AS ms FROM usage_hour
        WHERE hour_ms > %(start)s - 3600000 AND hour_ms < %(end)s GROUP BY 1, 2, 3, 4
    ), used_by_bucket AS MATERIALIZED (
        SELECT u.accelerator_id, coalesce(u.workload_id, 0) AS workload, u.state,
            width_bucket(quarter_ms, %(starts)s::bigint[]) AS number,
            sum(u.ms * 900000 / (e.end_ms - u.hour_ms)) AS ms
        FROM used u, LATERAL (SELECT least(u.hour_ms - u.hour_ms %% 3600000 + 3600000,
                (%(midnights)s::bigint[])[width_bucket(u.hour_ms, %(midnights)s::bigint[]) + 1]) AS end_ms) e,
            generate_series(u.hour_ms, e.end_ms - 1, 900000) AS quarter_ms
        GROUP BY 1, 2, 3, 4
    ), charged AS MATERIALIZED (
        SELECT row_number() OVER () AS line, {key} AS key, l.state, l.currency, l.start_ms,
            least(l.end_ms, %(until)s) AS end_ms, l.accelerator_id,
            coalesce(l.workload_id, 0) AS workload, abs(l.{amount}) AS micro
        FROM charge l LEFT JOIN owner o ON o.id = l.owner_id
        WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s
            AND least(l.end_ms, %(until)s) > l.start_ms AND l.currency IS NOT NULL AND l.cost_micro IS NOT NULL{own}
    ), part AS (
        SELECT c.line, c.key, c.state, c.currency, c.micro, b.number,
            least(c.end_ms, b.end_ms) - greatest(c.start_ms, b.start_ms) AS there_ms,
            coalesce(u.ms, 0) AS used_ms, sum(u.ms) OVER (PARTITION BY c.line) AS all_used_ms,
            c.end_ms - c.start_ms AS all_ms
        FROM charged c
        JOIN unnest(%(starts)s::bigint[], %(ends)s::bigint[]) WITH ORDINALITY AS b (start_ms, end_ms, number)
            ON c.start_ms < b.end_ms AND c.end_ms > b.start_ms
        LEFT JOIN used_by_bucket u ON u.accelerator_id = c.accelerator_id
            AND u.workload = c.workload AND u.state = c.state AND u.number = b.number
    )
    SELECT key, state, currency, '' AS correction_of, number - 1 AS bucket,
        micro * CASE WHEN all_used_ms > 0 THEN used_ms / all_used_ms
            ELSE there_ms::numeric / all_ms END AS cost_micro, 0 AS idle_micro
    FROM part
    UNION ALL
    SELECT {key} AS key, l.state, l.currency, {amends} AS correction_of,
        width_bucket(l.recorded_ms, %(starts)s::bigint[]) - 1 AS bucket,
        abs(l.{amount})::numeric AS cost_micro, 0 AS idle_micro
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
    days: Sequence[Period],
    hours: Sequence[Period],
    owner: Mapping[str, str] | None,
    rated_ms: int,
    amount: str = "cost_micro",
) -> list[SpendCell]:
    """Weigh the hours of adjoining days by what was charged in each: a charge by the GPU-time that
    it is for, or as if it were spread evenly from its start to its end where it is for none, and
    no further than the days are rated; a correction belongs to the hour in which it was found.

    The weights of a day add up to about what it cost; only their proportion means something, but
    where nothing is taken back or corrected: there they are what each hour has of the charges.
    `amount`: `gpu_ns` divides the GPU-time of the same charges instead of their cost.
    """
    own, values = _own(owner)
    lines = _HOURS.format(key=_KEYS[by], amends=AMENDS, own=own, amount=amount)
    midnights = {"midnights": [*(day.start_ms for day in days), days[-1].end_ms]}
    return _read_cells(connection, lines, hours, None, {**values, **midnights, "until": rated_ms})


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
    values: Mapping[str, Any],
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
