"""Workloads in Postgres: the facts that attribution looks at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.charged_runs import NamedWorkload
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import bigints, select, select_as, select_values, to_object


def first_report(usage: str) -> str:
    """SQL: the number of the first report of a workload; `usage` is the alias of the row that names
    it.

    Adding 0 keeps Postgres from reading reports by number until one is the workload's. Without
    statistics, in the first minute of a ledger, it takes that for quick; for a fold of millions of
    usage intervals it is hours.
    """
    return (
        "(SELECT min(t.id + 0) FROM workload_attributes t WHERE t.workload_id ="
        f" {usage}.workload_id)"
    )


def facts(connection: Connection, ids: Sequence[int]) -> dict[int, WorkloadFacts]:
    """What was reported last of these workloads, by id; pool and node belong to what they hold and
    are left empty.
    """
    return {
        workload.id: workload
        for workload in select_as(
            connection,
            WorkloadFacts,
            "SELECT id, kind, user_name AS user, account, name, tags, key, coalesce(job, '') AS job,"
            " coalesce(queue, '') AS queue"
            " FROM workload WHERE id = ANY(%s::bigint[])",
            (bigints(ids),),
        )
    }


def list_tagged(connection: Connection, ids: Sequence[int], names: Sequence[str]) -> Sequence[int]:
    """Those of the workloads of which a tag of one of these names was ever reported."""
    return select_values(
        connection,
        "SELECT id FROM workload WHERE id = ANY(%(ids)s) AND tags ?| %(names)s UNION SELECT"
        " workload_id FROM workload_attributes WHERE workload_id = ANY(%(ids)s) AND tags ?|"
        " %(names)s ORDER BY 1",
        {"ids": list(ids), "names": list(names)},
    )


def names(connection: Connection, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The name and the user of workloads as reported last, by key; empty where neither was."""
    return {
        row.key: (row.name or "", row.user_name or "")
        for row in select(
            connection,
            "SELECT key, name, user_name FROM workload WHERE key = ANY(%s)",
            (list(keys),),
        )
    }


def attributes(connection: Connection, ids: Sequence[int]) -> dict[int, WorkloadFacts]:
    """What was reported of workloads, by number of the report; pool and node as above."""
    # OFFSET 0: looked up one by one, for a day's workloads are few of all that there ever were.
    return {
        row.attributes_id: to_object(WorkloadFacts, row)
        for row in select(
            connection,
            "SELECT w.id, w.kind, t.user_name AS user, t.account, t.name, t.tags, w.key,"
            " coalesce(t.job, '') AS job, coalesce(t.queue, '') AS queue, t.id AS attributes_id"
            " FROM unnest(%s::bigint[]) AS n (id) CROSS JOIN LATERAL"
            " (SELECT *"
            " FROM workload_attributes WHERE id = n.id OFFSET 0) t CROSS JOIN LATERAL (SELECT id,"
            " kind, key"
            " FROM workload WHERE id = t.workload_id OFFSET 0) w",
            (bigints(ids),),
        )
    }


def reports(connection: Connection, ids: Sequence[int]) -> dict[int, dict[int, WorkloadFacts]]:
    """What was ever reported of workloads, by their numbers and those of the reports; pool and node
    as above.
    """
    reported: dict[int, dict[int, WorkloadFacts]] = defaultdict(dict)
    for row in select(
        connection,
        "SELECT w.id, w.kind, t.user_name AS user, t.account, t.name, t.tags, w.key,"
        " coalesce(t.job, '') AS job, coalesce(t.queue, '') AS queue, t.id AS attributes_id"
        " FROM workload_attributes t JOIN"
        " workload w ON w.id = t.workload_id WHERE t.workload_id = ANY(%s) ORDER BY t.id",
        (list(ids),),
    ):
        reported[row.id][row.attributes_id] = to_object(WorkloadFacts, row)
    return dict(reported)


def reports_by_day(
    connection: Connection, days: Sequence[Period], ids: Sequence[int]
) -> dict[tuple[int, int], set[int]]:
    """The numbers of the reports that usage of workloads on days that adjoin refers to, by workload
    and day. Usage without one is taken for that of the first, as rating takes it.
    """
    first = first_report("u")
    rows = connection.execute(
        "SELECT DISTINCT u.workload_id, d.start_ms, coalesce(u.workload_attributes_id,"
        f" {first}) FROM usage_hour u JOIN unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS d"
        " (start_ms, end_ms) ON u.hour_ms >= d.start_ms AND u.hour_ms < d.end_ms WHERE"
        " u.workload_id = ANY(%(ids)s) AND u.state = 'held' AND u.hour_ms >= %(start)s AND"
        " u.hour_ms < %(end)s UNION SELECT u.workload_id, d.start_ms,"
        f" coalesce(u.workload_attributes_id, {first}) FROM imported_usage u JOIN"
        " unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS d (start_ms, end_ms) ON u.start_ms <"
        " d.end_ms AND (u.end_ms IS NULL OR u.end_ms > d.start_ms) WHERE u.workload_id ="
        " ANY(%(ids)s)",
        {
            "starts": [day.start_ms for day in days],
            "ends": [day.end_ms for day in days],
            "start": days[0].start_ms,
            "end": days[-1].end_ms,
            "ids": list(ids),
        },
    )
    by_day: dict[tuple[int, int], set[int]] = defaultdict(set)
    for workload_id, day_ms, report in rows:
        by_day[workload_id, day_ms].add(report)
    return dict(by_day)


_ON_NODE = """AND id IN (
    SELECT l.workload_id FROM gpu_latest l JOIN capacity c ON c.accelerator_id = l.accelerator_id AND c.out_ms IS NULL
    JOIN node n ON n.id = c.node_id WHERE n.name = %(node)s)"""


def list_called(connection: Connection, name: str, node: str | None = None) -> list[NamedWorkload]:
    """Workloads with this key, else with this external id, else with this name.

    `node` restricts them to those that held an accelerator of this node when they were last seen.
    """
    on_node = "" if node is None else _ON_NODE
    for column in ("key", "external_id", "name"):
        called = select_as(
            connection,
            NamedWorkload,
            f"SELECT id, key, name, user_name AS user FROM workload WHERE {column} = %(name)s"
            f" {on_node} ORDER BY id LIMIT 20",
            {"name": name, "node": node},
        )
        if called:
            return called
    return []


def list_of_job(connection: Connection, job: str) -> list[NamedWorkload]:
    """Workloads of the jobs with this name."""
    return select_as(
        connection,
        NamedWorkload,
        "SELECT id, key, name, user_name AS user FROM workload WHERE job = %(job)s ORDER BY id",
        {"job": job},
    )


def other_runs(connection: Connection, workload_id: int) -> list[str]:
    """Ids of the other runs of a requeued job: that of the job, and the same with `@` and the
    instant of a run.
    """
    return select_values(
        connection,
        "WITH run AS (SELECT id, kind, regexp_replace(external_id, '@[0-9]+$', '') AS job FROM"
        " workload WHERE id = %s) SELECT w.external_id FROM run JOIN workload w ON w.kind ="
        " run.kind AND w.id <> run.id AND (w.external_id = run.job OR"
        " starts_with(w.external_id, run.job || '@')) WHERE regexp_replace(w.external_id,"
        " '@[0-9]+$', '') = run.job ORDER BY w.external_id",
        (workload_id,),
    )
