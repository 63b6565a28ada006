"""Series with the form of their instants: those of a file, or of the ledger in the same shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger_collector.insight.series import Ints, Series

WriteInstants = Callable[[Ints], list[str]]


@dataclass(frozen=True)
class SeriesFile:
    """The series of a file and how to write an instant as the file does."""

    series: list[Series]
    write_instants: WriteInstants
    usage: list[Series] | None = None
    """What each series is the cost of, on the same instants; None: the file does not say."""
