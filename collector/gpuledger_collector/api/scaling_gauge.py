"""The advice of every pool as a Prometheus gauge, absent where GET /v1/scaling/{pool} would say no number; and what
came of its decisions in the last 28 days.

A scrape never waits for it: the pools are replayed in a thread of their own at most every `AGAIN_SECONDS`, and what is
older than `DEAD_SECONDS` is not shown, so that a database that is away ends the series instead of freezing it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

NAME = "gpuledger_scaling_desired_gpus"
HELP = "GPUs that the pool should hold now; absent when its demand is not known of late."
OUTCOME = "gpuledger_scaling_outcome_gpu_seconds"
OUTCOME_HELP = (
    "GPU-seconds of the last 28 days had each decision been followed: demand, wait (short of demand), waste (over it), "
    "and wait and waste of the best reactive setting."
)
AGAIN_SECONDS = 300.0
RETRY_SECONDS = 30.0
DEAD_SECONDS = 900.0

log = logging.getLogger(__name__)


class ScalingGauge(Collector):
    """`advise` gives GPUs by pool, without the pools that get no number; `outcomes` GPU-seconds by pool and kind. Both
    may block and fail.
    """

    def __init__(
        self,
        advise: Callable[[], Mapping[str, float]],
        steady: Callable[[], float] = time.monotonic,
        outcomes: Callable[[], Mapping[tuple[str, str], float]] = dict,
    ) -> None:
        self._advise, self._steady, self._outcomes = advise, steady, outcomes
        self._lock = threading.Lock()
        self._due: float | None = None
        self._made_at = 0.0
        self._made: Mapping[str, float] = {}
        self._came: Mapping[tuple[str, str], float] = {}
        self._refreshing: threading.Thread | None = None

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The family's name, which registering needs without asking the database."""
        return [
            GaugeMetricFamily(NAME, HELP, labels=["pool"]),
            GaugeMetricFamily(OUTCOME, OUTCOME_HELP, labels=["pool", "kind"]),
        ]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """What is known now; begins to look again when it is time."""
        now = self._steady()
        with self._lock:
            if self._refreshing is None and (self._due is None or now >= self._due):
                self._refreshing = threading.Thread(target=self._refresh, name="scaling-gauge", daemon=True)
                self._refreshing.start()
            alive = now - self._made_at <= DEAD_SECONDS
            known, came = (self._made, self._came) if alive else ({}, {})
        family = GaugeMetricFamily(NAME, HELP, labels=["pool"])
        for pool, gpus in sorted(known.items()):
            family.add_metric([pool], gpus)
        outcome = GaugeMetricFamily(OUTCOME, OUTCOME_HELP, labels=["pool", "kind"])
        for labels, gpu_s in sorted(came.items()):
            outcome.add_metric(list(labels), gpu_s)
        return [family, outcome]

    def _refresh(self) -> None:
        began = self._steady()
        made: Mapping[str, float] | None = None
        came: Mapping[tuple[str, str], float] = {}
        try:
            came, made = self._outcomes(), self._advise()
        except Exception:
            log.warning("the advice for the gauge could not be made", exc_info=True)
        with self._lock:
            if made is not None:
                self._made, self._came, self._made_at = made, came, began
            self._due = self._steady() + (RETRY_SECONDS if made is None else AGAIN_SECONDS)
            self._refreshing = None
