"""Counts of exceptions that sampling survived, by place; each kind is logged once.

A round of sampling must not end because a source, an owner source or the arithmetic raised an
unexpected exception. Each one is counted under its place (`source`, `meter`, `owner
ProcessOwners`), and the first of its type is logged there: a log line per round would fill a disk.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field

log = logging.getLogger("gpuledger_agent")


@dataclass(slots=True)
class ExceptionCounts:
    """Counts by place since the start."""

    counts: dict[str, int] = field(default_factory=dict)
    _logged: set[tuple[str, type[Exception]]] = field(default_factory=set)

    def record(self, place: str, error: Exception) -> None:
        """Count an exception at a place, and log the first of its type with the line of code that
        raised it.
        """
        # A new dictionary, because /metrics reads it from another thread.
        self.counts = {**self.counts, place: self.counts.get(place, 0) + 1}
        if (place, type(error)) not in self._logged:
            self._logged.add((place, type(error)))
            frames = traceback.extract_tb(error.__traceback__)
            where = (
                f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}"
                if frames
                else ""
            )
            log.error(
                "%s: %s: %s%s; sampling continues without it",
                place,
                type(error).__name__,
                error,
                where,
            )
