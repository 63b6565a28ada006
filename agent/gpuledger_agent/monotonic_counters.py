"""Counters that never fall: when a driver reload resets one to 0, its earlier count is added to it.

Prometheus takes a fall for a reset by itself; a stored column, a difference of two samples and a
bill do not. The correction lasts as long as the agent runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger_common.catalog import BY_NAME

COUNTERS = frozenset(name for name, metric in BY_NAME.items() if metric.kind == "counter")


@dataclass(slots=True)
class MonotonicCounters:
    """The last raw value of each counter of each accelerator, and its count before its latest
    reset.
    """

    _last: dict[tuple[str, str], float | int] = field(default_factory=dict)
    _before_reset: dict[tuple[str, str], float | int] = field(default_factory=dict)

    def correct(self, uuid: str, values: Mapping[str, float | int]) -> Mapping[str, float | int]:
        """The values with every counter made monotonic: raw value + count before each reset.

        Without a reset they are these values.
        """
        continued: dict[str, float | int] = {}
        for name in COUNTERS.intersection(values):
            key, raw = (uuid, name), values[name]
            last = self._last.get(key)
            # A fall means a reset to 0: what was counted until then is added from now on.
            if last is not None and raw < last:
                self._before_reset[key] = self._before_reset.get(key, 0) + last
            self._last[key] = raw
            if key in self._before_reset:
                continued[name] = self._before_reset[key] + raw
        return {**values, **continued} if continued else values
