"""Validate a batch record by record; each refusal names its record and the reason.

A batch without a usable key is refused. Otherwise good records are accepted and bad ones listed.
Spooled, replayed and simulated batches keep their times, so old instants are accepted up to the age
that the settings allow; instants that no clock can have shown are always refused.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from gpuledger_collector.accounting.counters import COUNTERS, LATEST_DAYS, MAX_COUNTED
from gpuledger_collector.accounting.inference import COUNTERS as TOKEN_COUNTERS
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.token_counters import LATEST_DAYS as PAGE_DAYS
from gpuledger_collector.ingest.batches.columns import DTYPES, Array, to_array
from gpuledger_collector.ingest.batches.decode import DecodedBatch, RecordList, Refused
from gpuledger_common.catalog import METRICS
from gpuledger_common.instants import to_datetime
from gpuledger_common.readings import Machine
from gpuledger_common.wire import (
    WIRE_VERSION,
    Count,
    Heartbeat,
    Rejected,
    Samples,
    TokenCount,
    WireAccelerator,
    WireUsageInterval,
    WireWorkload,
)

EARLIEST_MS = 946_684_800_000
"""2000-01-01: an earlier clock was never set."""
FUTURE_MS = DAY_MS
MAX_USAGE_INTERVAL_MS = DAY_MS
"""Agents cut at every hour; the bound limits how far back a reader must look for intervals that
reach into an hour.
"""
MAX_DAYS = 40
"""Distinct UTC days of one batch: each may need a new partition."""
MAX_REJECTED = 1000
MAX_TAGS = 200
MAX_ID_BYTES = 1000
"""Of a workload, and of a page of a gateway: its key, with kind and node, is indexed, and an entry
of an index holds 2,704.
"""
MAX_KEY_BYTES = 2_500
"""Of texts that find a row together."""
MAX_NAME = 256
"""Characters of an owner's name that a workload claims; a refused claim is indexed by it."""
MAX_TEXT = 4000
"""Characters of a text in a heartbeat."""
MAX_EPOCH = 64
_INT64 = 2**63 - 1
# Postgres stores no NUL in text, and lone surrogates are not valid UTF-8.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
METRIC_KINDS = {metric.name: metric.column_kind for metric in METRICS}
_SIZES = {kind: np.dtype(dtype).itemsize for kind, dtype in DTYPES.items()}

HEAVY_RECORDS, HEAVY_ROWS = 2_000, 50_000
"""A batch with more records or sample rows takes a tenth of a second or longer to write."""

NODE_SCOPED_KINDS = frozenset({"process", "container", "static", "dcgm"})
"""Kinds of workloads whose id is unique on one node only; their key contains the node's name."""
# A node repeats its epoch in every batch; parsing a UUID costs more than a dictionary look-up.
_uuid = lru_cache(maxsize=16_384)(uuid.UUID)

T = TypeVar("T")


class AcceptedRecords(dict[int, T]):
    """The accepted records of a list, by position: the same object for a list that an agent
    repeats.

    `cache` holds what other modules derive from the list, so that it is derived once.
    """

    __slots__ = ("cache",)

    def __init__(self, records: Mapping[int, T] | Iterable[tuple[int, T]] = ()) -> None:
        super().__init__(records)
        self.cache: dict[object, Any] = {}


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of a batch: position of the accelerator in its batch, instant, and a column for each
    metric.

    A column is the bytes that were sent (little-endian, of the kind in the catalog): a batch has
    dozens of short columns, and creating a numpy array costs more than processing it. They are
    converted when batches are joined.
    """

    accelerator: Array
    at_ms: Array
    columns: dict[str, bytes]
    first_ms: int
    last_ms: int

    @classmethod
    def from_columns(
        cls, accelerator: Array, at_ms: Array, columns: dict[str, bytes]
    ) -> SampleBlock:
        """Create a block of at least one row."""
        return cls(accelerator, at_ms, columns, int(at_ms.min()), int(at_ms.max()))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted part of a batch. Records are keyed by their positions in the batch."""

    node: str
    epoch: uuid.UUID
    seq: int
    sha256: bytes
    size: int
    heartbeat: Heartbeat | None
    accelerators: AcceptedRecords[WireAccelerator]
    workloads: AcceptedRecords[WireWorkload]
    usage_intervals: dict[int, WireUsageInterval]
    block: SampleBlock | None
    rejected: list[Rejected]
    counts: dict[int, Count] = field(default_factory=dict)
    token_counts: dict[int, TokenCount] = field(default_factory=dict)
    clock_skew_ms: int | None = None
    """The collector's clock minus the sender's."""

    @property
    def key(self) -> tuple[str, uuid.UUID, int]:
        """The key by which a batch counts once."""
        return self.node, self.epoch, self.seq

    @property
    def samples(self) -> int:
        """Number of accepted sample rows."""
        return 0 if self.block is None else len(self.block.at_ms)

    @property
    def is_heavy(self) -> bool:
        """Whether writing it would delay other batches noticeably."""
        names = len(self.accelerators) + len(self.workloads)
        return (
            names + len(self.usage_intervals) + len(self.counts) + len(self.token_counts)
            > HEAVY_RECORDS
            or self.samples > HEAVY_ROWS
        )


def workload_key(kind: str, node: str, external_id: str) -> str:
    """Kind, scope and id of a workload: stable over restarts of agents and collectors."""
    return f"{kind}:{node if kind in NODE_SCOPED_KINDS else ''}:{external_id}"


def accept(
    batch: DecodedBatch,
    now_ms: int,
    clock_skew_ms: int | None = None,
    oldest_ms: int = EARLIEST_MS,
    gateway_nodes: Collection[str] = (),
) -> Accepted:
    """Validate every record of a batch at `now_ms`; records from before `oldest_ms` are refused,
    and tokens of gateways unless the node is one of `gateway_nodes`.

    Raises Refused when the batch has no usable key.
    """
    # 1. The lists that other records refer to; a reference to a refused entry is refused as well.
    epoch = _parse_epoch(batch)
    accelerators, accelerator_refusals = _validate(
        batch.accelerators, "accelerators", check_accelerator
    )
    workloads, workload_refusals = _validate(batch.workloads, "workloads", check_workload)
    rejected = [*batch.rejected, *accelerator_refusals, *workload_refusals]
    # 2. Usage intervals: each alone, then the sums of those that share a time.
    context = accelerators, workloads, now_ms + FUTURE_MS, oldest_ms
    usage_intervals = _check_each(
        "usage_intervals", batch.usage_intervals, check_usage_interval, rejected, *context
    )
    _refuse_wrong_sums(usage_intervals, rejected)
    # 3. Samples, then the bound on the days that intervals and samples touch together.
    block = _accept_samples(batch.samples, accelerators, now_ms, rejected, oldest_ms)
    usage_intervals, block, beyond = _bound_days(usage_intervals, block)
    rejected += beyond
    # 4. Readings of counters, which are bounded by their own age limit.
    counts = _check_each("counts", batch.counts, check_count, rejected, workloads, now_ms)
    is_gateway_node = "*" in gateway_nodes or batch.node in gateway_nodes
    token_counts = _check_each(
        "token_counts", batch.token_counts, check_token_count, rejected, is_gateway_node, now_ms
    )
    return Accepted(
        node=batch.node,
        epoch=epoch,
        seq=batch.seq,
        sha256=batch.sha256,
        size=batch.size,
        heartbeat=truncate_texts(batch.heartbeat),
        accelerators=accelerators,
        workloads=workloads,
        usage_intervals=usage_intervals,
        block=block,
        rejected=bound_refusals(rejected),
        counts=counts,
        token_counts=token_counts,
        clock_skew_ms=clock_skew_ms,
    )


_MACHINE = frozenset(field.name for field in dataclasses.fields(Machine))


def truncate_texts(heartbeat: Heartbeat) -> Heartbeat:
    """Truncate long texts, and drop what no machine has, so that a heartbeat can be held in memory
    until it is written.
    """
    if not heartbeat.machine.keys() <= _MACHINE:
        known = {name: text for name, text in heartbeat.machine.items() if name in _MACHINE}
        heartbeat = msgspec.structs.replace(heartbeat, machine=known)
    texts = (
        heartbeat.agent_version,
        heartbeat.source,
        heartbeat.detail,
        heartbeat.driver or "",
        heartbeat.boot_id,
        *heartbeat.machine.values(),
    )
    if max(map(len, texts)) <= MAX_TEXT:
        return heartbeat
    return msgspec.convert(storable(msgspec.to_builtins(heartbeat)), Heartbeat)


def _validate(
    listed: RecordList[T], name: str, check: Callable[[T], str | None]
) -> tuple[AcceptedRecords[T], Sequence[Rejected]]:
    """The accepted records of a list and the refusals of the others, computed once for a list that
    is repeated.
    """
    if listed.validated is None:
        rejected: list[Rejected] = []
        records = _check_each(name, listed.records, check, rejected)
        if name == "accelerators":
            _refuse_repeats(records, rejected)
        listed.validated = AcceptedRecords(records), rejected
    validated: tuple[AcceptedRecords[T], Sequence[Rejected]] = listed.validated
    return validated


def _parse_epoch(batch: DecodedBatch) -> uuid.UUID:
    if batch.version != WIRE_VERSION:
        raise Refused(400, f"version {batch.version} is not supported, {WIRE_VERSION} is")
    if not batch.node or bad_text(batch.node, 253) or not batch.node.isprintable():
        raise Refused(400, "node: is empty, longer than 253 characters or not printable")
    if not 0 <= batch.seq <= _INT64:
        raise Refused(400, f"seq: {batch.seq} is not a number from 0 to 2^63-1")
    try:
        # A UUID may be written with any number of hyphens: long spellings must not fill the cache.
        return (_uuid if len(batch.epoch) <= MAX_EPOCH else uuid.UUID)(batch.epoch)
    except ValueError as error:
        raise Refused(400, "epoch: is not a UUID") from error


def _check_each(
    name: str,
    records: Iterable[Any],
    check: Callable[..., str | None],
    rejected: list[Rejected],
    *context: object,
) -> dict[int, Any]:
    """The accepted records by position; `check` returns the reason to refuse one, given `context`."""
    accepted = {}
    for place, record in enumerate(records):
        if record is None:
            continue
        reason = check(record, *context)
        if reason is None:
            accepted[place] = record
        else:
            rejected.append(Rejected(f"{name}[{place}]", reason))
    return accepted


def bad_text(text: str, limit: int) -> str | None:
    """Why this text cannot be stored or shown; None when it can."""
    if len(text) > limit:
        return f"is longer than {limit} characters"
    if _UNSTORABLE.search(text):
        return "holds a character that cannot be stored"
    return None


def _bad_field(record: object, limits: Mapping[str, int]) -> str | None:
    for name, limit in limits.items():
        if reason := bad_text(getattr(record, name) or "", limit):
            return f"{name}: {reason}"
    return None


def _bad_key(record: object, names: Sequence[str]) -> str | None:
    """Why no index can hold these texts of a record."""
    size = sum(len(getattr(record, name).encode()) for name in names)
    if size <= MAX_KEY_BYTES:
        return None
    return f"{', '.join(names)}: have {size} bytes together, {MAX_KEY_BYTES} are allowed"


def storable(value: Any) -> Any:
    """Make the texts of a JSON value storable in Postgres: replace other characters, cut texts at
    MAX_TEXT.
    """
    if isinstance(value, dict):
        return {storable(key): storable(part) for key, part in value.items()}
    if isinstance(value, str):
        # `errors="replace"` turns lone surrogates into question marks.
        return value[:MAX_TEXT].replace("\0", "\ufffd").encode(errors="replace").decode()
    return value


def check_accelerator(accelerator: WireAccelerator) -> str | None:
    """Why an accelerator is refused."""
    if not accelerator.uuid:
        return "uuid: is empty"
    limits = {
        "uuid": 200,
        "device_uuid": 200,
        "model": 200,
        "mig_instance": 200,
        "pool": 200,
        "health_cause": 2000,
    }
    if reason := _bad_field(accelerator, limits):
        return reason
    # Millionths of a physical GPU: 1,000,000 is an entire one, less a MIG instance.
    if not 1 <= accelerator.gpu_micro <= 1_000_000:
        return f"gpu_micro: {accelerator.gpu_micro} is not from 1 to 1000000"
    # The column is a Postgres integer.
    if not 0 <= accelerator.index < 2**31:
        return f"index: {accelerator.index} is out of range"
    if accelerator.memory_bytes is not None and not 0 <= accelerator.memory_bytes <= _INT64:
        return "memory_bytes: is out of range"
    return None


def _refuse_repeats(accelerators: dict[int, WireAccelerator], rejected: list[Rejected]) -> None:
    first: dict[str, int] = {}
    # Of two entries for one UUID the first counts: with both, it would be undefined to which one
    # records refer.
    for place, accelerator in list(accelerators.items()):
        known = first.setdefault(accelerator.uuid, place)
        if known != place:
            rejected.append(
                Rejected(f"accelerators[{place}]", f"uuid: is that of accelerators[{known}]")
            )
            del accelerators[place]


def check_workload(workload: WireWorkload) -> str | None:
    """Why a workload is refused."""
    if not workload.id or not workload.kind:
        return "id or kind: is empty"
    if reason := _bad_field(
        workload,
        {
            "id": 1000,
            "kind": 64,
            "user": 1000,
            "account": 1000,
            "name": 1000,
            "job": 1000,
            "job_uid": 1000,
            "queue": 1000,
        },
    ):
        return reason
    if len(workload.id.encode()) > MAX_ID_BYTES:
        return f"id: is longer than {MAX_ID_BYTES} bytes"
    if len(workload.tags) > MAX_TAGS:
        return f"tags: has {len(workload.tags)} of them, {MAX_TAGS} are allowed"
    for tag, value in workload.tags.items():
        reason = bad_text(tag, 200) or bad_text(value, 4000)
        if reason:
            return f"tags[{tag[:40]!a}]: {reason}"
    for level, name in workload.refused.items():
        reason = "is no level" if level not in LEVELS else bad_text(name, MAX_NAME)
        if reason:
            return f"refused[{level[:40]!a}]: {reason}"
    return None


def check_usage_interval(
    interval: WireUsageInterval,
    accelerators: dict[int, WireAccelerator],
    workloads: dict[int, WireWorkload],
    latest_ms: int,
    oldest_ms: int = EARLIEST_MS,
) -> str | None:
    """Why a usage interval is refused; none may begin before `oldest_ms` or reach beyond
    `latest_ms`.
    """
    if interval.accelerator not in accelerators:
        return f"accelerator: there is no accepted accelerators[{interval.accelerator}]"
    start_ms, end_ms = interval.start_ms, interval.end_ms
    # This runs for every interval, so cheap comparisons come first and reasons are built only on
    # refusal.
    if not oldest_ms <= start_ms <= latest_ms or end_ms > latest_ms:
        return _out_of_time(start_ms, oldest_ms)
    if not 0 < end_ms - start_ms <= MAX_USAGE_INTERVAL_MS:
        return "end_ms: is not after start_ms, or more than a day after it"
    if interval.energy_mj is not None and not 0 <= interval.energy_mj <= _INT64:
        return "energy_mj: is out of range"
    held_ms, busy_ms, idle_ms, unknown_ms = (
        interval.held_ms,
        interval.busy_ms,
        interval.idle_ms,
        interval.unknown_ms,
    )
    if interval.state != "held":
        if interval.workload is None and not (held_ms or busy_ms or idle_ms or unknown_ms):
            return None
        return f"state: {interval.state} is held by nobody"
    if interval.workload not in workloads:
        return f"workload: there is no accepted workloads[{interval.workload}]"
    if held_ms < 0 or busy_ms < 0 or idle_ms < 0 or unknown_ms < 0 or held_ms > end_ms - start_ms:
        return "held_ms: is not from 0 to end_ms - start_ms, or a part of it is negative"
    # Exactly, in whole milliseconds: the bill distinguishes busy and idle cost, which must add up
    # to held cost.
    if busy_ms + idle_ms + unknown_ms != held_ms:
        return "busy_ms, idle_ms, unknown_ms: do not add up to held_ms"
    return None


def _out_of_time(start_ms: int, oldest_ms: int) -> str:
    if EARLIEST_MS <= start_ms < oldest_ms:
        return f"start_ms: {too_old(oldest_ms)}"
    return "start_ms, end_ms: lie before the year 2000 or more than a day ahead"


def too_old(oldest_ms: int) -> str:
    """The reason to refuse evidence from before an instant."""
    oldest = to_datetime(oldest_ms)
    return (
        f"lies before {oldest:%Y-%m-%dT%H:%M:%SZ}, older than max_evidence_age_days allows: import"
        " it instead"
    )


def check_count(count: Count, workloads: dict[int, WireWorkload], now_ms: int) -> str | None:
    """Why a reading of a counter is refused."""
    if count.workload not in workloads:
        return f"workload: there is no accepted workloads[{count.workload}]"
    if count.counter not in COUNTERS:
        return f"counter: {count.counter[:40]!a} is not one of {', '.join(COUNTERS)}"
    if not count.source:
        return "source: is empty"
    if reason := _bad_field(count, {"source": 1000, "part": 2000, "engine": 64}):
        return reason
    if reason := _bad_key(count, ("source", "part")):
        return reason
    if not 0 <= count.value <= MAX_COUNTED:
        return "value: is negative, or more than a counter can show exactly (2^53)"
    if not now_ms - LATEST_DAYS * DAY_MS <= count.at_ms <= now_ms + FUTURE_MS:
        return f"at_ms: is more than {LATEST_DAYS} days old or more than a day ahead"
    if count.started_ms is not None and not 0 <= count.started_ms <= _INT64:
        return "started_ms: is out of range"
    return None


def check_token_count(count: TokenCount, is_gateway_node: bool, now_ms: int) -> str | None:
    """Why a reading of a gateway's counter is refused."""
    if not is_gateway_node:
        return "this node reports no gateway here: name it in the collector's gateway_nodes"
    if count.counter and count.counter not in TOKEN_COUNTERS:
        return f"counter: {count.counter[:40]!a} is not one of {', '.join(TOKEN_COUNTERS)}"
    if not count.gateway or not count.page:
        return "gateway, page: are needed"
    if reason := _bad_field(
        count, {"gateway": 100, "page": 1000, "tenant": 500, "model": 500, "backend": 500}
    ):
        return reason
    if len(count.page.encode()) > MAX_ID_BYTES:
        return f"page: is longer than {MAX_ID_BYTES} bytes"
    if reason := _bad_key(count, ("gateway", "tenant", "model", "backend")):
        return reason
    if not 0 <= count.value <= MAX_COUNTED:
        return "value: is negative, or more than a counter can show exactly (2^53)"
    if not now_ms - PAGE_DAYS * DAY_MS <= count.at_ms <= now_ms + FUTURE_MS:
        return f"at_ms: is more than {PAGE_DAYS} days old or more than a day ahead"
    if count.started_ms is not None and not 0 <= count.started_ms <= _INT64:
        return "started_ms: is out of range"
    return None


def _refuse_wrong_sums(
    usage_intervals: dict[int, WireUsageInterval], rejected: list[Rejected]
) -> None:
    """Refuse the holders that share a span but do not hold exactly all of it together."""
    spans: dict[tuple[int, int, int], list[int]] = {}
    for place, interval in usage_intervals.items():
        if interval.state == "held":
            spans.setdefault((interval.accelerator, interval.start_ms, interval.end_ms), []).append(
                place
            )
    # All holders of the span are refused together: without one of them the others would be charged
    # too little.
    for (_, start_ms, end_ms), places in spans.items():
        held = sum([usage_intervals[place].held_ms for place in places])
        if held == end_ms - start_ms:
            continue
        reason = f"held_ms: the holders of this span hold {held} of {end_ms - start_ms} ms"
        for place in places:
            rejected.append(Rejected(f"usage_intervals[{place}]", reason))
            del usage_intervals[place]


def _accept_samples(
    samples: Samples,
    accelerators: AcceptedRecords[WireAccelerator],
    now_ms: int,
    rejected: list[Rejected],
    oldest_ms: int,
) -> SampleBlock | None:
    rows = len(samples.at_ms)
    if len(samples.accelerator) != rows:
        reason = f"accelerator has {len(samples.accelerator)} rows and at_ms {rows}"
        rejected.append(Rejected("samples", reason))
        return None
    # Fast path: bytes of the right kind and length are taken as they are, without creating an
    # array.
    columns = {
        name: column.values
        for name, column in samples.columns.items()
        if column.kind == METRIC_KINDS.get(name)
        and isinstance(column.values, bytes)
        and len(column.values) == rows * _SIZES[column.kind]
    }
    # Slow path: lists (JSON) and other kinds are converted, or refused with a reason.
    for name, column in samples.columns.items() if len(columns) < len(samples.columns) else ():
        if name in columns:
            continue
        try:
            columns[name] = to_array(column, rows, kind_of(name)).tobytes()
        except ValueError as error:
            rejected.append(Rejected(f"samples.columns[{name[:100]!a}]", str(error)))
    kept = _good_rows(samples, accelerators, now_ms + FUTURE_MS, rejected, oldest_ms)
    if not kept:
        return None
    accelerator, at_ms = samples.accelerator, samples.at_ms
    if len(kept) < rows:
        accelerator, at_ms = [accelerator[row] for row in kept], [at_ms[row] for row in kept]
        columns = select_rows(columns, np.array(kept))
    # Positions and instants stay arrays: they are compared and selected by mask for every batch.
    rows_at = np.array(accelerator, dtype="<i8"), np.array(at_ms, dtype="<i8")
    return SampleBlock(*rows_at, columns, min(at_ms), max(at_ms))


def select_rows(columns: dict[str, bytes], rows: Array) -> dict[str, bytes]:
    """Select rows of columns, by index or by mask."""
    return {
        name: np.frombuffer(values, DTYPES[METRIC_KINDS[name]])[rows].tobytes()
        for name, values in columns.items()
    }


def kind_of(metric: str) -> str:
    """How a metric's column is stored. Raises ValueError for a metric that the catalog lacks."""
    kind = METRIC_KINDS.get(metric)
    if kind is None:
        raise ValueError("is not a metric of this collector's catalog")
    return kind


def _good_rows(
    samples: Samples,
    accelerators: AcceptedRecords[WireAccelerator],
    latest_ms: int,
    rejected: list[Rejected],
    oldest_ms: int,
) -> Sequence[int]:
    rows = samples.at_ms
    # Nearly every batch is good throughout: four comparisons instead of a loop over its rows.
    if (
        rows
        and min(rows) >= oldest_ms
        and max(rows) <= latest_ms
        and accelerators.keys() >= set(samples.accelerator)
    ):
        return range(len(rows))
    kept = []
    for row, (accelerator, at_ms) in enumerate(
        zip(samples.accelerator, samples.at_ms, strict=True)
    ):
        if accelerator not in accelerators:
            reason = f"accelerator: there is no accepted accelerators[{accelerator}]"
        elif not EARLIEST_MS <= at_ms <= latest_ms:
            reason = "at_ms: lies before the year 2000 or more than a day ahead"
        elif at_ms < oldest_ms:
            reason = f"at_ms: {too_old(oldest_ms)}"
        else:
            kept.append(row)
            continue
        rejected.append(Rejected(f"samples[{row}]", reason))
    return kept


def _bound_days(
    usage_intervals: dict[int, WireUsageInterval], block: SampleBlock | None
) -> tuple[dict[int, WireUsageInterval], SampleBlock | None, list[Rejected]]:
    """The records of the earliest MAX_DAYS days of the batch, and the refusals of the others."""
    days = {interval.start_ms // DAY_MS for interval in usage_intervals.values()}
    if block is not None:
        days |= days_of(block)
    if len(days) <= MAX_DAYS:
        return usage_intervals, block, []
    last = sorted(days)[MAX_DAYS - 1]
    reason = f"lies beyond the first {MAX_DAYS} days of its batch"
    near = {
        place: interval
        for place, interval in usage_intervals.items()
        if interval.start_ms // DAY_MS <= last
    }
    refused = [f"usage_intervals[{place}]" for place in usage_intervals if place not in near]
    if block is not None:
        kept = block.at_ms // DAY_MS <= last
        refused += [f"samples at {at_ms}" for at_ms in block.at_ms[~kept].tolist()]
        block = (
            SampleBlock.from_columns(
                block.accelerator[kept], block.at_ms[kept], select_rows(block.columns, kept)
            )
            if kept.any()
            else None
        )
    return near, block, [Rejected(place, reason) for place in refused]


def days_of(block: SampleBlock) -> set[int]:
    """Numbers of the UTC days that a block touches."""
    # A batch rarely spans more than one day: first and last instant suffice then.
    ends = {block.first_ms // DAY_MS, block.last_ms // DAY_MS}
    return ends if len(ends) == 1 else set((block.at_ms // DAY_MS).tolist())


def bound_refusals(rejected: list[Rejected]) -> list[Rejected]:
    """At most MAX_REJECTED refusals; the others are counted in one more."""
    rest = len(rejected) - MAX_REJECTED
    if rest <= 0:
        return rejected
    return [*rejected[:MAX_REJECTED], Rejected("...", f"and {rest} more records")]
