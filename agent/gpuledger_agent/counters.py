"""Counters that only rise: a driver that is loaded again begins at 0, and what it had counted before is kept.

Prometheus takes a fall for a reset by itself; a stored column, a difference of two samples and a bill do not. The sum
goes on as long as the agent runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger_common.catalogue import BY_NAME

COUNTERS = frozenset(name for name, metric in BY_NAME.items() if metric.kind == "counter")


@dataclass(slots=True)
class Counters:
    """What each counter of each accelerator last read, and what was counted before its last fall."""

    _last: dict[tuple[str, str], float | int] = field(default_factory=dict)
    _before: dict[tuple[str, str], float | int] = field(default_factory=dict)

    def risen(self, uuid: str, values: Mapping[str, float | int]) -> dict[str, float | int]:
        """The values with every counter made monotonic: raw value + what was counted before each fall."""
        made = dict(values)
        for name in COUNTERS & values.keys():
            key = (uuid, name)
            raw = values[name]
            last = self._last.get(key)
            if last is not None and raw < last:
                self._before[key] = self._before.get(key, 0) + last
            self._last[key] = raw
            if key in self._before:
                made[name] = self._before[key] + raw
        return made
