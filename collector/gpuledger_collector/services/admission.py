"""What the collector admits of answers that it asks for: receivers of messages, mail servers,
clusters, Prometheus.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.config import files
from gpuledger_collector.ingest import litellm_database
from gpuledger_collector.ingest.remote_write import prometheus_api
from gpuledger_collector.ingest.scheduler_queues import reader
from gpuledger_collector.notifications import reclaim, smtp, webhooks
from gpuledger_common import kubernetes_client
from gpuledger_common.admission import NONE, Admission

_MIB = 1024 * 1024


def _asked_row(
    way_in: str, max_bytes: str, records: str, in_progress: str, deadline: str, adds: str
) -> Admission:
    """The row of an answer that the collector asks for: no other request waits for it."""
    return Admission(
        way_in=way_in,
        payer="address",
        bytes=max_bytes,
        inflated_bytes="0: compressed answers are not read",
        records=records,
        age=NONE,
        rate=NONE,
        in_progress=in_progress,
        deadline=deadline,
        query=NONE,
        adds=adds,
    )


_JOB = "one, in a job of its own"
ASKED: Mapping[str, tuple[Admission, ...]] = {
    "gpuledger_collector.notifications.webhooks": (
        _asked_row(
            "answer of a receiver of messages (Slack, Teams, webhook)",
            f"{webhooks.MAX_ANSWER // 1024} KiB, which are dropped",
            "a status",
            _JOB,
            f"{webhooks.TIMEOUT_S:g} s to connect, {webhooks.TIMEOUT_S:g} s for the exchange",
            "nothing",
        ),
    ),
    "gpuledger_collector.notifications.smtp": (
        _asked_row(
            "answers of a mail server",
            "lines of 8 KiB",
            NONE,
            _JOB,
            f"{smtp.SESSION_SECONDS:g} s to connect and log in, {smtp.SESSION_SECONDS:g} s for a"
            " mail",
            "nothing",
        ),
    ),
    "gpuledger_collector.notifications.reclaim": (
        _asked_row(
            "answer of the Kubernetes API server about an eviction",
            f"{reclaim.MAX_ANSWER // _MIB} MiB",
            "one object",
            _JOB,
            f"{reclaim.API_SECONDS:g} s",
            "a sentence",
        ),
    ),
    "gpuledger_collector.ingest.remote_write.prometheus_api": (
        _asked_row(
            "answer of a Prometheus that `start` reads",
            f"{prometheus_api.MAX_ANSWER // _MIB} MiB",
            "series of a range, which is halved where they are too many",
            "one a command",
            f"{prometheus_api.TIMEOUT_S:g} s",
            "the ledger, by the rules that it imports",
        ),
    ),
    "gpuledger_collector.ingest.scheduler_queues.reader": (
        _asked_row(
            "lists of a Kubernetes API server: queues, quotas, workloads of schedulers",
            f"{kubernetes_client.MAX_PAGE_BYTES // _MIB} MiB a page",
            f"{reader.MAX_PAGES * reader.PAGE:,} objects of a list",
            _JOB,
            f"{reader.ANSWER_S:g} s a page, {reader.LIST_S:g} s a list",
            "quotas where they change, and a row of each queue an hour",
        ),
    ),
    "gpuledger_collector.ingest.litellm_database": (
        _asked_row(
            "answers of LiteLLM's Postgres that `import litellm` reads",
            "a page of rows, of texts and numbers; none of prompts, answers and metadata",
            f"{litellm_database.PAGE_ROWS:,} rows a page, {files.MAX_RECORDS:,} in all",
            "one a command",
            f"{litellm_database.CONNECT_SECONDS} s to connect,"
            f" {litellm_database.STATEMENT_SECONDS} s a page",
            "tokens by tenant",
        ),
    ),
}
"""The rows by the module that asks."""

ADMISSIONS: tuple[Admission, ...] = tuple(row for rows in ASKED.values() for row in rows)
