"""One flush: several batches in one transaction, each counted once.

The batch ledger (`ingest_batch`) decides: whose key is new is written, whose key is known is a duplicate or, with
other bytes, a conflict. Nothing that follows can count twice, because it happens in the transaction that inserted the
key. Everything is written in the order of its keys, so that writers that meet wait and never lock in a circle.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import psycopg

from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.ingest.batches.attributes import RENEWED, Connection, Directory, Numbered, oldest_instant
from gpuledger_collector.ingest.batches.batch_ledger import Key, insert_keys, look_up, record_conflicts, verdict
from gpuledger_collector.ingest.batches.evidence import Newest as NewestRow
from gpuledger_collector.ingest.batches.evidence import mark_hours, shown_by, without_foreign
from gpuledger_collector.ingest.batches.latest_values import Newest, Told, told_of, write
from gpuledger_collector.ingest.batches.samples import (
    HOT_KINDS,
    Samples,
    copy_samples,
    join_samples,
    slow_changes,
    write_slow,
)
from gpuledger_collector.ingest.batches.usage_intervals import (
    copy_usage_intervals,
    join_usage_intervals,
    latest_states,
    presence_of,
)
from gpuledger_collector.ingest.batches.validate import DAY_MS, Accepted, days_of
from gpuledger_common.wire import Answer, Rejected

EnsurePartitions = Callable[[Connection, str, Iterable[int]], object]
"""Makes the partitions of a table for days (unix milliseconds of their start); storage's `partitions.ensure`."""


class Placed(Protocol):
    """A row of the inventory time line, as storage has it."""

    @property
    def node_id(self) -> int | None:
        """Where it is; None: on no node that is known."""

    @property
    def attributes_id(self) -> int:
        """What was reported of it; 0: nothing."""

    @property
    def in_ms(self) -> int:
        """Since when."""

    @property
    def out_ms(self) -> int | None:
        """Until when; None: it is still there."""

    @property
    def source(self) -> str:
        """agent, or import: stated by an inventory file."""


Settle = Callable[[Connection, Iterable[int], int], Mapping[int, Placed]]
"""Brings the inventory time line of accelerators up to date from an instant on; storage's `placements.settle`."""


@dataclass(frozen=True, slots=True)
class News:
    """What of a batch a store has not met yet: names of accelerators and workloads, days of samples and of usage."""

    names: int
    days: int


@dataclass(slots=True)
class Store:
    """Writes batches. Shared by all writer threads; each brings its own connection (autocommit on)."""

    ensure_partitions: EnsurePartitions
    settle_placements: Settle
    directory: Directory = field(default_factory=Directory)
    newest: Newest = field(default_factory=Newest)
    _days: set[tuple[str, int]] = field(default_factory=set)
    _capacity: dict[int, NewestRow] = field(default_factory=dict)
    """The newest row of each accelerator, to skip what changes nothing."""
    _inventory: object = field(default_factory=object)
    """Another one whenever a row that was remembered changes."""
    _turn: int = 0
    """How often placements were settled; what was settled up to `_forgotten` is not remembered any more."""
    _forgotten: int = 0
    _since: dt.datetime | None = None
    """Since when placements are remembered: another replica may have changed them."""
    _slow: dict[tuple[int, str], tuple[int, float | None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def flush(
        self,
        connection: Connection,
        batches: Sequence[Accepted],
        now: dt.datetime,
        idle: Callable[[], bool] = lambda: True,
    ) -> list[Answer]:
        """Commit these batches and say what became of each, in order. Raises psycopg.Error; then none was committed.

        `idle`: whether no more wait behind them.
        """
        self.renew(now)
        numbered = self.directory.number(connection, batches, now)
        first: dict[Key, Numbered] = {}
        for one in numbered:
            first.setdefault(one.batch.key, one)
        unique = sorted(first.values(), key=lambda one: (one.node_id, one.batch.epoch, one.batch.seq))
        self.make_days(connection, batches)
        after: list[Callable[[], None]] = []
        told, kept = Told(), False
        with connection.transaction():
            fresh = insert_keys(connection, unique, now)
            if fresh:
                told = self._write(connection, [one for one in unique if one.batch.key in fresh], now, after)
                kept = not (idle() and self.newest.is_empty)
                if not kept:
                    write(connection, told)
            known = look_up(connection, [one for one in unique if one.batch.key not in fresh])
            answers = [
                Answer("partial" if batch.rejected else "committed", rejected=batch.rejected)
                if batch.key in fresh and batch is first[batch.key].batch
                else verdict(batch, known.get(batch.key, said(first[batch.key].batch)))
                for batch in batches
            ]
            pairs = zip(batches, answers, strict=True)
            record_conflicts(connection, [batch for batch, answer in pairs if answer.status == "refused"], now)
        with self._lock:
            for remember in after:
                remember()
        if kept:
            self.newest.keep(told)
        return answers

    def is_due(self, ending: bool) -> bool:
        """Whether something that was left for later is to be written now, as it is at the end."""
        return self.newest.is_due(ending)

    def settle(self, connection: Connection) -> None:
        """Write what was told of the newest and is not written yet. Raises psycopg.Error; what the database refuses is
        let go, for the next batches bring newer.
        """
        told = self.newest.take()
        try:
            with connection.transaction():
                write(connection, told)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.newest.put_back(told)
            raise

    def forget(self) -> None:
        """Believe nothing that was remembered of the database: it may have been restored, or a day dropped."""
        self.directory.forget()
        self.newest.forget()
        with self._lock:
            self._days, self._slow = set(), {}
            self._forget_placements()

    def renew(self, now: dt.datetime) -> None:
        """Forget placements after a day, half of what `settle` looks back: what other replicas changed is seen then."""
        with self._lock:
            if self._since is None or not dt.timedelta(0) <= now - self._since < RENEWED:
                self._since = now
                self._forget_placements()

    def _forget_placements(self) -> None:
        self._capacity, self._inventory, self._forgotten = {}, object(), self._turn

    def news_of(self, batch: Accepted) -> News:
        """What of a batch is new to this store; it may be in the database already."""
        days = sum((table, day) not in self._days for table, days in _days_of([batch]).items() for day in days)
        return News(self.directory.unknown(batch), days)

    def make_days(self, connection: Connection, batches: Sequence[Accepted]) -> None:
        """Make the days of the big tables that these batches need. Call it outside a transaction."""
        for table, days in _days_of(batches).items():
            new = {day for day in days if (table, day) not in self._days}
            if new:
                with connection.transaction():
                    self.ensure_partitions(connection, table, [day * DAY_MS for day in sorted(new)])
                with self._lock:
                    self._days |= {(table, day) for day in new}

    def _write(
        self,
        connection: Connection,
        batches: Sequence[Numbered],
        now: dt.datetime,
        after: list[Callable[[], None]],
    ) -> Told:
        """Write what bills are made of; what is told of the newest. `after` gets what is to be done after COMMIT."""
        usage_intervals = join_usage_intervals(batches)
        copy_usage_intervals(connection, usage_intervals, presence_of(batches))
        news = [one for one in batches if not self._shows_nothing_new(one)]
        after.append(self.keep_inventory(connection, batches))
        own = without_foreign(connection, batches, news)
        samples = join_samples(own)
        mark_hours(connection, usage_intervals, samples)
        if samples is not None:
            copy_samples(connection, samples)
            after.append(self.keep_slow(connection, samples))
        counters.keep(connection, counts_of(batches))
        return told_of(batches, samples, latest_states(join_usage_intervals(own) if news else usage_intervals), now)

    def keep_inventory(
        self, connection: Connection, batches: Sequence[Numbered], changed: Collection[int] = (), changed_ms: int = 0
    ) -> Callable[[], None]:
        """Bring the inventory in line with what these batches show; call what is returned after COMMIT.

        Of the accelerators in `changed` the evidence from `changed_ms` on is another one.
        """
        news = [
            shown
            for shown in shown_by([one for one in batches if not self._shows_nothing_new(one)])
            if not self._is_covered(shown.accelerator_id, shown.node_id, shown.attributes_id, shown.first_ms)
        ]
        rows: dict[int, NewestRow] = {}
        if news or changed:
            since_ms = min([shown.first_ms for shown in news] + [changed_ms] * bool(changed))
            numbers = {shown.accelerator_id for shown in news}.union(changed)
            placed = self.settle_placements(connection, sorted(numbers), since_ms)
            with self._lock:  # a board is locked until COMMIT: turns are in the order of what was settled
                self._turn += 1
                turn = self._turn
            rows = {
                number: NewestRow(row.node_id, row.attributes_id, row.in_ms, row.out_ms, row.source == "import", turn)
                for number, row in placed.items()
            }

        def remember() -> None:
            known = self._capacity
            newer = {
                number: row
                for number, row in rows.items()
                if row.turn > self._forgotten and (number not in known or known[number].turn < row.turn)
            }
            changed = any(known.get(accelerator) not in (None, row) for accelerator, row in newer.items())
            known.update(newer)
            if changed:  # after the rows: whoever sees the new state must not see an old row
                self._inventory = object()

        return remember

    def _shows_nothing_new(self, one: Numbered) -> bool:
        """Whether the inventory, as far as it is remembered, covers all that a batch may show.

        It is looked up once for a list of accelerators and a node, until something that is remembered changes.
        """
        found = one.batch.accelerators.found
        known = found.get(one.node_id)
        if known is None or known[0] is not self._inventory:
            state = self._inventory
            since = [
                self._covered_since(number, one.node_id, one.accelerator_attributes[place])
                for place, number in one.accelerators.items()
            ]
            if any(instant is None for instant in since):
                return False
            known = found[one.node_id] = state, max((instant for instant in since if instant is not None), default=0)
        return oldest_instant(one.batch) >= known[1]

    def _covered_since(self, accelerator_id: int, node_id: int, attributes_id: int) -> int | None:
        row = self._capacity.get(accelerator_id)
        return None if row is None else row.covers(node_id, attributes_id)

    def _is_covered(self, accelerator_id: int, node_id: int, attributes_id: int, first_ms: int) -> bool:
        since_ms = self._covered_since(accelerator_id, node_id, attributes_id)
        return since_ms is not None and first_ms >= since_ms

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


def _days_of(batches: Sequence[Accepted]) -> dict[str, set[int]]:
    """Numbers of the UTC days that batches touch, by table."""
    wanted: dict[str, set[int]] = {"gpu_sample": set(), "usage_interval": set()}
    for batch in batches:
        wanted["usage_interval"] |= {
            usage_interval.start_ms // DAY_MS for usage_interval in batch.usage_intervals.values()
        }
        if batch.block is not None:
            # An accelerator that is sampled without an interval leaves one of state `present`.
            wanted["gpu_sample"] |= days_of(batch.block)
            wanted["usage_interval"] |= days_of(batch.block)
    return wanted


def counts_of(batches: Sequence[Numbered]) -> list[counters.Row]:
    """The readings of counters of these batches."""
    return [
        (
            counters.Series(numbered.workloads[one.workload], "agent", one.source, one.part, one.counter, one.engine),
            CounterReading(one.at_ms, one.value, one.started_ms),
        )
        for numbered in batches
        for one in numbered.batch.counts.values()
    ]


def said(batch: Accepted) -> tuple[bytes, list[Rejected]]:
    """What the ledger will hold of a batch: its hash and its refusals."""
    return batch.sha256, batch.rejected
