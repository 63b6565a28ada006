"""What people look at first: the newest values and state of each accelerator, the latest sign of life of each node.

No bill is made of them, so they need not be written with every batch. When nobody waits they are written in the
transaction of the batches that brought them. While more batches wait they are kept, each over the one before, and
written beside the batches every few seconds and when it is quiet again: a fleet that comes back after an outage sends
hours of them, which would be written over at once. A collector that is killed loses none but those that it kept, and
each node's next batch brings newer ones.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from psycopg.types.json import Jsonb

from gpuledger_collector.ingest.batches.attributes import Connection, Numbered
from gpuledger_collector.ingest.batches.columns import Array, BinaryArray, blank, is_absent, last_of_each
from gpuledger_collector.ingest.batches.samples import HOT_KINDS, Samples
from gpuledger_collector.ingest.batches.usage_intervals import STATES, States
from gpuledger_collector.ingest.batches.validate import clean
from gpuledger_common.wire import Heartbeat

LATE_SECONDS = 5.0
"""How long the newest values may be kept while batches wait."""
QUIET_SECONDS = 0.2
"""They are written when none were brought for so long."""
MOST_PIECES = 16
"""They are made one when there are so many: a fleet's are some megabytes."""
_SQL_TYPES = {"f4": "real", "f8": "double precision", "i8": "bigint"}
_NO_STATE = -1


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest of some accelerators, a row each in their order: instant, state, holder, and a column a hot metric."""

    accelerator: Array
    at_ms: Array
    state: Array
    """Place in STATES; _NO_STATE where it is not told."""
    holder: Array
    hot: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: the key of its batch, what it says, how far the sender's clock was off, when it came."""

    epoch: str
    seq: int
    heartbeat: Heartbeat | None
    clock_skew_ms: int | None
    seen_at: dt.datetime

    def after(self, before: Beat | None) -> Beat:
        """The later of the two, and when the last of them came; one that was spooled earlier in the same epoch says
        nothing but that the node lives.
        """
        if before is None:
            return self
        later = self if before.epoch != self.epoch or before.seq < self.seq else before
        seen_at = max(self.seen_at, before.seen_at)
        return later if later.seen_at == seen_at else replace(later, seen_at=seen_at)

    def told(self) -> dict[str, Any]:
        """What is kept of it."""
        told: dict[str, Any] = {} if self.heartbeat is None else clean(msgspec.to_builtins(self.heartbeat))
        if self.clock_skew_ms is not None:
            told["clock_skew_ms"] = self.clock_skew_ms
        return {**told, "epoch": self.epoch, "seq": self.seq}


Beats = dict[int, Beat]
"""By node."""


@dataclass(frozen=True, slots=True)
class Told:
    """What some batches tell of the newest."""

    latest: list[Latest] = field(default_factory=list)
    """In the order in which it was told."""
    beats: Beats = field(default_factory=dict)

    def add(self, later: Told) -> None:
        """Add what was told later, which stands where both speak of the same."""
        self.latest.extend(later.latest)
        if len(self.latest) >= MOST_PIECES:
            self.latest[:] = [merged(self.latest)]
        for node_id, beat in later.beats.items():
            self.beats[node_id] = beat.after(self.beats.get(node_id))


class Newest:
    """What was committed and not yet written of the newest. Shared by all writers."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._lock = threading.Lock()
        self._told = Told()
        self._since = self._last = steady()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not (self._told.latest or self._told.beats)

    def is_due(self, ending: bool) -> bool:
        """Whether what is kept is to be written now, as it is at the end."""
        now = self._steady()
        ripe = now - self._since >= LATE_SECONDS or now - self._last >= QUIET_SECONDS
        return not self.is_empty and (ending or ripe)

    def take(self) -> Told:
        """All that is kept, which is to be written now."""
        with self._lock:
            told, self._told = self._told, Told()
        return told

    def keep(self, told: Told) -> None:
        """Keep what was told after all that is kept."""
        with self._lock:
            self._last = self._steady()
            if self.is_empty:
                self._since = self._last
            self._told.add(told)

    def put_back(self, told: Told) -> None:
        """Keep what was taken and could not be written: it was told before all that is kept."""
        with self._lock:
            told.add(self._told)
            self._told = told

    def forget(self) -> None:
        """Forget what is kept: its numbers may mean nothing in the database that is there now."""
        self.take()


def told_of(batches: Sequence[Numbered], samples: Samples | None, states: States, now: dt.datetime) -> Told:
    """What these batches tell of the newest."""
    latest = latest_of(samples, states)
    told = Told([latest] if len(latest.accelerator) else [])
    for one in batches:
        batch = one.batch
        beat = Beat(str(batch.epoch), batch.seq, batch.heartbeat, batch.clock_skew_ms, now)
        told.beats[one.node_id] = beat.after(told.beats.get(one.node_id))
    return told


def latest_of(samples: Samples | None, states: States) -> Latest:
    """The newest sample and state of each accelerator that these speak of."""
    known, rows = newest_rows(samples)
    accelerators = np.union1d(known, states.accelerator)
    told = _places(accelerators, states.accelerator, np.arange(len(states.accelerator)))
    at, holder, state = blank(len(told), "i8"), blank(len(told), "i8"), np.full(len(told), _NO_STATE)
    there = told >= 0
    at[there], holder[there], state[there] = states.end_ms, states.workload, states.state
    hot = tuple(blank(len(told), kind) for kind in HOT_KINDS.values())
    if samples is not None:
        row = _places(accelerators, known, rows)
        there = row >= 0
        at[there] = samples.at_ms[row[there]]
        for values, name in zip(hot, HOT_KINDS, strict=True):
            if name in samples.columns:
                values[there] = samples.columns[name][row[there]]
    return Latest(accelerators, at, state, holder, hot)


def _places(accelerators: Array, some: Array, places: Array) -> Array:
    """The place of each accelerator (in order) by those of some of them; -1 for the others."""
    found = np.full(len(accelerators), -1)
    found[np.searchsorted(accelerators, some)] = places
    return found


def newest_rows(samples: Samples | None) -> tuple[Array, Array]:
    """The accelerators of these samples, in order, and the row of each one's newest: the last of an instant's."""
    if samples is None or not len(samples.at_ms):
        return np.empty(0, dtype="<i8"), np.empty(0, dtype="<i8")
    order = np.lexsort((samples.at_ms, samples.accelerator))
    ordered = samples.accelerator[order]
    last = last_of_each(ordered)
    return ordered[last], order[last]


def merged(told: Sequence[Latest]) -> Latest:
    """The newest of each accelerator of all these, as if they were written one by one: where instants are equal a
    later one completes an earlier one, and what is older than one told before it changes nothing.
    """
    if len(told) == 1:
        return told[0]
    accelerator, at_ms, state, holder = (
        np.concatenate([getattr(one, name) for one in told]) for name in ("accelerator", "at_ms", "state", "holder")
    )
    hot = tuple(np.concatenate(columns) for columns in zip(*(one.hot for one in told), strict=True))
    order, newest = np.argsort(accelerator, kind="stable"), list(range(len(at_ms)))
    at, untold = at_ms.tolist(), (state == _NO_STATE).tolist()
    same = np.flatnonzero(accelerator[order][1:] == accelerator[order][:-1])
    for before, row in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        before = newest[before]
        if at[row] < at[before]:
            newest[row] = before
            continue
        if untold[row]:
            state[row], holder[row] = state[before], holder[before]
        if at[row] == at[before]:
            for values in hot:
                if is_absent(values[row : row + 1])[0]:
                    values[row] = values[before]
    last = np.array(newest, dtype=int)[order[last_of_each(accelerator[order])]]
    return Latest(accelerator[last], at_ms[last], state[last], holder[last], tuple(values[last] for values in hot))


def write(connection: Connection, told: Told) -> None:
    """Write what was told, rows in the order of their keys; what is older than what is there changes nothing."""
    if told.latest:
        write_latest(connection, merged(told.latest))
    if told.beats:
        write_beats(connection, told.beats)


def _latest_sql() -> str:
    names = ["accelerator_id", "at_ms", "state", "workload_id", *HOT_KINDS]
    types = ["bigint", "bigint", "bigint", "bigint", *[_SQL_TYPES[kind] for kind in HOT_KINDS.values()]]
    # The same instant again completes the row: remote write may bring a scrape in parts.
    hot = ", ".join(
        f"{name} = CASE WHEN excluded.at_ms > old.at_ms THEN excluded.{name}"
        f" ELSE coalesce(excluded.{name}, old.{name}) END"
        for name in HOT_KINDS
    )
    told = ", ".join(["accelerator_id", "at_ms", f"({_STATES})[state + 1]", "workload_id", *HOT_KINDS])
    return f"""
        INSERT INTO gpu_latest AS old ({", ".join(names)})
        SELECT {told} FROM unnest({", ".join(f"%b::{kind}[]" for kind in types)}) AS told ({", ".join(names)})
        ON CONFLICT (accelerator_id) DO UPDATE SET
            at_ms = excluded.at_ms, state = coalesce(excluded.state, old.state),
            workload_id = CASE WHEN excluded.state IS NULL THEN old.workload_id ELSE excluded.workload_id END, {hot}
        WHERE excluded.at_ms >= old.at_ms
        """


_STATES = "ARRAY[" + ", ".join(f"'{state}'" for state in STATES) + "]"
_LATEST = _latest_sql()


def write_latest(connection: Connection, latest: Latest) -> None:
    """Keep of each accelerator the newest sample, its state and its holder."""
    columns = (latest.accelerator, latest.at_ms, latest.state, latest.holder, *latest.hot)
    connection.execute(_LATEST, tuple(map(BinaryArray, columns)))


def write_beats(connection: Connection, beats: Beats) -> None:
    """Keep of each node its latest sign of life."""
    told = [
        {"id": node_id, "seen_at": beats[node_id].seen_at, "beat": beats[node_id].told()} for node_id in sorted(beats)
    ]
    connection.execute(
        """
        UPDATE node SET last_seen_at = greatest(last_seen_at, seen_at),
            status = CASE WHEN newer THEN beat ->> 'status' ELSE status END,
            status_detail = CASE WHEN newer THEN coalesce(beat ->> 'detail', '') ELSE status_detail END,
            agent_version = CASE WHEN newer THEN beat ->> 'agent_version' ELSE agent_version END,
            source = CASE WHEN newer THEN beat ->> 'source' ELSE source END,
            driver = CASE WHEN newer THEN beat ->> 'driver' ELSE driver END,
            heartbeat = CASE WHEN newer THEN beat ELSE heartbeat END
        FROM (
            SELECT id AS node_id, seen_at, beat, heartbeat IS NULL OR heartbeat ->> 'epoch' <> beat ->> 'epoch'
                OR (heartbeat ->> 'seq')::bigint < (beat ->> 'seq')::bigint AS newer
            FROM node JOIN jsonb_to_recordset(%s) AS told (id bigint, seen_at timestamptz, beat jsonb) USING (id)
            ORDER BY id FOR NO KEY UPDATE OF node
        ) AS told
        WHERE id = node_id
        """,
        (Jsonb(told, dumps=msgspec.json.encode),),
    )
