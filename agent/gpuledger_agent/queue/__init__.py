"""The queue for GPUs: the workloads that wait in a scheduler at an instant, read once per cluster and sent.

Only workloads that more GPUs would start are counted: not a job that its user holds, or that waits for another job, for
its start time or for its quota.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuledger_common.escapes import escape_text
from gpuledger_common.readings import AgentError

PATH = "/v1/queue"
TIMEOUT_S = 30.0


class QueueFailed(AgentError):
    """The queue could not be read or sent; the message says why."""


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A waiting workload: the GPUs it requests (a MIG instance as a fraction), and since when (unix seconds)."""

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


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirections, which would send the token to another address."""

    def redirect_request(self, *_: object) -> None:
        """Never: a redirection is not a collector's answer."""


def send(body: dict[str, object], url: str, token_file: Path | None = None, ca_file: Path | None = None) -> str:
    """Send a report; returns the status in the collector's answer. Raises QueueFailed."""
    headers = {"Content-Type": "application/json"}
    try:
        if token_file is not None:
            token = token_file.read_text().strip()
            if not (token.isascii() and token.isprintable()):  # http.client would quote it in its error
                raise QueueFailed(f"{token_file} holds more than a token")
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(url.rstrip("/") + PATH, json.dumps(body).encode(), headers)  # noqa: S310
        context = ssl.create_default_context(cafile=str(ca_file)) if ca_file is not None else None
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=TIMEOUT_S) as response:
            answer = json.loads(response.read(65_536))
    except urllib.error.HTTPError as error:
        raise QueueFailed(f"{url}{PATH}: HTTP status {error.code}: {_error_body(error)}") from error
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        reason = escape_text(str(getattr(error, "reason", None) or error).strip())
        raise QueueFailed(f"{url}{PATH}: {reason or type(error).__name__}") from error
    if not isinstance(answer, dict):
        raise QueueFailed(f"{url}{PATH}: the answer is not a collector's")
    return str(answer.get("status", ""))


def _error_body(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return escape_text(error.read(2_000).decode(errors="replace").strip())
    return ""
