"""Names become ids: nodes, accelerators and workloads, each known once, remembered while this process lives.

What a batch says of an accelerator or a workload is kept as attributes, one row for each content: its usage intervals
refer to that row, so that nothing which is reported later changes what they cost. The rows of accelerators and
workloads themselves show what was reported last, for pages.

Rows are written in a transaction of their own before the batches that need them, so that what is remembered is always
committed. They are written in the order of their names: two writers that meet wait for each other, never in a circle.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from gpuledger_collector.ingest.batches.validate import NODE_SCOPED_KINDS, Accepted, workload_key
from gpuledger_common.wire import WireAccelerator, WireWorkload

Connection = psycopg.Connection[tuple[Any, ...]]
_Entry = tuple[str, Any, int]
"""Name, what is written of it, latest instant that speaks of it."""
MOST_REMEMBERED = 500_000
RENEWED = dt.timedelta(days=1)
"""How long names are remembered before they are written as seen again: those not seen for weeks may be removed."""


@dataclass(slots=True)
class _Known:
    id: int
    face: object
    """What was last written of it."""
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of all that batches name: nodes by name, accelerators by uuid, workloads by key, attributes by content."""

    nodes: dict[str, int]
    accelerators: dict[str, int]
    workloads: dict[str, int]
    attributes: dict[Content, int] = field(default_factory=dict)

    def numbered(self, batch: Accepted) -> Numbered:
        """A batch with the ids of what it names."""
        keys = {place: workload_key(one.kind, batch.node, one.id) for place, one in batch.workloads.items()}
        return Numbered(
            batch,
            self.nodes[batch.node],
            {place: self.accelerators[one.uuid] for place, one in batch.accelerators.items()},
            {place: self.workloads[key] for place, key in keys.items()},
            {place: self.attributes[accelerator_content(one)] for place, one in batch.accelerators.items()},
            {place: self.attributes[workload_content(keys[place], one)] for place, one in batch.workloads.items()},
        )


Content = tuple[str, ...]
"""Whose attributes, and what they say: the key of a row of attributes."""


def accelerator_content(one: WireAccelerator) -> Content:
    """What of an accelerator a bill is made of."""
    return "accelerator", one.uuid, one.model, one.mig_instance or "", str(one.gpu_micro), one.pool


def workload_content(key: str, one: WireWorkload) -> Content:
    """What of a workload a bill is made of."""
    said = [one.user, one.account, one.name, sorted(one.tags.items())]
    return "workload", key, json.dumps(said, ensure_ascii=False)


def digest(content: Content) -> bytes:
    """SHA-256 of attributes."""
    return hashlib.sha256(json.dumps(content[2:]).encode()).digest()


@dataclass(frozen=True, slots=True)
class Numbered:
    """A batch with the ids of what it names: its node, and by position its accelerators, its workloads and what it
    says of them.
    """

    batch: Accepted
    node_id: int
    accelerators: Mapping[int, int]
    workloads: Mapping[int, int]
    accelerator_attributes: Mapping[int, int]
    workload_attributes: Mapping[int, int]


@dataclass(slots=True)
class Directory:
    """Ids of everything that this process has met."""

    nodes: dict[str, _Known] = field(default_factory=dict)
    accelerators: dict[str, _Known] = field(default_factory=dict)
    workloads: dict[str, _Known] = field(default_factory=dict)
    attributes: dict[Content, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _state: object = field(default_factory=object)
    """Another one whenever something known is written anew or forgotten: until then, what was found stays true."""
    _since: dt.datetime | None = None
    """Since when names are remembered."""

    def number(self, connection: Connection, batches: Sequence[Accepted], now: dt.datetime) -> list[Numbered]:
        """These batches with the ids of all that they name, written first where it is new or changed.

        Lists that came before are looked up once: what they name is known, and as they say, as long as nothing that
        was known changes.
        """
        self._renew(now)
        found = [self._recall(batch) for batch in batches]
        others = [batch for batch, known in zip(batches, found, strict=True) if known is None]
        if others:
            state = self._state
            ids = self.learn(connection, others, now)
            self._keep(others, state)
            return [
                ids.numbered(batch) if known is None else known for batch, known in zip(batches, found, strict=True)
            ]
        return [known for known in found if known is not None]

    def _recall(self, batch: Accepted) -> Numbered | None:
        """The batch with its ids, if nothing of it needs to be looked up."""
        node = self.nodes.get(batch.node)
        accelerators = batch.accelerators.found.get("")
        workloads = batch.workloads.found.get(scope_of(batch))
        if node is None or accelerators is None or workloads is None:
            return None
        if accelerators.state is not self._state or workloads.state is not self._state:
            return None
        return Numbered(batch, node.id, accelerators.ids, workloads.ids, accelerators.attributes, workloads.attributes)

    def unknown(self, batch: Accepted) -> int:
        """How many accelerators and workloads of a batch this process has not met."""
        if self._recall(batch) is not None:
            return 0
        accelerators = sum(one.uuid not in self.accelerators for one in batch.accelerators.values())
        return accelerators + sum(
            workload_key(one.kind, batch.node, one.id) not in self.workloads for one in batch.workloads.values()
        )

    def _keep(self, batches: Sequence[Accepted], state: object) -> None:
        """Keep with the lists of these batches the ids of what they name, where what is known is what they say."""
        with self.lock:
            if self._state is not state:
                return  # something known was written anew meanwhile: the next batch looks again
            for batch in batches:
                accelerators = {
                    place: (self.accelerators.get(one.uuid), one) for place, one in batch.accelerators.items()
                }
                workloads = {
                    place: (self.workloads.get(workload_key(one.kind, batch.node, one.id)), one)
                    for place, one in batch.workloads.items()
                }
                said = {
                    place: self.attributes.get(accelerator_content(one)) for place, one in batch.accelerators.items()
                }
                held = {
                    place: self.attributes.get(workload_content(workload_key(one.kind, batch.node, one.id), one))
                    for place, one in batch.workloads.items()
                }
                if _is_known(accelerators, said):
                    batch.accelerators.found[""] = _Found(state, _ids_of(accelerators), _numbers(said))
                if _is_known(workloads, held):
                    batch.workloads.found[scope_of(batch)] = _Found(state, _ids_of(workloads), _numbers(held))

    def learn(self, connection: Connection, batches: Sequence[Accepted], now: dt.datetime) -> Ids:
        """The ids of all that these batches name, written first where it is new or changed."""
        self._renew(now)
        ids = Ids({}, {}, {})
        with self.lock:
            self._forget_when_full()
            contents = dict.fromkeys(contents_of(batches))
            ids.attributes.update({one: self.attributes[one] for one in contents if one in self.attributes})
            missing = sorted(contents.keys() - ids.attributes.keys())
            nodes = _select_changed(self.nodes, ids.nodes, ((batch.node, None, 0) for batch in batches))
            instants = [newest_instant(batch) for batch in batches]
            accelerators = _select_changed(self.accelerators, ids.accelerators, _named_accelerators(batches, instants))
            workloads = _select_changed(self.workloads, ids.workloads, _named_workloads(batches, instants))
        if not (nodes or accelerators or workloads or missing):
            return ids
        with connection.transaction():
            ids.nodes.update(write_nodes(connection, [name for name, _, _ in nodes], now))
            elsewhere = held_elsewhere(connection, batches, {name for name, _, _ in accelerators})
            ids.accelerators.update(elsewhere)
            accelerators = [entry for entry in accelerators if entry[0] not in elsewhere]
            ids.accelerators.update(write_accelerators(connection, [face for _, face, _ in accelerators]))
            ids.workloads.update(write_workloads(connection, workloads, now))
            ids.attributes.update(write_accelerator_attributes(connection, missing, ids.accelerators))
            ids.attributes.update(write_workload_attributes(connection, missing, ids.workloads))
        with self.lock:
            self.attributes.update({one: ids.attributes[one] for one in missing})
            _remember(self.nodes, nodes, ids.nodes)
            changed = _remember(self.accelerators, accelerators, ids.accelerators)
            if _remember(self.workloads, workloads, ids.workloads) or changed:
                self._state = object()
        return ids

    def forget(self) -> None:
        """Start anew: the database may have been restored or replaced under us."""
        with self.lock:
            self.nodes, self.accelerators, self.workloads, self.attributes = {}, {}, {}, {}
            self._state = object()

    def _renew(self, now: dt.datetime) -> None:
        """Learn everything anew after a while, so that what is in use is seen in the database."""
        if self._since is None or not dt.timedelta(0) <= now - self._since < RENEWED:
            self._since = now
            self.forget()

    def _forget_when_full(self) -> None:
        for known in (self.accelerators, self.workloads):
            if len(known) > MOST_REMEMBERED:
                known.clear()
                self._state = object()
        if len(self.attributes) > MOST_REMEMBERED:
            self.attributes.clear()


def newest_instant(batch: Accepted) -> int:
    """The latest instant that a batch speaks of, unix milliseconds; 0 when it holds no record."""
    ends = [usage_interval.end_ms for usage_interval in batch.usage_intervals.values()]
    if batch.block is not None:
        ends.append(batch.block.last_ms)
    ends += [one.at_ms for one in batch.counts.values()]
    return max(ends, default=0)


def oldest_instant(batch: Accepted) -> int:
    """The earliest instant that a batch speaks of, unix milliseconds; 0 when it holds no record."""
    starts = [usage_interval.start_ms for usage_interval in batch.usage_intervals.values()]
    if batch.block is not None:
        starts.append(batch.block.first_ms)
    return min(starts, default=0)


def _named_accelerators(batches: Sequence[Accepted], instants: Sequence[int]) -> Iterator[_Entry]:
    for batch, instant in zip(batches, instants, strict=True):
        for accelerator in batch.accelerators.values():
            yield accelerator.uuid, accelerator, instant


def _named_workloads(batches: Sequence[Accepted], instants: Sequence[int]) -> Iterator[_Entry]:
    for batch, instant in zip(batches, instants, strict=True):
        for workload in batch.workloads.values():
            yield workload_key(workload.kind, batch.node, workload.id), workload, instant


def _select_changed(known: dict[str, _Known], ids: dict[str, int], entries: Iterable[_Entry]) -> list[_Entry]:
    """Put the ids that are known into `ids`; what must be written, one entry a name, newest, in the order of names."""
    news: dict[str, _Entry] = {}
    for entry in entries:
        name, face, instant = entry
        old = known.get(name)
        if old is not None:
            ids[name] = old.id
            if old.face == face or instant < old.newest_ms:
                continue
        if name not in news or instant >= news[name][2]:
            news[name] = entry
    return [news[name] for name in sorted(news)]


def _remember(into: dict[str, _Known], entries: list[_Entry], ids: dict[str, int]) -> bool:
    """Remember what was written; whether something that was known before is another one now."""
    changed = False
    for name, face, instant in entries:
        changed = changed or name in into
        into[name] = _Known(ids[name], face, instant)
    return changed


@dataclass(frozen=True, slots=True)
class _Found:
    """Ids of a list by position, true while the directory is in this state."""

    state: object
    ids: Mapping[int, int]
    attributes: Mapping[int, int]


def _is_known(rows: Mapping[int, tuple[_Known | None, object]], attributes: Mapping[int, int | None]) -> bool:
    """Whether all of a list is known just as it says."""
    return None not in attributes.values() and all(
        known is not None and known.face == face for known, face in rows.values()
    )


def _numbers(attributes: Mapping[int, int | None]) -> dict[int, int]:
    return {place: number for place, number in attributes.items() if number is not None}


def contents_of(batches: Iterable[Accepted]) -> Iterator[Content]:
    """What these batches say of their accelerators and workloads."""
    for batch in batches:
        for accelerator in batch.accelerators.values():
            yield accelerator_content(accelerator)
        for workload in batch.workloads.values():
            yield workload_content(workload_key(workload.kind, batch.node, workload.id), workload)


def _ids_of(found: Mapping[int, tuple[_Known | None, object]]) -> dict[int, int]:
    return {place: known.id for place, (known, _) in found.items() if known is not None}


def scope_of(batch: Accepted) -> str:
    """The node's name where the keys of the batch's workloads carry it, else nothing."""
    return batch.node if any(one.kind in NODE_SCOPED_KINDS for one in batch.workloads.values()) else ""


def write_nodes(connection: Connection, names: list[str], now: dt.datetime) -> dict[str, int]:
    """Rows for new nodes; ids by name."""
    if not names:
        return {}
    connection.execute(
        "INSERT INTO node (name, first_seen_at, last_seen_at) SELECT name, %s, %s FROM unnest(%s::text[]) AS name"
        " ON CONFLICT (name) DO NOTHING",
        (now, now, names),
    )
    return dict(connection.execute("SELECT name, id FROM node WHERE name = ANY(%s)", (names,)).fetchall())


def held_elsewhere(connection: Connection, batches: Sequence[Accepted], uuids: set[str]) -> dict[str, int]:
    """Accelerators (id by uuid) that one of these batches speaks of while another node has them.

    What pages show of them is not taken over from such a batch. Once they have moved, the next batch writes it.
    """
    told = [(one.uuid, batch.node) for batch in batches for one in batch.accelerators.values() if one.uuid in uuids]
    if not told:
        return {}
    rows = connection.execute(
        """
        SELECT DISTINCT a.uuid, a.id FROM unnest(%s::text[], %s::text[]) AS told (uuid, node)
        JOIN accelerator a ON a.uuid = told.uuid
        JOIN capacity c ON c.accelerator_id = a.id AND c.out_ms IS NULL
        JOIN node n ON n.id = c.node_id AND n.name <> told.node
        """,
        [list(column) for column in zip(*told, strict=True)],
    )
    return dict(rows.fetchall())


def write_accelerators(connection: Connection, faces: list[WireAccelerator]) -> dict[str, int]:
    """Rows for new or changed accelerators; ids by uuid."""
    if not faces:
        return {}
    connection.execute(
        """
        INSERT INTO accelerator AS old
            (uuid, device_uuid, model, mig_instance, gpu_micro, memory_bytes, gpu_index, health, health_cause)
        SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::bigint[], %s::int[],
                             %s::text[], %s::text[])
        ON CONFLICT (uuid) DO UPDATE SET
            device_uuid = CASE WHEN old.gpu_index IS NULL THEN excluded.device_uuid ELSE old.device_uuid END,
            model = excluded.model, mig_instance = excluded.mig_instance,
            gpu_micro = excluded.gpu_micro, memory_bytes = coalesce(excluded.memory_bytes, old.memory_bytes),
            gpu_index = excluded.gpu_index, health = excluded.health, health_cause = excluded.health_cause,
            last_seen_at = now()
        """,
        (
            [face.uuid for face in faces],
            [face.device_uuid for face in faces],
            [face.model for face in faces],
            [face.mig_instance for face in faces],
            [face.gpu_micro for face in faces],
            [face.memory_bytes for face in faces],
            [face.index for face in faces],
            [face.health for face in faces],
            [face.health_cause for face in faces],
        ),
    )
    uuids = [face.uuid for face in faces]
    return dict(connection.execute("SELECT uuid, id FROM accelerator WHERE uuid = ANY(%s)", (uuids,)).fetchall())


def write_workloads(connection: Connection, entries: list[_Entry], now: dt.datetime) -> dict[str, int]:
    """Rows for new or changed workloads; ids by key."""
    if not entries:
        return {}
    faces: list[WireWorkload] = [face for _, face, _ in entries]
    connection.execute(
        """
        INSERT INTO workload AS old (key, kind, external_id, user_name, account, name, tags, first_seen_at)
        SELECT key, kind, id, user_name, account, name, tags::jsonb, %s
        FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
            AS new (key, kind, id, user_name, account, name, tags)
        ON CONFLICT (key) DO UPDATE SET
            user_name = coalesce(excluded.user_name, old.user_name), account = coalesce(excluded.account, old.account),
            name = coalesce(excluded.name, old.name), tags = excluded.tags, last_seen_at = now()
        """,
        (
            now,
            [key for key, _, _ in entries],
            [face.kind for face in faces],
            [face.id for face in faces],
            [face.user for face in faces],
            [face.account for face in faces],
            [face.name for face in faces],
            [json.dumps(face.tags) for face in faces],
        ),
    )
    keys = [key for key, _, _ in entries]
    return dict(connection.execute("SELECT key, id FROM workload WHERE key = ANY(%s)", (keys,)).fetchall())


def write_accelerator_attributes(
    connection: Connection, contents: Iterable[Content], ids: Mapping[str, int]
) -> dict[Content, int]:
    """Rows for what was reported of accelerators; ids by content."""
    wanted = [one for one in contents if one[0] == "accelerator"]
    if not wanted:
        return {}
    connection.execute(
        """
        INSERT INTO accelerator_attributes (accelerator_id, digest, model, mig_instance, gpu_micro, pool)
        SELECT id, digest, model, nullif(mig_instance, ''), gpu_micro, pool
        FROM unnest(%s::bigint[], %s::bytea[], %s::text[], %s::text[], %s::int[], %s::text[])
            AS new (id, digest, model, mig_instance, gpu_micro, pool)
        ON CONFLICT (accelerator_id, digest) DO NOTHING
        """,
        (
            [ids[one[1]] for one in wanted],
            [digest(one) for one in wanted],
            *[[one[at] for one in wanted] for at in (2, 3)],
            [int(one[4]) for one in wanted],
            [one[5] for one in wanted],
        ),
    )
    return _attribute_ids(connection, "accelerator", wanted, ids)


def write_workload_attributes(
    connection: Connection, contents: Iterable[Content], ids: Mapping[str, int]
) -> dict[Content, int]:
    """Rows for what was reported of workloads; ids by content."""
    wanted = [one for one in contents if one[0] == "workload"]
    if not wanted:
        return {}
    said = [json.loads(one[2]) for one in wanted]
    connection.execute(
        """
        INSERT INTO workload_attributes (workload_id, digest, user_name, account, name, tags)
        SELECT id, digest, user_name, account, name, tags::jsonb
        FROM unnest(%s::bigint[], %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[])
            AS new (id, digest, user_name, account, name, tags)
        ON CONFLICT (workload_id, digest) DO NOTHING
        """,
        (
            [ids[one[1]] for one in wanted],
            [digest(one) for one in wanted],
            *[[one[at] for one in said] for at in (0, 1, 2)],
            [json.dumps(dict(one[3])) for one in said],
        ),
    )
    return _attribute_ids(connection, "workload", wanted, ids)


def _attribute_ids(
    connection: Connection, of: str, contents: Sequence[Content], ids: Mapping[str, int]
) -> dict[Content, int]:
    known = {(ids[one[1]], digest(one)): one for one in contents}
    rows = connection.execute(
        f"SELECT {of}_id, digest, id FROM {of}_attributes JOIN unnest(%s::bigint[], %s::bytea[]) AS asked (key, sum)"
        f" ON {of}_id = asked.key AND digest = asked.sum",
        ([key for key, _ in known], [value for _, value in known]),
    )
    return {known[number, bytes(value)]: row_id for number, value, row_id in rows}
