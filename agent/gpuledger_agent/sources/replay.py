"""A recording as a source: its ticks are replayed at their own pace, in a loop.

It is also the owner source: the pids in a recording mean nothing on the machine that replays it.
"""

from __future__ import annotations

import dataclasses
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpuledger_agent.sources.recording import Recording, Tick, read
from gpuledger_common.readings import Accelerator, Holders, Inventory, Sample, SourceUnavailable


class ReplaySource:
    """Returns the tick that is due at each read, with the current monotonic time."""

    name = "replay"

    def __init__(self, target: str, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._path, self._monotonic_ns = Path(target), monotonic_ns
        self._recording: Recording | None = None
        self._offsets: list[int] = []
        self._start_ns = 0
        self._last: Tick | None = None

    def open(self) -> Inventory:
        """Read the recording. Raises SourceUnavailable naming file and line."""
        self._recording = read(self._path)
        if not self._recording.ticks:
            raise SourceUnavailable(f"{self._path}: the recording has no ticks")
        self._offsets = [tick.offset_ms for tick in self._recording.ticks]
        self._start_ns = self._monotonic_ns()
        return self._recording.inventory

    def read(self, _tiers: Iterable[str]) -> Sequence[Sample]:
        """The samples of the tick that is due."""
        if self._recording is None:
            raise SourceUnavailable(f"{self._path}: the recording is not open")
        now_ns = self._monotonic_ns()
        # One step after the last tick, so that it lasts as long as the others before the loop
        # begins again.
        length = self._offsets[-1] - self._offsets[0] + self._typical_step()
        due = self._offsets[0] + (now_ns - self._start_ns) // 1_000_000 % length
        self._last = self._recording.ticks[max(0, bisect_right(self._offsets, due) - 1)]
        return [dataclasses.replace(sample, monotonic_ns=now_ns) for sample in self._last.samples]

    def holders(self, _accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The holders in the tick that was read last."""
        return {} if self._last is None else self._last.holders

    def _typical_step(self) -> int:
        return max(1, (self._offsets[-1] - self._offsets[0]) // max(1, len(self._offsets) - 1))

    def close(self) -> None:
        """Forget the recording."""
        self._recording = self._last = None
