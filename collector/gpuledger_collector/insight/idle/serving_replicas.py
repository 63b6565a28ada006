"""Warm replicas of a service: how many are held, and how many of them were ever busy at once.

Problem: a replica that waits for requests is idle by design, so none of them is ever flagged; yet a
service that holds ten replicas and needs three in its busiest minutes wastes GPUs. Idea: a service
needs the 99th percentile, over the minutes of a week, of replicas that were busy at once, and one
more in reserve; what it holds beyond is spare. Unobserved replicas are neither busy nor spare: with
too little known the service is not judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.insight.idle.minutes import Counts

DAYS = 7
PERCENTILE = 99
RESERVE = 1
MIN_KNOWN = 0.75
"""Share of the replicas' minutes that must be known."""
MIN_MINUTES = 24 * 60
"""A service younger than a day has not shown its busiest minutes."""
TAGS = ("app.kubernetes.io/name", "app", "service", "deployment")
_REPLICA = re.compile(r"(-[0-9a-f]{6,10})?-([a-z0-9]{5}|\d{1,4})$")
"""Suffix of a Kubernetes pod's name: a ReplicaSet's hash and five characters, or a StatefulSet's
ordinal.
"""


def service_name(name: str, tags: Mapping[str, str]) -> str:
    """Return the service of a replica: by tag, else its name without the replica's suffix."""
    tagged = next((tags[tag] for tag in TAGS if tags.get(tag)), "")
    if tagged:
        return tagged
    suffix = _REPLICA.search(name)
    if suffix is None or (
        suffix[1] is None and not any(character.isdigit() for character in suffix[2])
    ):
        return name
    return name[: suffix.start()] or name


@dataclass(frozen=True)
class Replicas:
    """Replicas seen and busy by minute, of the minutes in which any was seen; `held`: mean held
    over those minutes.
    """

    seen: Counts
    busy: Counts
    held: float


@dataclass(frozen=True, slots=True)
class ReplicaAssessment:
    """Replicas held, busy at once in all but the busiest hundredth of minutes, needed and spare
    (None: not judged).
    """

    held: int
    peak: int
    needed: int
    spare: int | None
    known: float


@dataclass(frozen=True, slots=True)
class ServiceReplicas:
    """A service on one GPU model in one pool.

    `per_day_micro`: cost of a day of its spare replicas; None: unknown.
    """

    name: str
    team: str
    pool: str
    model: str
    assessment: ReplicaAssessment
    currency: str | None
    per_day_micro: int | None

    @property
    def per_day(self) -> Money | None:
        """What a day of its spare replicas costs."""
        if self.per_day_micro is None or not self.currency:
            return None
        return Money(self.per_day_micro, self.currency)


def assess_service(replicas: Replicas) -> ReplicaAssessment:
    """Judge whether a service holds more replicas than it needs; it needs at least the reserve."""
    seen = float(replicas.seen.mean()) if len(replicas.seen) else 0.0
    known = min(1.0, seen / replicas.held) if replicas.held > 0 else 0.0
    peak = math.ceil(np.percentile(replicas.busy, PERCENTILE)) if len(replicas.busy) else 0
    held = round(replicas.held)
    # Never more than is held: this finds spare replicas and does not advise more.
    needed = min(held, peak + RESERVE)
    enough = known >= MIN_KNOWN and len(replicas.seen) >= MIN_MINUTES
    return ReplicaAssessment(held, peak, needed, held - needed if enough else None, known)


def count_replicas(rows: Sequence[tuple[int, int, int]], held: float) -> Replicas:
    """Build replicas from rows of (minute, seen, busy)."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Replicas(table[:, 1], table[:, 2], held)
