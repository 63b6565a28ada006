"""Read one accelerator by the catalog: plain calls, one batch of field values, and pairs of GPM
samples.

The list of metrics is made at attach and shrinks: one that the card does not support is tried once.
A field's value is valid only if its own return code is 0; otherwise it holds garbage.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from gpuledger_agent.sources.nvml_series import Refusal, SeriesReader
from gpuledger_common.catalog import METRICS
from gpuledger_common.health import EVIDENCE, verdict
from gpuledger_common.metrics import Call, Field, Gpm, Metric
from gpuledger_common.readings import Health, Process, SeriesValue

LOST, RESET_REQUIRED = 15, 16
PERMANENT_ERRORS = frozenset({2, 3, 4, 13, 25, 26})
"""Errors that last until the next attach: invalid argument, not supported, no permission, function
not found, version mismatch, deprecated.
"""
_REASONS = {
    2: "unknown to this card (invalid argument)",
    3: "not supported by this card",
    4: "not permitted to this user",
    6: "not found",
    13: "not in this driver (function not found)",
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    25: "another struct version in this driver",
    26: "deprecated by this driver",
}
_VALUE_FIELDS = {
    0: "dVal",
    1: "uiVal",
    2: "ulVal",
    3: "ullVal",
    4: "sllVal",
    5: "siVal",
    6: "usVal",
}
UNKNOWN_PSTATE = 32
MAX_ENGINES = 8
NOT_AVAILABLE_MEMORY = 2**64 - 1


def text(value: Any) -> str:
    """A string of NVML, which older bindings return as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


@dataclass(slots=True)
class DeviceReading:
    """The result of one read."""

    values: dict[str, float | int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    processes: Sequence[Process] = ()
    series: dict[str, Sequence[SeriesValue]] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    failed: int | None = None
    """The code of a call that found the GPU lost or in need of a reset."""


class DeviceReader:
    """Reads one device or MIG instance; used by one thread."""

    def __init__(
        self, nvml: Any, handle: Any, *, parent: Any = None, gpu_instance: int | None = None
    ) -> None:
        self._nvml, self._handle = nvml, handle
        self._parent, self._gpu_instance = parent, gpu_instance
        scope = "GPU" if parent is None else "MIG"
        self._metrics = [
            metric for metric in METRICS if metric.reader is not None and scope in metric.scopes
        ]
        self._unsupported: dict[str, str] = {}
        self._evidence: dict[str, float | int] = {}
        if parent is not None:
            # A board's sensors cannot be attributed to its instances, so these metrics are absent
            # with that reason.
            self._unsupported |= {
                metric.name: "not measured per MIG instance"
                for metric in METRICS
                if metric.hot and "MIG" not in metric.scopes
            }
        self._gpm: list[Any] | None = None
        self._gpm_ready = False
        self._series = SeriesReader(nvml, handle, self._call_guarded, instance=parent is not None)

    def read(self, tiers: frozenset[str]) -> DeviceReading:
        """Read the metrics of the requested tiers. Never raises for an unsupported one."""
        reading = self._gather(
            [metric for metric in self._metrics if metric.tier in tiers], "gpm" in tiers
        )
        self._read_processes(reading)
        # No reading of this round is trusted, although some calls may have succeeded before the one
        # that failed.
        if reading.failed is not None:
            reading.values.clear()
        else:
            series, absent = self._series.read(tiers, reading.values, reading.processes)
            reading.series |= series
            reading.absent |= absent
        reading.absent |= self._unsupported
        self._derive(reading)
        reading.health = self._verdict(reading)
        # Only on rounds that read something: on others an empty reading is normal.
        if (
            "fast" in tiers
            and reading.health == Health()
            and not reading.values.keys() - {"gpu_processes"}
        ):
            reading.health = Health("unknown", "the driver refuses every reading")
        return reading

    def health(self, tiers: frozenset[str]) -> Health:
        """The health alone, from the few metrics that it needs: for a board whose MIG instances are
        read instead.
        """
        needed = [
            metric for metric in self._metrics if metric.tier in tiers and metric.name in EVIDENCE
        ]
        return self._verdict(self._gather(needed, False))

    def alive(self) -> int:
        """0 while the handle is valid, else NVML's code (1 and 2 after a reload or a MIG change)."""
        answer = self._call_guarded(lambda: self._nvml.nvmlDeviceGetUUID(self._handle))
        return answer.code if isinstance(answer, Refusal) else 0

    def release(self) -> None:
        """Free the GPM buffers in the driver's library."""
        for sample in self._gpm or ():
            self._call_guarded(partial(self._nvml.nvmlGpmSampleFree, sample))
        self._gpm, self._gpm_ready = None, False

    def _gather(self, due: Sequence[Metric], gpm: bool) -> DeviceReading:
        reading = DeviceReading()
        supported = [metric for metric in due if metric.name not in self._unsupported]
        self._read_calls(
            [metric for metric in supported if isinstance(metric.reader, Call)], reading
        )
        self._read_fields(
            [metric for metric in supported if isinstance(metric.reader, Field)], reading
        )
        if gpm:
            self._read_gpm(
                [metric for metric in supported if isinstance(metric.reader, Gpm)], reading
            )
        return reading

    def _note_refusal(self, metric: Metric, code: int, reading: DeviceReading) -> None:
        reason = _REASONS.get(code, f"NVML error {code}")
        if code in {LOST, RESET_REQUIRED}:
            reading.failed = code
        if code in PERMANENT_ERRORS:
            self._unsupported[metric.name] = reason
        reading.absent[metric.name] = reason

    def _put(self, metric: Metric, raw: Any, reading: DeviceReading) -> None:
        """Store a raw number in base units; anything else, and a sentinel for unknown, is absent."""
        # Some calls return one flag per part of the card: any of them counts.
        if isinstance(raw, list) and metric.unit == "bool":
            raw = any(raw)
        try:
            value = float(raw) * metric.scale
        except (TypeError, ValueError):
            self._unsupported[metric.name] = reading.absent[metric.name] = (
                "the driver's answer is not a number"
            )
            return
        # NVML_PSTATE_UNKNOWN is a number like the others; it must not enter a column as a state.
        if metric.name == "gpu_performance_state" and value == UNKNOWN_PSTATE:
            reading.absent[metric.name] = "the driver does not know"
            return
        reading.values[metric.name] = int(value) if metric.column_kind == "i8" else value

    def _read_calls(self, due: Sequence[Metric], reading: DeviceReading) -> None:
        """Plain calls; metrics that come from one call share it."""
        answers: dict[tuple[str, tuple[str, ...]], Any] = {}
        for metric in due:
            reader = metric.reader
            if not isinstance(reader, Call):
                continue
            key = (reader.function, reader.args)
            if key not in answers:
                answers[key] = self._call(reader)
            answer = answers[key]
            if isinstance(answer, Refusal):
                self._note_refusal(metric, answer.code, reading)
            else:
                self._put(metric, _item(answer, reader.item), reading)

    def _call(self, reader: Call) -> Any:
        function = getattr(self._nvml, reader.function, None)
        if function is None:
            return Refusal(13)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        filled: Any = None
        for argument in reader.args:
            # An argument of the catalog is a constant, `name=constant`, or a struct type that the
            # call fills in.
            name, equals, constant = argument.partition("=")
            value = getattr(self._nvml, constant or name, None)
            if value is None:
                return Refusal(13)
            if isinstance(value, type):
                filled = value()
                positional.append(ctypes.byref(filled))
            elif equals:
                named[name] = value
            else:
                positional.append(value)
        answer = self._call_guarded(lambda: function(self._handle, *positional, **named))
        return answer if filled is None or isinstance(answer, Refusal) else filled

    def _call_guarded(self, call: Callable[[], Any]) -> Any:
        """The answer or a Refusal.

        NVMLLibraryMismatchError is not an NVMLError, hence `except Exception`.
        """
        try:
            return call()
        except self._nvml.NVMLError as error:
            return Refusal(int(error.value))
        except Exception:  # a binding older or newer than the driver fails in many ways
            return Refusal(13)

    def _read_fields(self, due: Sequence[Metric], reading: DeviceReading) -> None:
        """Read all fields in one call; each answer has its own return code."""
        wanted = []
        for metric in due:
            reader = metric.reader
            identity = (
                getattr(self._nvml, reader.constant, None) if isinstance(reader, Field) else None
            )
            if identity is None or not isinstance(reader, Field):
                self._note_refusal(metric, 13, reading)
            else:
                # With a scope (such as a link number) the binding takes a pair instead of the bare
                # field id.
                wanted.append(
                    (metric, identity if reader.scope is None else (identity, reader.scope))
                )
        if not wanted:
            return
        answers = self._call_guarded(
            lambda: self._nvml.nvmlDeviceGetFieldValues(
                self._handle, [field for _, field in wanted]
            )
        )
        for position, (metric, _) in enumerate(wanted):
            if isinstance(answers, Refusal):
                self._note_refusal(metric, answers.code, reading)
            elif answers[position].nvmlReturn != 0:
                self._note_refusal(metric, int(answers[position].nvmlReturn), reading)
            else:
                self._put(metric, field_value(metric, answers[position]), reading)

    def _read_gpm(self, due: Sequence[Metric], reading: DeviceReading) -> None:
        """Read the activity since the last read, from a pair of GPM samples that swap roles."""
        if not due or not self._gpm_start(due, reading) or self._gpm is None:
            return
        self._gpm.reverse()  # the previous sample becomes the first of the pair
        answer = self._call_guarded(partial(self._gpm_sample, self._gpm[1]))
        if isinstance(answer, Refusal):
            for metric in due:
                self._note_refusal(metric, answer.code, reading)
            return
        if not self._gpm_ready:  # the first sample alone gives no difference
            self._gpm_ready = True
            return
        self._gpm_compute(due, reading)

    def _gpm_start(self, due: Sequence[Metric], reading: DeviceReading) -> bool:
        if self._gpm is not None:
            return True
        nvml = self._nvml
        # A MIG instance is sampled through its parent device, so the parent must support GPM.
        support = self._call_guarded(
            lambda: nvml.nvmlGpmQueryDeviceSupport(self._parent or self._handle)
        )
        if isinstance(support, Refusal) or not support.isSupportedDevice:
            for metric in due:
                self._note_refusal(
                    metric, support.code if isinstance(support, Refusal) else 3, reading
                )
            return False
        buffers = [self._call_guarded(nvml.nvmlGpmSampleAlloc) for _ in range(2)]
        refusals = [buffer for buffer in buffers if isinstance(buffer, Refusal)]
        for metric in due if refusals else ():
            self._note_refusal(metric, refusals[0].code, reading)
        self._gpm = None if refusals else buffers
        return not refusals

    def _gpm_sample(self, sample: Any) -> None:
        if self._parent is not None and self._gpu_instance is not None:
            self._nvml.nvmlGpmMigSampleGet(self._parent, self._gpu_instance, sample)
        else:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)

    def _gpm_compute(self, due: Sequence[Metric], reading: DeviceReading) -> None:
        nvml = self._nvml
        wanted = [
            (metric, engine, constant)
            for metric in due
            for engine, constant in engines(nvml, metric)
        ]
        request = nvml.c_nvmlGpmMetricsGet_t()
        # NVML checks the version of a struct and refuses one of another size.
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        assert self._gpm is not None
        request.sample1, request.sample2 = self._gpm
        for position, (_, _, constant) in enumerate(wanted):
            request.metrics[position].metricId = constant
        answer = self._call_guarded(lambda: nvml.nvmlGpmMetricsGet(request))
        by_engine: dict[str, list[SeriesValue]] = {}
        for position, (metric, engine, _) in enumerate(wanted):
            entry = request.metrics[position]
            if isinstance(answer, Refusal):
                reading.absent[metric.name] = _REASONS.get(answer.code, f"NVML error {answer.code}")
            # Engine 0 and metrics without engines decide whether the card supports it; later
            # engines may simply not exist.
            elif entry.nvmlReturn != 0 and not engine:
                self._note_refusal(metric, int(entry.nvmlReturn), reading)
            # NaN is the only value that differs from itself.
            elif entry.nvmlReturn != 0 or entry.value != entry.value:
                reading.absent[metric.name] = "no value yet"
            elif engine is None:
                self._put(metric, entry.value, reading)
            else:
                value = SeriesValue((("engine", str(engine)),), entry.value * metric.scale)
                by_engine.setdefault(metric.name, []).append(value)
        reading.series |= by_engine
        for name in by_engine:
            reading.absent.pop(name, None)

    def _read_processes(self, reading: DeviceReading) -> None:
        """Read every process with a context, once; without a list from the driver, their number is
        absent.
        """
        processes: dict[int, Process] = {}
        for kind, names in _PROCESS_CALLS:
            answer = self._first_answer(names)
            if isinstance(answer, Refusal):
                if answer.code in {LOST, RESET_REQUIRED}:
                    reading.failed = answer.code
                # Only the first list is essential: MPS and graphics lists are missing on many
                # cards.
                if kind == "compute" and names is _PROCESS_CALLS[0][1]:
                    why = _REASONS.get(answer.code, f"NVML error {answer.code}")
                    reading.absent["gpu_processes"] = f"the driver does not list processes: {why}"
                    return
                continue
            for entry in answer:
                # A process with both kinds of context is in both lists: it counts once, as compute.
                processes.setdefault(
                    int(entry.pid), Process(int(entry.pid), _memory(entry.usedGpuMemory), kind)
                )
        reading.processes = tuple(processes.values())
        reading.values["gpu_processes"] = len(processes)

    def _first_answer(self, names: Sequence[str]) -> Any:
        """The answer of the newest version of a call that this driver supports, or the last
        refusal.
        """
        answer: Any = Refusal(13)
        for name in names:
            function = getattr(self._nvml, name, None)
            if function is not None:
                answer = self._call_guarded(partial(function, self._handle))
            # 13 and 25: this version of the call is missing or has another struct, so an older one
            # may work.
            if not (isinstance(answer, Refusal) and answer.code in {13, 25}):
                return answer
        return answer

    def _derive(self, reading: DeviceReading) -> None:
        total, used, free = (
            reading.values.get(f"gpu_memory_{name}_bytes") for name in ("total", "used", "free")
        )
        # Of what programs can use: the total also includes memory that the driver reserves.
        if total and used is not None and free is not None and used + free > 0:
            reading.values["gpu_memory_used_ratio"] = used / (used + free)

    def _verdict(self, reading: DeviceReading) -> Health:
        """The health by the latest value of each counter: not all are due at every read."""
        if reading.failed is not None:
            return Health("failed", _REASONS[reading.failed])
        # Slow counters keep their latest value between their turns, or health would flap with the
        # tiers.
        self._evidence |= {name: reading.values[name] for name in EVIDENCE & reading.values.keys()}
        return verdict(self._evidence)


_PROCESS_CALLS: tuple[tuple[Literal["compute", "graphics"], tuple[str, ...]], ...] = (
    (
        "compute",
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    ),
    (
        "compute",
        (
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        ),
    ),
    (
        "graphics",
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    ),
)


def engines(nvml: Any, metric: Metric) -> list[tuple[int | None, int]]:
    """(engine, GPM metric id) of a metric for each engine; engine None for a metric of the entire
    device.
    """
    assert isinstance(metric.reader, Gpm)
    before, middle, after = metric.reader.constant.partition("_0_")
    if not middle:
        return [(None, getattr(nvml, metric.reader.constant))]
    numbered = (
        (engine, getattr(nvml, f"{before}_{engine}_{after}", None)) for engine in range(MAX_ENGINES)
    )
    return [(engine, constant) for engine, constant in numbered if constant is not None]


def _item(answer: Any, item: int | str | None) -> Any:
    if item is None:
        return answer
    try:
        return answer[item] if isinstance(item, int) else getattr(answer, item)
    except (AttributeError, IndexError, TypeError):
        return None


def _memory(value: Any) -> int | None:
    return None if value is None or int(value) == NOT_AVAILABLE_MEMORY else int(value)


def field_value(metric: Metric, answer: Any) -> float | int:
    """The value of a field by its type; memory temperature is an unsigned int, although drivers
    r545 say otherwise.
    """
    if metric.name == "gpu_memory_temperature_celsius":
        return int(answer.value.uiVal)
    name = _VALUE_FIELDS.get(int(answer.valueType), "ullVal")
    value: float | int = getattr(answer.value, name)
    return value
