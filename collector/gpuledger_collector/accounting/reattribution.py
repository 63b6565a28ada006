"""Reattribution: what a decided dispute says of held time, against what tags and rules say.

A decision names the owner that contested, a workload on an accelerator and a span of whole hours:
what that owner pays of this time is charged to another owner, or the time was not usable and counts
as unavailable. Decisions apply in their order, each to what tags, rules and the decisions before it
charge to its contesting owner: time of anybody else inside the span stays where it is. Only who
pays changes, never how much time there is: the parts of an accelerator-hour still add up to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import HOUR_MS, Period, join_periods
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE, HourlyUsage

Key = tuple[int, int | None]
"""Workload and accelerator; None: usage imported as counts."""
OwnerOf = Callable[[int, int, int | None], OwnerPath]
"""Whom tags and rules charge for a workload (its id) at an instant (unix ms), by what was reported
of it then.
"""

UNNUMBERED = 2**63 - 1
"""The number of a decision that is not kept yet: newer than all that are."""


@dataclass(frozen=True, slots=True)
class Reattribution:
    """One decision.

    `state` is held (charged to `owner`) or unavailable (`owner` None); a higher id is newer.

    `contested` (level -> value, empty: the level is empty) names the owner whose time moves, and
    all below it.
    """

    id: int
    workload_id: int
    accelerator_id: int | None
    start_ms: int
    end_ms: int
    state: str
    owner: OwnerPath | None
    contested: Mapping[str, str]

    def covers(self, at_ms: int) -> bool:
        """Whether an instant lies in its span."""
        return self.start_ms <= at_ms < self.end_ms

    def concerns(self, owner: OwnerPath) -> bool:
        """Whether an owner is the one that contested, or below it."""
        return all(owner.level(level) == value for level, value in self.contested.items())


class Reattributions:
    """Decisions, asked for one workload on one accelerator at one instant.

    Without any, asking costs nothing.
    """

    def __init__(self, decisions: Iterable[Reattribution] = ()) -> None:
        self._by_key: dict[Key, list[Reattribution]] = defaultdict(list)
        for decision in sorted(decisions, key=lambda decision: decision.id):
            self._by_key[(decision.workload_id, decision.accelerator_id)].append(decision)

    def names(self, workload_id: int, accelerator_id: int | None) -> bool:
        """Whether any decision is about a workload on an accelerator."""
        return (workload_id, accelerator_id) in self._by_key

    def payer(
        self, workload_id: int, accelerator_id: int | None, at_ms: int, owner: OwnerPath
    ) -> OwnerPath | None:
        """Who pays for time that tags and rules charge to `owner`; None where it was decided to be
        unavailable.
        """
        payer: OwnerPath | None = owner
        if self._by_key:
            for decision in self._by_key.get((workload_id, accelerator_id), ()):
                # A later decision applies to what the earlier ones charge, not to what the rules
                # charge.
                if payer is not None and decision.covers(at_ms) and decision.concerns(payer):
                    payer = decision.owner
        return payer

    def apply_to_pieces(
        self, pieces: Sequence[HourlyUsage], owner_of: OwnerOf
    ) -> list[HourlyUsage]:
        """The pieces, those that were decided to be unavailable as such; their lengths stay as they
        are.

        `owner_of` says whom tags and rules charge.
        """
        if not self._by_key:
            return list(pieces)
        return [self._apply_to_piece(piece, owner_of) for piece in pieces]

    def _apply_to_piece(self, piece: HourlyUsage, owner_of: OwnerOf) -> HourlyUsage:
        if piece.state != HELD or piece.workload_id is None:
            return piece
        key = (piece.workload_id, piece.accelerator_id)
        if key not in self._by_key:
            return piece
        owner = owner_of(piece.workload_id, piece.start_ms, piece.attributes_id)
        if self.payer(*key, piece.start_ms, owner) is not None:
            return piece
        return replace(
            piece, state=UNAVAILABLE, workload_id=None, busy_ms=0, idle_ms=0, unknown_ms=0
        )


def spans_of(lines: Iterable[tuple[Key, Period]], within: Period) -> dict[Key, list[Period]]:
    """The whole hours of some lines, by workload and accelerator, cut to `within` and put together
    where they adjoin.

    A line covers its first to its last hour. Its gaps may be somebody else's, whom a decision
    leaves alone.
    """
    spans: dict[Key, list[Period]] = defaultdict(list)
    for key, span in lines:
        whole = Period(
            span.start_ms - span.start_ms % HOUR_MS, -(-span.end_ms // HOUR_MS) * HOUR_MS
        )
        if (part := whole.clip(within)) is not None:
            spans[key].append(part)
    return {key: join_periods(parts) for key, parts in spans.items()}
