"""One flush: several batches in one transaction, each counted once.

The batch ledger (`ingest_batch`) decides: whose key is new is written, whose key is known is a duplicate or, with
other bytes, a conflict. Nothing that follows can count twice, because it happens in the transaction that inserted the
key. Everything is written in the order of its keys, so that writers that meet wait and never lock in a circle.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gpuledger_agent.wire import Answer
from gpuledger_collector.accounting.counting import CounterReading
from gpuledger_collector.ingest import capacity, counters
from gpuledger_collector.ingest.directory import Connection, Directory, Ids
from gpuledger_collector.ingest.evidence import (
    copy_stretches,
    evidence_of,
    id_of,
    keep_capacity,
    latest_states,
    mark_hours,
    write_heartbeats,
)
from gpuledger_collector.ingest.ledger import Key, insert_keys, look_up, record_conflicts, verdict
from gpuledger_collector.ingest.samples import (
    HOT_KINDS,
    Samples,
    copy_samples,
    join_samples,
    keep_latest,
    slow_changes,
    write_slow,
)
from gpuledger_collector.ingest.validate import DAY_MS, Accepted

EnsurePartitions = Callable[[Connection, str, Iterable[int]], object]
"""Makes the partitions of a table for days (unix milliseconds of their start); storage's `partitions.ensure`."""


@dataclass(slots=True)
class Store:
    """Writes batches. Shared by all writer threads; each brings its own connection (autocommit on)."""

    ensure_partitions: EnsurePartitions
    on_contest: Callable[[capacity.Evidence], None] = lambda _: None
    """Told of an accelerator that a second node reports while the first still does."""
    directory: Directory = field(default_factory=Directory)
    _days: set[tuple[str, int]] = field(default_factory=set)
    _capacity: dict[int, capacity.CapacityRow] = field(default_factory=dict)
    """The newest row of each accelerator, to skip what changes nothing."""
    _slow: dict[tuple[int, str], tuple[int, float | None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def flush(self, connection: Connection, batches: Sequence[Accepted], now: dt.datetime) -> list[Answer]:
        """Commit these batches and say what became of each, in order. Raises psycopg.Error; then none was committed."""
        ids = self.directory.learn(connection, batches, now)
        self.make_days(connection, batches)
        first: dict[Key, Accepted] = {}
        for batch in batches:
            first.setdefault(batch.key, batch)
        unique = sorted(first.values(), key=lambda batch: (ids.nodes[batch.node], batch.epoch, batch.seq))
        after: list[Callable[[], None]] = []
        with connection.transaction():
            fresh = insert_keys(connection, unique, ids, now)
            if fresh:
                after = self._write(connection, [batch for batch in unique if batch.key in fresh], ids, now)
            known = look_up(connection, [batch for batch in unique if batch.key not in fresh], ids)
            answers = [
                Answer("partial" if batch.rejected else "committed", rejected=batch.rejected)
                if batch.key in fresh and batch is first[batch.key]
                else verdict(batch, known.get(batch.key, (first[batch.key].sha256, first[batch.key].rejected)))
                for batch in batches
            ]
            pairs = zip(batches, answers, strict=True)
            record_conflicts(connection, [batch for batch, answer in pairs if answer.status == "refused"], now)
        with self._lock:
            for remember in after:
                remember()
        return answers

    def forget(self) -> None:
        """Believe nothing that was remembered of the database: it may have been restored, or a day dropped."""
        self.directory.forget()
        with self._lock:
            self._days, self._capacity, self._slow = set(), {}, {}

    def make_days(self, connection: Connection, batches: Sequence[Accepted]) -> None:
        """Make the days of the big tables that these batches need. Call it outside a transaction."""
        wanted: dict[str, set[int]] = {"gpu_sample": set(), "stretch": set()}
        for batch in batches:
            wanted["stretch"] |= {stretch.start_ms // DAY_MS for stretch in batch.stretches.values()}
            if batch.block is not None:
                wanted["gpu_sample"].update((batch.block.at_ms // DAY_MS).tolist())
        for table, days in wanted.items():
            new = {day for day in days if (table, day) not in self._days}
            if new:
                with connection.transaction():
                    self.ensure_partitions(connection, table, [day * DAY_MS for day in sorted(new)])
                with self._lock:
                    self._days |= {(table, day) for day in new}

    def _write(
        self, connection: Connection, batches: Sequence[Accepted], ids: Ids, now: dt.datetime
    ) -> list[Callable[[], None]]:
        copy_stretches(connection, batches, ids)
        mark_hours(connection, batches, ids)
        samples = join_samples(batches, ids)
        after = [self.keep_inventory(connection, batches, ids)]
        if samples is not None:
            copy_samples(connection, samples)
            after.append(self.keep_slow(connection, samples))
        keep_latest(connection, samples, latest_states(batches, ids))
        counters.keep(connection, counts_of(batches, ids))
        write_heartbeats(connection, batches, ids, now)
        return after

    def keep_inventory(self, connection: Connection, batches: Sequence[Accepted], ids: Ids) -> Callable[[], None]:
        """Bring the inventory in line with what these batches show; call what is returned after COMMIT."""
        seen = [
            evidence
            for evidence in evidence_of(batches, ids)
            if not capacity.covers(self._capacity.get(evidence.accelerator_id), evidence)
        ]
        rows = keep_capacity(connection, seen, self.on_contest) if seen else {}
        return lambda: self._capacity.update(rows)

    def keep_slow(self, connection: Connection, samples: Samples) -> Callable[[], None]:
        """Write what slow metrics turned into; what is returned is to be called after COMMIT."""
        slow = {name: values for name, values in samples.columns.items() if name not in HOT_KINDS}
        if not slow:
            return lambda: None
        self._recall_slow(connection, set(samples.accelerator.tolist()), slow)
        changes, latest = slow_changes(samples, slow, self._slow)
        write_slow(connection, changes)
        return lambda: self._slow.update(latest)

    def _recall_slow(self, connection: Connection, accelerators: set[int], metrics: Collection[str]) -> None:
        unknown = {(accelerator, name) for accelerator in accelerators for name in metrics} - self._slow.keys()
        if not unknown:
            return
        rows = connection.execute(
            "SELECT DISTINCT ON (accelerator_id, metric) accelerator_id, metric, at_ms, value FROM gpu_state"
            " WHERE accelerator_id = ANY(%s) AND metric = ANY(%s) ORDER BY accelerator_id, metric, at_ms DESC",
            (sorted({accelerator for accelerator, _ in unknown}), sorted({name for _, name in unknown})),
        )
        with self._lock:
            for accelerator, name, at_ms, value in rows:
                self._slow.setdefault((accelerator, name), (at_ms, value))


def counts_of(batches: Sequence[Accepted], ids: Ids) -> list[counters.Row]:
    """The readings of counters of these batches."""
    return [
        (
            counters.Series(
                id_of(batch, batch.workloads[one.workload], ids), "agent", one.source, one.part, one.counter, one.engine
            ),
            CounterReading(one.at_ms, one.value, one.started_ms),
        )
        for batch in batches
        for one in batch.counts.values()
    ]
