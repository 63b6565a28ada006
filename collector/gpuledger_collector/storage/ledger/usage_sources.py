"""Usage of the same time from two sources: each job has another id in each of them, and would be
billed twice.

Imported usage counts GPUs, so nothing but its source says whether two rows are one job: arrays,
requeues, suspended time and time zones give a job another number, start and end. A file speaks for
the time in which its jobs begin and end. What another source brought for that time and place is
refused, removed or billed as well, as the person decides. Accelerators that were measured in a pool
take the place of what is imported for it (accounting.imported_usage), so only usage of an unknown
or another pool is compared with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.imported_usage import expand_nodes
from gpuledger_collector.accounting.ledger_rows import (
    UNKNOWN_POOL,
    UNKNOWN_SOURCE,
    OnOverlap,
    OtherSource,
    UsageSource,
)
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, format_instant
from gpuledger_collector.accounting.placement import SEEN
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_number,
    select_row,
    select_value,
    select_values,
)
from gpuledger_common.plurals import plural

ZONES_MS = 14 * HOUR_MS
"""By as much may the times of a table differ that was read in another zone."""
_OPEN_MS = 2**62
MAX_LISTED = 200_000
"""Nodes of lists that are compared with those that are measured."""
_NAMES = {
    UsageSource.sacct: "Slurm's accounting (import sacct)",
    UsageSource.table: "a table of jobs (start, import usage)",
}
_SACCT_ID = r"/[0-9+_]+@{submitted}(@[0-9]+)?$"
"""Ids of `import sacct`: CLUSTER/JOB@SUBMITTED, and a further run of the job with its start."""
_SOURCE = f"""coalesce(u.source, CASE
    WHEN w.external_id ~ format('{_SACCT_ID.format(submitted="%%s")}', coalesce(u.submitted_ms, 0) / 1000) THEN 'sacct'
    WHEN w.external_id ~ '/[^/@]+@[0-9]+(@[0-9]+)?$' THEN '{UNKNOWN_SOURCE}' ELSE 'table' END)"""
"""Of rows from before the column: `import sacct` stored the submission that its ids end with, and
tables write other ids. A further run of NAMESPACE/NAME has such an id as well, so what fits the
form alone is unknown.
"""
_FILE = """WITH file AS (SELECT min(start_ms) AS first_start, max(start_ms) AS last_start,
        min(coalesce(end_ms - 1, %(open)s)) AS first_end, max(coalesce(end_ms - 1, %(open)s)) AS last_end,
        array_agg(DISTINCT pool) AS pools, array_agg(DISTINCT node) FILTER (WHERE node <> '') AS nodes
    FROM {rows})"""
_SAME_PLACE = """(u.pool = ANY(file.pools) OR u.node = ANY(file.nodes)
    OR %(unknown_pool)s = ANY(file.pools || u.pool))"""
_OTHERS = f"""FROM file, imported_usage u JOIN workload w ON w.id = u.workload_id
    WHERE {_SOURCE} <> ALL(%(not_other)s) AND {_SAME_PLACE}"""
_TOUCHING = """u.start_ms <= file.last_end + %(zones)s
    AND (u.end_ms IS NULL OR u.end_ms >= file.first_start - %(zones)s)"""
_COVERED = """u.start_ms >= file.first_start - file.first_start %% %(day)s - {margin}
    AND u.start_ms < file.last_start - file.last_start %% %(day)s + %(day)s + {margin}
    AND (u.end_ms IS NULL OR (u.end_ms > file.first_end - file.first_end %% %(day)s - {margin}
        AND u.end_ms <= file.last_end - file.last_end %% %(day)s + %(day)s + {margin}))"""
"""Days on which jobs of the file begin, and on which they end: what began or ended on others is not
in it.
"""


_UNKNOWN = f"""FROM file, imported_usage u JOIN workload w ON w.id = u.workload_id
    WHERE {_SOURCE} = '{UNKNOWN_SOURCE}' AND {_SAME_PLACE} AND {_TOUCHING}"""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What was removed for a file: pools and times to rate again; and how much of the other source
    is left nearby.

    `unknown` counts what was brought for the time of the file by nobody knows which source: it
    stays.
    """

    pools: Sequence[str] = ()
    spans: Sequence[tuple[int, int | None]] = ()
    nearby: int = 0
    unknown: int = 0


def resolve_overlap(
    connection: Connection, source: UsageSource, choice: OnOverlap, now_ms: int
) -> Replaced:
    """Refuse, or remove, what another source brought for the time of the file in `incoming` and
    `changed`.

    A file that brings no new job is not refused. Raises OtherSource.
    """
    if choice is OnOverlap.also:
        return Replaced()
    _refuse_measured(connection)
    if choice is OnOverlap.refuse:
        _refuse_imported(connection, source, now_ms)
    replaced = _replace(connection, source, now_ms) if choice is OnOverlap.replace else Replaced()
    return replace(replaced, unknown=_unknown(connection, source))


def update_source(connection: Connection, source: UsageSource) -> None:
    """Store the source of rows in `incoming` that were imported before it was recorded: their ids
    are this source's.
    """
    connection.execute(
        "WITH known AS MATERIALIZED (SELECT w.id FROM incoming i JOIN workload w USING (key))"
        " UPDATE imported_usage u SET source = %s FROM known k WHERE k.id = u.workload_id AND"
        " u.source IS NULL",
        (source.value,),
    )


def _unknown(connection: Connection, source: UsageSource) -> int:
    """How many workloads of an unknown source there are in the time of the new rows of the file."""
    new = _FILE.format(rows="changed WHERE known IS NULL")
    return select_number(connection, f"{new} SELECT count(*) {_UNKNOWN}", _parameters(source)) or 0


def _parameters(source: UsageSource) -> dict[str, object]:
    return {
        # A source that nobody knows refuses nothing.
        "not_other": [source.value, UNKNOWN_SOURCE],
        "open": _OPEN_MS,
        "unknown_pool": UNKNOWN_POOL,
        "zones": ZONES_MS,
        "day": DAY_MS,
    }


def _refuse_imported(connection: Connection, source: UsageSource, now_ms: int) -> None:
    new = _FILE.format(rows="changed WHERE known IS NULL")
    imported = select_row(
        connection,
        f"{new} SELECT count(*) AS workloads, min(u.start_ms) AS first_ms,"
        " max(coalesce(u.end_ms - 1, %(now)s)) AS last_ms, array_agg(DISTINCT u.pool) AS pools,"
        f" array_agg(DISTINCT {_SOURCE}) AS sources {_OTHERS} AND {_TOUCHING}",
        {**_parameters(source), "now": now_ms},
    )
    if imported.workloads:
        first, last = format_instant(imported.first_ms), format_instant(imported.last_ms)
        name = _NAMES[UsageSource(imported.sources[0])]
        raise OtherSource(
            f"{plural(imported.workloads, 'workload')} of {name} from {first[:10]} to {last[:10]}"
            f" in {_pools(imported.pools)} would be billed twice; --replace removes those of the"
            f" time"
            " of this file, --also bills both because they are different GPUs"
        )


def _replace(connection: Connection, source: UsageSource, now_ms: int) -> Replaced:
    """Remove usage of another source whose jobs begin and end on days on which jobs of the file do."""
    parameters, file = _parameters(source), _FILE.format(rows="incoming")
    covered = f"SELECT u.workload_id, u.start_ms {_OTHERS} AND {_COVERED.format(margin=0)}"
    rows = select(
        connection,
        f"{file} DELETE FROM imported_usage d USING workload v WHERE v.id = d.workload_id "
        f"AND (d.workload_id, d.start_ms) IN ({covered}) "
        "RETURNING v.external_id, d.start_ms, d.end_ms, d.pool, d.gpu_micro",
        parameters,
    )
    changes = [
        audit.Change(
            "usage",
            row.external_id,
            {
                "start_ms": row.start_ms,
                "end_ms": row.end_ms,
                "gpu_micro": row.gpu_micro,
                "pool": row.pool,
            },
            None,
        )
        for row in sorted(rows, key=lambda row: (row.external_id, row.start_ms))
    ]
    if changes:
        audit.record(connection, changes, now_ms)
    nearby = select_value(
        connection,
        f"{file} SELECT count(*) {_OTHERS} AND {_COVERED.format(margin='%(zones)s')}",
        parameters,
    )
    return Replaced(
        [row.pool for row in rows], [(row.start_ms, row.end_ms) for row in rows], nearby
    )


def _refuse_measured(connection: Connection) -> None:
    """Refuse new usage of an unknown pool while accelerators were measured, or of a node that is
    measured elsewhere, alone or among others.
    """
    texts = select_values(
        connection,
        "SELECT DISTINCT node FROM changed WHERE known IS NULL AND node ~ '[],[]' ORDER BY 1",
    )
    named = itertools.islice(
        ((text, node) for text in texts for node in sorted(expand_nodes(text))), MAX_LISTED
    )
    lists, nodes = list(zip(*named, strict=True)) or ((), ())
    row = select_row(
        connection,
        """
        WITH file AS (SELECT pool, node, min(start_ms) AS start_ms, max(coalesce(end_ms, %(open)s)) AS end_ms
            FROM changed WHERE known IS NULL GROUP BY pool, node)
        SELECT file.pool, file.node, c.pool AS measured, min(greatest(c.in_ms,
            file.start_ms)) AS at_ms
        FROM file JOIN capacity c ON c.pool <> file.pool AND c.source = %(seen)s
            AND c.in_ms < file.end_ms AND (c.out_ms IS NULL OR c.out_ms > file.start_ms)
        LEFT JOIN node n ON n.id = c.node_id WHERE file.pool = %(unknown)s OR n.name = file.node
            OR (file.node, n.name) IN (SELECT * FROM unnest(%(lists)s::text[], %(nodes)s::text[]))
        GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT 1
        """,
        {
            "open": _OPEN_MS,
            "seen": SEEN,
            "unknown": UNKNOWN_POOL,
            "lists": list(lists),
            "nodes": list(nodes),
        },
    )
    if row is not None:
        where = (
            "usage without a pool"
            if row.pool == UNKNOWN_POOL
            else f"usage of {row.node} in pool {row.pool}"
        )
        measured, since = row.measured, format_instant(row.at_ms)[:10]
        raise OtherSource(
            f"{where} would be billed beside the GPUs that are measured in pool {measured} since"
            f" {since}; --pool {measured} counts measured time once, --also bills both because they"
            " are different GPUs"
        )


def refuse_beside_imported(
    connection: Connection, period: Period, nodes: Sequence[str], pools: Sequence[str]
) -> None:
    """Refuse to measure GPUs of these nodes and pools where a file brought their usage for another
    or no pool.

    Raises OtherSource.
    """
    imported = select_row(
        connection,
        "SELECT count(*) AS workloads, min(start_ms) AS first_ms, array_agg(DISTINCT pool) AS"
        " pools FROM imported_usage WHERE start_ms < %s AND (end_ms IS NULL OR"
        " end_ms > %s) AND pool <> ALL(%s) AND (pool = %s OR node = ANY(%s))",
        (period.end_ms, period.start_ms, list(pools), UNKNOWN_POOL, list(nodes)),
    )
    if imported.workloads:
        raise OtherSource(
            f"{plural(imported.workloads, 'workload')} imported since"
            f" {format_instant(imported.first_ms)[:10]} in {_pools(imported.pools)} would be"
            f" billed beside the same GPUs; import their file again with --pool {pools[0]}, where"
            " measured time counts once, or --also bills both because they are different GPUs"
        )


def _pools(names: Sequence[str]) -> str:
    known = [name for name in names if name != UNKNOWN_POOL]
    return f"{'pool' if len(known) == 1 else 'pools'} {', '.join(known)}" if known else "no pool"
