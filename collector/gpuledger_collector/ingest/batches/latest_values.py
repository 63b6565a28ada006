"""The latest values and state of each accelerator, and the latest heartbeat of each node: what
people look at first.

No bill depends on them, so they need not be written with every batch. When no batch waits they are
written in the transaction of the batches that brought them. While more batches wait they are merged
in memory and written every few seconds and when it is quiet again: a fleet that returns after an
outage sends hours of values that would be overwritten at once. A collector that is killed loses
only the merged ones, and each node's next batch brings newer ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from psycopg.types.json import Jsonb

from gpuledger_collector.ingest.batches.attributes import Connection, ResolvedBatch
from gpuledger_collector.ingest.batches.columns import (
    Array,
    BinaryArray,
    blank,
    is_absent,
    last_of_each,
)
from gpuledger_collector.ingest.batches.samples import HOT_KINDS, SampleRows
from gpuledger_collector.ingest.batches.usage_intervals import STATES, LatestStates
from gpuledger_collector.ingest.batches.validate import storable
from gpuledger_collector.insight.nodes import UNINSTALLED
from gpuledger_common.instants import to_datetime
from gpuledger_common.wire import Heartbeat

MAX_DELAY_SECONDS = 5.0
"""The longest time that updates wait while batches keep coming."""
QUIET_SECONDS = 0.2
"""Updates are written when none came for this long."""
MAX_PARTS = 16
"""Parts are merged when there are this many: those of a fleet take some megabytes."""
_SQL_TYPES = {"f4": "real", "f8": "double precision", "i8": "bigint"}
_NO_STATE = -1
SOURCE = "remote-write"
"""The source of nodes that no agent reports."""


@dataclass(frozen=True, slots=True)
class LatestValues:
    """The latest values of some accelerators, a row each in their order, with a column for each hot
    metric.
    """

    accelerator: Array
    at_ms: Array
    state: Array
    """Index in STATES; _NO_STATE where it was not reported."""
    holder: Array
    hot: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """A heartbeat with the key of its batch, the offset of the sender's clock, and when it arrived."""

    epoch: str
    seq: int
    heartbeat: Heartbeat | None
    clock_skew_ms: int | None
    seen_ms: int

    def merge_after(self, before: NodeHeartbeat | None) -> NodeHeartbeat:
        """Merge with an earlier arrival: the later content, and the later arrival.

        A batch that was spooled earlier in the same epoch proves only that the node is alive.
        """
        if before is None:
            return self
        # Sequence numbers order the batches of one epoch; between epochs only the order of arrival
        # is known.
        later = self if before.epoch != self.epoch or before.seq < self.seq else before
        seen_ms = max(self.seen_ms, before.seen_ms)
        return later if later.seen_ms == seen_ms else replace(later, seen_ms=seen_ms)

    def content(self) -> dict[str, Any]:
        """The JSON object that is stored."""
        content: dict[str, Any] = (
            {} if self.heartbeat is None else storable(msgspec.to_builtins(self.heartbeat))
        )
        if self.heartbeat is not None and self.heartbeat.uninstalled:
            content["status"] = UNINSTALLED
        if self.clock_skew_ms is not None:
            content["clock_skew_ms"] = self.clock_skew_ms
        return {**content, "epoch": self.epoch, "seq": self.seq}


@dataclass(frozen=True, slots=True)
class PendingUpdates:
    """Latest values in the order of their arrival, heartbeats by node id, and when scraped nodes
    were seen.
    """

    values: list[LatestValues] = field(default_factory=list)
    heartbeats: dict[int, NodeHeartbeat] = field(default_factory=dict)
    scraped: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values or self.heartbeats or self.scraped)

    def add(self, later: PendingUpdates) -> None:
        """Add updates that arrived later; they replace earlier ones of the same accelerator or
        node.
        """
        self.values.extend(later.values)
        if len(self.values) >= MAX_PARTS:
            # Merging bounds memory, and is cheaper for many parts at once than for each as it
            # arrives.
            self.values[:] = [merge(self.values)]
        for node_id, heartbeat in later.heartbeats.items():
            self.heartbeats[node_id] = heartbeat.merge_after(self.heartbeats.get(node_id))
        self.scraped.update(later.scraped)


class DeferredUpdates:
    """Updates that were committed with their batches and not written yet. Shared by all writers."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._lock = threading.Lock()
        self._updates = PendingUpdates()
        self._first_at = self._last_at = steady()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is deferred."""
        return not self._updates

    def is_due(self, closing: bool) -> bool:
        """Whether to write now; when closing, whatever is deferred is due."""
        now = self._steady()
        is_ripe = now - self._first_at >= MAX_DELAY_SECONDS or now - self._last_at >= QUIET_SECONDS
        return not self.is_empty and (closing or is_ripe)

    def take(self) -> PendingUpdates:
        """Remove and return everything, to be written now."""
        with self._lock:
            updates, self._updates = self._updates, PendingUpdates()
        return updates

    def add(self, updates: PendingUpdates) -> None:
        """Defer updates that arrived after all that is deferred."""
        with self._lock:
            self._last_at = self._steady()
            if self.is_empty:
                self._first_at = self._last_at
            self._updates.add(updates)

    def put_back(self, updates: PendingUpdates) -> None:
        """Defer again what could not be written: it arrived before all that is deferred now."""
        with self._lock:
            # What arrived meanwhile is newer, so it is added to the older updates and not the other
            # way around.
            updates.add(self._updates)
            self._updates = updates


def updates_of(
    batches: Sequence[ResolvedBatch],
    samples: SampleRows | None,
    states: LatestStates,
    now_ms: int,
) -> PendingUpdates:
    """The updates that these batches bring."""
    values = latest_values(samples, states)
    updates = PendingUpdates([values] if len(values.accelerator) else [])
    for resolved in batches:
        batch = resolved.batch
        heartbeat = NodeHeartbeat(
            str(batch.epoch), batch.seq, batch.heartbeat, batch.clock_skew_ms, now_ms
        )
        updates.heartbeats[resolved.node_id] = heartbeat.merge_after(
            updates.heartbeats.get(resolved.node_id)
        )
    return updates


def latest_values(samples: SampleRows | None, states: LatestStates) -> LatestValues:
    """The latest sample and state of each accelerator in these."""
    sampled, rows = latest_rows(samples)
    accelerators = np.union1d(sampled, states.accelerator)
    count = len(accelerators)
    at, holder, state = blank(count, "i8"), blank(count, "i8"), np.full(count, _NO_STATE)
    place = np.searchsorted(accelerators, states.accelerator)
    # The state first: where the accelerator was sampled too, the instant of the sample replaces the
    # end of the interval.
    at[place], holder[place], state[place] = states.end_ms, states.workload, states.state
    hot = tuple(blank(count, kind) for kind in HOT_KINDS.values())
    if samples is not None:
        place = np.searchsorted(accelerators, sampled)
        at[place] = samples.at_ms[rows]
        for values, name in zip(hot, HOT_KINDS, strict=True):
            if name in samples.columns:
                values[place] = samples.columns[name][rows]
    return LatestValues(accelerators, at, state, holder, hot)


def latest_rows(samples: SampleRows | None) -> tuple[Array, Array]:
    """The sampled accelerators in order, and the row of each one's latest sample: the last of equal
    instants.
    """
    if samples is None or not len(samples.at_ms):
        return np.empty(0, dtype="<i8"), np.empty(0, dtype="<i8")
    order = np.lexsort((samples.at_ms, samples.accelerator))
    ordered = samples.accelerator[order]
    last = last_of_each(ordered)
    return ordered[last], order[last]


def merge(parts: Sequence[LatestValues]) -> LatestValues:
    """Merge parts to what they would leave if they were written one after the other.

    Where instants are equal a later part completes an earlier one; an older instant changes
    nothing.
    """
    if len(parts) == 1:
        return parts[0]
    accelerator, at_ms, state, holder = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("accelerator", "at_ms", "state", "holder")
    )
    hot = tuple(
        np.concatenate(columns) for columns in zip(*(part.hot for part in parts), strict=True)
    )
    # A stable sort keeps parts of one accelerator in the order of arrival. `winner` is the row that
    # holds the merged values so far: usually the row itself, an earlier one where that is newer.
    order, winner = np.argsort(accelerator, kind="stable"), list(range(len(at_ms)))
    at, has_no_state = at_ms.tolist(), (state == _NO_STATE).tolist()
    repeated = np.flatnonzero(accelerator[order][1:] == accelerator[order][:-1])
    for earlier, row in zip(order[repeated].tolist(), order[repeated + 1].tolist(), strict=True):
        before = winner[earlier]
        if at[row] < at[before]:
            winner[row] = before
            continue
        # Samples without an interval say nothing about the state: the one before still holds.
        if has_no_state[row]:
            state[row], holder[row] = state[before], holder[before]
        if at[row] == at[before]:
            for values in hot:
                if is_absent(values[row : row + 1])[0]:
                    values[row] = values[before]
    last = np.array(winner, dtype=int)[order[last_of_each(accelerator[order])]]
    return LatestValues(
        accelerator[last],
        at_ms[last],
        state[last],
        holder[last],
        tuple(values[last] for values in hot),
    )


def write_updates(connection: Connection, updates: PendingUpdates) -> None:
    """Write updates, rows in the order of their keys; what is older than the stored row changes
    nothing.
    """
    if updates.values:
        write_values(connection, merge(updates.values))
    if updates.heartbeats:
        write_heartbeats(connection, updates.heartbeats)
    if updates.scraped:
        mark_nodes_seen(connection, updates.scraped)


def _values_sql() -> str:
    names = ["accelerator_id", "at_ms", "state", "workload_id", *HOT_KINDS]
    types = [
        "bigint",
        "bigint",
        "bigint",
        "bigint",
        *[_SQL_TYPES[kind] for kind in HOT_KINDS.values()],
    ]
    states = "ARRAY[" + ", ".join(f"'{state}'" for state in STATES) + "]"
    # The same instant again completes the row: remote write may bring a scrape in parts.
    hot = ", ".join(
        f"{name} = CASE WHEN excluded.at_ms > old.at_ms THEN excluded.{name}"
        f" ELSE coalesce(excluded.{name}, old.{name}) END"
        for name in HOT_KINDS
    )
    # States travel as an index; SQL arrays count from 1.
    columns = ", ".join(
        ["accelerator_id", "at_ms", f"({states})[state + 1]", "workload_id", *HOT_KINDS]
    )
    return f"""
        INSERT INTO gpu_latest AS old ({", ".join(names)})
        SELECT {columns} FROM unnest({", ".join(f"%b::{kind}[]" for kind in types)}) AS new ({", ".join(names)})
        ON CONFLICT (accelerator_id) DO UPDATE SET
            at_ms = excluded.at_ms, state = coalesce(excluded.state, old.state),
            workload_id = CASE WHEN excluded.state IS NULL THEN old.workload_id ELSE excluded.workload_id END, {hot}
        WHERE excluded.at_ms >= old.at_ms
        """


_VALUES_SQL = _values_sql()


def write_values(connection: Connection, latest: LatestValues) -> None:
    """Write the latest sample of each accelerator, its state and its holder."""
    columns = (latest.accelerator, latest.at_ms, latest.state, latest.holder, *latest.hot)
    connection.execute(_VALUES_SQL, tuple(map(BinaryArray, columns)))


def write_heartbeats(connection: Connection, heartbeats: dict[int, NodeHeartbeat]) -> None:
    """Write the latest heartbeat of each node."""
    rows = [
        {
            "id": node_id,
            "seen_at": to_datetime(heartbeats[node_id].seen_ms),
            "beat": heartbeats[node_id].content(),
        }
        for node_id in sorted(heartbeats)
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
            FROM node JOIN jsonb_to_recordset(%s) AS new (id bigint, seen_at timestamptz, beat jsonb) USING (id)
            ORDER BY id FOR NO KEY UPDATE OF node
        ) AS new
        WHERE id = node_id
        """,
        (Jsonb(rows, dumps=msgspec.json.encode),),
    )


def mark_nodes_seen(connection: Connection, nodes: Mapping[int, int]) -> None:
    """Record when scraped nodes were seen; what their own agents report is not overwritten."""
    connection.execute(
        "UPDATE node SET last_seen_at = greatest(last_seen_at, seen_at), status = CASE WHEN status"
        " IN ('retired', 'uninstalled') AND seen_at > last_seen_at THEN 'ok' ELSE status END,"
        " source = CASE WHEN agent_version = '' THEN %s ELSE source END FROM (SELECT id AS node_id,"
        " seen_at FROM node JOIN unnest(%s::bigint[], %s::timestamptz[]) AS new (id, seen_at) USING"
        " (id) ORDER BY id FOR NO KEY UPDATE OF node) AS new WHERE id = node_id",
        (SOURCE, sorted(nodes), [to_datetime(nodes[number]) for number in sorted(nodes)]),
    )
