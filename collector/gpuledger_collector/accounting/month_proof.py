"""What the proof of a month said when it was asked last, and how that is told."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.identities import Depth
from gpuledger_collector.accounting.period import Period, format_instant

DEPTHS = (Depth.tables, Depth.declarations, Depth.evidence)
"""Depths of a reconciliation, each of which includes those before it."""


class Standing(enum.StrEnum):
    """What is known of whether a ledger holds."""

    holds = "holds"
    waiting = "waiting"
    """It was not asked, or the ledger was told something since."""
    broken = "broken"


@dataclass(frozen=True, slots=True)
class SealComparison:
    """When the lines of a closed month were compared with its seal, and whether they were those."""

    asked_ms: int
    holds: bool


@dataclass(frozen=True, slots=True)
class MonthProof:
    """What the proof said of a month: when it was asked, how deep, whether it held, and on which
    dates it did not.
    """

    month: Period
    asked_ms: int
    holds: bool
    wrong_days: Sequence[str]
    depth: Depth
    ledger_state: str
    is_current: bool = True
    """Whether nothing of the month was rated, or asks to be, since."""
    seal: SealComparison | None = None
    """What became of its seal; None: it is open, or was not compared since its close."""


@dataclass(frozen=True, slots=True)
class PeriodProof:
    """The proofs of the months of a period, those with a rated day; None: never asked."""

    months: Sequence[MonthProof | None]

    @property
    def asked_ms(self) -> int | None:
        """The instant up to which all of it was asked: of its months the earliest.

        None: not all of them were.
        """
        asked = [month.asked_ms for month in self.months if month is not None]
        return min(asked) if asked and len(asked) == len(self.months) else None

    @property
    def broken(self) -> Sequence[MonthProof]:
        """Months of which it did not hold, whatever was told since: only asking again takes that
        back.
        """
        return [month for month in self.months if month is not None and not month.holds]

    @property
    def wrong_days(self) -> Sequence[str]:
        """Dates on which it did not hold; a fault may also be of no day."""
        return sorted({day for month in self.broken for day in month.wrong_days})

    @property
    def standing(self) -> Standing:
        """What is known of it."""
        if self.broken:
            return Standing.broken
        is_current = all(month is not None and month.is_current for month in self.months)
        return Standing.holds if self.months and is_current else Standing.waiting

    @property
    def sentence(self) -> str:
        """It in words, with the instant: the one wording of statements and assistants."""
        if self.broken:
            asked_ms = max(month.asked_ms for month in self.broken)
            days = f" on {', '.join(self.wrong_days)}" if self.wrong_days else ""
            return f"the proof did NOT hold{days} when it was asked at {_instant(asked_ms)}"
        if self.asked_ms is None:
            return "waiting: the proof has not been asked yet"
        proven = f"proven at {_instant(self.asked_ms)} for all that was told until then"
        return (
            proven
            if self.standing is Standing.holds
            else f"{proven}; what was told since is waiting for its proof"
        )

    @property
    def short(self) -> str:
        """It in few words, for a page that links to the proof itself."""
        if self.broken:
            first, more = self.wrong_days[:1], len(self.wrong_days) - 1
            on = f" on {first[0]}" if first else ""
            return f"NOT proven{on}" + (f" and {more} more" if more > 0 else "")
        if self.asked_ms is None:
            return "not proven yet"
        proven = f"proven at {_instant(self.asked_ms)}"
        return proven if self.standing is Standing.holds else f"{proven}, not for what came since"


def _instant(at_ms: int) -> str:
    return format_instant(at_ms - at_ms % 1000)
