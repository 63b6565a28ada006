"""A recommendation as it is kept: advice with its amounts, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SavingRange = tuple[int | None, int | None, int | None]
"""Low, expected, high in micro-units; None: no price is known."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Amounts are of the window from `start_ms` to `end_ms`; cash, freed capacity and energy are never added."""

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
class RecommendationRun:
    """The last look: its window, all open advice followed at once, and what could not be judged."""

    made_ms: int
    start_ms: int
    end_ms: int
    joint: Mapping[str, Mapping[str, SavingRange]]
    not_evaluated: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class AcceptedRecommendation:
    """What must be known of an accepted recommendation to measure what it brought."""

    id: int
    kind: str
    scope: Mapping[str, Any]
    start_ms: int
    end_ms: int
    decided_ms: int
    currency: str | None


@dataclass(frozen=True, slots=True)
class RealizedSaving:
    """What an accepted recommendation brought so far (see accounting.realised); None: some rate is unknown."""

    id: int
    micro: int | None
    until_ms: int
    told: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
