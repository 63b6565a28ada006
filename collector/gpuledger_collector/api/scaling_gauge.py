"""The desired GPUs of every pool as a Prometheus gauge, absent where GET /v1/scaling/{pool} gives
no number, and the outcome of decisions in the last 28 days.

A scrape never waits: pools are computed on a thread at most every `REFRESH_SECONDS`. Values older
than `EXPIRE_SECONDS` are not exposed, so an unavailable database ends the series instead of
freezing it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

NAME = "gpuledger_scaling_desired_gpus"
HELP = "GPUs that the pool should hold now; absent when its recent demand is unknown."
OUTCOME = "gpuledger_scaling_outcome_gpu_seconds"
OUTCOME_HELP = (
    "GPU-seconds of the last 28 days had each decision been followed: demand, wait (below demand),"
    " waste (above it), and wait and waste of the best reactive setting."
)
REFRESH_SECONDS = 300.0
RETRY_SECONDS = 30.0
EXPIRE_SECONDS = 900.0

log = logging.getLogger(__name__)


class ScalingGauge(Collector):
    """`desired` returns GPUs by pool, without pools that get no number; `outcomes` GPU-seconds by
    pool and kind.

    Both may block and raise.
    """

    def __init__(
        self,
        desired: Callable[[], Mapping[str, float]],
        steady: Callable[[], float] = time.monotonic,
        outcomes: Callable[[], Mapping[tuple[str, str], float]] = dict,
    ) -> None:
        self._read_desired, self._steady, self._read_outcomes = desired, steady, outcomes
        self._lock = threading.Lock()
        self._due: float | None = None
        self._read_at = 0.0
        self._desired: Mapping[str, float] = {}
        self._outcome_sums: Mapping[tuple[str, str], float] = {}
        self._refreshing: threading.Thread | None = None

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The families, for registration without a query."""
        return [
            GaugeMetricFamily(NAME, HELP, labels=["pool"]),
            GaugeMetricFamily(OUTCOME, OUTCOME_HELP, labels=["pool", "kind"]),
        ]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The current values; starts a refresh when it is due."""
        now = self._steady()
        with self._lock:
            # At most one refresh at a time, and the scrape does not wait for it.
            if self._refreshing is None and (self._due is None or now >= self._due):
                self._refreshing = threading.Thread(
                    target=self._refresh, name="scaling-gauge", daemon=True
                )
                self._refreshing.start()
            is_current = now - self._read_at <= EXPIRE_SECONDS
            desired, outcomes = (self._desired, self._outcome_sums) if is_current else ({}, {})
        family = GaugeMetricFamily(NAME, HELP, labels=["pool"])
        for pool, gpus in sorted(desired.items()):
            family.add_metric([pool], gpus)
        outcome = GaugeMetricFamily(OUTCOME, OUTCOME_HELP, labels=["pool", "kind"])
        for labels, gpu_s in sorted(outcomes.items()):
            outcome.add_metric(list(labels), gpu_s)
        return [family, outcome]

    def _refresh(self) -> None:
        began = self._steady()
        desired: Mapping[str, float] | None = None
        outcomes: Mapping[tuple[str, str], float] = {}
        try:
            outcomes, desired = self._read_outcomes(), self._read_desired()
        except Exception:
            log.warning("the desired GPUs of pools could not be computed", exc_info=True)
        with self._lock:
            if desired is not None:
                # Only both together, so that a scrape never shows values of two instants.
                self._desired, self._outcome_sums, self._read_at = desired, outcomes, began
            self._due = self._steady() + (RETRY_SECONDS if desired is None else REFRESH_SECONDS)
            self._refreshing = None
