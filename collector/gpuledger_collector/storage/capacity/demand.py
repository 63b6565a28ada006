"""What demand is made from: held time, capacity, imported usage and queues, by pool, model, model of
one pool or level of the owner tree.

Hours come from the hourly ledger. Shorter steps come from the usage intervals themselves, as far
back as they are kept: time that two agents report of one accelerator is capped at the step there
and not resolved as the ledger does it, which is good enough for a forecast and for nothing else.
Weeks of five minutes (`fine`) are read as they were drawn for rated days, and from the usage
intervals only for the hours since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuledger_collector.accounting.attribution import Attribution, WorkloadFacts
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.insight.demand import (
    CapacitySpan,
    GroupUsage,
    QueueReadings,
    group_demand,
    owner_demand,
    with_queue,
)
from gpuledger_collector.insight.series import Floats, Ints, Series
from gpuledger_collector.storage.capacity.queues import summed_by
from gpuledger_collector.storage.ledger import pool_hours, rules, workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_value
from gpuledger_collector.storage.telemetry import usage_evidence

GROUPS = ("pool", "model", *LEVELS)
"""What demand can be summed by."""
STEPS_MS = (300_000, HOUR_MS)
TAIL_MS = 6 * HOUR_MS
"""How far back usage intervals are read for what is not drawn yet: a fleet writes millions of them
a day.
"""
_MICRO = 1_000_000
_QUEUED = {"pool": "pool", "model": "gpu_model", "team": "team", "user": "user"}
"""Where a queue's items name the group; a scheduler knows no other level."""

# Where each accelerator was in the period, with the name of its group.
_PLACEMENTS = """SELECT c.accelerator_id, {group} AS grouped, c.in_ms,
        coalesce(c.out_ms, %(end_ms)s) AS out_ms, c.gpu_micro
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id
    WHERE c.in_ms < %(end_ms)s AND (c.out_ms IS NULL OR c.out_ms > %(start_ms)s)
        AND (%(pool)s::text IS NULL OR c.pool = %(pool)s)"""
# Usage intervals in the shape of usage_hour for other steps: each is spread evenly over the steps
# that it touches. The partition key start_ms is bounded by the longest interval, a day.
_USAGE_INTERVALS = f"""(SELECT accelerator_id, workload_id, state, at AS hour_ms, least(sum(part), %(step_ms)s) AS
    held_ms FROM (
        SELECT s.accelerator_id, s.workload_id, s.state, s.at,
               (CASE WHEN s.state = 'held' THEN s.held_ms ELSE s.end_ms - s.start_ms END)::float
               * (least(s.end_ms, s.at + %(step_ms)s) - greatest(s.start_ms, s.at)) / (s.end_ms - s.start_ms) AS part
        FROM (
            SELECT interval.*, generate_series(greatest(start_ms, %(start_ms)s) / %(step_ms)s * %(step_ms)s,
                least(end_ms, %(end_ms)s) - 1, %(step_ms)s) AS at
            FROM {usage_evidence.overlapping("%(start_ms)s", "%(end_ms)s")} AS interval
            WHERE end_ms > %(start_ms)s AND end_ms > start_ms AND state <> 'present'
        ) AS s) AS parts GROUP BY 1, 2, 3, 4)"""
# Held and observed GPU-milliseconds (times a million) by group and step; a step that a move divides
# counts for both placements.
_HELD = """WITH placement AS ({placements}){with_use}
    SELECT placement.grouped, u.hour_ms / %(step_ms)s * %(step_ms)s AS hour_ms,
           sum(u.held_ms * placement.gpu_micro) FILTER (WHERE u.state = 'held') AS held,
           sum(u.held_ms * placement.gpu_micro) AS seen
    FROM {use} u JOIN placement ON placement.accelerator_id = u.accelerator_id
         AND u.hour_ms + %(step_ms)s - 1 >= placement.in_ms AND u.hour_ms < placement.out_ms
    WHERE u.hour_ms >= %(start_ms)s AND u.hour_ms < %(end_ms)s
    GROUP BY 1, 2"""
_BY_WORKLOAD = """WITH placement AS ({placements}){with_use}
    SELECT u.workload_id, placement.grouped AS pool, u.hour_ms / %(step_ms)s * %(step_ms)s AS hour_ms,
           sum(u.held_ms * placement.gpu_micro) AS held
    FROM {use} u JOIN placement ON placement.accelerator_id = u.accelerator_id
         AND u.hour_ms + %(step_ms)s - 1 >= placement.in_ms AND u.hour_ms < placement.out_ms
    WHERE u.hour_ms >= %(start_ms)s AND u.hour_ms < %(end_ms)s AND u.state = 'held' AND u.workload_id IS NOT NULL
    GROUP BY 1, 2, 3"""
_COUNTED = """SELECT {group} AS grouped, workload_id, pool, gpu_micro, start_ms,
        least(coalesce(end_ms, %(end_ms)s), %(end_ms)s) AS end_ms
    FROM imported_usage WHERE start_ms < %(end_ms)s AND (end_ms IS NULL OR end_ms > %(start_ms)s)
        AND (%(pool)s::text IS NULL OR pool = %(pool)s)"""
_READ = "FROM queue_reading {more} WHERE at_ms >= %(start_ms)s AND at_ms < %(end_ms)s"
_SUMMED = (
    f"SELECT source, at_ms, pools AS names, pool_gpu_micro AS micro {_READ.format(more='')} AND"
    " summed_at = received_at"
)
_TO_SUM = "summed_at IS DISTINCT FROM received_at"
_PACKED = """SELECT source, names, string_agg(int8send(at_ms), '') AS at_ms, string_agg(array_send(micro), '') AS micro
    FROM ({read}) AS read GROUP BY source, names"""
"""Readings that name the same groups in a row, as Postgres sends numbers: as objects they would
cost a hundred times as much. Both aggregates see the readings in the same order, whichever that is.
"""
_ROLLED_UP = """SELECT pool AS grouped, at_ms AS hour_ms, sum(gpu_ns) FILTER (WHERE state = 'held') AS held,
        sum(gpu_ns) AS seen
    FROM owner_5min WHERE at_ms >= %(start_ms)s AND at_ms < %(end_ms)s AND (%(only)s::text IS NULL OR pool = %(only)s)
    GROUP BY 1, 2"""
_ROLLED_UP_UNTIL = """SELECT max(p.until_ms) FROM series_day s JOIN conservation_check p USING (day_ms)
    WHERE s.proved_at = p.proved_at AND p.until_ms <= %(end_ms)s"""


def evidence(
    connection: Connection,
    start_ms: int,
    end_ms: int,
    group: str,
    step_ms: int = HOUR_MS,
    pool: str | None = None,
) -> tuple[list[GroupUsage], list[CapacitySpan], list[CapacitySpan]]:
    """Held time, capacity and imported usage of a period of whole steps, by `pool` or `model`; of
    all pools, or of one.
    """
    if (group, step_ms) == ("pool", HOUR_MS):
        used = _usage_of_pools(connection, Period(start_ms, end_ms), pool)
    else:
        query = _HELD.format(placements=_placements(group), **_use(step_ms))
        values = {"start_ms": start_ms, "end_ms": end_ms, "step_ms": step_ms, "pool": pool}
        used = _usage(connection, query, values)
    return used, *_capacity(connection, start_ms, end_ms, group, pool)


def _usage_of_pools(connection: Connection, period: Period, pool: str | None) -> list[GroupUsage]:
    times_ns: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for hour in pool_hours.read(connection, period):
        if pool in {None, hour.pool}:
            times = times_ns[hour.pool, hour.hour_ms]
            times[0] += hour.held_ns
            times[1] += hour.seen_ns
    return [
        GroupUsage(*key, held_ns / _MICRO, seen_ns / _MICRO)
        for key, (held_ns, seen_ns) in times_ns.items()
    ]


def _usage(connection: Connection, query: str, values: Mapping[str, object]) -> list[GroupUsage]:
    return [
        GroupUsage(
            row.grouped, row.hour_ms, float(row.held or 0) / _MICRO, float(row.seen) / _MICRO
        )
        for row in select(connection, query, values)
    ]


def _capacity(
    connection: Connection, start_ms: int, end_ms: int, group: str, pool: str | None = None
) -> tuple[list[CapacitySpan], list[CapacitySpan]]:
    """Capacity and imported usage of a period, by `pool` or `model`; of all pools, or of one."""
    period = {"start_ms": start_ms, "end_ms": end_ms, "pool": pool}
    capacity = [
        CapacitySpan(row.grouped, row.gpu_micro / _MICRO, row.in_ms, row.out_ms)
        for row in select(connection, _placements(group), period)
    ]
    imported = [
        CapacitySpan(row.grouped, row.gpu_micro / _MICRO, row.start_ms, row.end_ms)
        for row in select(
            connection, _COUNTED.format(group="pool" if group == "pool" else "gpu_model"), period
        )
    ]
    return capacity, imported


def _placements(group: str) -> str:
    return _PLACEMENTS.format(group="c.pool" if group == "pool" else "a.model")


def _use(step_ms: int) -> dict[str, str]:
    if step_ms == HOUR_MS:
        return {"use": "usage_hour", "with_use": ""}
    return {"use": "used", "with_use": f", used AS MATERIALIZED {_USAGE_INTERVALS}"}


def held_by_teams(connection: Connection, start_ms: int, end_ms: int, pool: str) -> list[Series]:
    """GPUs of one pool that each team held in whole hours, by name; queues are not included."""
    return _by_owner(connection, start_ms, end_ms, "team", HOUR_MS, pool)


def models_of_pool(
    connection: Connection, start_ms: int, end_ms: int, pool: str, step_ms: int = HOUR_MS
) -> list[Series]:
    """Held and queued GPUs of each model of one pool over whole steps of STEPS_MS, by name; their
    sum is the demand of the pool, less what waits for no single model.
    """
    used, capacity, counted = evidence(connection, start_ms, end_ms, "model", step_ms, pool)
    # As of the pool: counts beside observed accelerators would count the same GPUs twice.
    held = group_demand(start_ms, end_ms, step_ms, used, capacity, () if capacity else counted)
    models = [series.name for series in held]
    return with_queue(
        held,
        [_by_model(queue, models) for queue in queues(connection, start_ms, end_ms, "model", pool)],
        end_ms,
    )


def _by_model(queue: QueueReadings, models: Sequence[str]) -> QueueReadings:
    """A queue by the models that the ledger knows; a name that suits several is left out."""
    gpus: dict[str, Floats] = {}
    for name, values in queue.gpus.items():
        suited = [model for model in models if len(models) == 1 or model_match(name, model) > 0]
        if len(suited) == 1:
            waiting = np.nan_to_num(gpus.get(suited[0], np.zeros(len(values))))
            gpus[suited[0]] = waiting + np.nan_to_num(values)
    return QueueReadings(queue.source, queue.at_ms, gpus)


def demand(
    connection: Connection, start_ms: int, end_ms: int, group: str, step_ms: int = HOUR_MS
) -> list[Series]:
    """Held and queued GPUs per group of GROUPS over whole steps of STEPS_MS, by name.

    Raises KeyError for no group.
    """
    if group in LEVELS:
        held = _by_owner(connection, start_ms, end_ms, group, step_ms)
    elif group in GROUPS:
        held = group_demand(
            start_ms, end_ms, step_ms, *evidence(connection, start_ms, end_ms, group, step_ms)
        )
    else:
        raise KeyError(group)
    return with_queue(held, queues(connection, start_ms, end_ms, group), end_ms)


def pool_periods(connection: Connection, start_ms: int, end_ms: int) -> dict[str, Period]:
    """Pools that `demand` has a series of, by name, each with the part of the period before and
    after which nothing can be known of it; cheap however much they held.
    """
    rows = select(
        connection,
        "SELECT pool, greatest(min(begun_ms), %(start_ms)s) AS begun_ms, least(max(ended_ms),"
        " %(end_ms)s) AS ended_ms FROM (SELECT pool, in_ms AS begun_ms, coalesce(out_ms,"
        " %(end_ms)s) AS ended_ms FROM capacity WHERE in_ms < %(end_ms)s AND (out_ms IS NULL OR"
        " out_ms > %(start_ms)s) UNION ALL SELECT pool, start_ms, coalesce(end_ms, %(end_ms)s)"
        " FROM imported_usage WHERE start_ms < %(end_ms)s AND (end_ms IS NULL OR end_ms >"
        " %(start_ms)s)) AS spans GROUP BY pool ORDER BY pool",
        {"start_ms": start_ms, "end_ms": end_ms},
    )
    return {row.pool: Period(row.begun_ms, row.ended_ms) for row in rows}


def capacity_by_pool(connection: Connection, at_ms: int) -> dict[str, float]:
    """GPUs that the inventory has in each pool at an instant; a board with slices counts whole,
    whatever of it lies outside of them.
    """
    return _boards(connection, at_ms, "c.pool", None)


def capacity_by_model(connection: Connection, at_ms: int, pool: str) -> dict[str, float]:
    """GPUs of each model that the inventory has in one pool at an instant, as `capacity_by_pool`."""
    return _boards(connection, at_ms, "a.model", pool)


def _boards(connection: Connection, at_ms: int, group: str, pool: str | None) -> dict[str, float]:
    rows = select(
        connection,
        f"SELECT b.grouped, sum(b.gpu_micro)::bigint AS gpu_micro FROM (SELECT {group} AS grouped,"
        " CASE WHEN bool_or(coalesce(a.mig_instance, '') <> '') THEN %(whole)s ELSE"
        " sum(a.gpu_micro) END AS gpu_micro FROM capacity c JOIN accelerator a ON a.id ="
        " c.accelerator_id WHERE c.in_ms <= %(at)s AND (c.out_ms IS NULL OR c.out_ms > %(at)s) AND"
        " (%(pool)s::text IS NULL OR c.pool = %(pool)s) GROUP BY 1, coalesce(a.device_uuid,"
        " a.uuid)) b GROUP BY 1",
        {"at": at_ms, "whole": _MICRO, "pool": pool},
    )
    return {row.grouped: row.gpu_micro / _MICRO for row in rows}


def fine(
    connection: Connection, start_ms: int, end_ms: int, only: str | None = None
) -> list[Series]:
    """Held GPUs of each pool over whole five minutes, by name; cheap for weeks, and without what
    queues hold.
    """
    step_ms = STEPS_MS[0]
    rolled_up_ms = select_value(connection, _ROLLED_UP_UNTIL, {"end_ms": end_ms})
    until_ms = start_ms if rolled_up_ms is None else rolled_up_ms
    # The last rolled-up hour is read from usage intervals: late evidence of it is there, but not in
    # the series yet.
    since_ms = max(
        start_ms, (until_ms - HOUR_MS) // step_ms * step_ms, (end_ms - TAIL_MS) // step_ms * step_ms
    )
    rolled_up = _usage(
        connection, _ROLLED_UP, {"start_ms": start_ms, "end_ms": since_ms, "only": only}
    )
    newest, _, _ = evidence(connection, since_ms, end_ms, "pool", step_ms)
    series = group_demand(
        start_ms,
        end_ms,
        step_ms,
        [*rolled_up, *newest],
        *_capacity(connection, start_ms, end_ms, "pool"),
    )
    return [pool for pool in series if only in {None, pool.name}]


def _by_owner(
    connection: Connection,
    start_ms: int,
    end_ms: int,
    level: str,
    step_ms: int,
    pool: str | None = None,
) -> list[Series]:
    """Series by one level of the owner tree: workloads attributed by the rules in force at each
    step.

    With `pool` of that pool alone.
    """
    values = {"start_ms": start_ms, "end_ms": end_ms, "step_ms": step_ms, "pool": pool}
    query = _BY_WORKLOAD.format(placements=_placements("pool"), **_use(step_ms))
    used, imported = (
        select(connection, text, values) for text in (query, _COUNTED.format(group="pool"))
    )
    facts = workloads.facts(connection, sorted({row.workload_id for row in [*used, *imported]}))
    attribution = Attribution(rules.current(connection))
    fleet, capacity, _ = evidence(connection, start_ms, end_ms, "pool", step_ms, pool)
    observed = {span.group for span in capacity}

    def owner(workload_id: int, pool: str, at_ms: int) -> str:
        workload: WorkloadFacts = replace(facts[workload_id], pool=pool)
        return attribution.owner_of(workload, at_ms).level(level)

    held = [
        GroupUsage(
            owner(row.workload_id, row.pool, row.hour_ms),
            row.hour_ms,
            float(row.held) / _MICRO,
            0.0,
        )
        for row in used
    ]
    spans = [
        CapacitySpan(
            owner(row.workload_id, row.pool, row.start_ms),
            row.gpu_micro / _MICRO,
            row.start_ms,
            row.end_ms,
        )
        for row in imported
        if row.pool not in observed
    ]
    series = owner_demand(start_ms, end_ms, step_ms, held, fleet, capacity, spans)
    return [owner_series for owner_series in series if owner_series.name]


def queues(
    connection: Connection, start_ms: int, end_ms: int, group: str, pool: str | None = None
) -> list[QueueReadings]:
    """Every queue reading of a period, summed by group, by source; none for a level that schedulers
    do not know. Of the items of all pools, or by `model` of those of one.

    By pool the stored sums are read; the queue items only where sums are missing or of an older
    reading.
    """
    name = _QUEUED.get(group)
    if name is None:
        return []
    summed = f", LATERAL ({summed_by(name, pool is not None)}) AS summed"
    read = f"SELECT source, at_ms, names, micro {_READ.format(more=summed)}"
    if name == "pool":
        read = f"{_SUMMED} UNION ALL {read} AND {_TO_SUM}"
    by_source: dict[str, list[_Readings]] = {}
    for row in select(
        connection,
        _PACKED.format(read=read),
        {"start_ms": start_ms, "end_ms": end_ms, "pool": pool},
    ):
        at_ms = np.frombuffer(row.at_ms, dtype=">i8").astype(np.int64)
        by_source.setdefault(row.source, []).append(
            (tuple(row.names), at_ms, _arrays(row.micro, len(row.names)))
        )
    return [_queue(source, readings, group) for source, readings in sorted(by_source.items())]


_Readings = tuple[tuple[str, ...], Ints, Ints]
"""Groups, instants, and millionths of a GPU by instant and group."""


def _arrays(packed: bytes, length: int) -> Ints:
    """Arrays of `length` bigints as array_send packs them: a header of 20 bytes, then each number
    after its size.
    """
    if not length:
        return np.zeros((0, 0), dtype=np.int64)
    number = np.dtype([("size", ">i4"), ("value", ">i8")])
    record = np.dtype([("header", "V20"), ("numbers", number, (length,))])
    return np.frombuffer(packed, dtype=record)["numbers"]["value"].astype(np.int64)


def _queue(source: str, readings: Sequence[_Readings], group: str) -> QueueReadings:
    at_ms = np.concatenate([instants for _, instants, _ in readings])
    # Rows with the same names come together, so the readings of a source are not in the order of
    # time.
    order = np.argsort(at_ms)
    gpus: dict[str, Floats] = {}
    start = 0
    for names, instants, micro in readings:
        end = start + len(instants)
        for column, name in enumerate(names):
            # Attribution escapes the names of teams that hold GPUs; those that wait must have the
            # same names.
            shown = escape_name(name) if group in LEVELS else name
            gpus.setdefault(shown, np.full(len(at_ms), np.nan))[start:end] = (
                micro[:, column] / _MICRO
            )
        start = end
    return QueueReadings(
        source, at_ms[order], {name: values[order] for name, values in gpus.items()}
    )
