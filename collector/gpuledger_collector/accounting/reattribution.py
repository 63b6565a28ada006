"""Reattribution: what a decided dispute says of held time, against what tags and rules say.

A decision names a workload on an accelerator and a span of whole hours: that time is borne by another owner, or it was
no usable time at all and counts as unavailable. Rating honours the newest decision that covers a piece of usage. Only
who bears the time changes, never how much there is of it: the parts of an accelerator-hour still add up to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE, UsagePiece

Key = tuple[int, int | None]
"""Workload and accelerator; None: usage imported as counts."""


@dataclass(frozen=True, slots=True)
class Reattribution:
    """One decision. `state` is held (borne by `owner`) or unavailable (`owner` None); a higher id is newer."""

    id: int
    workload_id: int
    accelerator_id: int | None
    start_ms: int
    end_ms: int
    state: str
    owner: OwnerPath | None

    def covers(self, at_ms: int) -> bool:
        """Whether an instant lies in its span."""
        return self.start_ms <= at_ms < self.end_ms


class Reattributions:
    """Decisions, asked for one workload on one accelerator at one instant. Without any, asking costs nothing."""

    def __init__(self, decisions: Iterable[Reattribution] = ()) -> None:
        self._by_key: dict[Key, list[Reattribution]] = defaultdict(list)
        for one in sorted(decisions, key=lambda decision: -decision.id):
            self._by_key[(one.workload_id, one.accelerator_id)].append(one)

    def at(self, workload_id: int, accelerator_id: int | None, at_ms: int) -> Reattribution | None:
        """The newest decision about this time, None where there is none."""
        if not self._by_key:
            return None
        mine = self._by_key.get((workload_id, accelerator_id), ())
        return next((one for one in mine if one.covers(at_ms)), None)

    def applied(self, pieces: Sequence[UsagePiece]) -> list[UsagePiece]:
        """The pieces, those that were decided to be unavailable as such; their lengths stay as they are."""
        if not self._by_key:
            return list(pieces)
        return [self._applied(piece) for piece in pieces]

    def _applied(self, piece: UsagePiece) -> UsagePiece:
        if piece.state != HELD or piece.workload_id is None:
            return piece
        decision = self.at(piece.workload_id, piece.accelerator_id, piece.start_ms)
        if decision is None or decision.state == HELD:
            return piece
        return replace(piece, state=UNAVAILABLE, workload_id=None, busy_ms=0, idle_ms=0, unknown_ms=0)


def spans_of(lines: Iterable[tuple[Key, Period]], within: Period) -> dict[Key, list[Period]]:
    """The whole hours of some lines, by workload and accelerator, cut to `within` and put together where they adjoin.

    A line covers its first to its last hour, whatever gaps it has: its owner is one and the same.
    """
    found: dict[Key, list[Period]] = defaultdict(list)
    for key, span in lines:
        whole = Period(span.start_ms - span.start_ms % HOUR_MS, -(-span.end_ms // HOUR_MS) * HOUR_MS)
        if (part := whole.clip(within)) is not None:
            found[key].append(part)
    return {key: _joined(parts) for key, parts in found.items()}


def _joined(parts: Sequence[Period]) -> list[Period]:
    joined: list[Period] = []
    for part in sorted(parts, key=lambda period: period.start_ms):
        if joined and part.start_ms <= joined[-1].end_ms:
            joined[-1] = Period(joined[-1].start_ms, max(joined[-1].end_ms, part.end_ms))
        else:
            joined.append(part)
    return joined
