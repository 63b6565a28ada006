"""Flush requests of remote write: samples to the tables of agents' samples, each scrape once to the meter's table.

The same scrape may come twice, in parts, and from several replicas. A writer of scrapes locks the head row of their
accelerators, so it sees everything that was written before. A reading goes to `gpu_sample` once, and the parts of a
scrape are merged by operations that neither order nor repetition changes (union and maximum).
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Connection, Ids
from gpuledger_collector.ingest.batches.columns import Array
from gpuledger_collector.ingest.batches.latest_values import latest_values, write_values
from gpuledger_collector.ingest.batches.samples import copy_samples
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.ingest.batches.usage_intervals import LatestStates
from gpuledger_collector.ingest.remote_write.decode import WriteRequest
from gpuledger_collector.ingest.remote_write.inference_counters import InferenceCounterStore
from gpuledger_collector.ingest.remote_write.scrapes import (
    ACTIVITY_METRICS,
    Scrape,
    ScrapeRows,
    select_new_readings,
)
from gpuledger_collector.ingest.remote_write.series import METRIC_NUMBER, SeriesCache
from gpuledger_common.health import EVIDENCE, page_health

SLOT_MS = 300_000
"""The unit of time in which usage intervals are recomputed from scrapes."""
SOURCE = "remote-write"
_HEALTH_METRICS = [name for name in (*EVIDENCE, "gpu_last_xid") if name in METRIC_NUMBER]
_COLUMNS = {
    "accelerator_id": "int8",
    "at_ms": "int8",
    "node_id": "int8",
    "workload_ids": "int8[]",
    "readings": "int8",
    "pods": "text[]",
    "pod_utilization": "float8[]",
    "accelerator_attributes_ids": "int8[]",
    "workload_attributes_ids": "int8[]",
    **dict.fromkeys(ACTIVITY_METRICS, "float8"),
}
"""Columns of the table `scrape` and their types."""
_Key = tuple[int, int]
"""Accelerator and instant."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The numbers of a request's samples that were written, and that were refused because they are too old."""

    samples: int
    too_old: int


@dataclass(slots=True)
class RemoteStore:
    """Writes requests of remote write. Shared by all writer threads; each brings its own connection."""

    store: Store
    window_ms: int
    """How much older than the newest scrape of its accelerator a scrape may be."""
    counters: InferenceCounterStore = field(default_factory=InferenceCounterStore)
    _health: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """Newest readings of the metrics of health, by accelerator: a part of a scrape need not hold them all."""

    def flush(
        self,
        connection: Connection,
        batches: Sequence[WriteRequest],
        now: dt.datetime,
        _is_idle: Callable[[], bool] = lambda: True,
    ) -> list[WriteResult]:
        """Commit these requests and answer each. Raises psycopg.Error: some may be committed, and all may be resent."""
        written = [(request.stale + len(request.inference), 0) for request in batches]
        # A full cache is replaced, so a group may mix requests of two caches, whose indexes differ.
        for cache in {id(request.cache): request.cache for request in batches}.values():
            places = [place for place, request in enumerate(batches) if request.cache is cache and request.samples]
            if places:
                results = self._flush(connection, cache, [batches[place] for place in places], now)
                for place, (good, too_old) in zip(places, results, strict=True):
                    written[place] = written[place][0] + good, too_old
        self.counters.store(connection, [sample for request in batches for sample in request.inference], now)
        return [WriteResult(*numbers) for numbers in written]

    def is_flush_due(self, _closing: bool) -> bool:
        """Nothing is deferred here."""
        return False

    def flush_deferred(self, connection: Connection) -> None:
        """Make the deferred writes of the store. Raises psycopg.Error."""
        self.store.flush_deferred(connection)

    def forget(self) -> None:
        """Empty all caches of the database."""
        self.store.forget()
        self.counters = InferenceCounterStore()

    def _flush(
        self, connection: Connection, cache: SeriesCache, requests: Sequence[WriteRequest], now: dt.datetime
    ) -> list[tuple[int, int]]:
        """The numbers of samples written, and too old, of each request."""
        self.store.renew(now)
        # 1. Join the samples to rows of accelerator and instant, and register what their labels name.
        rows = ScrapeRows.of(cache, requests)
        records = rows.accelerators
        if self.store.is_shared:
            self._read_health(connection, [record.uuid for record in records])
        self._update_health(rows)
        batches = rows.by_node(lambda uuid: page_health(self._health.get(uuid, {})))
        ids = self.store.ids.register(connection, batches, now)
        self.store.ensure_days(connection, batches)
        accelerator_ids = np.array([ids.accelerators[record.uuid] for record in records], dtype="<i8")
        # 2. Write under the locks of the heads: two replicas of Prometheus send the same scrape at the same time.
        with connection.transaction():
            heads = lock_heads(connection, sorted(set(accelerator_ids.tolist())))
            newest = np.array([heads[accelerator_id] for accelerator_id in accelerator_ids.tolist()], dtype="<i8")
            # Scrapes beyond the window may have been deleted after metering: a late one could not be merged with them.
            is_old = rows.at_ms < newest - self.window_ms
            chosen = np.flatnonzero(~is_old & ~rows.divided())
            # Only scrapes up to the head can exist already; the usual new one needs no look-up.
            may_exist = rows.at_ms[chosen] <= newest[chosen]
            remember = self._write(connection, rows.select(chosen), accelerator_ids[chosen], may_exist, ids)
            mark_nodes_seen(connection, sorted(set(ids.nodes.values())), now)
        remember()
        # 3. Count the answer by samples, as senders count, although rows were written.
        samples = np.bincount(rows.request, minlength=len(requests))
        too_old = np.bincount(rows.request, weights=is_old[rows.row], minlength=len(requests)).astype(int)
        return list(zip((samples - too_old).tolist(), too_old.tolist(), strict=True))

    def _write(
        self, connection: Connection, rows: ScrapeRows, accelerator_ids: Array, may_exist: Array, ids: Ids
    ) -> Callable[[], None]:
        """Write rows, of which some may exist already. Returns what to call after COMMIT."""
        if not len(rows.at_ms):
            return lambda: None
        keys = list(zip(accelerator_ids.tolist(), rows.at_ms.tolist(), strict=True))
        scrapes = rows.scrapes(ids)
        # The scrape first: it tells which readings are new, so that gpu_sample gets each of them once.
        new_bits, changed = write_scrapes(connection, keys, scrapes, may_exist.tolist())
        samples = rows.samples(accelerator_ids)
        new_rows = np.flatnonzero(new_bits)
        if len(new_rows):
            copy_samples(connection, select_new_readings(samples, new_rows, new_bits))
        # Requests of one Prometheus may reach any process, in parts.
        taken_over = set(accelerator_ids.tolist()) if self.store.is_shared else set()
        remember = self.store.slow.store(connection, samples, taken_over)
        write_values(connection, latest_values(samples, LatestStates.of(latest_holders(keys, scrapes))))
        request_slot_recompute(connection, [key for key, is_changed in zip(keys, changed, strict=True) if is_changed])
        move_heads(connection, keys)
        return remember

    def _read_health(self, connection: Connection, uuids: list[str]) -> None:
        """Read the stored readings of the metrics of health: other processes may have received newer ones."""
        rows = connection.execute(
            """
            SELECT DISTINCT ON (a.uuid, s.metric) a.uuid, s.metric, s.value
            FROM accelerator a JOIN gpu_state s ON s.accelerator_id = a.id
            WHERE a.uuid = ANY(%s) AND s.metric = ANY(%s) ORDER BY a.uuid, s.metric, s.at_ms DESC
            """,
            (uuids, _HEALTH_METRICS),
        )
        for uuid, metric, value in rows:
            if value is not None:
                self._health[uuid][metric] = value

    def _update_health(self, rows: ScrapeRows) -> None:
        """Store the newest readings of the metrics of health, by accelerator."""
        records = rows.accelerators
        for name in _HEALTH_METRICS:
            chosen = np.flatnonzero((rows.metric == METRIC_NUMBER[name]) & ~np.isnan(rows.value))
            # By time, so that the newest reading is stored last.
            order = chosen[np.argsort(rows.at_ms[rows.row[chosen]], kind="stable")]
            for row, value in zip(rows.row[order].tolist(), rows.value[order].tolist(), strict=True):
                self._health[records[row].uuid][name] = value


def lock_heads(connection: Connection, accelerators: list[int]) -> dict[int, int]:
    """Lock the heads of accelerators and return their newest instants (0: none yet); others wait until COMMIT."""
    # Both statements go through the accelerators in the order of their ids, so writers that meet never deadlock.
    connection.execute(
        # Missing heads are inserted first, in order; ON CONFLICT waits for another writer that inserts the same one.
        "INSERT INTO scrape_head (accelerator_id, newest_ms) SELECT id, 0 FROM unnest(%s::bigint[]) AS id"
        " WHERE NOT EXISTS (SELECT 1 FROM scrape_head WHERE accelerator_id = id) ORDER BY id ON CONFLICT DO NOTHING",
        (accelerators,),
    )
    return dict(
        connection.execute(
            "SELECT accelerator_id, newest_ms FROM scrape_head WHERE accelerator_id = ANY(%s)"
            " ORDER BY accelerator_id FOR UPDATE",
            (accelerators,),
        ).fetchall()
    )


def move_heads(connection: Connection, keys: Sequence[_Key]) -> None:
    """Raise the newest instants to those of these scrapes."""
    newest: dict[int, int] = {}
    for accelerator, at_ms in keys:
        newest[accelerator] = max(at_ms, newest.get(accelerator, 0))
    connection.execute(
        "UPDATE scrape_head SET newest_ms = new.at_ms FROM unnest(%s::bigint[], %s::bigint[]) AS new (id, at_ms)"
        " WHERE accelerator_id = new.id AND newest_ms < new.at_ms",
        (list(newest), list(newest.values())),
    )


def read_scrapes(connection: Connection, keys: Sequence[_Key]) -> dict[_Key, Scrape]:
    """Read those of these scrapes that exist."""
    if not keys:
        return {}
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM scrape JOIN unnest(%s::bigint[], %s::bigint[]) AS asked"
        " (accelerator_id, at_ms) USING (accelerator_id, at_ms)",
        ([accelerator for accelerator, _ in keys], [at_ms for _, at_ms in keys]),
    )
    return {(row[0], row[1]): _scrape(row) for row in rows}


def read_range(connection: Connection, ranges: dict[int, tuple[int, int]]) -> dict[int, list[tuple[int, Scrape]]]:
    """Read the scrapes of accelerators from an instant (included) to another (not included), in order of time."""
    scrapes: dict[int, list[tuple[int, Scrape]]] = defaultdict(list)
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM scrape JOIN unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS asked"
        " (id, first_ms, end_ms) ON accelerator_id = id AND at_ms >= first_ms AND at_ms < end_ms"
        " ORDER BY accelerator_id, at_ms",
        (list(ranges), [first for first, _ in ranges.values()], [end for _, end in ranges.values()]),
    )
    for row in rows:
        scrapes[row[0]].append((row[1], _scrape(row)))
    return scrapes


def _scrape(row: Sequence[Any]) -> Scrape:
    shares = dict(zip(row[5], row[6], strict=True))
    return Scrape(row[2], frozenset(row[3]), row[4], shares, tuple(row[9:]), frozenset(row[7]), frozenset(row[8]))


def write_scrapes(
    connection: Connection, keys: Sequence[_Key], scrapes: Sequence[Scrape], may_exist: Sequence[bool]
) -> tuple[Array, list[bool]]:
    """Write scrapes, merged with existing ones; returns for each the bits of new readings, and whether it changed."""
    existing = read_scrapes(connection, [key for key, is_possible in zip(keys, may_exist, strict=True) if is_possible])
    new_bits, changed, inserts, updates = [], [], [], []
    for key, scrape in zip(keys, scrapes, strict=True):
        before = existing.get(key)
        merged = scrape if before is None else before.merged(scrape)
        new_bits.append(scrape.readings & ~(0 if before is None else before.readings))
        changed.append(merged != before)
        if before is None:
            inserts.append(_row(key, scrape))
        elif merged != before:
            updates.append((*_row(key, merged)[2:], *key))
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY scrape ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        # Binary COPY converts nothing: psycopg must encode each value as exactly the type of its column.
        copy.set_types(list(_COLUMNS.values()))
        for row in inserts:
            copy.write_row(row)
    if updates:
        with connection.cursor() as cursor:
            cursor.executemany(
                f"UPDATE scrape SET {', '.join(f'{name} = %s' for name in list(_COLUMNS)[2:])}"
                " WHERE accelerator_id = %s AND at_ms = %s",
                updates,
            )
    return np.array(new_bits, dtype="<i8"), changed


def _row(key: _Key, scrape: Scrape) -> tuple[object, ...]:
    pods = sorted(scrape.utilization)
    return (
        *key,
        scrape.node_id,
        sorted(scrape.workload_ids),
        scrape.readings,
        pods,
        [scrape.utilization[pod] for pod in pods],
        sorted(scrape.accelerator_attributes),
        sorted(scrape.workload_attributes),
        *scrape.activity,
    )


def latest_holders(keys: Sequence[_Key], scrapes: Sequence[Scrape]) -> dict[int, tuple[int, str, int | None]]:
    """Instant, state and (first) holder of the newest of these scrapes, by accelerator."""
    latest: dict[int, tuple[int, str, int | None]] = {}
    for (accelerator_id, at_ms), scrape in zip(keys, scrapes, strict=True):
        if accelerator_id not in latest or at_ms > latest[accelerator_id][0]:
            # The smallest id, so that pages do not alternate between the holders of a shared accelerator.
            holder = min(scrape.workload_ids, default=None)
            latest[accelerator_id] = at_ms, "unallocated" if holder is None else "held", holder
    return latest


def request_slot_recompute(connection: Connection, keys: Sequence[_Key]) -> None:
    """Request that the meter recomputes the slots of these scrapes."""
    slots = sorted({(accelerator, at_ms - at_ms % SLOT_MS) for accelerator, at_ms in keys})
    if slots:
        connection.execute(
            "INSERT INTO scrape_recompute (accelerator_id, slot_ms) SELECT * FROM unnest(%s::bigint[], %s::bigint[])",
            ([accelerator for accelerator, _ in slots], [slot for _, slot in slots]),
        )


def mark_nodes_seen(connection: Connection, nodes: list[int], now: dt.datetime) -> None:
    """Record that nodes were seen; what their own agents report is not overwritten."""
    connection.execute(
        "UPDATE node SET last_seen_at = greatest(last_seen_at, %s),"
        " source = CASE WHEN agent_version = '' THEN %s ELSE source END"
        " WHERE id IN (SELECT id FROM node WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE)",
        (now, SOURCE, nodes),
    )
