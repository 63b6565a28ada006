"""What the agent admits of each page and answer that it fetches, of files that others write, and of
who asks it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_agent import exposition, gateways, push, queue, serving
from gpuledger_agent.owners import containers, grpc_unix, ray
from gpuledger_common import kubernetes_client
from gpuledger_common.admission import NONE, Admission
from gpuledger_common.profiles import fetch, lines, page

_MIB = 1024 * 1024
_NOT_INFLATED = "0: compressed answers are refused"
_OWN_THREAD = "one, in a thread of its own"


def _fetched_row(
    way_in: str, max_bytes: int, records: str, deadline: str, in_progress: str, rate: str, adds: str
) -> Admission:
    """The row of an answer that is fetched; the address pays, because no other waits for it."""
    return Admission(
        way_in=way_in,
        payer="address",
        bytes=f"{max_bytes // _MIB} MiB" if max_bytes >= _MIB else f"{max_bytes // 1024} KiB",
        inflated_bytes=_NOT_INFLATED,
        records=records,
        age=NONE,
        rate=rate,
        in_progress=in_progress,
        deadline=deadline,
        query=NONE,
        adds=adds,
    )


_COLLECTOR_ADDS = "nothing"
_EXPORTER = _fetched_row(
    "page of an exporter, from its address or a file",
    fetch.MAX_PAGE_BYTES,
    f"{lines.MAX_LINES} samples, {page.MAX_DEVICES} accelerators, {page.MAX_HOLDERS} holders of"
    " each",
    f"{fetch.TIMEOUT_S:g} s",
    "one; sampling waits for it",
    "once in sample_interval_s",
    f"labels of {lines.MAX_LABEL_CHARACTERS} characters",
)
_COUNTERS = f"{serving.MAX_SERIES} counters of a page, {serving.MAX_READINGS} in memory"
FETCHED: Mapping[str, tuple[Admission, ...]] = {
    "gpuledger_common.profiles.fetch": (_EXPORTER,),
    "gpuledger_agent.serving": (
        _fetched_row(
            "page of an inference server",
            serving.MAX_PAGE_BYTES,
            _COUNTERS,
            f"{serving.TIMEOUT_S:g} s",
            _OWN_THREAD,
            f"once in slow_interval_s, {serving.MAX_ENDPOINTS} endpoints",
            f"labels of {serving.MAX_PART_CHARACTERS} characters",
        ),
        _fetched_row(
            "file of a training run (progress_dir)",
            serving.MAX_FILE_BYTES,
            _COUNTERS,
            NONE,
            _OWN_THREAD,
            f"once in slow_interval_s, {serving.MAX_FILES} files",
            f"labels of {serving.MAX_PART_CHARACTERS} characters",
        ),
    ),
    "gpuledger_agent.gateways": (
        _fetched_row(
            "page of a gateway with tokens by tenant",
            gateways.MAX_PAGE_BYTES,
            f"{lines.MAX_LINES} samples, {gateways.MAX_COUNTERS} counters kept,"
            f" {gateways.MAX_READINGS} readings in memory",
            f"{gateways.TIMEOUT_S:g} s",
            _OWN_THREAD,
            f"once in slow_interval_s, {gateways.MAX_GATEWAYS} gateways",
            "tenants, models and backends of 500 characters",
        ),
    ),
    "gpuledger_common.kubernetes_client": (
        _fetched_row(
            "answer of the Kubernetes API server",
            kubernetes_client.MAX_PAGE_BYTES,
            f"{kubernetes_client.MAX_PAGES} pages",
            f"{kubernetes_client.LIST_S:g} s for a list with all its pages",
            _OWN_THREAD,
            NONE,
            "labels of pods",
        ),
    ),
    "gpuledger_agent.owners.ray": (
        _fetched_row(
            "answer of the job API of a Ray cluster",
            ray.MAX_ANSWER_BYTES,
            f"one job, {ray.MAX_JOBS} kept",
            f"{ray.TIMEOUT_S:g} s, {ray.ASK_S:g} s for a round",
            _OWN_THREAD,
            f"once in {ray.RECHECK_S:g} s for each job on this node",
            "owners that jobs were submitted for, as far as their namespace allows",
        ),
        _fetched_row(
            "environment of a process in a pod of a Ray cluster",
            ray.MAX_ENVIRONMENT_BYTES,
            f"two variables, {ray.MAX_PROCESSES} processes",
            f"{ray.READ_S:g} s",
            f"one; {ray.MAX_HANGING} that hang are left alone",
            "once for each process",
            "the number of a job",
        ),
    ),
    "gpuledger_agent.owners.containers": (
        _fetched_row(
            "answer of Docker or Podman",
            containers.MAX_ANSWER_BYTES,
            f"{containers.MAX_CONTAINERS} containers",
            "2 s",
            _OWN_THREAD,
            NONE,
            "names and labels of containers",
        ),
    ),
    "gpuledger_agent.owners.podresources": (
        _fetched_row(
            "answer of the kubelet (pod resources)",
            grpc_unix.MAX_MESSAGE_BYTES,
            "one message",
            "2 s",
            _OWN_THREAD,
            NONE,
            "names of pods",
        ),
    ),
    "gpuledger_agent.owners.containerd": (
        _fetched_row(
            "answer of containerd",
            grpc_unix.MAX_MESSAGE_BYTES,
            "one message",
            "2 s",
            _OWN_THREAD,
            NONE,
            "names and labels of containers",
        ),
    ),
    "gpuledger_agent.push": (
        _fetched_row(
            "answer of the collector to a batch",
            push.MAX_ANSWER_BYTES,
            "1 answer",
            f"{push.TIMEOUT_S:g} s with the batch",
            _OWN_THREAD,
            f"back-off up to {push.BACKOFF_CAP_S:g} s",
            _COLLECTOR_ADDS,
        ),
    ),
    "gpuledger_agent.queue": (
        _fetched_row(
            "answer of the collector to a queue",
            queue.MAX_ANSWER_BYTES,
            "1 answer",
            f"{queue.TIMEOUT_S:g} s with the report",
            "one; the command waits for it",
            "once in --every",
            _COLLECTOR_ADDS,
        ),
    ),
}
"""The rows by the module that fetches."""

SERVED: Mapping[str, Admission] = {
    "gpuledger_agent.exposition": Admission(
        way_in="GET /metrics of the agent (metrics_listen)",
        payer="all of the node",
        bytes=f"{exposition.MAX_HEAD_BYTES // 1024} KiB of line and headers",
        inflated_bytes=NONE,
        records=NONE,
        age=NONE,
        rate=NONE,
        in_progress=f"{exposition.MAX_CONNECTIONS} connections; others are closed",
        deadline=f"{exposition.DEADLINE_S:g} s for a request and its answer",
        query="the latest readings",
        adds="nothing",
    ),
}
"""The rows by the module that listens."""

ADMISSIONS: tuple[Admission, ...] = (
    *(row for rows in FETCHED.values() for row in rows),
    *SERVED.values(),
)
