"""The meter of remote write: recompute usage intervals from scrapes, slot by slot.

Each scrape stands for the interval since the scrape before it, as an agent's tick does, and the
same meter counts it; an interval belongs to the slot of its end. A slot is always recomputed from
all of its scrapes when one of them arrives, so usage intervals depend on which scrapes exist, and
not on when, in what parts or how often they came.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.ingest.batches.attributes import (
    Connection,
    Content,
    Ids,
    accelerator_content,
    contents_of,
    workload_content,
    write_accelerator_attributes,
    write_workload_attributes,
)
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.ingest.batches.usage_intervals import (
    copy_usage_intervals,
    join_usage_intervals,
)
from gpuledger_collector.ingest.batches.validate import Accepted, AcceptedRecords, workload_key
from gpuledger_collector.ingest.remote_write.scrapes import ACTIVITY_METRICS, Scrape
from gpuledger_collector.ingest.remote_write.store import SLOT_MS, read_range
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.rows import select, to_object
from gpuledger_collector.storage.telemetry import interval_packing, partitions
from gpuledger_common import wire
from gpuledger_common.batches import BatchMaker, wire_workload
from gpuledger_common.meter import Meter
from gpuledger_common.profiles.page import POD_SUMS, device_value
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload

EPOCH = uuid.UUID("67707500-7265-6d6f-7465-777269746500")
"""The epoch of usage intervals computed from scrapes (ASCII `gpu`, `remotewrite`); their `seq` is
the slot's number.
"""
MAX_ACCELERATORS = 500
"""Accelerators of one transaction."""
_Slots = dict[int, set[int]]
"""Starts of slots by accelerator."""
_UTILIZATION = "gpu_utilization_ratio"


@dataclass(frozen=True, slots=True)
class MeterLimits:
    """`gap_ms`: the longest interval between scrapes that counts as observed; `window_ms`: how late
    a scrape may be.
    """

    gap_ms: int
    window_ms: int

    @property
    def keep_ms(self) -> int:
        """How much older than the newest of its accelerator a scrape may still be needed."""
        return self.window_ms + self.gap_ms + SLOT_MS


@dataclass(frozen=True, slots=True)
class ReportedAccelerator:
    """What labels said of an accelerator: a row of `accelerator_attributes`."""

    accelerator_id: int
    model: str
    mig_instance: str | None
    gpu_micro: int
    pool: str

    @property
    def order(self) -> tuple[object, ...]:
        """By content, those that name a model first."""
        return not self.model, self.model, self.mig_instance or "", self.gpu_micro


@dataclass(frozen=True, slots=True)
class ScrapedEntities:
    """The accelerators, workloads and names of nodes that scrapes refer to, by id."""

    accelerators: dict[int, Accelerator]
    workloads: dict[int, Workload]
    nodes: dict[int, str]
    accelerator_attributes: Mapping[int, ReportedAccelerator] = field(default_factory=dict)
    workload_attributes: Mapping[int, tuple[int, Workload]] = field(default_factory=dict)
    """The workload's id, and the workload as it was reported."""
    _described: dict[tuple[int, frozenset[int]], Accelerator] = field(default_factory=dict)
    """Accelerators by id and attributes: most scrapes repeat those before."""
    _holders: dict[tuple[frozenset[int], frozenset[int]], list[Holder]] = field(
        default_factory=dict
    )
    """Holders by workloads and attributes."""

    def ids(self) -> Ids:
        """The ids by name and content."""
        attributes: dict[Content, int] = {}
        for number, reported in self.accelerator_attributes.items():
            uuid = self.accelerators[reported.accelerator_id].uuid
            record = wire.WireAccelerator(
                uuid,
                uuid,
                0,
                reported.model,
                reported.mig_instance,
                reported.gpu_micro,
                pool=reported.pool,
            )
            attributes[accelerator_content(record)] = number
        for number, (_, workload) in self.workload_attributes.items():
            attributes[workload_content(_key(workload), wire_workload(workload))] = number
        return Ids(
            {name: node_id for node_id, name in self.nodes.items()},
            {
                accelerator.uuid: accelerator_id
                for accelerator_id, accelerator in self.accelerators.items()
            },
            {_key(workload): number for number, workload in self.workloads.items()},
            attributes,
        )

    def accelerator_in(self, accelerator_id: int, scrape: Scrape) -> Accelerator:
        """The accelerator as a scrape describes it; of contradicting labels the smallest by
        content.
        """
        key = accelerator_id, scrape.accelerator_attributes
        if key not in self._described:
            self._described[key] = self._describe(accelerator_id, scrape)
        return self._described[key]

    def _describe(self, accelerator_id: int, scrape: Scrape) -> Accelerator:
        accelerator = self.accelerators[accelerator_id]
        attributes = [
            self.accelerator_attributes[number] for number in scrape.accelerator_attributes
        ]
        # Scrapes from before attributes were stored: what is known of the accelerator today is the
        # best there is.
        if not attributes:
            return accelerator
        # Labels of several senders may contradict each other: the choice must not depend on who
        # came first. Some series of a scrape name no model, beside others that do.
        reported = min(attributes, key=lambda reported: reported.order)
        return replace(
            accelerator,
            model=reported.model,
            mig_instance=reported.mig_instance,
            gpu_micro=reported.gpu_micro,
        )

    def holders_in(self, scrape: Scrape) -> list[Holder]:
        """The workloads of a scrape as it describes them, in an order that does not depend on
        arrival.
        """
        key = scrape.workload_ids, scrape.workload_attributes
        if key not in self._holders:
            self._holders[key] = self._describe_holders(scrape)
        return self._holders[key]

    def _describe_holders(self, scrape: Scrape) -> list[Holder]:
        reported: dict[int, Workload] = {}
        for number, workload in (
            self.workload_attributes[number] for number in scrape.workload_attributes
        ):
            if number not in reported or _content(workload) < _content(reported[number]):
                reported[number] = workload
        holders = [reported.get(number, self.workloads[number]) for number in scrape.workload_ids]
        return [
            Holder(workload)
            for workload in sorted(holders, key=lambda workload: (workload.kind, workload.id))
        ]


def _key(workload: Workload) -> str:
    return workload_key(workload.kind, "", workload.id)


def _content(workload: Workload) -> tuple[object, ...]:
    return (
        workload.user or "",
        workload.account or "",
        workload.name or "",
        sorted(workload.tags.items()),
    )


def split_by_attributes(
    accelerator_id: int,
    before: Sequence[tuple[int, Scrape]],
    inside: Sequence[tuple[int, Scrape]],
    entities: ScrapedEntities,
) -> Iterator[tuple[Accelerator, list[tuple[int, Scrape]]]]:
    """Split the scrapes of a slot by node and where attributes change; each part begins with the
    scrape before it.

    `before` are the scrapes just before the slot, in order of time.
    """
    for node_id in sorted({scrape.node_id for _, scrape in inside}, key=entities.nodes.__getitem__):
        # The scrape before the slot begins the first interval, if it came from the same node.
        last = [entry for entry in before if entry[1].node_id == node_id][-1:]
        part: list[tuple[int, Scrape]] = []
        current: Accelerator | None = None
        holders: dict[object, Workload] = {}
        labels: object = None
        for at_ms, scrape in inside:
            if scrape.node_id != node_id:
                continue
            previous, labels = labels, scrape.labels
            if labels == previous:
                part.append((at_ms, scrape))
                continue
            accelerator = entities.accelerator_in(accelerator_id, scrape)
            named: dict[object, Workload] = {
                (held.workload.kind, held.workload.id): held.workload
                for held in entities.holders_in(scrape)
            }
            # An interval has one set of attributes, so it ends where they change; the next part
            # begins with the same scrape.
            is_changed = accelerator != current or any(
                holders.get(key, held) != held for key, held in named.items()
            )
            if current is not None and is_changed:
                yield current, last + part
                last, part, holders = part[-1:], [], {}
            current = accelerator
            part.append((at_ms, scrape))
            holders |= named
        if current is not None:
            yield current, last + part


def meter_slot(
    accelerator: Accelerator,
    scrapes: Sequence[tuple[int, Scrape]],
    split_ms: frozenset[int],
    slot_ms: int,
    gap_ms: int,
    entities: ScrapedEntities,
) -> Accepted | None:
    """The usage intervals that end in a slot, as an agent's batch; None when there are none.

    `scrapes` are a part of the slot from `split_by_attributes`, in order of time. At the instants
    `split_ms` the accelerator's MIG instances have scrapes: they are what is held then, and the
    device counts for nothing.
    """
    meter = Meter(gap_ms)
    node = ""
    for at_ms, scrape in scrapes:
        node = entities.nodes[scrape.node_id]
        # MIG instances were seen at this instant: the device as a whole is not held then, and
        # nothing bridges it.
        if at_ms in split_ms:
            meter.lose(accelerator.uuid)
            continue
        meter.tick(
            Sample(accelerator.uuid, 0, meter_values(scrape)), at_ms, entities.holders_in(scrape)
        )
    spans = meter.take()
    if not spans:
        return None
    # The same code as in the agent splits time over holders, so both sources bill equally.
    maker = BatchMaker([accelerator], "", {})
    intervals = maker.usage_intervals(spans)
    batch = maker.batch(
        node,
        str(EPOCH),
        slot_ms // SLOT_MS,
        wire.Heartbeat("", "", "ok"),
        intervals,
        wire.Samples(),
    )
    return Accepted(
        node=node,
        epoch=EPOCH,
        seq=batch.seq,
        sha256=b"",
        size=0,
        heartbeat=None,
        accelerators=AcceptedRecords(enumerate(batch.accelerators)),
        workloads=AcceptedRecords(enumerate(batch.workloads)),
        usage_intervals=dict(enumerate(batch.usage_intervals)),
        block=None,
        rejected=[],
    )


def meter_values(scrape: Scrape) -> dict[str, float]:
    """The values of a scrape that the meter reads, by metric."""
    activity = zip(ACTIVITY_METRICS.values(), scrape.activity, strict=True)
    values = {metric: value for metric, value in activity if value is not None}
    if scrape.utilization:
        values[_UTILIZATION] = device_value(scrape.utilization.values(), POD_SUMS[_UTILIZATION])
    return values


@dataclass(frozen=True, slots=True)
class ScrapeMeter:
    """Computes usage intervals from scrapes that were not metered yet."""

    store: Store
    limits: MeterLimits

    def run(self, database: Database) -> int:
        """Meter every requested slot; returns how many. Raises StorageError, psycopg.Error."""
        metered = 0
        # One meter runs at a time: the lock is held on a session of its own.
        with database.hold(Lock.SCRAPES), database.connect() as connection:
            try:
                # Until no request is left: each round takes some accelerators with all of their
                # requests, and commits.
                while True:
                    requests = select(
                        connection,
                        "SELECT id, accelerator_id, slot_ms FROM scrape_recompute WHERE"
                        " accelerator_id IN (SELECT DISTINCT accelerator_id FROM scrape_recompute"
                        " ORDER BY accelerator_id LIMIT %s)",
                        (MAX_ACCELERATORS,),
                    )
                    if not requests:
                        return metered
                    metered += self._meter(connection, requests)
            except Exception:
                self.store.forget()
                raise

    def _meter(self, connection: Connection, requests: Sequence[Any]) -> int:
        slots: _Slots = defaultdict(set)
        for request in requests:
            # The first interval of the next slot may begin with a scrape of this one.
            slots[request.accelerator_id] |= {request.slot_ms, request.slot_ms + SLOT_MS}
        instances = find_mig_instances(connection, list(slots))
        for device_id, instance_id in instances:
            # A scrape of an instance decides whether its device counts, so the device's slots are
            # computed again too.
            slots[device_id] |= slots.get(instance_id, set())
        days = {slot // DAY_MS * DAY_MS for starts in slots.values() for slot in starts}
        # Partitions in a transaction of their own; an interval may begin in the day before its
        # slot.
        with connection.transaction():
            self.store.ensure_partitions(
                connection, "usage_interval", sorted(days | {day - DAY_MS for day in days})
            )
        with connection.transaction():
            gap_ms = self.limits.gap_ms
            ranges = {
                number: (min(starts) - gap_ms, max(starts) + SLOT_MS)
                for number, starts in slots.items()
            }
            instants = instance_instants(connection, instances, ranges)
            remember = self._replace(
                connection, slots, instances, read_range(connection, ranges), instants
            )
            # Exactly the requests that were read: one that arrived meanwhile stays and is metered
            # in the next round.
            connection.execute(
                "DELETE FROM scrape_recompute WHERE id = ANY(%s)",
                ([request.id for request in requests],),
            )
            delete_old_scrapes(connection, list(slots), self.limits.keep_ms)
        remember()
        return len({(request.accelerator_id, request.slot_ms) for request in requests})

    def write_past(
        self,
        connection: Connection,
        scrapes: Mapping[int, Sequence[tuple[int, Scrape]]],
        since_ms: int,
    ) -> int:
        """Meter scrapes that are in no table, by accelerator and in order of time; returns how many
        slots.

        The caller holds Lock.SCRAPES. Slots from `since_ms` on are replaced; scrapes before it only
        begin their first intervals.
        """
        slots: _Slots = {}
        for accelerator_id, entries in scrapes.items():
            starts = {at_ms - at_ms % SLOT_MS for at_ms, _ in entries}
            slots[accelerator_id] = {slot for slot in starts if slot >= since_ms}
        slots = {accelerator_id: starts for accelerator_id, starts in slots.items() if starts}
        if not slots:
            return 0
        days = {slot // DAY_MS * DAY_MS for starts in slots.values() for slot in starts}
        with connection.transaction():
            self.store.ensure_partitions(
                connection, "usage_interval", sorted(days | {day - DAY_MS for day in days})
            )
        instances = find_mig_instances(connection, list(slots))
        instants: dict[int, set[int]] = defaultdict(set)
        for device_id, instance_id in instances:
            instants[device_id] |= {at_ms for at_ms, _ in scrapes.get(instance_id, ())}
        with connection.transaction():
            fixed = {
                device_id: frozenset(device_instants)
                for device_id, device_instants in instants.items()
            }
            remember = self._replace(connection, slots, instances, scrapes, fixed)
        remember()
        return sum(map(len, slots.values()))

    def _replace(
        self,
        connection: Connection,
        slots: _Slots,
        instances: Sequence[tuple[int, int]],
        scrapes: Mapping[int, Sequence[tuple[int, Scrape]]],
        instants: Mapping[int, frozenset[int]],
    ) -> Callable[[], None]:
        """Replace the usage intervals of these slots by those of their scrapes; returns what to
        call after COMMIT.
        """
        batches, metered, ids = self._compute(connection, slots, scrapes, instants)
        # Only slots that have scrapes are replaced: what was computed from scrapes that were
        # deleted since stays.
        delete_usage_intervals(connection, metered)
        resolved = [ids.resolve(batch) for batch in batches]
        copy_usage_intervals(connection, join_usage_intervals(resolved))
        # A recomputed slot may show the instances where it showed the device.
        devices = {device_id for device_id, _ in instances}
        since_ms = min(min(starts) for starts in slots.values())
        remember = self.store.update_inventory(connection, resolved, devices, since_ms)
        request_hour_recompute(connection, metered)
        return remember

    def _compute(
        self,
        connection: Connection,
        slots: _Slots,
        all_scrapes: Mapping[int, Sequence[tuple[int, Scrape]]],
        instants: Mapping[int, frozenset[int]],
    ) -> tuple[list[Accepted], _Slots, Ids]:
        """The usage intervals of these slots, the slots that have scrapes, and the ids of all
        entities.
        """
        gap_ms = self.limits.gap_ms
        entities = read_entities(
            connection,
            list(slots),
            [scrape for scrapes in all_scrapes.values() for _, scrape in scrapes],
        )
        batches: list[Accepted] = []
        metered: _Slots = defaultdict(set)
        for accelerator_id, starts in sorted(slots.items()):
            scrapes = all_scrapes.get(accelerator_id, [])
            times = [at_ms for at_ms, _ in scrapes]
            for slot_ms in sorted(starts):
                first, end = bisect_left(times, slot_ms), bisect_left(times, slot_ms + SLOT_MS)
                if first == end:
                    continue
                metered[accelerator_id].add(slot_ms)
                # The meter needs at most one scrape before the slot, no further back than a gap
                # reaches.
                before = scrapes[bisect_left(times, slot_ms - gap_ms) : first]
                split_ms = instants.get(accelerator_id, frozenset())
                for accelerator, part in split_by_attributes(
                    accelerator_id, before, scrapes[first:end], entities
                ):
                    batch = meter_slot(accelerator, part, split_ms, slot_ms, gap_ms, entities)
                    if batch is not None:
                        batches.append(batch)
        ids = entities.ids()
        # In the transaction that writes the intervals, because they refer to these rows; sorted, as
        # all writers do it.
        contents = sorted(set(contents_of(batches)) - ids.attributes.keys())
        ids.attributes.update(write_accelerator_attributes(connection, contents, ids.accelerators))
        ids.attributes.update(write_workload_attributes(connection, contents, ids.workloads))
        return batches, metered, ids


def find_mig_instances(connection: Connection, accelerators: list[int]) -> list[tuple[int, int]]:
    """Device and instance of every MIG instance that is among these accelerators, or on a device
    that is.
    """
    rows = connection.execute(
        "SELECT device.id, instance.id FROM accelerator AS instance JOIN accelerator AS device"
        " ON device.uuid = instance.device_uuid WHERE instance.uuid <> instance.device_uuid"
        " AND (instance.id = ANY(%(ids)s) OR device.id = ANY(%(ids)s))",
        {"ids": accelerators},
    )
    return [(device, instance) for device, instance in rows]


def instance_instants(
    connection: Connection, instances: Sequence[tuple[int, int]], ranges: dict[int, tuple[int, int]]
) -> dict[int, frozenset[int]]:
    """The instants at which the MIG instances of devices have scrapes, by device."""
    instants: dict[int, set[int]] = defaultdict(set)
    device_of = {instance: device for device, instance in instances}
    wanted = {instance: ranges[device] for device, instance in instances if device in ranges}
    for instance, scrapes in read_range(connection, wanted).items():
        instants[device_of[instance]] |= {at_ms for at_ms, _ in scrapes}
    return {device: frozenset(device_instants) for device, device_instants in instants.items()}


def read_entities(
    connection: Connection, accelerators: list[int], scrapes: Sequence[Scrape]
) -> ScrapedEntities:
    """Read everything that these scrapes refer to."""

    def rows(query: str, ids: set[int] | list[int]) -> list[Any]:
        return select(connection, f"{query} = ANY(%s)", (sorted(ids),))

    return ScrapedEntities(
        {
            row.id: to_object(Accelerator, row)
            for row in rows(
                "SELECT id, uuid, device_uuid, coalesce(gpu_index, 0) AS index, model,"
                " mig_instance, gpu_micro FROM accelerator WHERE id",
                accelerators,
            )
        },
        {
            row.number: to_object(Workload, row)
            for row in rows(
                "SELECT id AS number, external_id AS id, kind, user_name AS user, account, name,"
                " tags, job, job_uid, queue FROM workload WHERE id",
                {number for scrape in scrapes for number in scrape.workload_ids},
            )
        },
        dict(rows("SELECT id, name FROM node WHERE id", {scrape.node_id for scrape in scrapes})),
        {
            row.id: to_object(ReportedAccelerator, row)
            for row in rows(
                "SELECT id, model, mig_instance, gpu_micro, pool, accelerator_id FROM"
                " accelerator_attributes WHERE id",
                {number for scrape in scrapes for number in scrape.accelerator_attributes},
            )
        },
        {
            row.number: (row.workload_id, to_object(Workload, row))
            for row in rows(
                "SELECT t.id AS number, w.id AS workload_id, w.external_id AS id, w.kind,"
                " t.user_name AS user, t.account, t.name, t.tags, t.job, t.job_uid,"
                " t.queue FROM workload_attributes t JOIN"
                " workload w ON w.id = t.workload_id WHERE t.id",
                {number for scrape in scrapes for number in scrape.workload_attributes},
            )
        },
    )


def delete_usage_intervals(connection: Connection, slots: _Slots) -> None:
    """Delete the usage intervals that were computed from these slots before."""
    pairs = [(accelerator_id, slot) for accelerator_id, starts in slots.items() for slot in starts]
    _delete_rows(connection, pairs)
    # Looked for after the rows: a day that was packed just before has none, and one whose rows are
    # deleted now is not packed before the end of this transaction.
    days_ms = {partitions.day_of(at_ms) for _, slot in pairs for at_ms in (slot - SLOT_MS, slot)}
    if interval_packing.unpack(connection, list(slots), sorted(days_ms)):
        _delete_rows(connection, pairs)


def _delete_rows(connection: Connection, pairs: Sequence[tuple[int, int]]) -> None:
    # Day by day: one statement over two distant days would lock every partition between them.
    for day in sorted({slot // DAY_MS for _, slot in pairs}):
        of_day = [(accelerator_id, slot) for accelerator_id, slot in pairs if slot // DAY_MS == day]
        first, last = (
            min(slot for _, slot in of_day) - SLOT_MS,
            max(slot for _, slot in of_day) + SLOT_MS,
        )
        connection.execute(
            "DELETE FROM usage_interval USING unnest(%s::bigint[], %s::bigint[]) AS gone (id, slot)"
            " WHERE accelerator_id = gone.id AND seq = gone.slot AND epoch = %s AND start_ms >= %s"
            " AND start_ms < %s",
            (
                [accelerator_id for accelerator_id, _ in of_day],
                [slot // SLOT_MS for _, slot in of_day],
                EPOCH,
                first,
                last,
            ),
        )


def request_hour_recompute(connection: Connection, slots: _Slots) -> None:
    """Request that the hours of these slots are folded again; an interval may begin in the hour
    before its slot.
    """
    hours = sorted(
        {
            (accelerator_id, instant // HOUR_MS * HOUR_MS)
            for accelerator_id, starts in slots.items()
            for slot in starts
            for instant in (slot - 1, slot)
        }
    )
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT * FROM unnest(%s::bigint[],"
        " %s::bigint[])",
        ([accelerator_id for accelerator_id, _ in hours], [hour for _, hour in hours]),
    )


def delete_old_scrapes(connection: Connection, accelerators: list[int], keep_ms: int) -> None:
    """Delete scrapes that cannot be needed again: metered, and too old for their accelerator."""
    connection.execute(
        "DELETE FROM scrape USING scrape_head AS head WHERE scrape.accelerator_id ="
        " head.accelerator_id AND scrape.accelerator_id = ANY(%s) AND at_ms < newest_ms - %s AND"
        " NOT EXISTS (SELECT 1 FROM scrape_recompute WHERE scrape_recompute.accelerator_id ="
        " scrape.accelerator_id)",
        (accelerators, keep_ms),
    )
