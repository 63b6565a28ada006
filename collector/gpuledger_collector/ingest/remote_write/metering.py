"""The meter on the collector's side: from scrapes to usage intervals, slot by slot, always from all scrapes of the
slot.

Each scrape speaks for the interval since the scrape before it, as an agent's tick does, and the same meter does the
counting; an interval belongs to the slot of its end. A slot is made again as a whole whenever a scrape of it arrives,
so the usage intervals depend on which scrapes there are, and not on when, in what parts or how often they came.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from gpuledger_collector.ingest.batches.attributes import (
    Connection,
    Ids,
    contents_of,
    write_accelerator_attributes,
    write_workload_attributes,
)
from gpuledger_collector.ingest.batches.evidence import HOUR_MS
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.ingest.batches.usage_intervals import copy_usage_intervals, join_usage_intervals
from gpuledger_collector.ingest.batches.validate import DAY_MS, Accepted, Kept, workload_key
from gpuledger_collector.ingest.remote_write.gather import WITNESSES, Scrape
from gpuledger_collector.ingest.remote_write.store import SLOT_MS, read_range
from gpuledger_common import wire
from gpuledger_common.batches import BatchMaker
from gpuledger_common.dcgm_page import BY_POD, whole
from gpuledger_common.meter import Meter
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload

EPOCH = uuid.UUID("67707500-7265-6d6f-7465-777269746500")
"""The epoch of every usage interval that was made from scrapes (`gpu`, `remotewrite`); its `seq` is the slot's number.
"""
MOST_ACCELERATORS = 500
"""Accelerators of one transaction."""
_Slots = dict[int, set[int]]
"""Slots (their starts) by accelerator."""
_UTILIZATION = "gpu_utilization_ratio"


@dataclass(frozen=True, slots=True)
class Limits:
    """`gap_ms`: the longest interval between scrapes that counts as seen, at most a slot; `window_ms`: how late."""

    gap_ms: int
    window_ms: int

    @property
    def keep_ms(self) -> int:
        """How much older than the newest of its accelerator a scrape may still be asked for."""
        return self.window_ms + self.gap_ms + SLOT_MS


@dataclass(frozen=True, slots=True)
class Known:
    """What the database knows by number: accelerators, workloads, names of nodes."""

    accelerators: dict[int, Accelerator]
    workloads: dict[int, Workload]
    nodes: dict[int, str]
    reported: Mapping[int, tuple[str, str | None, int]] = field(default_factory=dict)
    """What was reported of accelerators: model, MIG instance and share."""
    said: Mapping[int, tuple[int, Workload]] = field(default_factory=dict)
    """What was reported of workloads, each with its number."""

    def ids(self) -> Ids:
        """The same, the other way round."""
        return Ids(
            {name: number for number, name in self.nodes.items()},
            {one.uuid: number for number, one in self.accelerators.items()},
            {workload_key(one.kind, "", one.id): number for number, one in self.workloads.items()},
        )

    def accelerator_of(self, accelerator_id: int, scrape: Scrape) -> Accelerator:
        """The accelerator as a scrape shows it; where labels contradict each other, the least by content."""
        known = self.accelerators[accelerator_id]
        reports = [self.reported[number] for number in scrape.accelerator_attributes]
        if not reports:
            return known
        model, instance, share = min(reports, key=lambda one: (one[0], one[1] or "", one[2]))
        return replace(known, model=model, mig_instance=instance, gpu_micro=share)

    def holders_of(self, scrape: Scrape) -> list[Workload]:
        """Those whom a scrape names, as it names them, in an order that does not depend on arrival."""
        found: dict[int, Workload] = {}
        for number, workload in (self.said[one] for one in scrape.workload_attributes):
            if number not in found or _content(workload) < _content(found[number]):
                found[number] = workload
        holders = [found.get(number, self.workloads[number]) for number in scrape.workload_ids]
        return sorted(holders, key=lambda one: (one.kind, one.id))


def _content(workload: Workload) -> tuple[object, ...]:
    said = (workload.user or "", workload.account or "", workload.name or "")
    return *said, sorted(workload.tags.items())


def alike(
    accelerator_id: int, before: Sequence[tuple[int, Scrape]], inside: Sequence[tuple[int, Scrape]], known: Known
) -> Iterator[tuple[Accelerator, list[tuple[int, Scrape]]]]:
    """The scrapes of a slot in parts that one node and one set of facts speak for, each after the scrape before it.

    `before` are those just before the slot, in order of time. What two nodes say of an accelerator stays apart.
    """
    for node_id in sorted({one.node_id for _, one in inside}, key=known.nodes.__getitem__):
        last = [entry for entry in before if entry[1].node_id == node_id][-1:]
        part: list[tuple[int, Scrape]] = []
        shown: Accelerator | None = None
        holders: dict[object, Workload] = {}
        for entry in inside:
            if entry[1].node_id != node_id:
                continue
            accelerator = known.accelerator_of(accelerator_id, entry[1])
            named: dict[object, Workload] = {(one.kind, one.id): one for one in known.holders_of(entry[1])}
            if shown is not None and (
                accelerator != shown or any(holders.get(key, one) != one for key, one in named.items())
            ):
                yield shown, last + part
                last, part, holders = part[-1:], [], {}
            shown = accelerator
            part.append(entry)
            holders |= named
        if shown is not None:
            yield shown, last + part


def usage_intervals_of(
    accelerator: Accelerator,
    scrapes: Sequence[tuple[int, Scrape]],
    split_ms: frozenset[int],
    slot_ms: int,
    gap_ms: int,
    known: Known,
) -> Accepted | None:
    """The usage intervals that end in a slot, in the form of an agent's batch; None when there are none.

    `scrapes` are those of the slot that one node and one set of facts speak for (`alike`) and the one before them, in
    order of time. At the instants `split_ms` the accelerator's MIG instances have scrapes: they are what is held then,
    and the device shows nothing.
    """
    meter = Meter(gap_ms)
    node = ""
    for at_ms, one in scrapes:
        node = known.nodes[one.node_id]
        if at_ms in split_ms:
            meter.lose(accelerator.uuid)
            continue
        holders = [Holder(workload) for workload in known.holders_of(one)]
        meter.tick(Sample(accelerator.uuid, 0, values_of(one)), at_ms, holders)
    spans = meter.take()
    if not spans:
        return None
    maker = BatchMaker([accelerator], "", {})
    made = maker.usage_intervals(spans)
    batch = maker.batch(node, str(EPOCH), slot_ms // SLOT_MS, wire.Heartbeat("", "", "ok"), made, wire.Samples())
    return Accepted(
        node=node,
        epoch=EPOCH,
        seq=batch.seq,
        sha256=b"",
        size=0,
        heartbeat=None,
        accelerators=Kept(enumerate(batch.accelerators)),
        workloads=Kept(enumerate(batch.workloads)),
        usage_intervals=dict(enumerate(batch.usage_intervals)),
        block=None,
        rejected=[],
    )


def values_of(one: Scrape) -> dict[str, float]:
    """What a scrape tells the meter, by metric."""
    values = {
        metric: value for metric, value in zip(WITNESSES.values(), one.witnesses, strict=True) if value is not None
    }
    if one.utilization:
        values[_UTILIZATION] = whole(one.utilization.values(), BY_POD[_UTILIZATION])
    return values


@dataclass(frozen=True, slots=True)
class Metering:
    """Makes usage intervals of the scrapes that nobody has metered yet."""

    store: Store
    limits: Limits
    alone: Callable[[Connection], AbstractContextManager[object]]
    """Lets one metering run at a time while the block runs, on a session beside this connection."""

    def run(self, connection: Connection) -> int:
        """Meter every marked slot; how many. `connection` is in autocommit. Raises psycopg.Error."""
        done = 0
        with self.alone(connection):
            try:
                while True:
                    marks = connection.execute(
                        "SELECT id, accelerator_id, slot_ms FROM scrape_recompute WHERE accelerator_id IN (SELECT "
                        "DISTINCT"
                        " accelerator_id FROM scrape_recompute ORDER BY accelerator_id LIMIT %s)",
                        (MOST_ACCELERATORS,),
                    ).fetchall()
                    if not marks:
                        return done
                    done += self._meter(connection, marks)
            except Exception:
                self.store.forget()
                raise

    def _meter(self, connection: Connection, marks: Sequence[tuple[int, int, int]]) -> int:
        slots: _Slots = defaultdict(set)
        for _, accelerator_id, slot_ms in marks:
            # The first interval of the next slot may begin with a scrape of this one.
            slots[accelerator_id] |= {slot_ms, slot_ms + SLOT_MS}
        splits = devices_of(connection, list(slots))
        for device_id, instance_id in splits:
            slots[device_id] |= slots.get(instance_id, set())
        days = {slot // DAY_MS * DAY_MS for of_one in slots.values() for slot in of_one}
        with connection.transaction():
            self.store.ensure_partitions(connection, "usage_interval", sorted(days | {day - DAY_MS for day in days}))
        with connection.transaction():
            batches, made, ids = self._make(connection, slots, splits)
            drop_usage_intervals(connection, made)
            numbered = [ids.numbered(batch) for batch in batches]
            copy_usage_intervals(connection, join_usage_intervals(numbered))
            # A slot that is made again may show the instances where it showed the device.
            devices = {device_id for device_id, _ in splits}
            since_ms = min(min(of_one) for of_one in slots.values())
            after = self.store.keep_inventory(connection, numbered, devices, since_ms)
            mark_hours_of(connection, made)
            connection.execute("DELETE FROM scrape_recompute WHERE id = ANY(%s)", ([mark[0] for mark in marks],))
            forget_old(connection, list(slots), self.limits.keep_ms)
        after()
        return len({(accelerator_id, slot_ms) for _, accelerator_id, slot_ms in marks})

    def _make(
        self, connection: Connection, slots: _Slots, splits: Sequence[tuple[int, int]]
    ) -> tuple[list[Accepted], _Slots, Ids]:
        """The usage intervals of these slots, the slots that have scrapes, and the ids of all that is named."""
        reach = self.limits.gap_ms
        ranges = {
            accelerator_id: (min(of_one) - reach, max(of_one) + SLOT_MS) for accelerator_id, of_one in slots.items()
        }
        found = read_range(connection, ranges)
        known = known_of(connection, list(slots), [one for scrapes in found.values() for _, one in scrapes])
        split = split_of(connection, splits, ranges)
        batches, made = [], defaultdict(set)
        for accelerator_id, of_one in sorted(slots.items()):
            scrapes = found.get(accelerator_id, [])
            for slot_ms in sorted(of_one):
                inside = [one for one in scrapes if slot_ms <= one[0] < slot_ms + SLOT_MS]
                if not inside:
                    continue
                made[accelerator_id].add(slot_ms)
                before = [one for one in scrapes if slot_ms - reach <= one[0] < slot_ms]
                at_split = split.get(accelerator_id, frozenset())
                for accelerator, part in alike(accelerator_id, before, inside, known):
                    batch = usage_intervals_of(accelerator, part, at_split, slot_ms, reach, known)
                    if batch is not None:
                        batches.append(batch)
        ids = known.ids()
        for batch in batches:
            contents = list(contents_of([batch]))
            ids.attributes.update(write_accelerator_attributes(connection, contents, ids.accelerators))
            ids.attributes.update(write_workload_attributes(connection, contents, ids.workloads))
        return batches, made, ids


def devices_of(connection: Connection, accelerators: list[int]) -> list[tuple[int, int]]:
    """Device and instance of every MIG instance that is among these accelerators or on a device that is."""
    rows = connection.execute(
        "SELECT device.id, instance.id FROM accelerator AS instance JOIN accelerator AS device"
        " ON device.uuid = instance.device_uuid WHERE instance.uuid <> instance.device_uuid"
        " AND (instance.id = ANY(%(ids)s) OR device.id = ANY(%(ids)s))",
        {"ids": accelerators},
    )
    return [(device, instance) for device, instance in rows]


def split_of(
    connection: Connection, splits: Sequence[tuple[int, int]], ranges: dict[int, tuple[int, int]]
) -> dict[int, frozenset[int]]:
    """Of each device the instants at which its MIG instances have scrapes."""
    found: dict[int, set[int]] = defaultdict(set)
    wanted = {instance: ranges[device] for device, instance in splits if device in ranges}
    device_of = {instance: device for device, instance in splits}
    for instance, scrapes in read_range(connection, wanted).items():
        found[device_of[instance]] |= {at_ms for at_ms, _ in scrapes}
    return {device: frozenset(instants) for device, instants in found.items()}


def known_of(connection: Connection, accelerators: list[int], scrapes: Sequence[Scrape]) -> Known:
    """Everything that these scrapes name."""
    workloads = sorted({number for one in scrapes for number in one.workload_ids})
    nodes = sorted({one.node_id for one in scrapes})
    reports = sorted({number for one in scrapes for number in one.accelerator_attributes})
    said = sorted({number for one in scrapes for number in one.workload_attributes})
    return Known(
        {
            row[0]: Accelerator(*row[1:])
            for row in connection.execute(
                "SELECT id, uuid, device_uuid, coalesce(gpu_index, 0), model, mig_instance, gpu_micro"
                " FROM accelerator WHERE id = ANY(%s)",
                (accelerators,),
            )
        },
        {
            number: Workload(*row)
            for number, *row in connection.execute(
                "SELECT id, external_id, kind, user_name, account, name, tags FROM workload WHERE id = ANY(%s)",
                (workloads,),
            )
        },
        dict(connection.execute("SELECT id, name FROM node WHERE id = ANY(%s)", (nodes,)).fetchall()),
        {
            number: (model, instance, share)
            for number, model, instance, share in connection.execute(
                "SELECT id, model, mig_instance, gpu_micro FROM accelerator_attributes WHERE id = ANY(%s)", (reports,)
            )
        },
        {
            number: (workload_id, Workload(*row))
            for number, workload_id, *row in connection.execute(
                "SELECT t.id, w.id, w.external_id, w.kind, t.user_name, t.account, t.name, t.tags"
                " FROM workload_attributes t JOIN workload w ON w.id = t.workload_id WHERE t.id = ANY(%s)",
                (said,),
            )
        },
    )


def drop_usage_intervals(connection: Connection, slots: _Slots) -> None:
    """Remove the usage intervals that were made of these slots before."""
    pairs = [(accelerator_id, slot) for accelerator_id, of_one in slots.items() for slot in of_one]
    # Day by day, so that each statement reaches the partitions of that day and not of all between two far ones.
    for day in sorted({slot // DAY_MS for _, slot in pairs}):
        of_day = [(accelerator_id, slot) for accelerator_id, slot in pairs if slot // DAY_MS == day]
        first, last = min(slot for _, slot in of_day) - SLOT_MS, max(slot for _, slot in of_day) + SLOT_MS
        connection.execute(
            "DELETE FROM usage_interval USING unnest(%s::bigint[], %s::bigint[]) AS gone (id, slot)"
            " WHERE accelerator_id = gone.id AND seq = gone.slot AND epoch = %s AND start_ms >= %s AND start_ms < %s",
            ([one for one, _ in of_day], [slot // SLOT_MS for _, slot in of_day], EPOCH, first, last),
        )


def mark_hours_of(connection: Connection, slots: _Slots) -> None:
    """Mark the hours of these slots to be folded; the first interval of a slot may begin in the hour before."""
    hours = sorted(
        {
            (accelerator_id, instant // HOUR_MS * HOUR_MS)
            for accelerator_id, of_one in slots.items()
            for slot in of_one
            for instant in (slot - 1, slot)
        }
    )
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT * FROM unnest(%s::bigint[], %s::bigint[])",
        ([one for one, _ in hours], [hour for _, hour in hours]),
    )


def forget_old(connection: Connection, accelerators: list[int], keep_ms: int) -> None:
    """Remove scrapes that no slot will be made of again: metered, and older than is taken for their accelerator."""
    connection.execute(
        "DELETE FROM scrape USING scrape_head AS head WHERE scrape.accelerator_id = head.accelerator_id"
        " AND scrape.accelerator_id = ANY(%s) AND at_ms < newest_ms - %s AND NOT EXISTS"
        " (SELECT 1 FROM scrape_recompute WHERE scrape_recompute.accelerator_id = scrape.accelerator_id)",
        (accelerators, keep_ms),
    )
