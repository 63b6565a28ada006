"""The queue for GPUs: the workloads that wait in a scheduler at an instant, read once per cluster
and sent.

Only workloads that more GPUs would start are counted: not a job that its user holds, or that waits
for another job, for its start time or for its quota.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from gpuledger_agent.settings import is_web_address
from gpuledger_common.bounded_file import read_secret_file
from gpuledger_common.escapes import escape_text
from gpuledger_common.http_exchange import Answer, BoundedConnection
from gpuledger_common.readings import AgentError

log = logging.getLogger("gpuledger_agent")

PATH = "/v1/queue"
TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 64 * 1024


class QueueFailed(AgentError):
    """The queue could not be read or sent; the message says why."""


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A waiting workload: the GPUs it requests (a MIG instance as a fraction), and since when (unix
    seconds).
    """

    workload_id: str
    gpus: float
    pool: str = ""
    gpu_model: str = ""
    team: str = ""
    user: str = ""
    account: str = ""
    submitted: float | None = None


def report(source: str, at_s: float, waiting: Sequence[QueuedWorkload]) -> dict[str, object]:
    """The body of POST /v1/queue."""
    return {"source": source, "at": at_s, "waiting": [asdict(workload) for workload in waiting]}


def send(
    body: dict[str, object], url: str, token_file: Path | None = None, ca_file: Path | None = None
) -> str:
    """Send a report; returns the status in the collector's answer. Raises QueueFailed."""
    headers = {"Content-Type": "application/json"}
    try:
        if token_file is not None:
            token = read_secret_file(token_file, log.warning)
            # http.client would quote it in its error.
            if not (token.isascii() and token.isprintable()):
                raise QueueFailed(f"{token_file} holds more than a token")
            headers["Authorization"] = f"Bearer {token}"
        answer = _post(url, json.dumps(body).encode(), headers, ca_file)
        if answer.status != http.client.OK:
            text = escape_text(answer.body[:2_000].decode(errors="replace").strip())
            raise QueueFailed(f"{url}{PATH}: HTTP status {answer.status}: {text}")
        content = json.loads(answer.body)
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise QueueFailed(
            f"{url}{PATH}: {escape_text(str(error).strip()) or type(error).__name__}"
        ) from error
    if not isinstance(content, dict):
        raise QueueFailed(f"{url}{PATH}: the answer is not a collector's")
    return str(content.get("status", ""))


def _post(url: str, body: bytes, headers: dict[str, str], ca_file: Path | None) -> Answer:
    if not is_web_address(url):
        raise ValueError("the address is not http://HOST[:PORT] or https://HOST[:PORT]")
    tls = partial(ssl.create_default_context, cafile=ca_file and str(ca_file))
    connection = BoundedConnection(url, timeout_s=TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES, tls=tls)
    try:
        return connection.exchange("POST", urlsplit(url).path.rstrip("/") + PATH, body, headers)
    finally:
        connection.close()
