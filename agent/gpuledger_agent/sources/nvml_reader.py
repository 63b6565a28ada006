"""Reads one accelerator by the catalogue: plain calls, one batch of field values, and pairs of GPM samples.

The plan is made at attach and shrinks: a metric that the card does not support is asked once. A field's value is never
looked at before its own return code: on failure it holds garbage.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuledger_agent.sources.nvml_series import Refusal, SeriesReader
from gpuledger_common.catalogue import METRICS
from gpuledger_common.health import EVIDENCE, verdict
from gpuledger_common.metrics import Call, Field, Gpm, Metric
from gpuledger_common.readings import Health, Labelled, Process

LOST, RESET_REQUIRED = 15, 16
FOR_GOOD = frozenset({2, 3, 4, 13, 25, 26})
"""Errors that asking again does not cure until the next attach: invalid argument, not supported, no permission,
function not found, version mismatch, deprecated."""
_REASONS = {
    2: "not known to this card (invalid argument)",
    3: "not supported by this card",
    4: "not permitted to this user",
    6: "not found",
    13: "not in this driver (function not found)",
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    25: "other struct version in this driver",
    26: "deprecated by this driver",
}
_VALUE_FIELDS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
UNKNOWN_PSTATE = 32
MOST_ENGINES = 8
NOT_AVAILABLE_MEMORY = 2**64 - 1


def text(value: Any) -> str:
    """A string of NVML, which older bindings give as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


@dataclass(slots=True)
class Seen:
    """What one read gave."""

    values: dict[str, float | int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    processes: Sequence[Process] = ()
    series: dict[str, Sequence[Labelled]] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    failed: int | None = None
    """The code of a call that found the GPU lost or in need of a reset."""


class DeviceReader:
    """The plan of one device or MIG instance; used by one thread."""

    def __init__(self, nvml: Any, handle: Any, *, parent: Any = None, gpu_instance: int | None = None) -> None:
        self._nvml, self._handle = nvml, handle
        self._parent, self._gpu_instance = parent, gpu_instance
        scope = "GPU" if parent is None else "MIG"
        self._plan = [metric for metric in METRICS if metric.reader is not None and scope in metric.scopes]
        self._never: dict[str, str] = {}
        self._evidence: dict[str, float | int] = {}
        if parent is not None:
            self._never |= {
                metric.name: "not measured per MIG instance"
                for metric in METRICS
                if metric.hot and "MIG" not in metric.scopes
            }
        self._gpm: list[Any] | None = None
        self._gpm_ready = False
        self._series = SeriesReader(nvml, handle, self._guarded, instance=parent is not None)

    def read(self, tiers: frozenset[str]) -> Seen:
        """The metrics of the tiers asked for. Never raises for what a card lacks."""
        seen = self._gather([metric for metric in self._plan if metric.tier in tiers], "gpm" in tiers)
        self._read_processes(seen)
        if seen.failed is not None:
            seen.values.clear()
        else:
            series, readiness_problems = self._series.read(tiers, seen.values, seen.processes)
            seen.series |= series
            seen.absent |= readiness_problems
        seen.absent |= self._never
        self._derive(seen)
        seen.health = self._verdict(seen)
        if "fast" in tiers and seen.health == Health() and not seen.values.keys() - {"gpu_processes"}:
            seen.health = Health("unknown", "the driver refuses every reading")
        return seen

    def health(self, tiers: frozenset[str]) -> Health:
        """The verdict alone, from the few metrics that it looks at: for a device whose instances are read instead."""
        return self._verdict(
            self._gather([metric for metric in self._plan if metric.tier in tiers and metric.name in EVIDENCE], False)
        )

    def alive(self) -> int:
        """0 when the handle still stands for this device; else NVML's code (1 and 2 after a reload or a MIG change)."""
        answer = self._guarded(lambda: self._nvml.nvmlDeviceGetUUID(self._handle))
        return answer.code if isinstance(answer, Refusal) else 0

    def release(self) -> None:
        """Frees what the driver's library holds for this reader."""
        for sample in self._gpm or ():
            self._guarded(lambda sample=sample: self._nvml.nvmlGpmSampleFree(sample))  # type: ignore[misc]
        self._gpm, self._gpm_ready = None, False

    def _gather(self, due: Sequence[Metric], gpm: bool) -> Seen:
        seen = Seen()
        asked = [metric for metric in due if metric.name not in self._never]
        self._read_calls([metric for metric in asked if isinstance(metric.reader, Call)], seen)
        self._read_fields([metric for metric in asked if isinstance(metric.reader, Field)], seen)
        if gpm:
            self._read_gpm([metric for metric in asked if isinstance(metric.reader, Gpm)], seen)
        return seen

    def _refused(self, metric: Metric, code: int, seen: Seen) -> None:
        reason = _REASONS.get(code, f"NVML error {code}")
        if code in {LOST, RESET_REQUIRED}:
            seen.failed = code
        if code in FOR_GOOD:
            self._never[metric.name] = reason
        seen.absent[metric.name] = reason

    def _put(self, metric: Metric, raw: Any, seen: Seen) -> None:
        """A raw number in base units; what is no number, or a sentinel for unknown, is absent."""
        if isinstance(raw, list) and metric.unit == "bool":
            raw = any(raw)
        try:
            value = float(raw) * metric.scale
        except (TypeError, ValueError):
            self._never[metric.name] = seen.absent[metric.name] = "the driver's answer is not a number"
            return
        if metric.name == "gpu_performance_state" and value == UNKNOWN_PSTATE:
            seen.absent[metric.name] = "the driver does not know"
            return
        seen.values[metric.name] = int(value) if metric.column_kind == "i8" else value

    def _read_calls(self, due: Sequence[Metric], seen: Seen) -> None:
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
            if isinstance(answer, int | float) and reader.item is None:
                self._put(metric, answer, seen)
            elif isinstance(answer, Refusal):
                self._refused(metric, answer.code, seen)
            else:
                self._put(metric, _item(answer, reader.item), seen)

    def _call(self, reader: Call) -> Any:
        function = getattr(self._nvml, reader.function, None)
        if function is None:
            return Refusal(13)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        filled: Any = None
        for argument in reader.args:
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
        answer = self._guarded(lambda: function(self._handle, *positional, **named))
        return answer if filled is None or isinstance(answer, Refusal) else filled

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """The answer, or a Refusal. NVMLLibraryMismatchError is no NVMLError, hence the wider net."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            return Refusal(int(error.value))
        except Exception:  # a binding older or newer than the driver fails in many ways
            return Refusal(13)

    def _read_fields(self, due: Sequence[Metric], seen: Seen) -> None:
        """All fields in one call; each element has a return code of its own."""
        wanted = []
        for metric in due:
            reader = metric.reader
            identity = getattr(self._nvml, reader.constant, None) if isinstance(reader, Field) else None
            if identity is None or not isinstance(reader, Field):
                self._refused(metric, 13, seen)
            else:
                wanted.append((metric, identity if reader.scope is None else (identity, reader.scope)))
        if not wanted:
            return
        answers = self._guarded(
            lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, [field for _, field in wanted])
        )
        for position, (metric, _) in enumerate(wanted):
            if isinstance(answers, Refusal):
                self._refused(metric, answers.code, seen)
            elif answers[position].nvmlReturn != 0:
                self._refused(metric, int(answers[position].nvmlReturn), seen)
            else:
                self._put(metric, field_value(metric, answers[position]), seen)

    def _read_gpm(self, due: Sequence[Metric], seen: Seen) -> None:
        """Activity over the time since the last read, from a pair of GPM samples that swap roles."""
        if not due or not self._gpm_start(due, seen) or self._gpm is None:
            return
        self._gpm.reverse()
        taken = self._guarded(lambda: self._gpm_sample(self._gpm[1] if self._gpm else None))
        if isinstance(taken, Refusal):
            for metric in due:
                self._refused(metric, taken.code, seen)
            return
        if not self._gpm_ready:
            self._gpm_ready = True
            return
        self._gpm_compute(due, seen)

    def _gpm_start(self, due: Sequence[Metric], seen: Seen) -> bool:
        if self._gpm is not None:
            return True
        nvml = self._nvml
        support = self._guarded(lambda: nvml.nvmlGpmQueryDeviceSupport(self._parent or self._handle))
        if isinstance(support, Refusal) or not support.isSupportedDevice:
            for metric in due:
                self._refused(metric, support.code if isinstance(support, Refusal) else 3, seen)
            return False
        buffers = [self._guarded(nvml.nvmlGpmSampleAlloc) for _ in range(2)]
        refusals = [buffer for buffer in buffers if isinstance(buffer, Refusal)]
        for metric in due if refusals else ():
            self._refused(metric, refusals[0].code, seen)
        self._gpm = None if refusals else buffers
        return not refusals

    def _gpm_sample(self, sample: Any) -> None:
        if self._parent is not None and self._gpu_instance is not None:
            self._nvml.nvmlGpmMigSampleGet(self._parent, self._gpu_instance, sample)
        else:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)

    def _gpm_compute(self, due: Sequence[Metric], seen: Seen) -> None:
        nvml = self._nvml
        wanted = [(metric, engine, constant) for metric in due for engine, constant in engines(nvml, metric)]
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        assert self._gpm is not None
        request.sample1, request.sample2 = self._gpm
        for position, (_, _, constant) in enumerate(wanted):
            request.metrics[position].metricId = constant
        answer = self._guarded(lambda: nvml.nvmlGpmMetricsGet(request))
        several: dict[str, list[Labelled]] = {}
        for position, (metric, engine, _) in enumerate(wanted):
            entry = request.metrics[position]
            if isinstance(answer, Refusal):
                seen.absent[metric.name] = _REASONS.get(answer.code, f"NVML error {answer.code}")
            elif entry.nvmlReturn != 0 and not engine:
                self._refused(metric, int(entry.nvmlReturn), seen)
            elif entry.nvmlReturn != 0 or entry.value != entry.value:
                seen.absent[metric.name] = "no value yet"
            elif engine is None:
                self._put(metric, entry.value, seen)
            else:
                several.setdefault(metric.name, []).append(
                    Labelled((("engine", str(engine)),), entry.value * metric.scale)
                )
        seen.series |= several
        for name in several:
            seen.absent.pop(name, None)

    def _read_processes(self, seen: Seen) -> None:
        """Every process with a context, once; no number at all where the driver does not list them."""
        found: dict[int, Process] = {}
        for kind, names in _PROCESS_CALLS:
            answer = self._first_answer(names)
            if isinstance(answer, Refusal):
                if answer.code in {LOST, RESET_REQUIRED}:
                    seen.failed = answer.code
                if kind == "compute" and names is _PROCESS_CALLS[0][1]:
                    why = _REASONS.get(answer.code, f"NVML error {answer.code}")
                    seen.absent["gpu_processes"] = f"the driver does not list processes: {why}"
                    return
                continue
            for entry in answer:
                found.setdefault(int(entry.pid), Process(int(entry.pid), _memory(entry.usedGpuMemory), kind))
        seen.processes = tuple(found.values())
        seen.values["gpu_processes"] = len(found)

    def _first_answer(self, names: Sequence[str]) -> Any:
        """The answer of the newest version of a call that this driver has, or the last refusal."""
        answer: Any = Refusal(13)
        for name in names:
            function = getattr(self._nvml, name, None)
            if function is not None:
                answer = self._guarded(lambda call=function: call(self._handle))  # type: ignore[misc]
            if not (isinstance(answer, Refusal) and answer.code in {13, 25}):
                return answer
        return answer

    def _derive(self, seen: Seen) -> None:
        values = seen.values
        total, used = values.get("gpu_memory_total_bytes"), values.get("gpu_memory_used_bytes")
        free = values.get("gpu_memory_free_bytes")
        if total and used is not None and free is not None and used + free > 0:
            values["gpu_memory_used_ratio"] = used / (used + free)

    def _verdict(self, seen: Seen) -> Health:
        """By the newest of each counter: they are not all due at every read, and a fault stands until read as gone."""
        if seen.failed is not None:
            return Health("failed", _REASONS[seen.failed])
        self._evidence |= {name: seen.values[name] for name in EVIDENCE & seen.values.keys()}
        return verdict(self._evidence)


_PROCESS_CALLS: tuple[tuple[Literal["compute", "graphics"], tuple[str, ...]], ...] = (
    ("compute", ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")),
    ("compute", ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2")),
    ("graphics", ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2")),
)


def engines(nvml: Any, metric: Metric) -> list[tuple[int | None, int]]:
    """(engine, GPM metric id) of a metric that each engine has of its own; engine None for one that the device has."""
    assert isinstance(metric.reader, Gpm)
    before, middle, after = metric.reader.constant.partition("_0_")
    if not middle:
        return [(None, getattr(nvml, metric.reader.constant))]
    numbered = ((engine, getattr(nvml, f"{before}_{engine}_{after}", None)) for engine in range(MOST_ENGINES))
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
    """The value of a field by its type; memory temperature is an unsigned int whatever a driver of r545 says."""
    if metric.name == "gpu_memory_temperature_celsius":
        return int(answer.value.uiVal)
    name = _VALUE_FIELDS.get(int(answer.valueType), "ullVal")
    value: float | int = getattr(answer.value, name)
    return value
