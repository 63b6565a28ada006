"""The sampler: reads the source, asks the owner sources, feeds the meter, and puts batches into the
spool.

It has no thread and reads no clock: the daemon calls it in real time, `simulate` in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from gpuledger_agent import __version__, downsampling
from gpuledger_agent.downsampling import Rows
from gpuledger_agent.exception_counts import ExceptionCounts
from gpuledger_agent.holder_observations import Disagreement, HolderObservations, observe_holders
from gpuledger_agent.monotonic_counters import MonotonicCounters
from gpuledger_agent.spool import BatchContents, Spool
from gpuledger_common import wire
from gpuledger_common.batches import BatchMaker, pack
from gpuledger_common.catalog import BY_NAME
from gpuledger_common.meter import Meter, MeteredInterval
from gpuledger_common.readings import (
    Accelerator,
    ChangingSource,
    Holders,
    Inventory,
    Machine,
    MachineSource,
    OwnerSource,
    Sample,
    Source,
)

if TYPE_CHECKING:
    from gpuledger_agent.gateways import GatewayReader
    from gpuledger_common.serving_counters import CounterReading

MAX_ROWS = 4_000
"""Samples kept in memory while the spool cannot be written, about 7 kB each; beyond that, one per
minute is kept.
"""
OFTEN = frozenset(
    name for name, metric in BY_NAME.items() if metric.tier in {"fast", "gpm", "event"}
)
"""Metrics read in each round: a series of theirs that is missing from a sample (its process ended)
has ended.
"""

EXPORTERS = frozenset({"exporter", "dcgm"})
"""Sources whose counters another program keeps."""

Status = Literal["ok", "no_driver", "no_gpu", "degraded"]


class CounterSource(Protocol):
    """Who reads counters of what workloads produce; the reader of endpoints, or a simulation."""

    def take(self) -> list[CounterReading]:
        """The readings since the last call."""
        ...

    def put_back(self, rows: Sequence[CounterReading], /) -> None:
        """Keep readings that could not be spooled for the next batch."""
        ...


@dataclass(slots=True)
class Latest:
    """The latest sample and holders of each accelerator, for /metrics."""

    accelerators: Sequence[Accelerator] = ()
    driver: str | None = None
    samples: dict[str, Sample] = field(default_factory=dict)
    observations: HolderObservations = field(default_factory=HolderObservations)

    @property
    def holders(self) -> Holders:
        """Who is billed, by accelerator uuid."""
        return self.observations.holders

    def disagreement(self, uuid: str) -> Disagreement:
        """How allocation and use of an accelerator differ."""
        sample = self.samples.get(uuid)
        return self.observations.disagreement(
            uuid, None if sample is None else sample.values.get("gpu_processes")
        )


@dataclass(slots=True)
class Sampler:
    """One node. `status` and `detail` go into the heartbeat."""

    node: str
    pool: str
    source: Source
    owners: Sequence[OwnerSource]
    meter: Meter
    status: Status = "no_driver"
    detail: str = "not opened yet"
    driver: str | None = None
    boot_id: str = ""
    uninstalled: bool = False
    """Whether the next heartbeat is the last one of an agent that is being uninstalled."""
    latest: Latest = field(default_factory=Latest)
    counters: MonotonicCounters = field(default_factory=MonotonicCounters)
    ticks: int = 0
    exceptions: ExceptionCounts = field(default_factory=ExceptionCounts)
    readings_lost: int = 0
    """Readings that did not fit into memory while the spool could not be written, or into any
    column.
    """
    counter_reader: CounterSource | None = None
    """Reads what workloads produced; None where it is not configured."""
    gateway_reader: GatewayReader | None = None
    """Reads tokens of gateways; None where it is not configured."""
    _rows: list[tuple[int, Sample]] = field(default_factory=list)
    _departed: list[Accelerator] = field(default_factory=list)
    """Accelerators that the source no longer lists, with data that may still have to be sent."""
    _changing: ChangingSource | None = field(init=False)
    """The source, where its accelerators may change; asked once, since it takes longer than a
    sample.
    """

    def __post_init__(self) -> None:
        self._changing = self.source if isinstance(self.source, ChangingSource) else None

    def attach(self, inventory: Inventory) -> None:
        """Take over the source's new inventory; data about earlier accelerators still goes into the
        next batch.
        """
        present = {entry.uuid for entry in inventory.accelerators}
        before = {entry.uuid: entry for entry in (*self._departed, *self.latest.accelerators)}
        # A batch lists the accelerators that its records refer to: keep those that left until their
        # data is sent.
        self._departed = [entry for entry in before.values() if entry.uuid not in present]
        self.latest = Latest(tuple(inventory.accelerators), inventory.driver)
        self.driver = inventory.driver
        self.status = "ok" if inventory.accelerators else "no_gpu"
        self.detail = "; ".join(inventory.problems) or (
            "" if inventory.accelerators else "the driver shows no GPU"
        )

    def detach(self, reason: str, status: Status = "no_driver") -> None:
        """The source is unavailable: nothing bridges to its next tick, and the heartbeat gives the
        reason.
        """
        # No sample connects the time before the loss with the time after it: the gap must stay
        # unobserved.
        self.meter.lose_all()
        self.latest.samples, self.latest.observations = {}, HolderObservations()
        self.status, self.detail = status, reason

    def tick(self, at_ms: Callable[[int], int], tiers: Sequence[str]) -> None:
        """Sample all accelerators once; `at_ms` turns a monotonic reading into an instant."""
        samples = self.source.read(tiers)
        # Counters that the driver resets to 0 are continued, so that later differences are never
        # negative. One of an exporter may fall to any value: the meter bridges that by power, and
        # the rebound is billed to nobody.
        if self.source.name not in EXPORTERS:
            samples = [self._correct_counters(sample) for sample in samples]
        if self._changing is not None and (inventory := self._changing.take_changed()) is not None:
            self.attach(inventory)
        observations = observe_holders(
            self.owners, self.latest.accelerators, samples, self._owner_failed
        )
        for sample in samples:
            instant_ms = at_ms(sample.monotonic_ns)
            holders = observations.holders.get(sample.uuid, ())
            try:
                # Without a holder and with a silent owner source, the next round may still cover
                # this time.
                if holders or observations.complete:
                    self.meter.tick(sample, instant_ms, holders)
            except (
                Exception
            ) as error:  # a reading that arithmetic rejects makes only this accelerator unobserved
                self.exceptions.record("meter", error)
                self.meter.lose(sample.uuid)
            # As in a batch, which has no reasons, processes or series.
            self._rows.append((instant_ms, Sample(sample.uuid, sample.monotonic_ns, sample.values)))
        self.latest.samples = {
            sample.uuid: _merge_samples(self.latest.samples.get(sample.uuid), sample)
            for sample in samples
        }
        self.latest.observations = observations
        self.ticks += 1

    def _correct_counters(self, sample: Sample) -> Sample:
        """The sample with every counter made monotonic."""
        values = self.counters.correct(sample.uuid, sample.values)
        return sample if values is sample.values else replace(sample, values=values)

    def _owner_failed(self, owner: OwnerSource, error: Exception) -> None:
        self.exceptions.record(f"owner {type(owner).__name__}", error)

    def flush(self, spool: Spool, now_ms: int) -> int:
        """Spool everything since the last flush as a batch; returns its number.

        When batches pile up, readings get a batch of their own, later a downsampled one
        (`downsampling`). When the spool cannot be written (disk full, I/O error), the exception
        passes, and what was measured stays in memory for the next attempt: all intervals, and
        samples up to a bound.
        """
        try:
            return self._store(spool, now_ms)
        except Exception:
            before = len(self._rows)
            # Intervals are billed and never dropped here; `put_back` in `_store` has kept them and
            # merges those that abut.
            if before > MAX_ROWS:
                self._rows = list(downsampling.downsample(self._rows)[-MAX_ROWS:])
                self.readings_lost += before - len(self._rows)
            raise

    def _store(self, spool: Spool, now_ms: int) -> int:
        # Everything that can fail on its own account happens before `take`, or puts back what was
        # taken.
        level = downsampling.level(spool.fill())
        machine = self.machine() or Machine()
        heartbeat, pool = self._heartbeat(spool, machine), self.pool or machine.pool
        intervals, rows = self.meter.take(), self._rows
        counters = [] if self.counter_reader is None else self.counter_reader.take()
        tokens = [] if self.gateway_reader is None else self.gateway_reader.take()
        reported = {interval.uuid for interval in intervals} | {sample.uuid for _, sample in rows}
        listed = [
            *self.latest.accelerators,
            *(entry for entry in self._departed if entry.uuid in reported),
        ]

        def add_batch(
            intervals: Sequence[MeteredInterval],
            rows: Rows,
            omitted: int,
            counters: Sequence[CounterReading] = (),
            tokens: Sequence[wire.TokenCount] = (),
        ) -> int:
            health = {uuid: sample.health for uuid, sample in self.latest.samples.items()}
            maker = BatchMaker(listed, pool, health)
            usage_intervals, samples = maker.usage_intervals(intervals), self._columns(maker, rows)
            # The maker numbers accelerators and workloads as they are named, so all records are
            # made before the batch.
            counts = maker.counts(counters)
            return spool.add(
                lambda epoch, seq: pack(
                    maker.batch(
                        self.node,
                        epoch,
                        seq,
                        heartbeat,
                        usage_intervals,
                        samples,
                        counts,
                        tokens,
                    )
                ),
                now_ms,
                BatchContents(len(usage_intervals), len(samples.at_ms), omitted),
            )

        # Apart, the spool can drop readings without dropping the intervals measured in the same
        # time.
        apart = level != "together" and bool(rows)
        try:
            number = add_batch(intervals, () if apart else rows, 0, counters, tokens)
            # Stored: if the next batch fails, only readings are retried.
            intervals, counters, tokens = [], [], []
            if apart:
                selected = downsampling.downsample(rows) if level == "thin" else rows
                add_batch((), selected, len(rows) - len(selected))
        except Exception:
            self.meter.put_back(intervals)
            if self.counter_reader is not None:
                self.counter_reader.put_back(counters)
            if self.gateway_reader is not None:
                self.gateway_reader.put_back(tokens)
            raise
        self._rows, self._departed = [], []
        return number

    def machine(self) -> Machine | None:
        """What the node is to its cloud, by the first owner source that knows."""
        sources = (owner for owner in self.owners if isinstance(owner, MachineSource))
        return next(
            (machine for source in sources if (machine := source.machine()) is not None), None
        )

    def _heartbeat(self, spool: Spool, machine: Machine) -> wire.Heartbeat:
        counts = asdict(spool.counts())
        known = {name: value for name, value in asdict(machine).items() if value}
        said = self.status, self.detail, self.driver, self.boot_id
        return wire.Heartbeat(
            __version__,
            self.source.name,
            *said,
            **counts,
            uninstalled=self.uninstalled,
            machine=known,
        )

    def _columns(self, maker: BatchMaker, rows: Rows) -> wire.Samples:
        """Return the readings as columns.

        On any error all of them are dropped and counted in `readings_lost`: a reading that fits
        into no column must not block the usage intervals forever.
        """
        try:
            return maker.samples(rows)
        except Exception as error:
            self.exceptions.record("readings", error)
            self.readings_lost += len(rows)
            return wire.Samples()


def _merge_samples(before: Sample | None, now: Sample) -> Sample:
    """The latest reading of every metric: a slow one is shown between its turns, unless nothing was
    read now.
    """
    if before is None or not now.values:
        return now
    # Three maps with one rule: what was read now wins, what was not due now is kept, what is absent
    # now is removed.
    absent = now.absent
    if before.absent != now.absent:
        absent = {**before.absent, **now.absent}
        for name in absent.keys() & now.values.keys() - now.absent.keys():
            del absent[name]
    values = {**before.values, **now.values}
    for name in now.absent:
        values.pop(name, None)
    kept_series = {name: entry for name, entry in before.series.items() if name not in OFTEN}
    series = {**kept_series, **now.series} if kept_series else now.series
    return Sample(now.uuid, now.monotonic_ns, values, absent, now.processes, now.health, series)
