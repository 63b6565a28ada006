"""Recommendations as they are stored: proposals with their amounts, and the savings of accepted
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.money import Money

SAVINGS = ("cash", "capacity", "energy")
BOUNDS = ("low", "expected", "high")
STATES = ("open", "accepted", "rejected", "done", "expired")
SavingRange = tuple[int | None, int | None, int | None]
"""Low, expected, high in micro-units; None: no price is known."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A proposal with its amounts over the window; cash, freed capacity and energy are never added
    up.
    """

    key: str
    kind: str
    subject: str
    team: str
    owner: Mapping[str, str]
    advice: str
    evidence: Mapping[str, Any]
    scope: Mapping[str, Any]
    start_ms: int
    end_ms: int
    price_ids: Sequence[int]
    currency: str | None
    cash: SavingRange
    capacity: SavingRange
    energy: SavingRange
    freed_gpu_ns: int
    made_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class StoredRecommendation(Recommendation):
    """A recommendation with what people decided on it, and what it has saved since."""

    id: int
    state: str
    decided_ms: int | None
    decided_by: str
    reason: str
    realized_micro: int | None
    realized_until_ms: int | None
    realized: Mapping[str, Any] | None

    def saving(self, name: str) -> SavingRange:
        """The range of one of its savings."""
        amounts: Mapping[str, SavingRange] = {
            "cash": self.cash,
            "capacity": self.capacity,
            "energy": self.energy,
        }
        return amounts[name]

    def money(self, micro: int | None) -> Money | None:
        """One of its amounts; None: unknown."""
        return None if micro is None or not self.currency else Money(micro, self.currency)


@dataclass(frozen=True, slots=True)
class RecommendationRun:
    """A run of the search: its window, the savings of all open proposals together, and what could
    not be judged.
    """

    made_ms: int
    start_ms: int
    end_ms: int
    joint: Mapping[str, Mapping[str, SavingRange]]
    not_evaluated: Sequence[Mapping[str, str]]
    evidence_hash: str | None
    """Of what it rests on: while that stays the same, another run over this window gives the same.
    """


@dataclass(frozen=True, slots=True)
class AcceptedRecommendation:
    """What is needed of an accepted recommendation to measure its saving."""

    id: int
    kind: str
    scope: Mapping[str, Any]
    start_ms: int
    end_ms: int
    decided_ms: int
    currency: str | None


@dataclass(frozen=True, slots=True)
class RealizedSaving:
    """Saving of an accepted recommendation up to now (accounting.realized_savings); `micro` None: a
    rate is unknown.
    """

    id: int
    micro: int | None
    until_ms: int
    details: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
