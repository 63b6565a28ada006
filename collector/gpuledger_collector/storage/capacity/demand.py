"""What demand is made from: held time, capacity, imported usage and queues, by pool, model or level of the owner tree.

Hours come from the hourly ledger. Shorter steps come from the usage intervals themselves, as far back as they are kept:
time that two agents report of one accelerator is capped at the step there and not resolved as the ledger does it, which
is good enough for a forecast and for nothing else. Weeks of five minutes (`fine`) are read as they were drawn for rated
days, and from the usage intervals only for the hours since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gpuledger_collector.accounting.attribution import Attribution, WorkloadFacts
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.reserved_names import escaped
from gpuledger_collector.insight.demand import (
    QUEUE_VALID_MS,
    CapacitySpan,
    GroupUsage,
    QueueReadings,
    group_demand,
    owner_demand,
    with_queue,
)
from gpuledger_collector.insight.forecast.workloads import STILL_RUNNING, Workloads
from gpuledger_collector.insight.series import Floats, Ints, Series
from gpuledger_collector.storage.capacity.queues import summed_by
from gpuledger_collector.storage.ledger import rules, workloads

GROUPS = ("pool", "model", *LEVELS)
"""What demand can be summed by."""
STEPS_MS = (300_000, HOUR_MS)
TAIL_MS = 6 * HOUR_MS
"""How far back usage intervals are read for what is not drawn yet: a fleet writes millions of them a day."""
_MICRO = 1_000_000
_QUEUED = {"pool": "pool", "model": "gpu_model", "team": "team", "user": "user"}
"""Where a queue's items name the group; a scheduler knows no other level."""

_STAYS = """SELECT c.accelerator_id, {group} AS grouped, c.in_ms, coalesce(c.out_ms, :end_ms) AS out_ms, c.gpu_micro
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id
    WHERE c.in_ms < :end_ms AND (c.out_ms IS NULL OR c.out_ms > :start_ms)"""
_USAGE_INTERVALS = """(SELECT accelerator_id, workload_id, state, at AS hour_ms, least(sum(part), :step_ms) AS
    held_ms FROM (
        SELECT s.accelerator_id, s.workload_id, s.state, at,
               (CASE WHEN s.state = 'held' THEN s.held_ms ELSE s.end_ms - s.start_ms END)::float
               * (least(s.end_ms, at + :step_ms) - greatest(s.start_ms, at)) / (s.end_ms - s.start_ms) AS part
        FROM usage_interval s, generate_series(greatest(s.start_ms, :start_ms) / :step_ms * :step_ms,
                                        least(s.end_ms, :end_ms) - 1, :step_ms) AS at
        WHERE s.start_ms >= :start_ms - 86400000 AND s.start_ms < :end_ms AND s.end_ms > :start_ms
              AND s.end_ms > s.start_ms AND s.state <> 'present') AS parts GROUP BY 1, 2, 3, 4)"""
_HELD = """WITH stay AS ({placements})
    SELECT stay.grouped, u.hour_ms / :step_ms * :step_ms AS hour_ms,
           sum(u.held_ms * stay.gpu_micro) FILTER (WHERE u.state = 'held') AS held,
           sum(u.held_ms * stay.gpu_micro) AS seen
    FROM {use} u JOIN stay ON stay.accelerator_id = u.accelerator_id
         AND u.hour_ms + :step_ms - 1 >= stay.in_ms AND u.hour_ms < stay.out_ms
    WHERE u.hour_ms >= :start_ms AND u.hour_ms < :end_ms
    GROUP BY 1, 2"""
_BY_WORKLOAD = """WITH stay AS ({placements})
    SELECT u.workload_id, stay.grouped AS pool, u.hour_ms / :step_ms * :step_ms AS hour_ms,
           sum(u.held_ms * stay.gpu_micro) AS held
    FROM {use} u JOIN stay ON stay.accelerator_id = u.accelerator_id
         AND u.hour_ms + :step_ms - 1 >= stay.in_ms AND u.hour_ms < stay.out_ms
    WHERE u.hour_ms >= :start_ms AND u.hour_ms < :end_ms AND u.state = 'held' AND u.workload_id IS NOT NULL
    GROUP BY 1, 2, 3"""
_COUNTED = """SELECT {group} AS grouped, workload_id, pool, gpu_micro, start_ms,
        least(coalesce(end_ms, :end_ms), :end_ms) AS end_ms
    FROM imported_usage WHERE start_ms < :end_ms AND (end_ms IS NULL OR end_ms > :start_ms)"""
_READ = "FROM queue_reading {more} WHERE at_ms >= :start_ms AND at_ms < :end_ms"
_LATEST = f"SELECT DISTINCT ON (source) waiting {_READ.format(more='')} ORDER BY source, at_ms DESC"
_SUMMED = (
    f"SELECT source, at_ms, pools AS names, pool_gpu_micro AS micro {_READ.format(more='')} AND summed_at = received_at"
)
_TO_SUM = "summed_at IS DISTINCT FROM received_at"
_PACKED = """SELECT source, names, string_agg(int8send(at_ms), '') AS at_ms, string_agg(array_send(micro), '') AS micro
    FROM ({read}) AS read GROUP BY source, names"""
"""Readings that name the same groups in a row, as Postgres sends numbers: as objects they would cost a hundred times as
much. Both aggregates see the readings in the same order, whichever that is."""
_DRAWN = """SELECT pool AS grouped, at_ms AS hour_ms, sum(gpu_ns) FILTER (WHERE state = 'held') AS held,
        sum(gpu_ns) AS seen
    FROM owner_5min WHERE at_ms >= :start_ms AND at_ms < :end_ms AND (CAST(:only AS text) IS NULL OR pool = :only)
    GROUP BY 1, 2"""
_DRAWN_UNTIL = """SELECT max(p.until_ms) FROM series_day s JOIN conservation_check p USING (day_ms)
    WHERE s.proved_at = p.proved_at AND p.until_ms <= :end_ms"""
_LIVES = """WITH stay AS ({placements}), used AS (
        SELECT stay.grouped, u.workload_id, u.hour_ms / 3600000 * 3600000 AS hour_ms,
               sum(u.held_ms * stay.gpu_micro) / 3600000.0 AS held,
               sum(stay.gpu_micro) AS there
        FROM usage_hour u JOIN stay ON stay.accelerator_id = u.accelerator_id
             AND u.hour_ms + 3599999 >= stay.in_ms AND u.hour_ms < stay.out_ms
        WHERE u.hour_ms >= :start_ms AND u.hour_ms < :end_ms AND u.state = 'held' AND u.workload_id IS NOT NULL
        GROUP BY 1, 2, 3)
    SELECT used.grouped, coalesce(w.tags->>'team', w.account, w.user_name, '') AS owner, min(used.hour_ms) AS first_ms,
           max(used.hour_ms) AS last_ms, max(used.held) AS most, max(used.there) AS there,
           (array_agg(used.held ORDER BY used.hour_ms))[1] AS first_held,
           (array_agg(used.held ORDER BY used.hour_ms DESC))[1] AS last_held
    FROM used JOIN workload w ON w.id = used.workload_id GROUP BY used.grouped, used.workload_id, 2"""
_IMPORTED_LIVES = """SELECT {group} AS grouped, coalesce(w.tags->>'team', w.account, w.user_name, '') AS owner,
        u.start_ms, u.end_ms, u.gpu_micro
    FROM imported_usage u JOIN workload w ON w.id = u.workload_id
    WHERE u.start_ms < :end_ms AND (u.end_ms IS NULL OR u.end_ms > :start_ms)"""


def evidence(
    connection: Connection, start_ms: int, end_ms: int, group: str, step_ms: int = HOUR_MS
) -> tuple[list[GroupUsage], list[CapacitySpan], list[CapacitySpan]]:
    """Held time, capacity and imported usage of a period of whole steps, by `pool` or `model`."""
    period = {"start_ms": start_ms, "end_ms": end_ms, "step_ms": step_ms}
    placements = _STAYS.format(group="c.pool" if group == "pool" else "a.model")
    held = [
        GroupUsage(row.grouped, row.hour_ms, float(row.held or 0) / _MICRO, float(row.seen) / _MICRO)
        for row in connection.execute(sa.text(_HELD.format(placements=placements, use=_use(step_ms))), period)
    ]
    capacity, counted = _there(connection, start_ms, end_ms, group)
    return held, capacity, counted


def _there(
    connection: Connection, start_ms: int, end_ms: int, group: str
) -> tuple[list[CapacitySpan], list[CapacitySpan]]:
    """Capacity and imported usage of a period, by `pool` or `model`."""
    period = {"start_ms": start_ms, "end_ms": end_ms}
    placements = _STAYS.format(group="c.pool" if group == "pool" else "a.model")
    capacity = [
        CapacitySpan(row.grouped, row.gpu_micro / _MICRO, row.in_ms, row.out_ms)
        for row in connection.execute(sa.text(placements), period)
    ]
    counted = [
        CapacitySpan(row.grouped, row.gpu_micro / _MICRO, row.start_ms, row.end_ms)
        for row in connection.execute(
            sa.text(_COUNTED.format(group="pool" if group == "pool" else "gpu_model")), period
        )
    ]
    return capacity, counted


def _use(step_ms: int) -> str:
    return "usage_hour" if step_ms == HOUR_MS else _USAGE_INTERVALS


def demand(connection: Connection, start_ms: int, end_ms: int, group: str, step_ms: int = HOUR_MS) -> list[Series]:
    """Held and queued GPUs per group of GROUPS over whole steps of STEPS_MS, by name. Raises KeyError for no group."""
    if group in LEVELS:
        held = _by_owner(connection, start_ms, end_ms, group, step_ms)
    elif group in GROUPS:
        held = group_demand(start_ms, end_ms, step_ms, *evidence(connection, start_ms, end_ms, group, step_ms))
    else:
        raise KeyError(group)
    return with_queue(held, queues(connection, start_ms, end_ms, group), end_ms)


def fine(connection: Connection, start_ms: int, end_ms: int, only: str | None = None) -> list[Series]:
    """GPUs held per pool over whole five minutes, by name: weeks that cost little to read. Queues are not in it."""
    step = STEPS_MS[0]
    period = {"start_ms": start_ms, "end_ms": end_ms}
    drawn_ms = connection.execute(sa.text(_DRAWN_UNTIL), period).scalar() or start_ms
    # What came late within the last hour before is in the usage intervals already, and not in the drawing yet.
    since_ms = max(start_ms, (drawn_ms - HOUR_MS) // step * step, (end_ms - TAIL_MS) // step * step)
    drawn = [
        GroupUsage(row.grouped, row.hour_ms, float(row.held or 0) / _MICRO, float(row.seen) / _MICRO)
        for row in connection.execute(sa.text(_DRAWN), {"start_ms": start_ms, "end_ms": since_ms, "only": only})
    ]
    newest, _, _ = evidence(connection, since_ms, end_ms, "pool", step)
    capacity, counted = _there(connection, start_ms, end_ms, "pool")
    found = group_demand(start_ms, end_ms, step, [*drawn, *newest], capacity, counted)
    return [one for one in found if only in {None, one.name}]


def _by_owner(connection: Connection, start_ms: int, end_ms: int, level: str, step_ms: int) -> list[Series]:
    """Series by one level of the owner tree: workloads attributed by the rules in force at each step."""
    period = {"start_ms": start_ms, "end_ms": end_ms, "step_ms": step_ms}
    placements = _STAYS.format(group="c.pool")
    used = connection.execute(sa.text(_BY_WORKLOAD.format(placements=placements, use=_use(step_ms))), period).all()
    counted = connection.execute(sa.text(_COUNTED.format(group="pool")), period).all()
    raw: Any = connection.connection.driver_connection
    known = workloads.facts(raw, sorted({row.workload_id for row in [*used, *counted]}))
    attribution = Attribution(rules.current(raw))
    fleet, capacity, _ = evidence(connection, start_ms, end_ms, "pool", step_ms)
    observed = {span.group for span in capacity}

    def owner(workload_id: int, pool: str, at_ms: int) -> str:
        facts: WorkloadFacts = replace(known[workload_id], pool=pool)
        return attribution.owner_of(facts, at_ms).level(level)

    held = [
        GroupUsage(owner(row.workload_id, row.pool, row.hour_ms), row.hour_ms, float(row.held) / _MICRO, 0.0)
        for row in used
    ]
    spans = [
        CapacitySpan(owner(row.workload_id, row.pool, row.start_ms), row.gpu_micro / _MICRO, row.start_ms, row.end_ms)
        for row in counted
        if row.pool not in observed
    ]
    return [one for one in owner_demand(start_ms, end_ms, step_ms, held, fleet, capacity, spans) if one.name]


def queues(connection: Connection, start_ms: int, end_ms: int, group: str) -> list[QueueReadings]:
    """Every reading of a queue in a period, summed by group, by source; none for a level that schedulers do not know.

    By pool the kept sums are read, and what waits itself only where they are missing or of an older reading.
    """
    name = _QUEUED.get(group)
    if name is None:
        return []
    summed = f", LATERAL ({summed_by(name)}) AS summed"
    read = f"SELECT source, at_ms, names, micro {_READ.format(more=summed)}"
    if name == "pool":
        read = f"{_SUMMED} UNION ALL {read} AND {_TO_SUM}"
    period = {"start_ms": start_ms, "end_ms": end_ms}
    by_source: dict[str, list[_Named]] = {}
    for row in connection.execute(sa.text(_PACKED.format(read=read)), period):
        at_ms = np.frombuffer(row.at_ms, dtype=">i8").astype(np.int64)
        by_source.setdefault(row.source, []).append((tuple(row.names), at_ms, _arrays(row.micro, len(row.names))))
    return [_queue(source, found, group) for source, found in sorted(by_source.items())]


_Named = tuple[tuple[str, ...], Ints, Ints]
"""Groups, instants, and by instant and group the millionths of a GPU."""


def _arrays(packed: bytes, length: int) -> Ints:
    """Arrays of so many bigints, as array_send puts them: 20 bytes of head, then each number behind its own size."""
    if not length:
        return np.zeros((0, 0), dtype=np.int64)
    number = np.dtype([("size", ">i4"), ("value", ">i8")])
    read = np.frombuffer(packed, dtype=np.dtype([("head", "V20"), ("numbers", number, (length,))]))
    return read["numbers"]["value"].astype(np.int64)


def _queue(source: str, found: Sequence[_Named], group: str) -> QueueReadings:
    at_ms = np.concatenate([one[1] for one in found])
    order = np.argsort(at_ms)
    gpus: dict[str, Floats] = {}
    start = 0
    for names, instants, micro in found:
        end = start + len(instants)
        for place, name in enumerate(names):
            # A team that waits is called like the team that holds, whose name attribution has escaped.
            shown = escaped(name) if group in LEVELS else name
            gpus.setdefault(shown, np.full(len(at_ms), np.nan))[start:end] = micro[:, place] / _MICRO
        start = end
    return QueueReadings(source, at_ms[order], {name: values[order] for name, values in gpus.items()})


def lives(connection: Connection, start_ms: int, end_ms: int, group: str) -> Mapping[str, Workloads]:
    """The workloads behind the demand of each pool or model, with what waits at the end; nothing for owners' levels.

    From the hourly ledger the first and last hour of a workload say how much of them it held, which gives its start and
    end to within that; imported usage says them exactly.
    """
    if group not in {"pool", "model"}:
        return {}
    period = {"start_ms": start_ms, "end_ms": end_ms}
    placements = _STAYS.format(group="c.pool" if group == "pool" else "a.model")
    rows: dict[str, list[tuple[int, int, float, str]]] = {}
    for row in connection.execute(sa.text(_LIVES.format(placements=placements)), period):
        gpus = float(row.most if row.last_ms - row.first_ms >= 2 * HOUR_MS else row.there) / _MICRO
        begun = row.first_ms + HOUR_MS - round(min(1.0, float(row.first_held) / _MICRO / gpus) * HOUR_MS)
        if row.first_ms == row.last_ms:
            begun = row.first_ms
        ended = row.last_ms + round(min(1.0, float(row.last_held) / _MICRO / gpus) * HOUR_MS)
        rows.setdefault(row.grouped, []).append((begun, STILL_RUNNING if ended >= end_ms else ended, gpus, row.owner))
    imported = _IMPORTED_LIVES.format(group="u.pool" if group == "pool" else "u.gpu_model")
    observed = set(rows)
    for row in connection.execute(sa.text(imported), period):
        if row.grouped not in observed:
            end = STILL_RUNNING if row.end_ms is None else row.end_ms
            rows.setdefault(row.grouped, []).append((row.start_ms, end, row.gpu_micro / _MICRO, row.owner))
    waits = _waiting(connection, end_ms, _QUEUED[group])
    return {name: _lives(mine, end_ms, waits.get(name, {})) for name, mine in rows.items()}


def _waiting(connection: Connection, now_ms: int, name: str) -> dict[str, dict[str, float]]:
    """GPUs that wait now by group and owner: the last reading of each source, while it is kept."""
    latest = connection.execute(sa.text(_LATEST), {"start_ms": now_ms - QUEUE_VALID_MS, "end_ms": now_ms}).scalars()
    found: dict[str, dict[str, float]] = {}
    for item in (item for waiting in latest for item in waiting):
        mine = found.setdefault(item[name], {})
        owner = item["team"] or item["account"] or item["user"]
        mine[owner] = mine.get(owner, 0.0) + item["gpu_micro"] / _MICRO
    return found


def _lives(rows: list[tuple[int, int, float, str]], until_ms: int, waits: Mapping[str, float]) -> Workloads:
    owners = {owner: number for number, owner in enumerate(sorted({row[3] for row in rows} | waits.keys()))}
    return Workloads(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows]),
        np.array([owners[row[3]] for row in rows], dtype=np.int64),
        until_ms,
        tuple((owners[owner], gpus) for owner, gpus in waits.items()),
    )
