"""Who was refused lately, for /readyz, /metrics and `gpuledger doctor`.

Nothing is recorded of reports that are taken. /readyz and /metrics are open to everybody, so they
have numbers; the names are settled with the quotas, into the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gpuledger_collector.api.auth.keys import KeysUnavailable
from gpuledger_collector.api.limits import HOUR_SECONDS, OverQuota, Quota
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.ingest.batches.commit import Unavailable
from gpuledger_common.plurals import plural

RECENT_SECONDS = 60.0
MAX_SENDERS = 1000
"""Senders that are remembered; the one refused longest ago is dropped beyond this number."""
FORGOTTEN_PER_SECOND = 1 / 60
"""Refusals of a sender that the database forgets."""
Route = Literal["batches", "queue", "inference", "write", "progress"]


class TooMuchInProgress(Unavailable):
    """Too many bytes are in progress: of `payer` alone, or of all (empty)."""

    def __init__(self, sentence: str, payer: str) -> None:
        super().__init__(sentence)
        self.payer = payer


def _new_use() -> Quota:
    return Quota(FORGOTTEN_PER_SECOND, "refusals", burst_s=HOUR_SECONDS)


@dataclass(slots=True)
class Refusals:
    """Counts refused reports."""

    metrics: Metrics
    steady: Callable[[], float] = time.monotonic
    use: Quota = field(default_factory=_new_use)
    """By sender; never checked, only settled."""
    _latest: dict[str, float] = field(default_factory=dict, init=False)
    """When each sender was last refused, in that order."""
    _all_refused_at: float | None = field(default=None, init=False)

    def note(self, route: Route, error: Exception) -> None:
        """Count what this error refuses."""
        reason, payer = _cause_of(error)
        self.metrics.refusals.labels(route=route, reason=reason).inc()
        if not payer:
            # Writers and tokens that fail are told by readiness itself, and no longer than they do.
            if reason == "all_bytes":
                self._all_refused_at = self.steady()
            return
        self.use.take(payer, 1)
        self._latest.pop(payer, None)
        while len(self._latest) >= MAX_SENDERS:
            del self._latest[next(iter(self._latest))]
        self._latest[payer] = self.steady()

    def summary(self) -> str | None:
        """Who was refused in the last minute, in a sentence without names; None where nobody was."""
        since = self.steady() - RECENT_SECONDS
        senders = sum(at >= since for at in list(self._latest.values()))
        if self._all_refused_at is not None and self._all_refused_at >= since:
            return (
                "reports of any sender were refused in the last minute: too many bytes are in"
                " progress"
            )
        if not senders:
            return None
        return (
            f"{plural(senders, 'sender')} exceeded a limit in the last minute and were refused: see"
            " gpuledger doctor"
        )


def _cause_of(error: Exception) -> tuple[str, str]:
    """The reason as a label, and the sender; empty where all senders are concerned."""
    if isinstance(error, OverQuota):
        return "quota", error.payer
    if isinstance(error, TooMuchInProgress):
        return ("sender_bytes", error.payer) if error.payer else ("all_bytes", "")
    return ("tokens" if isinstance(error, KeysUnavailable) else "writers"), ""
