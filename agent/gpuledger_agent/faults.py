"""What went wrong and was survived: counted by place, and said once for each kind of it.

A round of sampling must not end because a source, an owner source or the arithmetic met what nobody foresaw. Each such
exception is counted under where it happened, and the first of its type is logged there; a log line for each round
would fill a disk. Shapes: `counts` maps a place (`source`, `meter`, `owner Processes`) to how often.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field

log = logging.getLogger("gpuledger_agent")


@dataclass(slots=True)
class Faults:
    """Counts by place since the start."""

    counts: dict[str, int] = field(default_factory=dict)
    _told: set[tuple[str, type[Exception]]] = field(default_factory=set)

    def note(self, place: str, error: Exception) -> None:
        """One more at this place; the first of its type is said with the line of code that raised it."""
        self.counts = {**self.counts, place: self.counts.get(place, 0) + 1}  # /metrics reads it from another thread
        if (place, type(error)) not in self._told:
            self._told.add((place, type(error)))
            frames = traceback.extract_tb(error.__traceback__)
            where = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
            log.error("%s: %s: %s%s; sampling goes on without it", place, type(error).__name__, error, where)
