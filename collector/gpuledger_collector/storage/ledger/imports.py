"""Imports of usage and samples; importing a file twice changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from psycopg import sql

from gpuledger_collector.accounting.import_progress import OnRow, RowStages, tell_nobody
from gpuledger_collector.accounting.ledger_rows import (
    ALL_COLUMNS,
    OPTIONAL,
    ImportOutcome,
    OnOverlap,
    SampleRow,
    UsageColumns,
    UsageRow,
    UsageSource,
)
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.foreign_keys import insert_selected
from gpuledger_collector.storage.ledger.job_runs import known_runs, name_runs
from gpuledger_collector.storage.ledger.placements import settle_pools
from gpuledger_collector.storage.ledger.usage_sources import resolve_overlap, update_source
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select
from gpuledger_collector.storage.telemetry import archive, partitions
from gpuledger_common.catalog import HOT
from gpuledger_common.instants import to_datetime

_INCOMING = """key, external_id, user_name, account, name, queue, tags, start_ms, end_ms, gpu_micro, gpu_model, pool,
    node, submitted_ms, state"""
_COMPARED = (
    ("w", ("user_name", "account", "name", "queue", "tags")),
    (
        "u",
        ("start_ms", "end_ms", "gpu_micro", "gpu_model", "pool", "node", "submitted_ms", "state"),
    ),
)
_STORED = {"user": "w.user_name", "account": "w.account", "job_name": "w.name", "queue": "w.queue"}
"""Where the optional fields of a row are stored, unless in the column of `imported_usage` with
their name.
"""

USAGE_STAGES, SAMPLE_STAGES = 5, 3
"""What every row passes: copying, comparing, and what is written of it."""
# Only where there is one: without a queue, the digest is that of earlier versions.
_DIGEST = (
    "sha256(convert_to((jsonb_build_array(i.user_name, i.account, i.name, i.tags) || CASE WHEN"
    " i.queue IS NULL THEN '[]'::jsonb ELSE jsonb_build_array(i.queue) END)::text, 'UTF8'))"
)
_SAID_QUEUE = (
    "CASE WHEN {0}.queue IS NULL THEN '{{}}'::jsonb ELSE jsonb_build_object('queue', {0}.queue) END"
)


def workload_key(workload_id: str) -> str:
    """The key of an imported workload."""
    return f"imported:import:{workload_id}"


def add_usage(
    connection: Connection,
    rows: Sequence[UsageRow],
    now_ms: int,
    columns: UsageColumns = ALL_COLUMNS,
    source: UsageSource = UsageSource.table,
    on_overlap: OnOverlap = OnOverlap.refuse,
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Add or update rows by workload id and request the days that they touch, before and after.

    Does not commit.

    `columns`: what their file has columns for; known values of others stay. `on_overlap`: what
    happens to usage of the same time that another kind of `source` brought. `on_row` is told how
    far it is. Raises OtherSource.
    """
    locks.take(connection, Lock.IMPORTS)
    if columns.has_runs:
        rows = name_runs(rows, known_runs(connection, rows))
    stages = RowStages(rows, USAGE_STAGES, on_row)
    _copy_incoming(connection, stages.one_by_one())
    update_source(connection, source)
    kept = _fill_from_known(connection, columns)
    _find_changed(connection)
    stages.pass_stage()
    replaced = resolve_overlap(connection, source, on_overlap, now_ms)
    _write_workloads(connection, now_ms)
    stages.pass_stage()
    before = _replace_usage(connection, source)
    stages.pass_stage()
    _record_updates(connection, now_ms)
    changed, updated = connection.execute(
        "SELECT count(*), count(known) FROM changed"
    ).fetchone() or (0, 0)
    spans = [*_changed_spans(connection), *replaced.spans]
    days = _days(spans, now_ms)
    connection.execute("INSERT INTO day_recompute (day_ms) SELECT unnest(%s::bigint[])", (days,))
    # Days with imported usage cut the placements of their pool, so its boards are placed again.
    if spans:
        pools = sorted({row.pool for row in rows} | before | {*replaced.pools})
        settle_pools(connection, pools, min(start for start, _ in spans))
    stages.pass_stage()
    return ImportOutcome(
        changed - updated,
        updated,
        len(rows) - changed,
        len(days),
        kept,
        replaced=len(replaced.spans),
        nearby=replaced.nearby,
        unknown=replaced.unknown,
    )


def _find_changed(connection: Connection) -> None:
    """Fill the table `changed` with the incoming rows that are new or differ from what is stored."""
    theirs = [f"{table}.{name}" for table, names in _COMPARED for name in names]
    ours = [f"i.{name}" for _, names in _COMPARED for name in names]
    connection.execute(
        f"CREATE TEMP TABLE changed ON COMMIT DROP AS SELECT i.*, {_DIGEST} AS digest,"
        " u.workload_id AS known, u.start_ms AS old_start_ms, u.end_ms AS old_end_ms, CASE WHEN"
        " u.workload_id IS NOT NULL THEN jsonb_build_object('gpu_micro', u.gpu_micro, 'gpu_model',"
        " u.gpu_model, 'pool', u.pool, 'node', u.node, 'user', w.user_name, 'account', w.account,"
        f" 'tags', w.tags) || {_SAID_QUEUE.format('w')} END AS old_said"
        " FROM incoming i LEFT JOIN workload w USING (key) LEFT JOIN imported_usage u ON"
        " u.workload_id = w.id WHERE u.workload_id IS NULL OR"
        f" ({', '.join(theirs)}) IS DISTINCT FROM ({', '.join(ours)})"
    )


def _write_workloads(connection: Connection, now_ms: int) -> None:
    """Write the workloads of changed rows."""
    connection.execute(
        "INSERT INTO workload (key, kind, external_id, user_name, account, name, queue, tags,"
        " first_seen_at) SELECT key, 'imported', external_id, user_name, account, name, queue,"
        " tags, %s"
        " FROM changed ORDER BY key ON CONFLICT (key) DO UPDATE SET user_name = excluded.user_name,"
        " account = excluded.account, name = excluded.name, queue = excluded.queue,"
        " tags = excluded.tags",
        (to_datetime(now_ms),),
    )


def _replace_usage(connection: Connection, source: UsageSource) -> set[str]:
    """Replace the usage of changed rows; return the pools where it was before.

    Rows are replaced, not updated: start and end may have moved to other days.
    """
    before = connection.execute(
        "DELETE FROM imported_usage WHERE workload_id IN (SELECT known FROM changed) RETURNING pool"
    ).fetchall()
    _write_attributes(connection)
    insert_selected(
        connection,
        "imported_usage (workload_id, start_ms, end_ms, gpu_micro, gpu_model, pool, node,"
        " submitted_ms, state, workload_attributes_id, source)",
        "SELECT w.id, c.start_ms, c.end_ms, c.gpu_micro, c.gpu_model, c.pool, c.node,"
        " c.submitted_ms, c.state, t.id AS attributes_id, %(source)s AS source FROM changed c JOIN"
        " workload w USING (key) JOIN workload_attributes t ON t.workload_id = w.id AND t.digest ="
        " c.digest",
        {"source": source.value},
    )
    return {pool for (pool,) in before}


def _changed_spans(connection: Connection) -> list[tuple[int, int | None]]:
    """Old and new spans of changed rows: the days that lose usage and those that gain it are rated
    again.

    Spans that begin on one day count as the longest of them.
    """
    return connection.execute(
        "SELECT min(start_ms), CASE WHEN bool_and(end_ms IS NOT NULL) THEN max(end_ms) END FROM"
        " (SELECT start_ms, end_ms FROM changed UNION ALL SELECT old_start_ms, old_end_ms FROM"
        " changed WHERE known IS NOT NULL) s GROUP BY start_ms / %s",
        (DAY_MS,),
    ).fetchall()


def _fill_from_known(connection: Connection, columns: UsageColumns) -> int:
    """Fill incoming rows with the known values that their file has no column for; return how many
    rows have some.
    """
    stored = [_STORED.get(name, f"u.{name}") for name in OPTIONAL if name not in columns.fields]
    values = {name.partition(".")[2]: name for name in stored}
    if columns.tags is not None:
        values["tags"] = "(w.tags - %s::text[]) || i.tags"
    if not values:
        return 0
    known = ", ".join(f"{value} AS {name}" for name, value in values.items())
    compared = ", ".join(f"i.{name}" for name in values)
    # Materialized, because Citus updates no temporary table by a join to a table of its own.
    return connection.execute(
        f"WITH known AS MATERIALIZED (SELECT i.key, {known} FROM incoming i JOIN workload w USING"
        f" (key) JOIN imported_usage u ON u.workload_id = w.id WHERE ({', '.join(values.values())})"
        f" IS DISTINCT FROM ({compared})) UPDATE incoming i SET"
        f" {', '.join(f'{name} = k.{name}' for name in values)} FROM known k WHERE k.key = i.key",
        [] if columns.tags is None else [sorted(columns.tags)] * 2,
    ).rowcount


def _write_attributes(connection: Connection) -> None:
    """Write the attributes of the workloads of changed rows, one row per content."""
    insert_selected(
        connection,
        "workload_attributes (workload_id, digest, user_name, account, name, queue, tags)",
        "SELECT w.id, c.digest, c.user_name, c.account, c.name, c.queue, c.tags FROM changed c JOIN"
        " workload w USING (key)",
        on_conflict="ON CONFLICT (workload_id, digest) DO NOTHING",
    )


def _record_updates(connection: Connection, now_ms: int) -> None:
    """Audit ids that were imported before with other content."""
    rows = select(
        connection,
        "SELECT c.external_id, c.old_start_ms, c.old_end_ms, c.old_said, c.start_ms, c.end_ms,"
        " jsonb_build_object('gpu_micro', c.gpu_micro, 'gpu_model', c.gpu_model, 'pool', c.pool,"
        " 'node', c.node, 'user', c.user_name, 'account', c.account, 'tags', c.tags)"
        f" || {_SAID_QUEUE.format('c')} AS content"
        " FROM"
        " changed c WHERE c.known IS NOT NULL ORDER BY c.external_id",
    )
    changes = [
        audit.Change(
            "usage",
            row.external_id,
            {"start_ms": row.old_start_ms, "end_ms": row.old_end_ms, **row.old_said},
            {"start_ms": row.start_ms, "end_ms": row.end_ms, **row.content},
        )
        for row in rows
    ]
    if changes:
        audit.record(connection, changes, now_ms)


def _copy_incoming(connection: Connection, rows: Iterable[UsageRow]) -> None:
    connection.execute(
        "CREATE TEMP TABLE incoming (key text, external_id text, user_name text, account text, name"
        " text, queue text, tags jsonb, start_ms bigint, end_ms bigint, gpu_micro bigint, gpu_model"
        " text, pool"
        " text, node text, submitted_ms bigint, state text) ON COMMIT DROP"
    )
    with connection.cursor().copy(f"COPY incoming ({_INCOMING}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(
                (
                    workload_key(row.workload_id),
                    row.workload_id,
                    row.user,
                    row.account,
                    row.job_name,
                    row.queue,
                    json.dumps(dict(row.tags)),
                    row.start_ms,
                    row.end_ms,
                    row.gpu_micro,
                    row.gpu_model,
                    row.pool,
                    row.node,
                    row.submitted_ms,
                    row.state,
                )
            )


def _days(spans: Iterable[tuple[int, int | None]], now_ms: int) -> list[int]:
    """List UTC days that these spans touch, up to now; a span always touches the day of its start."""
    days: list[int] = []
    for start, end in sorted((start, now_ms if end is None else end) for start, end in spans):
        first = start - start % DAY_MS
        if days:
            # Spans are sorted by start: days that an earlier span has listed are not repeated.
            first = max(first, days[-1] + DAY_MS)
        days.extend(range(first, min(max(end, start + 1), now_ms), DAY_MS))
    return days


def add_samples(
    connection: Connection,
    rows: Sequence[SampleRow],
    coarse_before_ms: int = 0,
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Add samples by accelerator and instant; existing ones stay. Does not commit.

    Unknown accelerators are added without capacity: samples show activity, not availability. Months
    that ended by `coarse_before_ms` get one partition each. `on_row` is told how far it is.
    """
    locks.take(connection, Lock.IMPORTS)
    stages = RowStages(rows, SAMPLE_STAGES, on_row)
    partitions.ensure(
        connection, "gpu_sample", {row.at_ms - row.at_ms % DAY_MS for row in rows}, coarse_before_ms
    )
    uuids = sorted({row.uuid for row in rows})
    connection.execute(
        "INSERT INTO accelerator (uuid, device_uuid) SELECT u, u FROM unnest(%s::text[]) AS u ON"
        " CONFLICT DO NOTHING",
        (uuids,),
    )
    known = connection.execute("SELECT uuid, id FROM accelerator WHERE uuid = ANY(%s)", (uuids,))
    ids = {str(uuid): int(key) for uuid, key in known}
    names = [metric.name for metric in HOT]
    columns = sql.SQL(", ").join(map(sql.Identifier, ["accelerator_id", "at_ms", *names]))
    connection.execute("CREATE TEMP TABLE incoming_sample (LIKE gpu_sample) ON COMMIT DROP")
    with connection.cursor().copy(
        sql.SQL("COPY incoming_sample ({}) FROM STDIN").format(columns)
    ) as copy:
        for row in stages.one_by_one():
            copy.write_row((ids[row.uuid], row.at_ms, *(row.values.get(name) for name in names)))
    # In a table of its own, because Citus joins no distributed table to incoming_sample.
    connection.execute(
        "CREATE TEMP TABLE known_sample ON COMMIT DROP AS SELECT accelerator_id, at_ms FROM"
        " gpu_sample WHERE accelerator_id = ANY(%s) AND at_ms >= %s AND at_ms <= %s",
        (
            list(ids.values()),
            min((row.at_ms for row in rows), default=0),
            max((row.at_ms for row in rows), default=0),
        ),
    )
    hours = {(ids[row.uuid], row.at_ms - row.at_ms % HOUR_MS) for row in rows}
    # Instants that are packed count as existing.
    if archive.unpack_hours(connection, sorted(hours)):
        connection.execute(
            "INSERT INTO known_sample SELECT accelerator_id, at_ms FROM packed_sample"
        )
    stages.pass_stage()
    added = connection.execute(
        sql.SQL(
            "INSERT INTO gpu_sample ({columns}) SELECT {columns} FROM incoming_sample i WHERE NOT"
            " EXISTS (SELECT FROM known_sample k WHERE k.accelerator_id = i.accelerator_id AND"
            " k.at_ms = i.at_ms)"
        ).format(columns=columns)
    ).rowcount
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) "
        "SELECT DISTINCT accelerator_id, at_ms - at_ms %% %s FROM incoming_sample",
        (HOUR_MS,),
    )
    stages.pass_stage()
    return ImportOutcome(added=added, unchanged=len(rows) - added)
