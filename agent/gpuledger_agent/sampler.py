"""The sampler: one node's ticks. Asks the source, asks the owners, feeds the meter, makes batches into the spool.

It has no thread and reads no clock: the daemon calls it in real time, `simulate` in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from gpuledger_agent import __version__, downsampling
from gpuledger_agent.counters import Counters
from gpuledger_agent.downsampling import Rows
from gpuledger_agent.faults import Faults
from gpuledger_agent.join import Disagreement, HolderObservations, ask
from gpuledger_agent.spool import Holds, Spool
from gpuledger_common import wire
from gpuledger_common.batches import BatchMaker, pack
from gpuledger_common.catalogue import BY_NAME
from gpuledger_common.meter import Meter, Span
from gpuledger_common.readings import Accelerator, Holder, Inventory, OwnerSource, Sample, Source

if TYPE_CHECKING:
    from gpuledger_agent.serving import CounterReader
    from gpuledger_common.serving_counters import Counted

Status = Literal["ok", "no_driver", "no_gpu", "degraded"]


@dataclass(slots=True)
class Latest:
    """What /metrics shows: the newest sample and holders of each accelerator."""

    accelerators: Sequence[Accelerator] = ()
    driver: str | None = None
    samples: dict[str, Sample] = field(default_factory=dict)
    witnesses: HolderObservations = field(default_factory=HolderObservations)

    @property
    def holders(self) -> Mapping[str, Sequence[Holder]]:
        """Whom the time is billed to, by accelerator uuid."""
        return self.witnesses.holders

    def disagreement(self, uuid: str) -> Disagreement:
        """What allocation and use of an accelerator differ in."""
        sample = self.samples.get(uuid)
        return self.witnesses.disagreement(uuid, None if sample is None else sample.values.get("gpu_processes"))


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
    latest: Latest = field(default_factory=Latest)
    counters: Counters = field(default_factory=Counters)
    ticks: int = 0
    faults: Faults = field(default_factory=Faults)
    readings_lost: int = 0
    """Readings that found no room in memory while the spool could not be written, or that no column could take."""
    counting: CounterReader | None = None
    """Reads what workloads produced; None where nothing is configured."""
    _rows: list[tuple[int, Sample]] = field(default_factory=list)
    _gone: list[Accelerator] = field(default_factory=list)
    """Accelerators that are no longer there, of which something may still have to be told."""

    def attached(self, inventory: Inventory) -> None:
        """The source has enumerated its accelerators; what was seen of others before still goes into the next batch."""
        here = {entry.uuid for entry in inventory.accelerators}
        before = {entry.uuid: entry for entry in (*self._gone, *self.latest.accelerators)}
        self._gone = [entry for entry in before.values() if entry.uuid not in here]
        self.latest = Latest(tuple(inventory.accelerators), inventory.driver)
        self.driver = inventory.driver
        self.status = "ok" if inventory.accelerators else "no_gpu"
        self.detail = "; ".join(inventory.problems) or ("" if inventory.accelerators else "the driver shows no GPU")

    def detached(self, sentence: str, status: Status = "no_driver") -> None:
        """The source cannot speak: nothing bridges to its next tick, the heartbeat says why."""
        self.meter.lose_all()
        self.latest.samples, self.latest.witnesses = {}, HolderObservations()
        self.status, self.detail = status, sentence

    def tick(self, at_ms: Callable[[int], int], tiers: Sequence[str]) -> None:
        """One round over all accelerators; `at_ms` turns a monotonic reading into an instant."""
        samples = [
            replace(sample, values=self.counters.risen(sample.uuid, sample.values))
            for sample in self.source.read(tiers)
        ]
        witnesses = ask(self.owners, self.latest.accelerators, samples, self._owner_failed)
        for sample in samples:
            instant = at_ms(sample.monotonic_ns)
            whose = witnesses.holders.get(sample.uuid, ())
            try:
                if whose or witnesses.told:  # else a holder may be unknown: the next round may still speak for it
                    self.meter.tick(sample, instant, whose)
            except Exception as error:  # a reading that no arithmetic can take: this accelerator's interval is unseen
                self.faults.note("meter", error)
                self.meter.lose(sample.uuid)
            self._rows.append((instant, replace(sample, absent={}, processes=(), series={})))  # what a batch holds
        self.latest.samples = {sample.uuid: _merged(self.latest.samples.get(sample.uuid), sample) for sample in samples}
        self.latest.witnesses = witnesses
        self.ticks += 1

    def _owner_failed(self, owner: OwnerSource, error: Exception) -> None:
        self.faults.note(f"owner {type(owner).__name__}", error)

    def _columns(self, maker: BatchMaker, rows: Rows) -> wire.Samples:
        """The readings as columns; a reading that fits into none must not hold back the time for ever."""
        try:
            return maker.samples(rows)
        except Exception as error:
            self.faults.note("readings", error)
            self.readings_lost += len(rows)
            return wire.Samples()

    def flush(self, spool: Spool, now_ms: int) -> int:
        """Everything since the last flush becomes a batch in the spool. Returns its number.

        When batches pile up, the readings become a batch of their own, later a thin one (`downsampling`). When the
        spool cannot be written (disk full, I/O error) the exception passes, and what was measured stays in memory for
        the next attempt: samples up to a bound, spans all.
        """
        try:
            return self._store(spool, now_ms)
        except Exception:
            before = len(self._rows)
            if before > MOST_ROWS:
                self._rows = list(downsampling.thinned(self._rows)[-MOST_ROWS:])
                self.readings_lost += before - len(self._rows)
            raise

    def _store(self, spool: Spool, now_ms: int) -> int:
        level = downsampling.level(spool.fill())
        counts = spool.counts()
        spans = self.meter.take()
        rows = self._rows
        heartbeat = wire.Heartbeat(
            __version__,
            self.source.name,
            self.status,
            self.detail,
            self.driver,
            self.boot_id,
            counts.produced,
            counts.acked,
            counts.pending,
            counts.dropped,
            counts.dead,
        )
        health = {uuid: sample.health for uuid, sample in self.latest.samples.items()}
        told = {span.uuid for span in spans} | {sample.uuid for _, sample in rows}
        listed = [*self.latest.accelerators, *(entry for entry in self._gone if entry.uuid in told)]

        def batch_of(
            spans: Sequence[Span], rows: Rows, left_out: int = 0, counted: Sequence[Counted] = ()
        ) -> tuple[Callable[[str, int], bytes], Holds]:
            maker = BatchMaker(listed, self.pool, health)
            usage_intervals, samples, counts = (
                maker.usage_intervals(spans),
                self._columns(maker, rows),
                maker.counts(counted),
            )
            holds = Holds(len(usage_intervals), len(samples.at_ms), left_out)
            return lambda epoch, seq: pack(
                maker.batch(self.node, epoch, seq, heartbeat, usage_intervals, samples, counts)
            ), holds

        apart = level != "together" and bool(rows)
        counted = [] if self.counting is None else self.counting.take()
        try:
            make, holds = batch_of(spans, () if apart else rows, counted=counted)
            number = spool.add(make, now_ms, holds)
            spans, counted = [], []
            if apart:
                kept = downsampling.thinned(rows) if level == "thin" else rows
                make, holds = batch_of((), kept, len(rows) - len(kept))
                spool.add(make, now_ms, holds)
        except Exception:
            self.meter.put_back(spans)
            if self.counting is not None:
                self.counting.put_back(counted)
            raise
        self._rows, self._gone = [], []
        return number


MOST_ROWS = 4_000
"""Samples kept in memory while the spool cannot be written, about 7 kB each: of more, one for each minute is kept."""


OFTEN = frozenset(name for name, metric in BY_NAME.items() if metric.tier in {"fast", "gpm", "event"})
"""Read at each round: a series of these that does not come any more (its process has ended) is over."""


def _merged(before: Sample | None, now: Sample) -> Sample:
    """The newest reading of every metric: a slow one stays shown between its turns, unless nothing was read now."""
    if before is None or not now.values:
        return now
    absent: Mapping[str, str] = {**before.absent, **now.absent}
    values = {**before.values, **now.values}
    for name in now.absent:
        values.pop(name, None)
    series = {**{name: kept for name, kept in before.series.items() if name not in OFTEN}, **now.series}
    return Sample(now.uuid, now.monotonic_ns, values, absent, now.processes, now.health, series)
