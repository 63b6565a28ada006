"""One flush of remote write: samples to where agents' samples go, and each scrape once to where the meter finds it.

The same scrape may come twice, in parts, and by several replicas. Whoever writes scrapes of an accelerator holds the
row of its head, so that what is there already is known: a reading goes to `gpu_sample` once, and a scrape is merged
from its parts by operations that neither order nor repetition changes (union and maximum).
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
from gpuledger_collector.ingest.batches.latest_values import latest_of, write_latest
from gpuledger_collector.ingest.batches.samples import copy_samples
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.ingest.batches.usage_intervals import States
from gpuledger_collector.ingest.remote_write.counted import CounterStore
from gpuledger_collector.ingest.remote_write.decode import Writing
from gpuledger_collector.ingest.remote_write.gather import WITNESSES, Gathered, Scrape, cut, only
from gpuledger_collector.ingest.remote_write.series import METRIC_NUMBER, Book
from gpuledger_common.dcgm_page import judged
from gpuledger_common.health import EVIDENCE

SLOT_MS = 300_000
"""The unit in which usage intervals are made again from scrapes."""
SOURCE = "remote-write"
_HEALTH = [name for name in (*EVIDENCE, "gpu_last_xid") if name in METRIC_NUMBER]
_SAID = ("accelerator_attributes_ids", "workload_attributes_ids")
_COLUMNS = (
    "accelerator_id",
    "at_ms",
    "node_id",
    "workload_ids",
    "readings",
    "pods",
    "pod_utilization",
    *_SAID,
    *WITNESSES,
)
_TYPES = [
    "int8",
    "int8",
    "int8",
    "int8[]",
    "int8",
    "text[]",
    "float8[]",
    "int8[]",
    "int8[]",
    *["float8"] * len(WITNESSES),
]
_Key = tuple[int, int]
"""Accelerator and instant."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a request: samples that are kept, and samples refused because they are too old."""

    samples: int
    too_old: int


@dataclass(slots=True)
class RemoteStore:
    """Writes requests of remote write. Shared by all writer threads; each brings its own connection."""

    store: Store
    window_ms: int
    """How much older than the newest scrape of its accelerator a scrape may be."""
    counters: CounterStore = field(default_factory=CounterStore)
    _health: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """Newest readings that a verdict needs, by accelerator: a part of a scrape need not hold them all."""

    def flush(
        self,
        connection: Connection,
        batches: Sequence[Writing],
        now: dt.datetime,
        _idle: Callable[[], bool] = lambda: True,
    ) -> list[Written]:
        """Commit these requests and say what became of each. Raises psycopg.Error: then some may be, and all may
        be sent again.
        """
        answers = [Written(one.stale, 0) for one in batches]
        for book in {id(one.book): one.book for one in batches}.values():
            places = [place for place, one in enumerate(batches) if one.book is book and one.samples]
            if places:
                written = self._flush(connection, book, [batches[place] for place in places], now)
                for place, (good, old) in zip(places, written, strict=True):
                    answers[place] = Written(answers[place].samples + good, old)
        self.counters.keep(connection, [sample for one in batches for sample in one.counts], now)
        return [
            Written(answer.samples + len(one.counts), answer.too_old)
            for answer, one in zip(answers, batches, strict=True)
        ]

    def is_due(self, _ending: bool) -> bool:
        """Nothing is left for later."""
        return False

    def settle(self, connection: Connection) -> None:
        """Nothing of its own is left for later. Raises psycopg.Error."""
        self.store.settle(connection)

    def forget(self) -> None:
        """Believe nothing that was remembered of the database."""
        self.store.forget()
        self.counters = CounterStore()

    def _flush(
        self, connection: Connection, book: Book, requests: Sequence[Writing], now: dt.datetime
    ) -> list[tuple[int, int]]:
        """Samples written, and too old, of each request."""
        self.store.renew(now)
        gathered = Gathered.of(book, requests)
        self._judge_health(gathered)
        named = gathered.by_node(lambda uuid: judged(self._health.get(uuid, {})))
        ids = self.store.directory.learn(connection, named, now)
        self.store.make_days(connection, named)
        accelerators = np.array([ids.accelerators[uuid] for uuid in gathered.uuids], dtype="<i8")
        with connection.transaction():
            heads = lock_heads(connection, sorted(set(accelerators.tolist())))
            newest = np.array([heads[one] for one in accelerators.tolist()], dtype="<i8")
            old = gathered.at_ms < newest - self.window_ms
            rows = np.flatnonzero(~old & ~gathered.shadowed())
            known = gathered.at_ms[rows] <= newest[rows]
            after = self._write(connection, cut(gathered, rows), accelerators[rows], known, ids)
            see_nodes(connection, sorted(set(ids.nodes.values())), now)
        after()
        refused = old[gathered.row]
        counts = np.bincount(gathered.origin, minlength=len(requests))
        late = np.bincount(gathered.origin, weights=refused, minlength=len(requests)).astype(int)
        return list(zip((counts - late).tolist(), late.tolist(), strict=True))

    def _write(
        self, connection: Connection, rows: Gathered, accelerators: Array, known: Array, ids: Ids
    ) -> Callable[[], None]:
        """Write rows; `known` tells those that may be there already. Returns what to do after COMMIT."""
        if not len(rows.at_ms):
            return lambda: None
        keys = list(zip(accelerators.tolist(), rows.at_ms.tolist(), strict=True))
        scrapes = rows.scrapes(ids)
        fresh, changed = write_scrapes(connection, keys, scrapes, known.tolist())
        samples = rows.samples(accelerators)
        unread = np.flatnonzero(fresh)
        if len(unread):
            copy_samples(connection, only(samples, unread, fresh))
        after = self.store.keep_slow(connection, samples)
        write_latest(connection, latest_of(samples, States.of(states_of(keys, scrapes))))
        mark(connection, [key for key, is_changed in zip(keys, changed, strict=True) if is_changed])
        move_heads(connection, keys)
        return after

    def _judge_health(self, gathered: Gathered) -> None:
        """Keep the readings that verdicts need; an Xid that is no longer the last one is forgotten."""
        uuids = gathered.uuids
        for name in _HEALTH:
            chosen = np.flatnonzero((gathered.metric == METRIC_NUMBER[name]) & ~np.isnan(gathered.value))
            order = chosen[np.argsort(gathered.at_ms[gathered.row[chosen]], kind="stable")]
            for row, value in zip(gathered.row[order].tolist(), gathered.value[order].tolist(), strict=True):
                self._health[uuids[row]][name] = value


def lock_heads(connection: Connection, accelerators: list[int]) -> dict[int, int]:
    """The newest instant of each accelerator (0: none yet); this transaction alone writes scrapes of them now."""
    connection.execute(
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
    """Raise the newest instant of the accelerators of these scrapes."""
    newest: dict[int, int] = {}
    for accelerator, at_ms in keys:
        newest[accelerator] = max(at_ms, newest.get(accelerator, 0))
    connection.execute(
        "UPDATE scrape_head SET newest_ms = new.at_ms FROM unnest(%s::bigint[], %s::bigint[]) AS new (id, at_ms)"
        " WHERE accelerator_id = new.id AND newest_ms < new.at_ms",
        (list(newest), list(newest.values())),
    )


def read_scrapes(connection: Connection, keys: Sequence[_Key]) -> dict[_Key, Scrape]:
    """Those of these scrapes that are there."""
    if not keys:
        return {}
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM scrape JOIN unnest(%s::bigint[], %s::bigint[]) AS asked"
        " (accelerator_id, at_ms) USING (accelerator_id, at_ms)",
        ([accelerator for accelerator, _ in keys], [at_ms for _, at_ms in keys]),
    )
    return {(row[0], row[1]): _scrape(row) for row in rows}


def read_range(connection: Connection, ranges: dict[int, tuple[int, int]]) -> dict[int, list[tuple[int, Scrape]]]:
    """The scrapes of accelerators from an instant up to before another, in order of time."""
    found: dict[int, list[tuple[int, Scrape]]] = defaultdict(list)
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM scrape JOIN unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS asked"
        " (id, first_ms, end_ms) ON accelerator_id = id AND at_ms >= first_ms AND at_ms < end_ms"
        " ORDER BY accelerator_id, at_ms",
        (list(ranges), [first for first, _ in ranges.values()], [end for _, end in ranges.values()]),
    )
    for row in rows:
        found[row[0]].append((row[1], _scrape(row)))
    return found


def _scrape(row: Sequence[Any]) -> Scrape:
    shares = dict(zip(row[5], row[6], strict=True))
    return Scrape(row[2], frozenset(row[3]), row[4], shares, tuple(row[9:]), frozenset(row[7]), frozenset(row[8]))


def write_scrapes(
    connection: Connection, keys: Sequence[_Key], scrapes: Sequence[Scrape], may_exist: Sequence[bool]
) -> tuple[Array, list[bool]]:
    """Write scrapes, merged with what is there; of each the bits of readings that are new, and whether it changed."""
    there = read_scrapes(connection, [key for key, is_known in zip(keys, may_exist, strict=True) if is_known])
    fresh = np.array(
        [one.readings & ~(there[key].readings if key in there else 0) for key, one in zip(keys, scrapes, strict=True)],
        dtype="<i8",
    )
    new, changed, changes = [], [], []
    for key, one in zip(keys, scrapes, strict=True):
        before = there.get(key)
        merged = one if before is None else before.merged(one)
        changed.append(merged != before)
        if before is None:
            new.append(_row(key, one))
        elif merged != before:
            changes.append((*_row(key, merged)[2:], *key))
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY scrape ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types(_TYPES)
        for row in new:
            copy.write_row(row)
    if changes:
        with connection.cursor() as cursor:
            cursor.executemany(
                f"UPDATE scrape SET {', '.join(f'{name} = %s' for name in _COLUMNS[2:])}"
                " WHERE accelerator_id = %s AND at_ms = %s",
                changes,
            )
    return fresh, changed


def _row(key: _Key, one: Scrape) -> tuple[object, ...]:
    pods = sorted(one.utilization)
    return (
        *key,
        one.node_id,
        sorted(one.workload_ids),
        one.readings,
        pods,
        [one.utilization[pod] for pod in pods],
        sorted(one.accelerator_attributes),
        sorted(one.workload_attributes),
        *one.witnesses,
    )


def states_of(keys: Sequence[_Key], scrapes: Sequence[Scrape]) -> dict[int, tuple[int, str, int | None]]:
    """Of each accelerator the instant, state and (first) holder of its newest scrape here."""
    latest: dict[int, tuple[int, str, int | None]] = {}
    for (accelerator, at_ms), one in zip(keys, scrapes, strict=True):
        if accelerator not in latest or at_ms > latest[accelerator][0]:
            holder = min(one.workload_ids, default=None)
            latest[accelerator] = at_ms, "unallocated" if holder is None else "held", holder
    return latest


def mark(connection: Connection, keys: Sequence[_Key]) -> None:
    """Mark the slots of these scrapes for the meter."""
    slots = sorted({(accelerator, at_ms - at_ms % SLOT_MS) for accelerator, at_ms in keys})
    if slots:
        connection.execute(
            "INSERT INTO scrape_recompute (accelerator_id, slot_ms) SELECT * FROM unnest(%s::bigint[], %s::bigint[])",
            ([accelerator for accelerator, _ in slots], [slot for _, slot in slots]),
        )


def see_nodes(connection: Connection, nodes: list[int], now: dt.datetime) -> None:
    """Keep of each node that it was heard of; what its own agent says of it stands."""
    connection.execute(
        "UPDATE node SET last_seen_at = greatest(last_seen_at, %s),"
        " source = CASE WHEN agent_version = '' THEN %s ELSE source END"
        " WHERE id IN (SELECT id FROM node WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE)",
        (now, SOURCE, nodes),
    )
