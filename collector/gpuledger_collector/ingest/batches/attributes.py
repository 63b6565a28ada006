"""Resolve the names in batches to ids: nodes, accelerators and workloads, each cached while this
process lives.

What a batch reports of an accelerator or a workload is stored as attributes, one row for each
content. Usage intervals refer to that row, so nothing that is reported later changes what they
cost. The rows of accelerators and workloads themselves hold the latest report, for pages.

Rows are written in a transaction of their own before the batches that need them, so every cached id
is committed. They are written in the order of their names: writers that meet wait for each other
and never deadlock.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.ingest.batches.validate import NODE_SCOPED_KINDS, Accepted, workload_key
from gpuledger_collector.storage.ledger import pool_hours
from gpuledger_common.instants import to_datetime
from gpuledger_common.wire import WireAccelerator, WireWorkload

Connection = psycopg.Connection[tuple[Any, ...]]
_Entry = tuple[str, Any, int]
"""Name, the record to write, the latest instant of its batch."""
MAX_CACHED = 500_000
RENEW_AFTER_MS = DAY_MS
"""Names are written as seen again after this time: retention removes names that were not seen for
weeks.
"""
Content = tuple[str, ...]
"""Kind and name, then the attributes: the key of a row of attributes."""


@dataclass(slots=True)
class _CachedName:
    id: int
    record: object
    """The record that was last written."""
    newest_ms: int


@dataclass(frozen=True, slots=True)
class _CachedList:
    """Ids of a list by position, valid during one generation of the cache."""

    generation: object
    ids: Mapping[int, int]
    attributes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ResolvedBatch:
    """A batch with the id of its node and, by position, the ids of its accelerators, workloads and
    their attributes.
    """

    batch: Accepted
    node_id: int
    accelerators: Mapping[int, int]
    workloads: Mapping[int, int]
    accelerator_attributes: Mapping[int, int]
    workload_attributes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of nodes by name, accelerators by UUID, workloads by key, attributes by content."""

    nodes: dict[str, int]
    accelerators: dict[str, int]
    workloads: dict[str, int]
    attributes: dict[Content, int] = field(default_factory=dict)

    def resolve(self, batch: Accepted) -> ResolvedBatch:
        """Attach the ids to a batch."""
        keys = workload_keys(batch)
        return ResolvedBatch(
            batch,
            self.nodes[batch.node],
            {place: self.accelerators[record.uuid] for place, record in batch.accelerators.items()},
            {place: self.workloads[key] for place, key in keys.items()},
            {
                place: self.attributes[accelerator_content(record)]
                for place, record in batch.accelerators.items()
            },
            {
                place: self.attributes[workload_content(keys[place], record)]
                for place, record in batch.workloads.items()
            },
        )


def workload_keys(batch: Accepted) -> dict[int, str]:
    """Keys of the workloads of a batch, by position."""
    return {
        place: workload_key(record.kind, batch.node, record.id)
        for place, record in batch.workloads.items()
    }


def accelerator_content(record: WireAccelerator) -> Content:
    """The attributes of an accelerator that a bill depends on."""
    # Not health, memory or index: they change without changing what a GPU-hour costs.
    return (
        "accelerator",
        record.uuid,
        record.model,
        record.mig_instance or "",
        str(record.gpu_micro),
        record.pool,
    )


def workload_content(key: str, record: WireWorkload) -> Content:
    """The attributes of a workload that a bill depends on."""
    # Sorted, so that the order in which an agent lists the tags makes no difference.
    attributes = [record.user, record.account, record.name, sorted(record.tags.items())]
    # Only where there is one: without them, content and digest are those of earlier versions.
    if record.job is not None or record.queue is not None:
        attributes += [record.job, record.job_uid]
    if record.queue is not None:
        attributes.append(record.queue)
    return "workload", key, json.dumps(attributes, ensure_ascii=False)


def digest(content: Content) -> bytes:
    """SHA-256 of attributes."""
    # Without kind and name: the digest is unique within one accelerator or workload only.
    return hashlib.sha256(json.dumps(content[2:]).encode()).digest()


@dataclass(slots=True)
class IdCache:
    """Ids of everything that this process has seen; names it has not are written to the database."""

    nodes: dict[str, _CachedName] = field(default_factory=dict)
    accelerators: dict[str, _CachedName] = field(default_factory=dict)
    workloads: dict[str, _CachedName] = field(default_factory=dict)
    attributes: dict[Content, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    on_new_nodes: Callable[[Sequence[str]], None] = lambda _: None
    """Called with nodes of which the ledger had never heard, after they are committed."""
    _generation: object = field(default_factory=object)
    """Replaced when a cached record changes or is forgotten; lists that were resolved before are
    looked up again.
    """
    _since_ms: int | None = None

    def resolve(
        self, connection: Connection, batches: Sequence[Accepted], now_ms: int
    ) -> list[ResolvedBatch]:
        """Attach ids to batches; new or changed names are written first.

        A list that an agent repeats is looked up once per generation of the cache.
        """
        self._renew(now_ms)
        cached = [self._cached_ids(batch) for batch in batches]
        others = [
            batch for batch, resolved in zip(batches, cached, strict=True) if resolved is None
        ]
        if not others:
            return [resolved for resolved in cached if resolved is not None]
        # Taken before the look-ups: ids are stored with a list only if no record changed in the
        # meantime.
        generation = self._generation
        ids = self.register(connection, others, now_ms)
        self._cache_lists(others, generation)
        return [
            resolved or ids.resolve(batch) for batch, resolved in zip(batches, cached, strict=True)
        ]

    def _cached_ids(self, batch: Accepted) -> ResolvedBatch | None:
        node = self.nodes.get(batch.node)
        # Ids of workloads are stored per scope: nodes that send equal lists mean different
        # processes.
        accelerators = batch.accelerators.cache.get("")
        workloads = batch.workloads.cache.get(node_scope(batch))
        if node is None or accelerators is None or workloads is None:
            return None
        # Without the lock: generations are compared by identity and only ever replaced.
        if (
            accelerators.generation is not self._generation
            or workloads.generation is not self._generation
        ):
            return None
        return ResolvedBatch(
            batch,
            node.id,
            accelerators.ids,
            workloads.ids,
            accelerators.attributes,
            workloads.attributes,
        )

    def has_lists(self, batch: Accepted) -> bool:
        """Whether this process has seen every accelerator and workload of a batch as it is
        reported.
        """
        return self._cached_ids(batch) is not None

    def count_unseen(self, batch: Accepted) -> int:
        """Count the accelerators and workloads of a batch that this process has not seen."""
        return sum(
            record.uuid not in self.accelerators for record in batch.accelerators.values()
        ) + sum(key not in self.workloads for key in workload_keys(batch).values())

    def _cache_lists(self, batches: Sequence[Accepted], generation: object) -> None:
        """Store ids with the lists of these batches, where the cache holds every record just as
        reported.
        """
        # Under the lock no other writer can change the records while they are compared with the
        # cache.
        with self.lock:
            if self._generation is not generation:
                return  # another writer changed a record meanwhile: the next batch looks again
            for batch in batches:
                keys = workload_keys(batch)
                accelerators = self._list_ids(
                    generation,
                    batch.accelerators,
                    self.accelerators,
                    {place: record.uuid for place, record in batch.accelerators.items()},
                    {
                        place: accelerator_content(record)
                        for place, record in batch.accelerators.items()
                    },
                )
                workloads = self._list_ids(
                    generation,
                    batch.workloads,
                    self.workloads,
                    keys,
                    {
                        place: workload_content(keys[place], record)
                        for place, record in batch.workloads.items()
                    },
                )
                if accelerators is not None:
                    batch.accelerators.cache[""] = accelerators
                if workloads is not None:
                    batch.workloads.cache[node_scope(batch)] = workloads

    def _list_ids(
        self,
        generation: object,
        records: Mapping[int, object],
        names: Mapping[str, _CachedName],
        keys: Mapping[int, str],
        contents: Mapping[int, Content],
    ) -> _CachedList | None:
        ids, attributes = {}, {}
        for place, record in records.items():
            cached, attributes_id = names.get(keys[place]), self.attributes.get(contents[place])
            if cached is None or cached.record != record or attributes_id is None:
                return None
            ids[place], attributes[place] = cached.id, attributes_id
        return _CachedList(generation, ids, attributes)

    def register(self, connection: Connection, batches: Sequence[Accepted], now_ms: int) -> Ids:
        """Return the ids of everything that these batches name; new or changed names are written
        first.
        """
        self._renew(now_ms)
        ids = Ids({}, {}, {})
        # The lock covers the look-ups, not the statements below: writers must not queue for the
        # cache during I/O. Two writers may then write the same name, which ON CONFLICT makes
        # harmless.
        with self.lock:
            self._forget_when_full()
            contents = dict.fromkeys(contents_of(batches))
            ids.attributes.update(
                {
                    content: self.attributes[content]
                    for content in contents
                    if content in self.attributes
                }
            )
            # Sorted, like all names here: writers that insert the same rows meet in the same order.
            missing = sorted(contents.keys() - ids.attributes.keys())
            nodes = _select_changed(
                self.nodes, ids.nodes, ((batch.node, None, 0) for batch in batches)
            )
            instants = [newest_instant(batch) for batch in batches]
            accelerators = _select_changed(
                self.accelerators, ids.accelerators, _named_accelerators(batches, instants)
            )
            workloads = _select_changed(
                self.workloads, ids.workloads, _named_workloads(batches, instants)
            )
        if not (nodes or accelerators or workloads or missing):
            return ids
        # Committed before the batches that need the ids: a cached id never refers to a row that was
        # rolled back. The order of the tables is fixed as well: nodes, accelerators, workloads,
        # then the attributes that refer to them.
        with connection.transaction():
            node_ids, new_nodes = write_nodes(connection, [name for name, _, _ in nodes], now_ms)
            ids.nodes.update(node_ids)
            # Two nodes may report one GPU (a moved card, a copied image): the node in the inventory
            # decides what pages show.
            elsewhere = held_elsewhere(connection, batches, {name for name, _, _ in accelerators})
            ids.accelerators.update(elsewhere)
            accelerators = [entry for entry in accelerators if entry[0] not in elsewhere]
            ids.accelerators.update(
                write_accelerators(
                    connection,
                    [record for _, record, _ in accelerators],
                    [instant for *_, instant in accelerators],
                )
            )
            ids.workloads.update(write_workloads(connection, workloads, now_ms))
            ids.attributes.update(
                write_accelerator_attributes(connection, missing, ids.accelerators)
            )
            ids.attributes.update(write_workload_attributes(connection, missing, ids.workloads))
        if new_nodes:
            self.on_new_nodes(new_nodes)
        with self.lock:
            self.attributes.update({content: ids.attributes[content] for content in missing})
            _remember(self.nodes, nodes, ids.nodes)
            # A new name invalidates nothing; a changed record does, because lists resolved before
            # contain the old one.
            changed = _remember(self.accelerators, accelerators, ids.accelerators)
            if _remember(self.workloads, workloads, ids.workloads) or changed:
                self._generation = object()
        return ids

    def forget(self) -> None:
        """Empty the cache: the database may have been restored or replaced."""
        with self.lock:
            self.nodes, self.accelerators, self.workloads, self.attributes = {}, {}, {}, {}
            self._generation = object()

    def generation(self, now_ms: int) -> object:
        """The present generation: ids that were registered in it are those of the records as they
        were reported.
        """
        self._renew(now_ms)
        return self._generation

    def _renew(self, now_ms: int) -> None:
        if self._since_ms is None or not 0 <= now_ms - self._since_ms < RENEW_AFTER_MS:
            self._since_ms = now_ms
            self.forget()

    def _forget_when_full(self) -> None:
        for names in (self.accelerators, self.workloads):
            if len(names) > MAX_CACHED:
                # Emptied completely: names in use return with the next batches, and no bookkeeping
                # of ages is needed.
                names.clear()
                self._generation = object()
        if len(self.attributes) > MAX_CACHED:
            self.attributes.clear()


def newest_instant(batch: Accepted) -> int:
    """The latest instant of a batch's records, unix milliseconds; 0 when it has none."""
    ends = [interval.end_ms for interval in batch.usage_intervals.values()]
    if batch.block is not None:
        ends.append(batch.block.last_ms)
    ends += [count.at_ms for count in batch.counts.values()]
    ends += [count.at_ms for count in batch.token_counts.values()]
    return max(ends, default=0)


def oldest_instant(batch: Accepted) -> int:
    """The earliest instant of a batch's usage intervals and samples, unix milliseconds; 0 when it
    has none.
    """
    starts = [interval.start_ms for interval in batch.usage_intervals.values()]
    if batch.block is not None:
        starts.append(batch.block.first_ms)
    return min(starts, default=0)


def _named_accelerators(batches: Sequence[Accepted], instants: Sequence[int]) -> Iterator[_Entry]:
    for batch, instant in zip(batches, instants, strict=True):
        for record in batch.accelerators.values():
            yield record.uuid, record, instant


def _named_workloads(batches: Sequence[Accepted], instants: Sequence[int]) -> Iterator[_Entry]:
    for batch, instant in zip(batches, instants, strict=True):
        for place, key in workload_keys(batch).items():
            yield key, batch.workloads[place], instant


def _select_changed(
    names: dict[str, _CachedName], ids: dict[str, int], entries: Iterable[_Entry]
) -> list[_Entry]:
    """Fill `ids` from the cache and return what must be written: the newest entry of each name, in
    order of names.
    """
    changed: dict[str, _Entry] = {}
    for entry in entries:
        name, record, instant = entry
        cached = names.get(name)
        if cached is not None:
            ids[name] = cached.id
            # An older batch (spooled, replayed) does not replace what a newer one has reported.
            if cached.record == record or instant < cached.newest_ms:
                continue
        if name not in changed or instant >= changed[name][2]:
            changed[name] = entry
    return [changed[name] for name in sorted(changed)]


def _remember(names: dict[str, _CachedName], entries: list[_Entry], ids: dict[str, int]) -> bool:
    """Cache what was written; return whether that replaced a cached record."""
    replaced = any(name in names for name, _, _ in entries)
    names.update(
        {name: _CachedName(ids[name], record, instant) for name, record, instant in entries}
    )
    return replaced


def contents_of(batches: Iterable[Accepted]) -> Iterator[Content]:
    """The attributes of all accelerators and workloads of these batches."""
    for batch in batches:
        for accelerator in batch.accelerators.values():
            yield accelerator_content(accelerator)
        for place, key in workload_keys(batch).items():
            yield workload_content(key, batch.workloads[place])


def node_scope(batch: Accepted) -> str:
    """The node's name where the keys of the batch's workloads contain it, else nothing."""
    return (
        batch.node
        if any(record.kind in NODE_SCOPED_KINDS for record in batch.workloads.values())
        else ""
    )


def write_nodes(
    connection: Connection, names: list[str], now_ms: int
) -> tuple[dict[str, int], list[str]]:
    """Write rows for new nodes; return ids by name, and the names that are new."""
    if not names:
        return {}, []
    new = connection.execute(
        # DO NOTHING returns no row for a name that exists, so the ids are read by a second
        # statement.
        "INSERT INTO node (name, first_seen_at, last_seen_at) SELECT name, %s, %s FROM"
        " unnest(%s::text[]) AS name ON CONFLICT (name) DO NOTHING RETURNING name",
        (to_datetime(now_ms), to_datetime(now_ms), names),
    ).fetchall()
    ids = connection.execute("SELECT name, id FROM node WHERE name = ANY(%s)", (names,)).fetchall()
    return dict(ids), [name for (name,) in new]


def held_elsewhere(
    connection: Connection, batches: Sequence[Accepted], uuids: set[str]
) -> dict[str, int]:
    """Ids of reported accelerators that the inventory has on another node, by UUID.

    Such a batch does not change what pages show of them; once they have moved, the next batch does.
    """
    reported = [
        (record.uuid, batch.node)
        for batch in batches
        for record in batch.accelerators.values()
        if record.uuid in uuids
    ]
    if not reported:
        return {}
    rows = connection.execute(
        """
        SELECT DISTINCT a.uuid, a.id FROM unnest(%s::text[], %s::text[]) AS reported (uuid, node)
        JOIN accelerator a ON a.uuid = reported.uuid
        JOIN capacity c ON c.accelerator_id = a.id AND c.out_ms IS NULL
        JOIN node n ON n.id = c.node_id AND n.name <> reported.node
        """,
        [list(column) for column in zip(*reported, strict=True)],
    )
    return dict(rows.fetchall())


def write_accelerators(
    connection: Connection, records: list[WireAccelerator], reported_ms: Sequence[int] = ()
) -> dict[str, int]:
    """Write rows for new or changed accelerators; return ids by UUID.

    `reported_ms` says when each was reported like this, 0 or none: not known. Its health has been
    what it is since the first report that said so.
    """
    if not records:
        return {}
    fields = (
        "uuid",
        "device_uuid",
        "model",
        "mig_instance",
        "gpu_micro",
        "memory_bytes",
        "index",
        "health",
    )
    renamed = connection.execute(
        "SELECT FROM unnest(%s::text[], %s::text[]) AS n (uuid, model) JOIN accelerator a ON a.uuid"
        " = n.uuid AND a.model <> n.model LIMIT 1",
        ([record.uuid for record in records], [record.model for record in records]),
    )
    if renamed.rowcount:
        pool_hours.delete(connection)
    connection.execute(
        """
        INSERT INTO accelerator AS old
            (uuid, device_uuid, model, mig_instance, gpu_micro, memory_bytes, gpu_index, health, health_cause,
            health_since_ms)
        SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::bigint[], %s::int[],
                             %s::text[], %s::text[], %s::bigint[])
        ON CONFLICT (uuid) DO UPDATE SET
            device_uuid = CASE WHEN old.gpu_index IS NULL THEN excluded.device_uuid ELSE old.device_uuid END,
            model = excluded.model, mig_instance = excluded.mig_instance,
            gpu_micro = excluded.gpu_micro, memory_bytes = coalesce(excluded.memory_bytes, old.memory_bytes),
            gpu_index = excluded.gpu_index, health = excluded.health, health_cause = excluded.health_cause,
            health_since_ms = CASE WHEN old.health = excluded.health THEN old.health_since_ms
                ELSE excluded.health_since_ms END,
            last_seen_at = excluded.last_seen_at
        """,
        [
            *([getattr(record, name) for record in records] for name in (*fields, "health_cause")),
            [at_ms or None for at_ms in reported_ms or [0] * len(records)],
        ],
    )
    uuids = [record.uuid for record in records]
    return dict(
        connection.execute(
            "SELECT uuid, id FROM accelerator WHERE uuid = ANY(%s)", (uuids,)
        ).fetchall()
    )


def write_workloads(connection: Connection, entries: list[_Entry], now_ms: int) -> dict[str, int]:
    """Write rows for new or changed workloads, each key once; return ids by key.

    A user, an account, a name, a job or a queue of None keeps what is stored; tags are replaced.
    """
    if not entries:
        return {}
    keys, records = [key for key, _, _ in entries], [record for _, record, _ in entries]
    connection.execute(
        """
        INSERT INTO workload AS old
            (key, kind, external_id, user_name, account, name, job, job_uid, queue, tags, first_seen_at)
        SELECT key, kind, id, user_name, account, name, job, job_uid, queue, tags::jsonb, %s
        FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                    %s::text[], %s::text[])
            AS new (key, kind, id, user_name, account, name, job, job_uid, queue, tags)
        ON CONFLICT (key) DO UPDATE SET
            user_name = coalesce(excluded.user_name, old.user_name), account = coalesce(excluded.account, old.account),
            name = coalesce(excluded.name, old.name), job = coalesce(excluded.job, old.job),
            job_uid = CASE WHEN excluded.job IS NULL THEN old.job_uid ELSE excluded.job_uid END,
            queue = coalesce(excluded.queue, old.queue),
            tags = excluded.tags, last_seen_at = excluded.last_seen_at
        """,
        (
            to_datetime(now_ms),
            keys,
            *[
                [getattr(record, name) for record in records]
                for name in ("kind", "id", "user", "account", "name", "job", "job_uid", "queue")
            ],
            [json.dumps(record.tags) for record in records],
        ),
    )
    return dict(
        connection.execute("SELECT key, id FROM workload WHERE key = ANY(%s)", (keys,)).fetchall()
    )


def write_accelerator_attributes(
    connection: Connection, contents: Iterable[Content], ids: Mapping[str, int]
) -> dict[Content, int]:
    """Write rows for the attributes of accelerators; return ids by content."""
    wanted = [content for content in contents if content[0] == "accelerator"]
    if not wanted:
        return {}
    _, uuids, models, mig_instances, shares, pools = zip(*wanted, strict=True)
    connection.execute(
        """
        INSERT INTO accelerator_attributes (accelerator_id, digest, model, mig_instance, gpu_micro, pool)
        SELECT id, digest, model, nullif(mig_instance, ''), gpu_micro, pool
        FROM unnest(%s::bigint[], %s::bytea[], %s::text[], %s::text[], %s::int[], %s::text[])
            AS new (id, digest, model, mig_instance, gpu_micro, pool)
        ON CONFLICT (accelerator_id, digest) DO NOTHING
        """,
        (
            [ids[uuid] for uuid in uuids],
            [digest(content) for content in wanted],
            list(models),
            list(mig_instances),
            [int(share) for share in shares],
            list(pools),
        ),
    )
    return _attribute_ids(connection, "accelerator", wanted, ids)


def write_workload_attributes(
    connection: Connection, contents: Iterable[Content], ids: Mapping[str, int]
) -> dict[Content, int]:
    """Write rows for the attributes of workloads; return ids by content."""
    wanted = [content for content in contents if content[0] == "workload"]
    if not wanted:
        return {}
    # Content without job and queue ends with the tags.
    read = ((*json.loads(content[2]), None, None, None)[:7] for content in wanted)
    users, accounts, names, tags, jobs, uids, queues = zip(*read, strict=True)
    connection.execute(
        """
        INSERT INTO workload_attributes
            (workload_id, digest, user_name, account, name, tags, job, job_uid, queue)
        SELECT id, digest, user_name, account, name, tags::jsonb, job, job_uid, queue
        FROM unnest(%s::bigint[], %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                    %s::text[])
            AS new (id, digest, user_name, account, name, tags, job, job_uid, queue)
        ON CONFLICT (workload_id, digest) DO NOTHING
        """,
        (
            [ids[content[1]] for content in wanted],
            [digest(content) for content in wanted],
            list(users),
            list(accounts),
            list(names),
            [json.dumps(dict(pairs)) for pairs in tags],
            list(jobs),
            list(uids),
            list(queues),
        ),
    )
    return _attribute_ids(connection, "workload", wanted, ids)


def _attribute_ids(
    connection: Connection, kind: str, contents: Sequence[Content], ids: Mapping[str, int]
) -> dict[Content, int]:
    content_by_key = {(ids[content[1]], digest(content)): content for content in contents}
    rows = connection.execute(
        f"SELECT {kind}_id, digest, id FROM {kind}_attributes JOIN unnest(%s::bigint[],"
        f" %s::bytea[]) AS asked (key, sum) ON {kind}_id = asked.key AND digest = asked.sum",
        ([key for key, _ in content_by_key], [value for _, value in content_by_key]),
    )
    return {content_by_key[owner_id, bytes(value)]: row_id for owner_id, value, row_id in rows}
