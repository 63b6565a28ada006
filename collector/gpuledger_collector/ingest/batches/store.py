"""Flush several batches in one transaction, each counted once.

The batch ledger (`ingest_batch`) decides: a batch with a new key is written, one with a known key
is a duplicate or, with other bytes, a conflict. Nothing can count twice, because all writes happen
in the transaction that inserted the key. Rows are written in the order of their keys, so that
writers that meet wait and never deadlock.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg

from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.accounting.inference import AUTHENTICATED, CLAIM, Asker
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.placement import Placement
from gpuledger_collector.accounting.token_counters import TokenSeries
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.ingest.batches.attributes import (
    RENEW_AFTER_MS,
    Connection,
    IdCache,
    ResolvedBatch,
    oldest_instant,
)
from gpuledger_collector.ingest.batches.batch_ledger import (
    Key,
    answer_repeated,
    insert_keys,
    read_committed,
    record_conflicts,
)
from gpuledger_collector.ingest.batches.evidence import (
    CachedPlacement,
    drop_foreign_evidence,
    placement_evidence,
    request_hour_recompute,
)
from gpuledger_collector.ingest.batches.latest_values import (
    DeferredUpdates,
    PendingUpdates,
    updates_of,
    write_updates,
)
from gpuledger_collector.ingest.batches.owner_claims import write_owner_claims
from gpuledger_collector.ingest.batches.samples import copy_samples, join_samples
from gpuledger_collector.ingest.batches.slow_values import SlowValues
from gpuledger_collector.ingest.batches.usage_intervals import (
    copy_usage_intervals,
    join_usage_intervals,
    latest_states,
    presence_intervals,
)
from gpuledger_collector.ingest.batches.validate import Accepted, days_of
from gpuledger_collector.storage.billing import node_purchases
from gpuledger_collector.storage.billing.node_purchases import SaidPurchase, said_purchase
from gpuledger_collector.storage.ledger.token_counters import ReadPage, store_pages
from gpuledger_common.wire import Answer, WireWorkload

RENEW_SHARED_AFTER_MS = 300_000
"""How long names and placements are cached where other processes write them too."""
EnsurePartitions = Callable[[Connection, str, Iterable[int]], object]
"""Create the partitions of a table for days (unix milliseconds of their start); storage's
`partitions.ensure`.
"""
SettlePlacements = Callable[[Connection, Iterable[int], int], Mapping[int, Placement]]
"""Bring the inventory of accelerators up to date from an instant on; storage's `placements.settle`.
"""


Owner = tuple[str, ...]
"""What the tags of a workload say of its owner, its account and its user, or a pool: each is a row
of reports.
"""
MAX_OWNERS = 200_000
"""Owners that are remembered; beyond that all count as new again."""


def owner_of(workload: WireWorkload) -> Owner:
    """The owner of a workload by its own account, before rules."""
    tags = workload.tags
    return (workload.account or "", workload.user or "", *(tags.get(level, "") for level in LEVELS))


@dataclass(frozen=True, slots=True)
class NewItems:
    """What a store has not seen of a batch: numbers of names (accelerators and workloads) and of
    days, and owners.
    """

    names: int
    days: int
    owners: frozenset[Owner] = frozenset()


@dataclass(slots=True)
class Store:
    """Writes batches.

    Shared by all writer threads; each brings its own connection (autocommit on).
    """

    ensure_partitions: EnsurePartitions
    settle_placements: SettlePlacements
    is_shared: bool = False
    """Other processes write what the same nodes send, so that a cached value need not be the latest
    one.
    """
    ids: IdCache = field(default_factory=IdCache)
    deferred: DeferredUpdates = field(default_factory=DeferredUpdates)
    slow: SlowValues = field(default_factory=SlowValues)
    owners: set[Owner] = field(default_factory=set)
    """Owners of batches, to count new ones."""
    _days: set[tuple[str, int]] = field(default_factory=set)
    _placements: dict[int, CachedPlacement] = field(default_factory=dict)
    """The newest inventory row of each accelerator, to skip evidence that changes nothing."""
    _inventory: object = field(default_factory=object)
    """Cache generation; replaced when a cached placement changes."""
    _turn: int = 0
    """Number of settlings so far; those up to `_forgotten` are no longer cached."""
    _forgotten: int = 0
    _since_ms: int | None = None
    """Since when placements are cached; another replica may have changed them."""
    _last_batches: dict[int, tuple[object, int]] = field(default_factory=dict)
    """Epoch and number of the last batch of each node that this store wrote; kept only when shared.
    """
    _said: dict[str, SaidPurchase] = field(default_factory=dict)
    """How nodes say that they are bought, to write only what changes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def flush(
        self,
        connection: Connection,
        batches: Sequence[Accepted],
        now_ms: int,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> list[Answer]:
        """Commit these batches and answer each, in order.

        Raises psycopg.Error; then none was committed.

        `is_idle` returns whether no further batches wait.
        """
        # Ids are resolved in a transaction of their own, so a cached id is never one that a
        # rollback removes.
        self.renew(now_ms)
        resolved = self.ids.resolve(connection, batches, now_ms)
        # An agent that got no answer sends a batch again, so one group may contain a key twice: the
        # first of them is written, the others are compared with it.
        first: dict[Key, ResolvedBatch] = {}
        for entry in resolved:
            first.setdefault(entry.batch.key, entry)
        # All writers insert ledger keys in the same order: two that meet wait for each other and
        # never deadlock.
        unique = sorted(
            first.values(), key=lambda entry: (entry.node_id, entry.batch.epoch, entry.batch.seq)
        )
        # Outside of the transaction below: partitions are created under a lock, which is only
        # waited for without other locks.
        self.ensure_days(connection, batches)
        after_commit: list[Callable[[], None]] = []
        updates, is_deferred = PendingUpdates(), False
        with connection.transaction():
            # From here on the transaction holds the keys: whatever is written below exists exactly
            # if the keys do.
            new_keys = insert_keys(connection, unique, now_ms)
            if new_keys:
                new = [entry for entry in unique if entry.batch.key in new_keys]
                updates = self._write(connection, new, now_ms, after_commit)
                is_deferred = not (is_idle() and self.deferred.is_empty)
                if not is_deferred:
                    write_updates(connection, updates)
            # Keys that were not new belong to committed batches: ON CONFLICT waited for any
            # concurrent writer of them.
            committed = read_committed(
                connection, [entry for entry in unique if entry.batch.key not in new_keys]
            )
            answers = []
            for batch in batches:
                original = first[batch.key].batch
                if batch.key in new_keys and batch is original:
                    answers.append(
                        Answer(
                            "partial" if batch.rejected else "committed", rejected=batch.rejected
                        )
                    )
                else:
                    known = committed.get(batch.key, (original.sha256, original.rejected))
                    answers.append(answer_repeated(batch, *known))
            pairs = zip(batches, answers, strict=True)
            record_conflicts(
                connection, [batch for batch, answer in pairs if answer.status == "refused"], now_ms
            )
        # Only after COMMIT: a cache that knew rows of a failed transaction would suppress writing
        # them again.
        with self._lock:
            for remember in after_commit:
                remember()
        if is_deferred:
            self.deferred.add(updates)
        return answers

    def is_flush_due(self, closing: bool) -> bool:
        """Whether deferred updates are to be written now."""
        return self.deferred.is_due(closing)

    def flush_deferred(self, connection: Connection) -> None:
        """Write deferred updates. Raises psycopg.Error.

        Updates that the database refuses are dropped: the next batches bring newer ones.
        """
        updates = self.deferred.take()
        try:
            with connection.transaction():
                write_updates(connection, updates)
        # The connection or the server failed, not the data: the same updates can be written later.
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.deferred.put_back(updates)
            raise

    def forget(self) -> None:
        """Empty all caches of the database: it may have been restored, or a partition dropped."""
        # Deferred updates contain ids of the database that may have been replaced, so they are
        # dropped too.
        self.ids.forget()
        self.deferred.take()
        with self._lock:
            self._days, self.slow, self._last_batches = set(), SlowValues(), {}
            self._said = {}
            self._forget_placements()

    def renew(self, now_ms: int) -> None:
        """Forget placements now and then, to see changes by other processes: settling looks back
        two days.
        """
        with self._lock:
            if self._since_ms is None or not 0 <= now_ms - self._since_ms < self._renew_after_ms:
                self._since_ms = now_ms
                self._forget_placements()
                if self.is_shared:
                    self.ids.forget()
                    self._said = {}

    @property
    def _renew_after_ms(self) -> int:
        return RENEW_SHARED_AFTER_MS if self.is_shared else RENEW_AFTER_MS

    def _taken_over(
        self, batches: Sequence[ResolvedBatch], after_commit: list[Callable[[], None]]
    ) -> set[int]:
        """Accelerators of nodes of which another process has written batches since this store did.

        Those batches have numbers between the last one here and these.
        """
        last: dict[int, tuple[object, int]] = {}
        accelerators: set[int] = set()
        for resolved in batches:
            node_id, epoch, seq = resolved.node_id, resolved.batch.epoch, resolved.batch.seq
            before = last.get(node_id) or self._last_batches.get(node_id)
            if before is None or before[0] != epoch or not before[1] <= seq <= before[1] + 1:
                accelerators.update(resolved.accelerators.values())
            last[node_id] = epoch, seq
        after_commit.append(lambda: self._last_batches.update(last))
        return accelerators

    def _forget_placements(self) -> None:
        self._placements, self._inventory, self._forgotten = {}, object(), self._turn

    def count_new(self, batch: Accepted) -> NewItems:
        """Count what this store has not seen of a batch; the database may know it already."""
        # Reads the cache without the lock: the number is charged to a quota, where a stale one does
        # no harm.
        days = sum(
            (table, day) not in self._days
            for table, days in _days_by_table([batch]).items()
            for day in days
        )
        # Most batches list what an earlier one did.
        if self.ids.has_lists(batch):
            return NewItems(0, days)
        owners = set(map(owner_of, batch.workloads.values()))
        owners.update(
            (accelerator.pool,) for accelerator in batch.accelerators.values() if accelerator.pool
        )
        return NewItems(self.ids.count_unseen(batch), days, frozenset(owners - self.owners))

    def remember_owners(self, owners: Collection[Owner]) -> None:
        """Remember owners of committed batches; they are no longer new."""
        if len(self.owners) + len(owners) > MAX_OWNERS:
            self.owners.clear()
        self.owners.update(owners)

    def ensure_days(self, connection: Connection, batches: Sequence[Accepted]) -> None:
        """Create the partitions that these batches need. Call it outside a transaction."""
        self.ensure_table_days(connection, _days_by_table(batches))

    def ensure_table_days(
        self, connection: Connection, days_by_table: Mapping[str, Collection[int]]
    ) -> None:
        """Create the partitions of tables for days, by number. Call it outside a transaction."""
        for table, days in days_by_table.items():
            missing = {day for day in days if (table, day) not in self._days}
            if missing:
                with connection.transaction():
                    self.ensure_partitions(
                        connection, table, [day * DAY_MS for day in sorted(missing)]
                    )
                with self._lock:
                    self._days |= {(table, day) for day in missing}

    def _write(
        self,
        connection: Connection,
        batches: Sequence[ResolvedBatch],
        now_ms: int,
        after_commit: list[Callable[[], None]],
    ) -> PendingUpdates:
        """Write what bills depend on and return the other updates.

        Callables for after COMMIT are appended.
        """
        taken_over = self._taken_over(batches, after_commit) if self.is_shared else set()
        # 1. Usage intervals, as they were reported: bills are computed from them.
        intervals = join_usage_intervals(batches)
        copy_usage_intervals(connection, intervals, presence_intervals(batches))
        write_owner_claims(connection, batches)
        after_commit.append(self._record_purchases(connection, batches, now_ms))
        # 2. The inventory. Most batches only confirm the cached placements; the others are settled
        # in the database.
        changed = [entry for entry in batches if not self._is_confirmed(entry)]
        after_commit.append(self.update_inventory(connection, batches))
        # 3. Readings and requests for recomputation, of accelerators that are on the reporting node
        # only.
        own = drop_foreign_evidence(connection, batches, changed)
        samples = join_samples(own)
        request_hour_recompute(connection, intervals, samples)
        if samples is not None:
            copy_samples(connection, samples)
            after_commit.append(self.slow.store(connection, samples, taken_over))
        # In this order: pages take the lock of tokens, which counters share.
        store_pages(connection, _gateway_pages(batches))
        counters.store_readings(connection, _counter_readings(batches))
        # 4. Latest values are returned, not written: the caller decides whether they are deferred.
        states = latest_states(join_usage_intervals(own) if changed else intervals)
        return updates_of(batches, samples, states, now_ms)

    def update_inventory(
        self,
        connection: Connection,
        batches: Sequence[ResolvedBatch],
        remeasured: Collection[int] = (),
        remeasured_ms: int = 0,
    ) -> Callable[[], None]:
        """Bring the inventory in line with what these batches show; returns what to call after
        COMMIT.

        The evidence of the accelerators in `remeasured` was replaced from `remeasured_ms` on.
        """
        # Evidence that an open placement covers from its start on changes nothing and needs no
        # settling.
        evidence = [
            entry
            for entry in placement_evidence(
                [batch for batch in batches if not self._is_confirmed(batch)]
            )
            if (
                since_ms := self._confirmed_since(
                    entry.accelerator_id, entry.node_id, entry.attributes_id
                )
            )
            is None
            or entry.first_ms < since_ms
        ]
        rows: dict[int, CachedPlacement] = {}
        if evidence or remeasured:
            start_ms = min(
                [entry.first_ms for entry in evidence] + [remeasured_ms] * bool(remeasured)
            )
            accelerators = {entry.accelerator_id for entry in evidence}.union(remeasured)
            settled = self.settle_placements(connection, sorted(accelerators), start_ms)
            # Boards are locked until COMMIT, so turns are in the order of settling.
            with self._lock:
                self._turn += 1
                turn = self._turn
            # The cache keeps the newest row per accelerator only; `settle` returns it for every
            # accelerator of a board.
            rows = {
                number: CachedPlacement(
                    row.node_id,
                    row.attributes_id,
                    row.in_ms,
                    row.out_ms,
                    row.source == "import",
                    turn,
                )
                for number, row in settled.items()
            }

        def remember() -> None:
            cached = self._placements
            # Callbacks run after COMMIT and may overtake each other: a row from an earlier turn
            # must not replace a later one, nor one that was settled before the cache was emptied.
            newer = {
                number: row
                for number, row in rows.items()
                if row.turn > self._forgotten
                and (number not in cached or cached[number].turn < row.turn)
            }
            is_changed = any(cached.get(number) not in (None, row) for number, row in newer.items())
            cached.update(newer)
            # After the rows: whoever sees the new generation must not see an old row.
            if is_changed:
                self._inventory = object()

        return remember

    def _record_purchases(
        self, connection: Connection, batches: Sequence[ResolvedBatch], now_ms: int
    ) -> Callable[[], None]:
        """Keep how nodes say that they are bought, where that changes; returns what to call after
        COMMIT.
        """
        said: dict[str, SaidPurchase] = {}
        for resolved in batches:
            batch = resolved.batch
            machine = {} if batch.heartbeat is None else batch.heartbeat.machine
            purchase = machine.get("purchase", "")
            entry = said_purchase(batch.node, oldest_instant(batch), purchase)
            if entry is None:
                continue
            known = said.get(entry.node) or self._said.get(entry.node)
            is_known = known is not None and known.purchase == entry.purchase
            if known is None or not is_known or entry.from_ms < known.from_ms:
                node_purchases.record(connection, [entry], now_ms)
                if node_purchases.is_last_said(connection, entry):
                    said[entry.node] = entry
        return lambda: self._said.update(said)

    def _is_confirmed(self, resolved: ResolvedBatch) -> bool:
        """Whether the cached inventory already has everything that a batch shows.

        It is checked once for each list of accelerators and node per generation of the cache.
        """
        cache = resolved.batch.accelerators.cache
        cached = cache.get(resolved.node_id)
        if cached is None or cached[0] is not self._inventory:
            # Read the generation before the rows: if one changes meanwhile, the result is stored
            # under a stale generation.
            inventory = self._inventory
            since = [
                self._confirmed_since(
                    number, resolved.node_id, resolved.accelerator_attributes[place]
                )
                for place, number in resolved.accelerators.items()
            ]
            if None in since:
                return False
            newest_ms = max((instant for instant in since if instant is not None), default=0)
            cached = cache[resolved.node_id] = inventory, newest_ms
        return oldest_instant(resolved.batch) >= int(cached[1])

    def _confirmed_since(self, accelerator_id: int, node_id: int, attributes_id: int) -> int | None:
        row = self._placements.get(accelerator_id)
        return None if row is None else row.confirmed_since(node_id, attributes_id)


def _days_by_table(batches: Sequence[Accepted]) -> dict[str, set[int]]:
    """Numbers of the UTC days that batches touch, by table."""
    days: dict[str, set[int]] = {"gpu_sample": set(), "usage_interval": set()}
    for batch in batches:
        days["usage_interval"] |= {
            interval.start_ms // DAY_MS for interval in batch.usage_intervals.values()
        }
        if batch.block is not None:
            # An accelerator that is sampled without an interval gets one of state `present`.
            days["gpu_sample"] |= days_of(batch.block)
            days["usage_interval"] |= days_of(batch.block)
    return days


def _gateway_pages(batches: Sequence[ResolvedBatch]) -> list[ReadPage]:
    """Readings of gateways' pages; each node's are its own, so that none changes another's."""
    pages = []
    for resolved in batches:
        by_page: dict[tuple[str, str, int, int | None], dict[TokenSeries, int]] = defaultdict(dict)
        for count in resolved.batch.token_counts.values():
            page = f"{resolved.batch.node}: {count.page}"
            values = by_page[count.gateway, page, count.at_ms, count.started_ms]
            if count.counter:
                trust = CLAIM if count.claim else AUTHENTICATED
                asker = Asker(count.gateway, count.tenant, count.model, count.backend, trust)
                values[TokenSeries(asker, count.counter)] = count.value
        pages += [ReadPage(*key, values) for key, values in by_page.items()]
    return pages


def _counter_readings(batches: Sequence[ResolvedBatch]) -> list[counters.Row]:
    return [
        (
            counters.Series(
                resolved.workloads[count.workload],
                "agent",
                count.source,
                count.part,
                count.counter,
                count.engine,
            ),
            CounterReading(count.at_ms, count.value, count.started_ms),
        )
        for resolved in batches
        for count in resolved.batch.counts.values()
    ]
