"""Series of a gateway that repeat what a better name counts.

A gateway that renames a family prints both names for a while, often with fewer labels under the old
one. So series are compared by what both of them name: a series repeats another of the same kind
where tenant, model and backend are equal, as far as both have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from gpuledger_common.gateways.model import Kind

ANY = "\0any"


@dataclass(frozen=True, slots=True)
class NamedCount:
    """What a series counts and for whom; `rank`: of its name among those of its kind."""

    kind: Kind
    rank: int
    tenant: str
    model: str
    backend: str

    def _labels(self) -> tuple[str, str, str]:
        return self.tenant, self.model, self.backend

    def matched_by(self) -> Iterator[tuple[str, ...]]:
        """Keys under which the series is found by those that repeat it."""
        return product(*((label, ANY) for label in self._labels()))

    def matches(self) -> Iterator[tuple[str, ...]]:
        """Keys by which the series finds those that it repeats."""
        return product(*((label, "") if label else (ANY,) for label in self._labels()))


@dataclass(slots=True)
class TwinIndex:
    """The newest reading of the names on a page, by what they count."""

    _newest: dict[tuple[Kind, tuple[str, ...]], dict[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many keys are held, eight for each series."""
        return len(self._newest)

    def add(self, count: NamedCount, at_ms: int = 0) -> None:
        """Note that a series was read."""
        for key in count.matched_by():
            ranks = self._newest.setdefault((count.kind, key), {})
            ranks[count.rank] = max(at_ms, ranks.get(count.rank, 0))

    def has_better(self, count: NamedCount) -> bool:
        """Whether a better name of the same kind was read, for whomever it counts."""
        return any(rank < count.rank for rank in self._newest.get((count.kind, (ANY,) * 3), ()))

    def is_twin(self, count: NamedCount, since_ms: int = 0) -> bool:
        """Whether a better name of the same count was read since."""
        return count.rank > 0 and any(
            rank < count.rank and newest_ms >= since_ms
            for key in count.matches()
            for rank, newest_ms in self._newest.get((count.kind, key), {}).items()
        )
