"""Reads the queues of the schedulers of one cluster: `list` only, each object once a reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuledger_collector.ingest.scheduler_queues.kai import KAI, read_kai
from gpuledger_collector.ingest.scheduler_queues.kueue import KUEUE, read_kueue
from gpuledger_collector.ingest.scheduler_queues.resources import SchedulerReading
from gpuledger_collector.ingest.scheduler_queues.volcano import VOLCANO, read_volcano
from gpuledger_common.kubernetes_client import KubernetesClient

READERS: Mapping[str, Callable[[KubernetesClient, int], SchedulerReading]] = {
    KUEUE: read_kueue,
    VOLCANO: read_volcano,
    KAI: read_kai,
}
ANSWER_S = 15.0
LIST_S = 30.0
PAGE, MAX_PAGES = 200, 500


def open_client(url: str, token_file: Path, ca_file: Path | None) -> KubernetesClient:
    """A client for lists of a whole cluster."""
    return KubernetesClient(
        url, token_file, ca_file, ANSWER_S, list_s=LIST_S, page=PAGE, max_pages=MAX_PAGES
    )


def read_schedulers(
    client: KubernetesClient, schedulers: Sequence[str], at_ms: int
) -> list[SchedulerReading]:
    """What these schedulers say; one that does not answer says why, and the rest goes on."""
    return [READERS[name](client, at_ms) for name in schedulers]
