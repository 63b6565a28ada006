"""What waits for GPUs: a scheduler's whole queue at an instant, read once for the cluster and sent to the collector.

Only what more GPUs would let begin is a wait: a job that its user holds, that waits for another one, for its hour or
for its quota is none.
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


class QueueUnread(AgentError):
    """The queue could not be read or handed over; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One workload that waits: GPUs asked for (a MIG instance by its part), and since when (unix seconds)."""

    workload_id: str
    gpus: float
    pool: str = ""
    gpu_model: str = ""
    team: str = ""
    user: str = ""
    account: str = ""
    submitted: float | None = None


def reading(source: str, at_s: float, waiting: Sequence[Waiting]) -> dict[str, object]:
    """The body of POST /v1/queue."""
    return {"source": source, "at": at_s, "waiting": [asdict(one) for one in waiting]}


class _NoOtherAddress(urllib.request.HTTPRedirectHandler):
    """A redirection would take the token to wherever it points."""

    def redirect_request(self, *_: object) -> None:
        """None: it is an answer like others that are not a collector's."""


def send(body: dict[str, object], url: str, token_file: Path | None = None, ca_file: Path | None = None) -> str:
    """Hand a reading over; the collector's answer in words. Raises QueueUnread."""
    headers = {"Content-Type": "application/json"}
    try:
        if token_file is not None:
            token = token_file.read_text().strip()
            if not (token.isascii() and token.isprintable()):  # http.client would quote it in its sentence
                raise QueueUnread(f"{token_file} holds more than a token")
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(url.rstrip("/") + PATH, json.dumps(body).encode(), headers)  # noqa: S310
        context = ssl.create_default_context(cafile=str(ca_file)) if ca_file is not None else None
        opener = urllib.request.build_opener(_NoOtherAddress, urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            told = json.loads(answer.read(65_536))
    except urllib.error.HTTPError as error:
        raise QueueUnread(f"{url}{PATH}: HTTP status {error.code}: {_said(error)}") from error
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        said = escape_text(str(getattr(error, "reason", None) or error).strip())
        raise QueueUnread(f"{url}{PATH}: {said or type(error).__name__}") from error
    if not isinstance(told, dict):
        raise QueueUnread(f"{url}{PATH}: the answer is not a collector's")
    return str(told.get("status", ""))


def _said(error: urllib.error.HTTPError) -> str:
    """What a refusal says."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return escape_text(error.read(2_000).decode(errors="replace").strip())
    return ""
