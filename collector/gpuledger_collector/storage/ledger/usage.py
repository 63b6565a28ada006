"""Usage in Postgres: usage intervals and imported usage, recompute requests, and the hourly ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuledger_collector.accounting.ledger_rows import EvidenceSum, RecomputeRequest
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.rating import ImportedUsage
from gpuledger_collector.accounting.usage import HourlyUsage, UsageInterval
from gpuledger_collector.storage.ledger import pool_hours
from gpuledger_collector.storage.ledger.workloads import first_report
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    bigints,
    iterate_as,
    select_as,
    select_number,
    select_value,
    select_values,
)
from gpuledger_collector.storage.telemetry import usage_evidence

_ATTRIBUTES = f"coalesce(s.workload_attributes_id, {first_report('s')})"
_USAGE_INTERVAL = f"""accelerator_id, workload_id, state, start_ms, end_ms, held_ms, busy_ms, idle_ms,
    unknown_ms, energy_mj,
    node_id, epoch::text, seq, record, coalesce(n.name, '') AS node,
        {_ATTRIBUTES} AS attributes_id"""


_REQUESTED = """hour_ms >= %s AND hour_ms < %s
    AND NOT EXISTS (SELECT FROM expired_day WHERE hour_ms >= day_ms AND hour_ms < day_ms + 172800000)"""


def recompute_requests(
    connection: Connection,
    period: Period,
    max_hours: int | None = None,
    max_requests: int | None = None,
) -> list[RecomputeRequest]:
    """List requested hours of the period, by hour and accelerator, except those whose evidence has
    expired; at most so many accelerator-hours, and requests for them.
    """
    return select_as(
        connection,
        RecomputeRequest,
        f"WITH asked AS (SELECT DISTINCT hour_ms, accelerator_id FROM hour_recompute WHERE"
        f" {_REQUESTED} ORDER BY hour_ms, accelerator_id LIMIT %s) SELECT id, accelerator_id,"
        " hour_ms FROM hour_recompute JOIN asked USING (hour_ms, accelerator_id) ORDER BY hour_ms,"
        " accelerator_id, id LIMIT %s",
        (period.start_ms - HOUR_MS + 1, period.end_ms, max_hours, max_requests),
    )


def requested_hours(connection: Connection, period: Period) -> list[int]:
    """List the hours of the period with a recompute request, except those whose evidence has
    expired.
    """
    return select_values(
        connection,
        f"SELECT DISTINCT hour_ms FROM hour_recompute WHERE {_REQUESTED}",
        (period.start_ms - HOUR_MS + 1, period.end_ms),
    )


def remove_recompute_requests(connection: Connection, ids: Iterable[int]) -> None:
    """Remove exactly these requests: those that arrived meanwhile stay."""
    connection.execute("DELETE FROM hour_recompute WHERE id = ANY(%s::bigint[])", (bigints(ids),))


def usage_intervals(
    connection: Connection, accelerator_ids: Sequence[int], period: Period
) -> Iterator[UsageInterval]:
    """Read evidence of use that overlaps the period, in any order."""
    # The bounds are part of the text, so that the planner can exclude partitions.
    return iterate_as(
        connection,
        UsageInterval,
        f"WITH s AS MATERIALIZED (SELECT * FROM {_evidence(connection, period)} AS evidence WHERE"
        f" accelerator_id = ANY(%s::bigint[]) AND end_ms > {int(period.start_ms)} AND state <> 'present')"
        f" SELECT {_USAGE_INTERVAL} FROM s LEFT JOIN node n ON n.id = s.node_id",
        (bigints(accelerator_ids),),
        prepare=False,
    )


def _evidence(connection: Connection, period: Period) -> str:
    """SQL: evidence that overlaps the period."""
    bounds = int(period.start_ms), int(period.end_ms)
    with_packed = usage_evidence.may_be_packed(connection, *bounds)
    return usage_evidence.overlapping(*bounds, with_packed=with_packed)


def evidence_sums(
    connection: Connection, accelerator_ids: Sequence[int], period: Period
) -> Iterator[EvidenceSum]:
    """Add up evidence of use that overlaps the period, by accelerator, hour of its start, state and
    report of a holder.

    Interval by interval the server looks whether the sum is also what a fold would give: it lies in
    one hour and after all earlier ones, and the activity of its holder is its whole length.
    """
    # What names no report is of the first one of its workload, which is looked up for a sum and not
    # for each interval of it.
    # The bounds are part of the text, so that the planner can exclude partitions.
    return iterate_as(
        connection,
        EvidenceSum,
        f"""
        WITH evidence AS (
            SELECT *, start_ms - start_ms % {HOUR_MS} AS hour_ms,
                start_ms >= lag(end_ms, 1, start_ms) OVER (PARTITION BY accelerator_id ORDER BY start_ms)
                    AND end_ms > start_ms AND end_ms <= start_ms - start_ms % {HOUR_MS} + {HOUR_MS}
                    AND (state <> 'held' OR busy_ms + idle_ms + unknown_ms = end_ms - start_ms) AS is_additive
            FROM {_evidence(connection, period)} AS s
            WHERE accelerator_id = ANY(%s::bigint[]) AND end_ms > {int(period.start_ms)}
                AND state <> 'present'
        ), named AS (
            SELECT accelerator_id, hour_ms, state, workload_id, workload_attributes_id,
                sum(end_ms - start_ms) AS held_ms, sum(busy_ms) AS busy_ms, sum(idle_ms) AS idle_ms,
                sum(unknown_ms) AS unknown_ms, sum(energy_mj) AS energy_mj,
                min(start_ms) AS first_ms, max(end_ms) AS last_ms,
                bool_and(is_additive) AS is_additive, min(node_id) AS first_id, max(node_id) AS last_id
            FROM evidence GROUP BY 1, 2, 3, 4, 5
        ), s AS MATERIALIZED (
            SELECT accelerator_id, hour_ms, state, workload_id, attributes_id,
                sum(held_ms)::bigint AS held_ms, sum(busy_ms)::bigint AS busy_ms,
                sum(idle_ms)::bigint AS idle_ms, sum(unknown_ms)::bigint AS unknown_ms,
                sum(energy_mj)::bigint AS energy_mj, min(first_ms) AS first_ms,
                max(last_ms) AS last_ms,
                bool_and(is_additive) AND min(first_id) = max(last_id) AS is_additive,
                min(first_id) AS node_id
            FROM (SELECT *, {_ATTRIBUTES} AS attributes_id FROM named AS s) AS reported
            GROUP BY 1, 2, 3, 4, 5
        ) SELECT accelerator_id, hour_ms, state, workload_id, attributes_id, held_ms, busy_ms, idle_ms,
            unknown_ms, energy_mj, first_ms, last_ms, node_id, coalesce(n.name, '') AS node, is_additive
            FROM s LEFT JOIN node n ON n.id = s.node_id
        """.replace("% ", "%% "),
        (bigints(accelerator_ids),),
        prepare=False,
    )


def latest_evidence_ms(connection: Connection, since_ms: int, after_ms: int = 0) -> int | None:
    """Return the end of the latest evidence that begins at or after an instant and ends after
    another; None when there is none.

    Rows are found by their end, without those that end before.
    """
    return select_number(
        connection,
        f"SELECT max(end_ms) FROM {usage_evidence.intervals(int(since_ms))} AS s WHERE end_ms >"
        f" {int(after_ms)}",
    )


def slurm_pods(connection: Connection, day: Period) -> list[tuple[int, int, str]]:
    """Accelerators that pods of Slurm's jobs (slurm-bridge) held on a day: the accelerator, the
    report of the pod, and the job.
    """
    held = connection.execute(
        "SELECT DISTINCT accelerator_id, workload_attributes_id FROM usage_hour WHERE hour_ms >= %s"
        " AND hour_ms < %s AND state = 'held' AND workload_attributes_id IS NOT NULL",
        (day.start_ms, day.end_ms),
    ).fetchall()
    # OFFSET 0: looked up one by one, for a day's workloads are few of all that there ever were.
    jobs: dict[int, str] = dict(
        connection.execute(
            "SELECT t.id, t.tags->>'slurm_job_id' FROM unnest(%s::bigint[]) AS n (id) CROSS JOIN"
            " LATERAL (SELECT id, tags, workload_id FROM workload_attributes WHERE id = n.id OFFSET"
            " 0) t CROSS JOIN LATERAL (SELECT kind FROM workload WHERE id = t.workload_id OFFSET 0)"
            " w WHERE w.kind = 'kubernetes' AND t.tags->>'slurm_job_id' IS NOT NULL",
            (sorted({report for _, report in held}),),
        ).fetchall()
    )
    return sorted((number, report, jobs[report]) for number, report in held if report in jobs)


def imported_usage(connection: Connection, day: Period) -> list[ImportedUsage]:
    """Read imported usage that overlaps the day."""
    return select_as(
        connection,
        ImportedUsage,
        "SELECT u.workload_id, u.start_ms, u.end_ms, u.gpu_micro, u.gpu_model, u.pool, u.node, "
        f"coalesce(u.workload_attributes_id, {first_report('u')}) AS attributes_id, w.key "
        "FROM imported_usage u "
        # OFFSET 0: looked up one by one, for a day's workloads are few of all that there ever were.
        "CROSS JOIN LATERAL (SELECT key FROM workload WHERE id = u.workload_id OFFSET 0) w "
        "WHERE u.start_ms < %s AND (u.end_ms IS NULL OR u.end_ms > %s) ORDER BY w.key, u.start_ms",
        (day.end_ms, day.start_ms),
    )


def replace_hourly_usage(
    connection: Connection, hours: Sequence[tuple[int, int]], pieces: Sequence[HourlyUsage]
) -> None:
    """Replace the hourly ledger of these (accelerator, hour) pairs.

    The column `hour_ms` holds the start of a row's rating interval: the hour, or the instant inside
    it at which a price changed or the accelerator moved.
    """
    # The rows of an hour may begin inside of it, where a rating interval begins: delete the entire
    # range. Compared by equality, which can be hashed: with two inequalities every hour meets every
    # row of its accelerator.
    if hours:
        bounds = min(pair[1] for pair in hours), max(pair[1] for pair in hours) + HOUR_MS
        connection.execute(
            "DELETE FROM usage_hour u USING unnest(%s::bigint[], %s::bigint[]) AS h"
            " (accelerator_id, hour_ms) WHERE u.accelerator_id = h.accelerator_id AND u.hour_ms -"
            " u.hour_ms %% %s = h.hour_ms AND u.hour_ms >= %s AND u.hour_ms < %s",
            (
                bigints(pair[0] for pair in hours),
                bigints(pair[1] for pair in hours),
                HOUR_MS,
                *bounds,
            ),
        )
        pool_hours.delete(connection, {hour_ms for _, hour_ms in hours})
    with connection.cursor().copy(
        "COPY usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms, idle_ms,"
        " unknown_ms, energy_mj, workload_attributes_id) FROM STDIN"
    ) as copy:
        for piece in pieces:
            copy.write_row(
                (
                    piece.accelerator_id,
                    piece.start_ms,
                    piece.state,
                    piece.workload_id,
                    piece.held_ms,
                    piece.busy_ms,
                    piece.idle_ms,
                    piece.unknown_ms,
                    piece.energy_mj,
                    piece.attributes_id,
                )
            )


def hourly_usage(connection: Connection, day: Period) -> list[HourlyUsage]:
    """Read the hourly ledger of a day, by accelerator and rating interval.

    Only starts are stored: each row is given the end of its hour.
    """
    return select_as(
        connection,
        HourlyUsage,
        "SELECT accelerator_id, hour_ms AS start_ms, hour_ms - hour_ms %% %s + %s AS end_ms, state,"
        " workload_id, held_ms, busy_ms, idle_ms, unknown_ms, energy_mj,"
        f" coalesce(u.workload_attributes_id, {first_report('u')}) AS"
        " attributes_id FROM usage_hour u WHERE hour_ms >= %s AND hour_ms < %s ORDER BY"
        " accelerator_id, hour_ms,"
        " state, workload_id NULLS FIRST",
        (HOUR_MS, HOUR_MS, day.start_ms, day.end_ms),
    )


def request_recompute_at(connection: Connection, instants: Iterable[int]) -> None:
    """Request the hours inside which one of these instants lies: a price, a rule or a choice begins
    or ends there.
    """
    hours_ms = sorted({at - at % HOUR_MS for at in instants if at % HOUR_MS})
    if hours_ms:
        request_recompute_of_hours(connection, hours_ms)


def request_recompute_of_hours(connection: Connection, hours_ms: Sequence[int]) -> None:
    """Request these hours for every accelerator that has usage in them: their rating intervals
    change.
    """
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT u.accelerator_id, h "
        "FROM unnest(%s::bigint[]) AS h JOIN usage_hour u ON u.hour_ms >= h AND u.hour_ms < h + %s",
        (list(hours_ms), HOUR_MS),
    )


def request_days_with_evidence(connection: Connection, first_ms: int, last_ms: int) -> int:
    """Mark the days between two instants, from the first day that has any capacity or imported
    usage on.
    """
    evidence_ms = select_value(
        connection,
        "SELECT least((SELECT min(in_ms) FROM capacity), (SELECT min(start_ms) FROM"
        " imported_usage))",
    )
    if evidence_ms is None:
        return 0
    first_day_ms = max(first_ms, evidence_ms) // DAY_MS * DAY_MS
    return connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT generate_series(%s::bigint, %s::bigint, %s)",
        (first_day_ms, last_ms, DAY_MS),
    ).rowcount
