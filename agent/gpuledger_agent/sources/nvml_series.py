"""Metrics with several series on one device: by clock event reason, link or process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger_common.readings import Process, SeriesValue

REASONS = (
    ("gpu_idle", 0x1),
    ("applications_clocks", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
    ("display", 0x100),
)
"""nvmlClocksEventReason*: why the clocks are below their maximum."""
MAX_LINKS = 36
NOT_FOUND = 6
LOOK_BACK_S = 2.0
"""How far the first query for process utilization looks back; 0 would return the driver's entire
buffer.
"""
SPEED_SCALE = 8_000_000
"""NVML_FI_DEV_NVLINK_GET_SPEED is in MB/s."""
_UTILIZATION = (
    ("gpu_process_sm_utilization_ratio", "smUtil"),
    ("gpu_process_memory_utilization_ratio", "memUtil"),
    ("gpu_process_encoder_utilization_ratio", "encUtil"),
    ("gpu_process_decoder_utilization_ratio", "decUtil"),
)

Series = dict[str, Sequence[SeriesValue]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """NVML's error code in place of an answer."""

    code: int


class SeriesReader:
    """Reads the series of one device or MIG instance; `guarded` makes a call and returns its answer
    or a Refusal.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        guarded: Callable[[Callable[[], Any]], Any],
        *,
        instance: bool,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._nvml, self._handle, self._guarded, self._instance, self._wall = (
            nvml,
            handle,
            guarded,
            instance,
            wall,
        )
        self._links: tuple[int, ...] | None = None
        self._has_utilization = not instance
        self._utilization_at = 0
        """Driver timestamp (microseconds) of the latest process utilization read."""
        self._info: list[SeriesValue] | None = None

    def read(
        self, tiers: frozenset[str], values: Mapping[str, float | int], processes: Sequence[Process]
    ) -> tuple[Series, dict[str, str]]:
        """The series of the requested tiers, and reasons for those that this card does not give."""
        series: Series = {}
        absent: dict[str, str] = {}
        if "fast" in tiers:
            mask = values.get("gpu_clocks_event_reasons_bitmask")
            if mask is not None:
                series["gpu_clocks_event_active"] = [
                    _by_label("reason", name, int(bool(int(mask) & bit))) for name, bit in REASONS
                ]
            memory = [
                SeriesValue(
                    (("pid", str(process.pid)), ("type", process.kind)), process.memory_bytes
                )
                for process in processes
                if process.memory_bytes is not None
            ]
            if memory:
                series["gpu_process_memory_used_bytes"] = memory
            self._read_utilization(series, absent)
        if not self._instance and "slow" in tiers:
            self._read_links(series, absent, speeds="static" in tiers)
        if "static" in tiers:
            series["gpu_info"] = self._read_info()
        if "opt-in" in tiers and not self._instance:
            self._read_accounting(series, absent)
        return series, absent

    def _read_utilization(self, series: Series, absent: dict[str, str]) -> None:
        if not self._has_utilization:
            return
        # The driver keeps a ring of samples; asking since the last timestamp returns only new ones.
        # Microseconds.
        since = self._utilization_at or int((self._wall() - LOOK_BACK_S) * 1e6)
        answer = self._call("nvmlDeviceGetProcessUtilization", since)
        if isinstance(answer, Refusal):
            # Nothing ran since, or the list grew while it was read.
            if answer.code not in {
                0,
                NOT_FOUND,
                7,
            }:
                self._has_utilization = False
                absent |= {
                    name: "the driver does not report it per process" for name, _ in _UTILIZATION
                }
            return
        latest: dict[int, Any] = {}
        for entry in answer:
            self._utilization_at = max(self._utilization_at, int(entry.timeStamp))
            # The answer may contain several samples of a process, in any order.
            if entry.pid not in latest or entry.timeStamp >= latest[entry.pid].timeStamp:
                latest[entry.pid] = entry
        for name, attribute in _UTILIZATION:
            by_process = [
                _by_label("pid", pid, getattr(entry, attribute) * 0.01)
                for pid, entry in sorted(latest.items())
                # A number outside of 0 to 100 is no percentage and no reading.
                if 0 <= getattr(entry, attribute) <= 100
            ]
            if by_process:
                series[name] = by_process

    def _read_links(self, series: Series, absent: dict[str, str], *, speeds: bool) -> None:
        # The first call finds out which links exist; the others are not asked again.
        candidates = range(MAX_LINKS) if self._links is None else self._links
        answers = {link: self._call("nvmlDeviceGetNvLinkState", link) for link in candidates}
        states = {
            link: answer for link, answer in answers.items() if not isinstance(answer, Refusal)
        }
        if self._links is None:
            self._links = tuple(states)
        if not self._links:
            names = ("gpu_nvlink_link_up", "gpu_nvlink_speed_bits_per_second")
            absent |= dict.fromkeys(names, "this card has no NVLink")
            return
        series["gpu_nvlink_link_up"] = [
            _by_label("link", link, int(state)) for link, state in states.items()
        ]
        if speeds:
            field = self._nvml.NVML_FI_DEV_NVLINK_GET_SPEED
            answers = self._call(
                "nvmlDeviceGetFieldValues", [(field, link) for link in self._links]
            )
            if not isinstance(answers, Refusal):
                series["gpu_nvlink_speed_bits_per_second"] = [
                    _by_label("link", link, int(answer.value.uiVal) * SPEED_SCALE)
                    for link, answer in zip(self._links, answers, strict=True)
                    if answer.nvmlReturn == 0
                ]

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._guarded(lambda: getattr(self._nvml, function)(self._handle, *arguments))

    def _read_info(self) -> list[SeriesValue]:
        """The card's identity as labels, read once; an unknown part is an empty label."""
        if self._info is None:
            nvml = self._nvml
            parts = {
                "serial": self._call("nvmlDeviceGetSerial"),
                "vbios": self._call("nvmlDeviceGetVbiosVersion"),
                "architecture": self._call("nvmlDeviceGetArchitecture"),
                "brand": self._call("nvmlDeviceGetBrand"),
                "driver": self._guarded(lambda: nvml.nvmlSystemGetDriverVersion()),
                "cuda": self._guarded(lambda: nvml.nvmlSystemGetCudaDriverVersion()),
            }
            self._info = [
                SeriesValue(tuple((name, _label(answer)) for name, answer in parts.items()), 1)
            ]
        return self._info

    def _read_accounting(self, series: Series, absent: dict[str, str]) -> None:
        """GPU time of processes, also of ended ones, where an administrator has turned accounting
        mode on.
        """
        names = ("gpu_process_accounting_gpu_seconds", "gpu_process_accounting_max_memory_bytes")
        mode = self._call("nvmlDeviceGetAccountingMode")
        if isinstance(mode, Refusal) or not mode:
            absent |= dict.fromkeys(
                names, "accounting mode is off (nvidia-smi --accounting-mode=1)"
            )
            return
        pids = self._call("nvmlDeviceGetAccountingPids")
        seconds: list[SeriesValue] = []
        memory: list[SeriesValue] = []
        for pid in () if isinstance(pids, Refusal) else pids:
            stats = self._call("nvmlDeviceGetAccountingStats", pid)
            if not isinstance(stats, Refusal):
                labels = (("pid", str(pid)), ("running", str(int(stats.isRunning))))
                seconds.append(SeriesValue(labels, int(stats.time) * 0.001))
                memory.append(SeriesValue(labels, int(stats.maxMemoryUsage)))
        if seconds:
            series |= {names[0]: seconds, names[1]: memory}


def _label(answer: Any) -> str:
    if isinstance(answer, Refusal) or answer is None:
        return ""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


def _by_label(label: str, name: object, value: float) -> SeriesValue:
    return SeriesValue(((label, str(name)),), value)
