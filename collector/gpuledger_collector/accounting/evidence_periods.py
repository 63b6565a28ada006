"""Periods of evidence: from when to when somebody held an accelerator, or nobody did, as observed.

Charges are made by the hour. Their money and time stay so; their begin and end are narrowed to what
was observed of just that holder, and stay whole hours where nothing was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger_collector.accounting.period import Period


@dataclass(frozen=True, slots=True)
class EvidencePeriod:
    """An uninterrupted period of one holder (empty: nobody) and state of an accelerator."""

    uuid: str
    workload: str
    state: str
    start_ms: int
    end_ms: int


def narrow_to_evidence(span: Period, seen: Iterable[EvidencePeriod]) -> Period:
    """The part of a span from the first to the last instant of evidence in it; all of it without any."""
    parts = [
        part for each in seen if (part := Period(each.start_ms, each.end_ms).clip(span)) is not None
    ]
    if not parts:
        return span
    return Period(min(part.start_ms for part in parts), max(part.end_ms for part in parts))
