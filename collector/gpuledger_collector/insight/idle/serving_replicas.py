"""Warm replicas judged together: how many a service holds, and how many of them were ever busy at once.

Problem: a replica that waits for requests is idle by design, so none of them is ever flagged; that a service holds ten
where three are busy in its busiest minutes is waste all the same. Idea: of the minutes of a week the 99th percentile of
replicas that were busy at once, and one more in reserve, is what the service needs; what it holds beyond is spare.
Replicas that nobody saw are neither busy nor spare: with too little known there is no verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DAYS = 7
PERCENTILE = 99
RESERVE = 1
MIN_KNOWN = 0.75
"""Part of the replicas' minutes that must be known for a verdict."""
MIN_MINUTES = 24 * 60
"""A service younger than a day has not shown its busiest minutes."""
TAGS = ("app.kubernetes.io/name", "app", "service", "deployment")
_REPLICA = re.compile(r"(-[0-9a-f]{6,10})?-([a-z0-9]{5}|\d{1,4})$")
"""What Kubernetes adds to a pod's name: a ReplicaSet's hash and five characters, or a StatefulSet's ordinal."""

Counts = npt.NDArray[np.int64]


def service_name(name: str, tags: Mapping[str, str]) -> str:
    """The service that a replica belongs to: what a tag says, else its name without the part that tells replicas."""
    said = next((tags[tag] for tag in TAGS if tags.get(tag)), "")
    if said:
        return said
    found = _REPLICA.search(name)
    if found is None or (found[1] is None and not any(character.isdigit() for character in found[2])):
        return name
    return name[: found.start()] or name


@dataclass(frozen=True)
class Replicas:
    """A service's replicas by minute, of the minutes in which any was seen."""

    seen: Counts
    """Replicas that were seen in each minute."""
    busy: Counts
    """Of them, those that worked."""
    held: float
    """Replicas held, on average over those minutes, seen or not."""


@dataclass(frozen=True, slots=True)
class ReplicaAssessment:
    """What a service needs. `spare` None: too little is known."""

    held: int
    peak: int
    """Replicas busy at once in all but the busiest hundredth of the minutes."""
    needed: int
    spare: int | None
    known: float


def assess_service(replicas: Replicas) -> ReplicaAssessment:
    """Whether a service holds more replicas than it needs; never fewer than the reserve are needed."""
    seen = float(replicas.seen.mean()) if len(replicas.seen) else 0.0
    known = min(1.0, seen / replicas.held) if replicas.held > 0 else 0.0
    peak = math.ceil(np.percentile(replicas.busy, PERCENTILE)) if len(replicas.busy) else 0
    held = round(replicas.held)
    needed = min(held, peak + RESERVE)
    enough = known >= MIN_KNOWN and len(replicas.seen) >= MIN_MINUTES
    return ReplicaAssessment(held, peak, needed, held - needed if enough else None, known)


def count_replicas(rows: Sequence[tuple[int, int, int]], held: float) -> Replicas:
    """Replicas from rows of (minute, seen, busy)."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Replicas(table[:, 1], table[:, 2], held)
