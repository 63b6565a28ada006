"""Flush requests of remote write: samples to the tables of agents' samples, each scrape once to the
meter's table.

The same scrape may come twice, in parts, and from several replicas. A writer of scrapes locks the
head row of their accelerators, so it sees everything that was written before. A reading goes to
`gpu_sample` once, and the parts of a scrape are merged by operations that neither order nor
repetition changes (union and maximum).
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_collector.ingest.batches.columns import COPY_HEADER, COPY_TRAILER, Array, BinaryArray
from gpuledger_collector.ingest.batches.latest_values import (
    QUIET_SECONDS,
    PendingUpdates,
    latest_values,
    write_updates,
)
from gpuledger_collector.ingest.batches.samples import copy_samples
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.ingest.batches.usage_intervals import LatestStates
from gpuledger_collector.ingest.remote_write.decode import WriteRequest
from gpuledger_collector.ingest.remote_write.gateway_counters import GatewayCounterStore
from gpuledger_collector.ingest.remote_write.inference_counters import InferenceCounterStore
from gpuledger_collector.ingest.remote_write.scrapes import (
    ACTIVITY_METRICS,
    Scrape,
    ScrapeRows,
    SeriesIds,
    select_new_readings,
)
from gpuledger_collector.ingest.remote_write.series import METRIC_NUMBER, SeriesCache
from gpuledger_collector.storage.rows import named_cursor
from gpuledger_common.health import EVIDENCE, page_health

SLOT_MS = 300_000
"""The unit of time in which usage intervals are recomputed from scrapes."""
_HEALTH_METRICS = {
    name: METRIC_NUMBER[name] for name in (*EVIDENCE, "gpu_last_xid") if name in METRIC_NUMBER
}
_COLUMNS = (
    "accelerator_id",
    "node_id",
    "workload_ids",
    "accelerator_attributes_ids",
    "workload_attributes_ids",
    "pods",
    "pod_utilization",
    "at_ms",
    "readings",
    *ACTIVITY_METRICS,
)
"""Columns of the table `scrape`; those up to the pods mostly repeat from scrape to scrape."""
_LONG, _INSTANT_AND_READINGS, _DOUBLE = (
    struct.Struct(">iq"),
    struct.Struct(">iqiq"),
    struct.Struct(">id"),
)
_NULL = struct.pack(">i", -1)
_Key = tuple[int, int]
"""Accelerator and instant."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The numbers of a request's samples that were written, and that were refused because they are
    too old.
    """

    samples: int
    too_old: int


@dataclass(slots=True)
class RemoteStore:
    """Writes requests of remote write.

    Shared by all writer threads; each brings its own connection.
    """

    store: Store
    window_ms: int
    """How much older than the newest scrape of its accelerator a scrape may be."""
    counters: InferenceCounterStore = field(default_factory=InferenceCounterStore)
    gateways: GatewayCounterStore = field(default_factory=GatewayCounterStore)
    _health: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """Newest readings of the metrics of health, by accelerator: a part of a scrape need not hold
    them all.
    """
    _health_seen: dict[str, bytes] = field(default_factory=dict)
    """Those of the latest row, as they were read: most repeat the row before."""
    _ids: tuple[object, SeriesIds] | None = None
    """Ids of what was registered, and the generation of the store's ids in which they hold."""
    _flushed_at: float = -QUIET_SECONDS

    def flush(
        self,
        connection: Connection,
        batches: Sequence[WriteRequest],
        now_ms: int,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> list[WriteResult]:
        """Commit these requests and answer each.

        Raises psycopg.Error: some may be committed, and all may be resent.

        `is_idle` returns whether no further requests wait.
        """
        written = [
            (request.stale + len(request.inference) + request.tokens, 0) for request in batches
        ]
        # A full cache is replaced, so a group may mix requests of two caches, whose indexes differ.
        for cache in {id(request.cache): request.cache for request in batches}.values():
            places = [
                place
                for place, request in enumerate(batches)
                if request.cache is cache and request.samples
            ]
            if places:
                results = self._flush(
                    connection, cache, [batches[place] for place in places], now_ms, is_idle
                )
                for place, (good, too_old) in zip(places, results, strict=True):
                    written[place] = written[place][0] + good, too_old
        self.counters.store(
            connection, [sample for request in batches for sample in request.inference], now_ms
        )
        self.gateways.store(
            connection, [sample for request in batches for sample in request.gateway], now_ms
        )
        return [WriteResult(*numbers) for numbers in written]

    def is_flush_due(self, closing: bool) -> bool:
        """Whether deferred updates are to be written now: only when closing, else the writers of
        batches do it.
        """
        return closing and self.store.is_flush_due(closing)

    def flush_deferred(self, connection: Connection) -> None:
        """Make the deferred writes of the store. Raises psycopg.Error."""
        self.store.flush_deferred(connection)

    def forget(self) -> None:
        """Empty all caches of the database."""
        self.store.forget()
        self.counters = InferenceCounterStore()
        self.gateways = GatewayCounterStore()
        self._ids = None

    def _flush(
        self,
        connection: Connection,
        cache: SeriesCache,
        requests: Sequence[WriteRequest],
        now_ms: int,
        is_idle: Callable[[], bool],
    ) -> list[tuple[int, int]]:
        """The numbers of samples written, and too old, of each request."""
        self.store.renew(now_ms)
        # 1. Join the samples to rows of accelerator and instant, and register what their labels
        # name.
        rows = ScrapeRows.join_requests(cache, requests)
        ids = self._register(connection, rows, now_ms)
        days = set(np.unique(rows.at_ms // DAY_MS).tolist())
        self.store.ensure_table_days(connection, {"gpu_sample": days, "usage_interval": days})
        accelerators = rows.accelerator.tolist()
        accelerator_ids = np.array(
            [ids.accelerators[index].accelerator for index in accelerators], dtype="<i8"
        )
        updates = PendingUpdates(
            scraped={ids.accelerators[index].node: now_ms for index in accelerators}
        )
        # 2. Write under the locks of the heads: two replicas of Prometheus send the same scrape at
        # the same time.
        with connection.transaction():
            is_counted = ~rows.mark_divided()
            newest = lock_heads(connection, accelerator_ids, rows.at_ms, is_counted)
            # Scrapes beyond the window may have been deleted after metering: a late one could not
            # be merged with them.
            is_old = rows.at_ms < newest - self.window_ms
            chosen = np.flatnonzero(~is_old & is_counted)
            # Only scrapes up to the head can exist already; the usual new one needs no look-up.
            may_exist = rows.at_ms[chosen] <= newest[chosen]
            remember = self._write(
                connection, rows.select(chosen), accelerator_ids[chosen], may_exist, ids, updates
            )
            is_deferred = not (is_idle() and self.store.deferred.is_empty and self._is_quiet())
            if not is_deferred:
                write_updates(connection, updates)
        remember()
        self._flushed_at = time.monotonic()
        if is_deferred:
            self.store.deferred.add(updates)
        # 3. Count the answer by samples, as senders count, although rows were written.
        samples = np.bincount(rows.request, minlength=len(requests))
        too_old = np.bincount(
            rows.request, weights=is_old[rows.row], minlength=len(requests)
        ).astype(int)
        return list(zip((samples - too_old).tolist(), too_old.tolist(), strict=True))

    def _is_quiet(self) -> bool:
        # The requests of a scrape follow each other: the latest values of all but the first are
        # written together.
        return time.monotonic() - self._flushed_at >= QUIET_SECONDS

    def _register(self, connection: Connection, rows: ScrapeRows, now_ms: int) -> SeriesIds:
        """The ids of what these rows name; what is new or changed is written first."""
        generation = self.store.ids.generation(now_ms)
        if (
            self._ids is None
            or self._ids[0] is not generation
            or self._ids[1].cache is not rows.cache
        ):
            self._ids = generation, SeriesIds(rows.cache)
        ids = self._ids[1]
        if self.store.is_shared:
            self._read_health(connection, [record.uuid for record in rows.accelerators])
        for uuid in self._update_health(rows):
            ids.latest_accelerators.forget(uuid)
        if not ids.has_all(rows):
            batches = rows.by_node(lambda uuid: page_health(self._health.get(uuid, {})))
            ids.add(rows, self.store.ids.register(connection, batches, now_ms))
        return ids

    def _write(
        self,
        connection: Connection,
        rows: ScrapeRows,
        accelerator_ids: Array,
        may_exist: Array,
        ids: SeriesIds,
        updates: PendingUpdates,
    ) -> Callable[[], None]:
        """Write rows, of which some may exist already, and add their latest values to `updates`.

        Returns what to call after COMMIT.
        """
        if not len(rows.at_ms):
            return lambda: None
        keys = list(zip(accelerator_ids.tolist(), rows.at_ms.tolist(), strict=True))
        scrapes = rows.scrapes(ids)
        # The scrape first: it tells which readings are new, so that gpu_sample gets each of them
        # once.
        new_bits, changed = write_scrapes(connection, keys, scrapes, may_exist.tolist())
        samples = rows.samples(accelerator_ids)
        if new_bits.any():
            copy_samples(connection, select_new_readings(samples, rows.bits, new_bits))
        # Requests of one Prometheus may reach any process, in parts.
        taken_over = set(accelerator_ids.tolist()) if self.store.is_shared else set()
        remember = self.store.slow.store(connection, samples, taken_over)
        updates.values.append(
            latest_values(samples, LatestStates.from_latest(latest_holders(keys, scrapes)))
        )
        request_slot_recompute(connection, accelerator_ids[changed], rows.at_ms[changed])
        return remember

    def _read_health(self, connection: Connection, uuids: list[str]) -> None:
        """Read the stored readings of the metrics of health: other processes may have received
        newer ones.
        """
        rows = connection.execute(
            """
            SELECT DISTINCT ON (a.uuid, s.metric) a.uuid, s.metric, s.value
            FROM accelerator a JOIN gpu_state s ON s.accelerator_id = a.id
            WHERE a.uuid = ANY(%s) AND s.metric = ANY(%s) ORDER BY a.uuid, s.metric, s.at_ms DESC
            """,
            (uuids, list(_HEALTH_METRICS)),
        )
        for uuid, metric, value in rows:
            if value is not None and self._health[uuid].get(metric) != value:
                self._health[uuid][metric] = value
                # So that the readings of this flush, even if they repeat the last ones here, count
                # as others.
                self._health_seen.pop(uuid, None)

    def _update_health(self, rows: ScrapeRows) -> list[str]:
        """Store the newest readings of the metrics of health; returns the accelerators that have
        others now.
        """
        readings = np.stack([rows.reading(number) for number in _HEALTH_METRICS.values()], axis=1)
        changed, cache = [], rows.cache
        # By time, so that the newest reading is stored last.
        for row in np.argsort(rows.at_ms, kind="stable").tolist():
            uuid, content = (
                cache.accelerators[rows.accelerator[row]].accelerator.uuid,
                readings[row].tobytes(),
            )
            if self._health_seen.get(uuid) == content:
                continue
            self._health_seen[uuid] = content
            read = zip(_HEALTH_METRICS, readings[row].tolist(), strict=True)
            self._health[uuid] |= {name: value for name, value in read if value == value}
            changed.append(uuid)
        return changed


def lock_heads(
    connection: Connection, accelerators: Array, at_ms: Array, is_counted: Array
) -> Array:
    """Lock the heads of the accelerators of rows, and raise their newest instants to those of the
    counted rows.

    Returns for each row the newest instant before (0: none yet). Others wait until COMMIT.
    """
    ids, place = np.unique(accelerators, return_inverse=True)
    place = place.reshape(len(accelerators))
    raised = np.zeros(len(ids), dtype="<i8")
    np.maximum.at(raised, place[is_counted], at_ms[is_counted])
    before = _raise_heads(connection, ids, raised)
    if missing := sorted(set(ids.tolist()) - before.keys()):
        # ON CONFLICT waits for another writer that inserts the same head.
        connection.execute(
            "INSERT INTO scrape_head (accelerator_id, newest_ms) SELECT id, 0 FROM"
            " unnest(%s::bigint[]) AS id ORDER BY id ON CONFLICT DO NOTHING",
            (missing,),
        )
        is_missing = np.isin(ids, missing)
        before |= _raise_heads(connection, ids[is_missing], raised[is_missing])
    return np.array([before[number] for number in ids.tolist()], dtype="<i8")[place]


def _raise_heads(connection: Connection, ids: Array, at_ms: Array) -> dict[int, int]:
    # Locked in the order of their ids, so writers that meet never deadlock.
    return dict(
        connection.execute(
            "WITH head AS (SELECT accelerator_id AS id, newest_ms AS before_ms, at_ms FROM"
            " scrape_head JOIN unnest(%b::bigint[], %b::bigint[]) AS new (accelerator_id, at_ms)"
            " USING (accelerator_id) ORDER BY accelerator_id FOR UPDATE OF scrape_head) UPDATE"
            " scrape_head SET newest_ms = greatest(newest_ms, at_ms) FROM head WHERE accelerator_id"
            " = id RETURNING id, before_ms",
            (BinaryArray(ids), BinaryArray(at_ms)),
        ).fetchall()
    )


def read_scrapes(connection: Connection, keys: Sequence[_Key]) -> dict[_Key, Scrape]:
    """Read those of these scrapes that exist."""
    if not keys:
        return {}
    rows = named_cursor(connection).execute(
        f"SELECT {', '.join(_COLUMNS)} FROM scrape JOIN unnest(%s::bigint[], %s::bigint[]) AS asked"
        " (accelerator_id, at_ms) USING (accelerator_id, at_ms)",
        ([accelerator for accelerator, _ in keys], [at_ms for _, at_ms in keys]),
        binary=True,
    )
    return {(row.accelerator_id, row.at_ms): _scrape(row) for row in rows}


def read_range(
    connection: Connection, ranges: dict[int, tuple[int, int]]
) -> dict[int, list[tuple[int, Scrape]]]:
    """Read the scrapes of accelerators from an instant (included) to another (not included), in
    order of time.
    """
    scrapes: dict[int, list[tuple[int, Scrape]]] = defaultdict(list)
    rows = named_cursor(connection).execute(
        f"SELECT {', '.join(_COLUMNS)} FROM scrape JOIN unnest(%s::bigint[], %s::bigint[],"
        " %s::bigint[]) AS asked (id, first_ms, end_ms) ON accelerator_id = id AND at_ms >="
        " first_ms AND at_ms < end_ms ORDER BY accelerator_id, at_ms",
        (
            list(ranges),
            [first for first, _ in ranges.values()],
            [end for _, end in ranges.values()],
        ),
        binary=True,
    )
    for row in rows:
        scrapes[row.accelerator_id].append((row.at_ms, _scrape(row)))
    return scrapes


_activity_of: Callable[[Any], tuple[float | None, ...]] = attrgetter(*ACTIVITY_METRICS)


def _scrape(row: Any) -> Scrape:
    return Scrape(
        row.node_id,
        frozenset(row.workload_ids),
        row.readings,
        dict(zip(row.pods, row.pod_utilization, strict=True)),
        _activity_of(row),
        frozenset(row.accelerator_attributes_ids),
        frozenset(row.workload_attributes_ids),
    )


def write_scrapes(
    connection: Connection,
    keys: Sequence[_Key],
    scrapes: Sequence[Scrape],
    may_exist: Sequence[bool],
) -> tuple[Array, Array]:
    """Write scrapes, merged with existing ones; returns for each the bits of new readings, and
    whether it changed.
    """
    existing = read_scrapes(
        connection, [key for key, is_possible in zip(keys, may_exist, strict=True) if is_possible]
    )
    new_bits, changed, inserts, updates = [], [], [], []
    for key, scrape in zip(keys, scrapes, strict=True):
        before = existing.get(key)
        merged = scrape if before is None else before.merge(scrape)
        new_bits.append(scrape.readings & ~(0 if before is None else before.readings))
        changed.append(merged != before)
        if before is None:
            inserts.append((key, scrape))
        elif merged != before:
            updates.append(_row(key, merged))
    if inserts:
        copy_scrapes(connection, inserts)
    if updates:
        with connection.cursor() as cursor:
            cursor.executemany(
                f"UPDATE scrape SET {', '.join(f'{name} = %({name})s' for name in _COLUMNS)}"
                " WHERE accelerator_id = %(accelerator_id)s AND at_ms = %(at_ms)s",
                updates,
            )
    return np.array(new_bits, dtype="<i8"), np.array(changed, dtype=bool)


def copy_scrapes(connection: Connection, entries: Sequence[tuple[_Key, Scrape]]) -> None:
    """COPY new scrapes."""
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY scrape ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(
            b"".join(
                [COPY_HEADER, *(_encode(key, scrape) for key, scrape in entries), COPY_TRAILER]
            )
        )


def _encode(key: _Key, scrape: Scrape) -> bytes:
    """A scrape as a row of binary COPY, in the order of _COLUMNS; psycopg would encode it value by
    value.
    """
    node_id, workloads, readings, utilization, activity, attributes, workload_attributes = scrape
    pods = tuple(sorted(utilization))
    return b"".join(
        (
            _repeated_fields(key[0], node_id, workloads, attributes, workload_attributes, pods),
            *[_DOUBLE.pack(8, utilization[pod]) for pod in pods],
            _INSTANT_AND_READINGS.pack(8, key[1], 8, readings),
            *[_NULL if value is None else _DOUBLE.pack(8, value) for value in activity],
        )
    )


# The same accelerators, workloads and attributes return with every scrape.
@lru_cache(maxsize=100_000)
def _repeated_fields(
    accelerator_id: int,
    node_id: int,
    workloads: frozenset[int],
    attributes: frozenset[int],
    workload_attributes: frozenset[int],
    pods: tuple[str, ...],
) -> bytes:
    """The fields of a row up to the first value of pod_utilization."""
    row = struct.pack(">hiqiq", len(_COLUMNS), 8, accelerator_id, 8, node_id)
    for ids in (workloads, attributes, workload_attributes):
        row += _array_head(20, 12 * len(ids), len(ids)) + b"".join(
            _LONG.pack(8, number) for number in sorted(ids)
        )
    texts = b"".join(struct.pack(">i", len(text)) + text for text in map(str.encode, pods))
    return (
        row
        + _array_head(25, len(texts), len(pods))
        + texts
        + _array_head(701, 12 * len(pods), len(pods))
    )


def _array_head(oid: int, size: int, count: int) -> bytes:
    """The begin of a field with an array of so many elements, which have this size with their
    lengths.
    """
    dimensions = (
        struct.pack(">iiIii", 1, 0, oid, count, 1) if count else struct.pack(">iiI", 0, 0, oid)
    )
    return struct.pack(">i", len(dimensions) + size) + dimensions


def _row(key: _Key, scrape: Scrape) -> dict[str, object]:
    pods = sorted(scrape.utilization)
    fields = (
        key[0],
        scrape.node_id,
        *map(
            sorted, (scrape.workload_ids, scrape.accelerator_attributes, scrape.workload_attributes)
        ),
        pods,
        [scrape.utilization[pod] for pod in pods],
        key[1],
        scrape.readings,
        *scrape.activity,
    )
    return dict(zip(_COLUMNS, fields, strict=True))


def latest_holders(
    keys: Sequence[_Key], scrapes: Sequence[Scrape]
) -> dict[int, tuple[int, str, int | None]]:
    """Instant, state and (first) holder of the newest of these scrapes, by accelerator."""
    latest: dict[int, tuple[int, str, int | None]] = {}
    for (accelerator_id, at_ms), scrape in zip(keys, scrapes, strict=True):
        if accelerator_id not in latest or at_ms > latest[accelerator_id][0]:
            # The smallest id, so that pages do not alternate between the holders of a shared
            # accelerator.
            holder = min(scrape.workload_ids, default=None)
            latest[accelerator_id] = at_ms, "unallocated" if holder is None else "held", holder
    return latest


def request_slot_recompute(connection: Connection, accelerators: Array, at_ms: Array) -> None:
    """Request that the meter recomputes the slots of these scrapes."""
    slots = sorted(set(zip(accelerators.tolist(), (at_ms - at_ms % SLOT_MS).tolist(), strict=True)))
    if slots:
        connection.execute(
            "INSERT INTO scrape_recompute (accelerator_id, slot_ms) SELECT * FROM"
            " unnest(%b::bigint[], %b::bigint[])",
            tuple(map(BinaryArray, np.array(slots, dtype="<i8").T)),
        )
