"""What is read of free GPUs by model: one query for those of now, one for the hours before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.reserved_names import UNNAMED
from gpuledger_collector.insight.free_gpus import ModelNow
from gpuledger_collector.storage.ledger import pool_hours
from gpuledger_collector.storage.ledger.pool_hours import MODEL
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as

_THERE = """FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id"""
_WELL = "a.health NOT IN ('failed', 'degraded')"
# Whole GPUs alone; an empty pool has a name where people ask for it.
_WHOLE = """c.gpu_micro = %(whole)s AND a.mig_instance IS NULL
    AND (%(pool)s = '' OR coalesce(nullif(c.pool, ''), %(unnamed)s) = %(pool)s)
    AND strpos(lower(coalesce(nullif(c.pool, ''), %(unnamed)s)), lower(%(words)s)) > 0"""


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """Pools by name (empty: all), and by a part of it."""

    pool: str = ""
    words: str = ""

    def admits(self, pool: str) -> bool:
        """Whether a pool of this name is chosen."""
        name = pool or UNNAMED
        return self.pool in {"", name} and self.words.lower() in name.lower()


@dataclass(frozen=True, slots=True)
class UsedModelHour:
    """GPUs of a model that were free for an hour, and that were taken for some of it."""

    model: str
    hour_ms: int
    free: int
    taken: int


@dataclass(frozen=True, slots=True)
class PresentModel:
    """GPUs of a model that came and went with the same hours: the first one whole, and the end of
    the last one.
    """

    model: str
    first_ms: int
    end_ms: int
    gpus: int


def _values(pools: PoolChoice, **more: int) -> dict[str, object]:
    own = {"whole": GPU_MICRO, "pool": pools.pool, "words": pools.words, "unnamed": UNNAMED}
    return {**own, **more}


def models_now(
    connection: Connection, pools: PoolChoice, now_ms: int, fresh_ms: int
) -> list[ModelNow]:
    """Count the GPUs of each model that are there now, by their latest readings that are not older
    than `fresh_ms`, and the most that are free on one node; one that is not well is not free. And
    how many of those that are well the list of idle GPUs has as held by nobody.
    """
    return select_as(
        connection,
        ModelNow,
        f"""
        SELECT model, sum(gpus)::bigint AS gpus, sum(held)::bigint AS held,
            sum(free)::bigint AS free, max(free) FILTER (WHERE node_id IS NOT NULL) AS free_on_node,
            sum(listed)::bigint AS listed, sum(listed_free)::bigint AS listed_free
        FROM (
            SELECT model, node_id, count(*) AS gpus, count(*) FILTER (WHERE is_held) AS held,
                count(*) FILTER (WHERE is_free) AS free, count(*) FILTER (WHERE is_listed) AS listed,
                count(*) FILTER (WHERE is_listed AND is_free) AS listed_free
            FROM (
                SELECT {MODEL} AS model, c.node_id, l.at_ms > %(after)s AND l.state = 'held' AS is_held,
                    l.at_ms > %(after)s AND l.state = 'unallocated' AND {_WELL} AS is_free,
                    {_WELL} AND f.accelerator_id IS NOT NULL AS is_listed
                {_THERE} LEFT JOIN gpu_latest l ON l.accelerator_id = c.accelerator_id
                -- Joined, as an array of a query would be gone through for each accelerator.
                LEFT JOIN (SELECT DISTINCT accelerator_id FROM finding WHERE kind = 'idle' AND state = 'unallocated'
                    AND team = '' AND resolved_ms IS NULL) f ON f.accelerator_id = c.accelerator_id
                WHERE c.out_ms IS NULL AND {_WHOLE}
            ) now GROUP BY 1, 2
        ) by_node GROUP BY 1
        """,
        _values(pools, after=now_ms - fresh_ms),
    )


def used_hours_of_models(
    connection: Connection, pools: PoolChoice, period: Period
) -> list[UsedModelHour]:
    """Count the GPUs of each model that were free and that were taken, by the hour; of an hour of
    which nothing is known there is no row.
    """
    counts: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for hour in pool_hours.read(connection, period):
        if pools.admits(hour.pool):
            count = counts[hour.model, hour.hour_ms]
            count[0] += hour.free
            count[1] += hour.taken
    return [UsedModelHour(*key, *count) for key, count in counts.items()]


def present_models(connection: Connection, pools: PoolChoice, period: Period) -> list[PresentModel]:
    """Count the GPUs of each model that were there in the whole hours of a period."""
    return select_as(
        connection,
        PresentModel,
        f"""
        SELECT {MODEL} AS model, greatest(c.in_ms, %(start)s) / %(hour)s * %(hour)s AS first_ms,
            least(coalesce(c.out_ms, %(end)s), %(end)s) / %(hour)s * %(hour)s AS end_ms,
            count(*) AS gpus
        {_THERE}
        WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s) AND {_WHOLE}
        GROUP BY 1, 2, 3
        """,
        _values(pools, start=period.start_ms, end=period.end_ms, hour=HOUR_MS),
    )
