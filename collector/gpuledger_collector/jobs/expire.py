"""What is kept for some days only: minutes, slow metrics and findings that are older than the settings say go.

Minutes go by whole days, and only when the heat of every day before has been made from them. That they are gone is
written down before the first of them goes: from then on nothing makes minutes of before again, so late evidence leaves
no day of which a few minutes are there. Of a slow metric what it last turned into before the bound stays, since it
still holds. A run that stopped anywhere is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_common.plurals import plural


class RetentionStore(Protocol):
    """Where it is kept; what is removed goes some at a time, and the store may leave off early."""

    def days_without_node_utilization(self, since_ms: int, now_ms: int) -> Sequence[int]:
        """Days (UTC) since an instant whose minutes are still needed for their heat."""

    def forget_minutes(self, before_ms: int) -> int:
        """Remove minutes of before an instant, for good; how many."""

    def forget_states(self, before_ms: int) -> int:
        """Remove what slow metrics were before they were what they were at an instant; how many changes."""

    def forget_findings(self, before_ms: int) -> int:
        """Remove findings that ended before an instant; how many."""

    def forget_names(self, before_ms: int) -> int:
        """Remove names last seen before an instant that nothing refers to; how many."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Days that each is kept; 0: for ever."""

    minute_days: int
    node_utilization_days: int
    state_days: int
    finding_days: int
    name_days: int = 0


@dataclass(frozen=True, slots=True)
class Gone:
    """How many of each a run let go."""

    minutes: int
    states: int
    findings: int
    names: int = 0

    def __str__(self) -> str:
        return (
            f"{plural(self.minutes, 'minute')}, {plural(self.states, 'change')} of slow metrics, "
            f"{plural(self.findings, 'finding')} and {plural(self.names, 'unused name')} let go"
        )


def expired(store: RetentionStore, keep: Keep, now_ms: int) -> Gone:
    """Remove what is older than it is to be kept, counted from the begin of today (UTC)."""
    today_ms = now_ms - now_ms % DAY_MS

    def bound(days: int) -> int:
        return today_ms - days * DAY_MS

    minutes = states = found = names = 0
    if keep.minute_days:
        needed = store.days_without_node_utilization(
            bound(keep.node_utilization_days) if keep.node_utilization_days else 0, now_ms
        )
        minutes = store.forget_minutes(min(bound(keep.minute_days), *needed, today_ms))
    if keep.state_days:
        states = store.forget_states(bound(keep.state_days))
    if keep.finding_days:
        found = store.forget_findings(bound(keep.finding_days))
    if keep.name_days:
        names = store.forget_names(bound(keep.name_days))
    return Gone(minutes, states, found, names)
