"""Metrics that have several series on one device: by reason, by link, by engine, by process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger_common.readings import Labelled, Process

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
"""nvmlClocksEventReason*: why the clocks are not at their highest."""
MOST_LINKS = 36
NOT_FOUND, NOT_SUPPORTED = 6, 3
LOOK_BACK_S = 2.0
"""How far the first question for process utilisation looks back; 0 would give all that the driver's buffer holds."""
SPEED_SCALE = 8_000_000
"""NVML_FI_DEV_NVLINK_GET_SPEED is in MB/s."""
_UTILISATION = (
    ("gpu_process_sm_utilization_ratio", "smUtil"),
    ("gpu_process_memory_utilization_ratio", "memUtil"),
    ("gpu_process_encoder_utilization_ratio", "encUtil"),
    ("gpu_process_decoder_utilization_ratio", "decUtil"),
)

Series = dict[str, Sequence[Labelled]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """NVML said no, with its code."""

    code: int


class SeriesReader:
    """Reads them for one device or MIG instance; `guarded` makes a call and gives its answer or a Refusal."""

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        guarded: Callable[[Callable[[], Any]], Any],
        *,
        instance: bool,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._nvml, self._handle, self._guarded, self._instance, self._wall = nvml, handle, guarded, instance, wall
        self._links: tuple[int, ...] | None = None
        self._utilisation = not instance
        self._utilised_at = 0
        self._info: list[Labelled] | None = None

    def read(
        self, tiers: frozenset[str], values: Mapping[str, float | int], processes: Sequence[Process]
    ) -> tuple[Series, dict[str, str]]:
        """The series of the tiers asked for, and reasons for those that this card does not give."""
        series: Series = {}
        readiness_problems: dict[str, str] = {}
        if "fast" in tiers:
            mask = values.get("gpu_clocks_event_reasons_bitmask")
            if mask is not None:
                series["gpu_clocks_event_active"] = [
                    Labelled((("reason", name),), int(bool(int(mask) & bit))) for name, bit in REASONS
                ]
            memory = [
                Labelled((("pid", str(process.pid)), ("type", process.kind)), process.memory_bytes)
                for process in processes
                if process.memory_bytes is not None
            ]
            if memory:
                series["gpu_process_memory_used_bytes"] = memory
            self._read_utilisation(series, readiness_problems)
        if not self._instance and "slow" in tiers:
            self._read_links(series, readiness_problems, speeds="static" in tiers)
        if "static" in tiers:
            series["gpu_info"] = self._read_info()
        if "opt-in" in tiers and not self._instance:
            self._read_accounting(series, readiness_problems)
        return series, readiness_problems

    def _read_utilisation(self, series: Series, readiness_problems: dict[str, str]) -> None:
        if not self._utilisation:
            return
        since = self._utilised_at or int((self._wall() - LOOK_BACK_S) * 1e6)
        answer = self._guarded(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since))
        if isinstance(answer, Refusal):
            if answer.code not in {0, NOT_FOUND, 7}:  # nothing ran since, or the list grew while it was read
                self._utilisation = False
                readiness_problems |= {name: "the driver does not tell it for each process" for name, _ in _UTILISATION}
            return
        newest: dict[int, Any] = {}
        for entry in answer:
            self._utilised_at = max(self._utilised_at, int(entry.timeStamp))
            if entry.pid not in newest or entry.timeStamp >= newest[entry.pid].timeStamp:
                newest[entry.pid] = entry
        for name, attribute in _UTILISATION:
            made = [
                Labelled((("pid", str(pid)),), getattr(entry, attribute) * 0.01)
                for pid, entry in sorted(newest.items())
                if 0 <= getattr(entry, attribute) <= 100
            ]
            if made:
                series[name] = made

    def _read_links(self, series: Series, readiness_problems: dict[str, str], *, speeds: bool) -> None:
        nvml = self._nvml
        if self._links is None:
            answers = [
                (link, self._guarded(lambda link=link: nvml.nvmlDeviceGetNvLinkState(self._handle, link)))  # type: ignore[misc]
                for link in range(MOST_LINKS)
            ]
            self._links = tuple(link for link, answer in answers if not isinstance(answer, Refusal))
        if not self._links:
            readiness_problems |= dict.fromkeys(
                ("gpu_nvlink_link_up", "gpu_nvlink_speed_bits_per_second"), "this card has no NVLink"
            )
            return
        states = [
            (link, self._guarded(lambda link=link: nvml.nvmlDeviceGetNvLinkState(self._handle, link)))  # type: ignore[misc]
            for link in self._links
        ]
        series["gpu_nvlink_link_up"] = [
            Labelled((("link", str(link)),), int(state)) for link, state in states if not isinstance(state, Refusal)
        ]
        if speeds:
            field = nvml.NVML_FI_DEV_NVLINK_GET_SPEED
            answers = self._guarded(
                lambda: nvml.nvmlDeviceGetFieldValues(self._handle, [(field, link) for link in self._links or ()])
            )
            if not isinstance(answers, Refusal):
                series["gpu_nvlink_speed_bits_per_second"] = [
                    Labelled((("link", str(link)),), int(answer.value.uiVal) * SPEED_SCALE)
                    for link, answer in zip(self._links, answers, strict=True)
                    if answer.nvmlReturn == 0
                ]

    def _read_info(self) -> list[Labelled]:
        """What the card is; asked once. A part that it does not tell is an empty label."""
        if self._info is None:
            nvml, handle = self._nvml, self._handle
            parts = {
                "serial": self._words(lambda: nvml.nvmlDeviceGetSerial(handle)),
                "vbios": self._words(lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
                "architecture": self._words(lambda: nvml.nvmlDeviceGetArchitecture(handle)),
                "brand": self._words(lambda: nvml.nvmlDeviceGetBrand(handle)),
                "driver": self._words(nvml.nvmlSystemGetDriverVersion),
                "cuda": self._words(nvml.nvmlSystemGetCudaDriverVersion),
            }
            self._info = [Labelled(tuple(parts.items()), 1)]
        return self._info

    def _words(self, call: Callable[[], Any]) -> str:
        answer = self._guarded(call)
        if isinstance(answer, Refusal) or answer is None:
            return ""
        return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)

    def _read_accounting(self, series: Series, readiness_problems: dict[str, str]) -> None:
        """GPU time of processes that may have ended since, where accounting mode is on (an administrator's choice)."""
        nvml = self._nvml
        names = ("gpu_process_accounting_gpu_seconds", "gpu_process_accounting_max_memory_bytes")
        mode = self._guarded(lambda: nvml.nvmlDeviceGetAccountingMode(self._handle))
        if isinstance(mode, Refusal) or not mode:
            readiness_problems |= dict.fromkeys(names, "accounting mode is off (nvidia-smi --accounting-mode=1)")
            return
        pids = self._guarded(lambda: nvml.nvmlDeviceGetAccountingPids(self._handle))
        seconds: list[Labelled] = []
        memory: list[Labelled] = []
        for pid in () if isinstance(pids, Refusal) else pids:
            stats = self._guarded(lambda pid=pid: nvml.nvmlDeviceGetAccountingStats(self._handle, pid))  # type: ignore[misc]
            if not isinstance(stats, Refusal):
                labels = (("pid", str(pid)), ("running", str(int(stats.isRunning))))
                seconds.append(Labelled(labels, int(stats.time) * 0.001))
                memory.append(Labelled(labels, int(stats.maxMemoryUsage)))
        if seconds:
            series |= {names[0]: seconds, names[1]: memory}
