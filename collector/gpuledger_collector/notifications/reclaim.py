"""Backends that reclaim idle GPUs: Slurm's scancel, an eviction by Kubernetes, or a webhook.

Each can be asked whether a workload is gone already, so that an action is done once even when a
process ended in the middle of it. None of them touches a workload that is no longer the one that
was found idle.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications.transport import DeliveryUnknown, NotAccepted
from gpuledger_collector.notifications.webhooks import WebhookTransport
from gpuledger_common.http_exchange import BoundedConnection

MAX_ANSWER = 1 << 20
API_SECONDS = 20.0
# Digits only: the id becomes an argument of a command.
_JOB = re.compile(r"\d{1,10}(_\d{1,10})?")
_GONE = frozenset(
    {
        "CANCELLED",
        "COMPLETED",
        "COMPLETING",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "OUT_OF_MEMORY",
        "DEADLINE",
        "REVOKED",
    }
)


class NotReclaimed(Exception):
    """A workload was not reclaimed; when `permanent`, trying again cannot help."""

    def __init__(self, sentence: str, *, permanent: bool = False) -> None:
        super().__init__(sentence)
        self.permanent = permanent


class ReclaimBackend(Protocol):
    """Ends idle workloads of one kind."""

    def is_gone(self, action: ReclaimAction) -> bool:
        """Whether the workload has ended or is ending. Raises NotReclaimed when that is unknown."""

    def reclaim(self, action: ReclaimAction) -> str:
        """End the workload and return what was done, in a sentence. Raises NotReclaimed."""


@dataclass(frozen=True)
class SlurmBackend:
    """Runs `scancel` and `squeue` on this machine; a job of another user than the idle one is left
    alone.
    """

    scancel: str = "scancel"
    squeue: str = "squeue"
    environment: Mapping[str, str] | None = None
    timeout_s: float = 30.0

    def is_gone(self, action: ReclaimAction) -> bool:
        """Ask squeue; a job that it does not know has ended."""
        job, user = self._job(action), str(action.target.get("user", ""))
        result = self._run(
            self.squeue, "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%u"
        )
        if result.returncode != 0:
            if "Invalid job id" in result.stderr:
                return True
            raise NotReclaimed(f"squeue: {_first_line(result.stderr)}")
        rows = [line.strip().split("|") for line in result.stdout.splitlines() if line.strip()]
        others = {row[1] for row in rows if len(row) == 2} - {user}
        # Slurm's ids wrap around (MaxJobId): the job may be somebody else's by now.
        if user and others:
            raise NotReclaimed(
                f"job {job} is {', '.join(sorted(others))}'s, not {user}'s: left alone",
                permanent=True,
            )
        return all(row[0] in _GONE for row in rows)

    def reclaim(self, action: ReclaimAction) -> str:
        """Cancel the job."""
        job = self._job(action)
        result = self._run(self.scancel, job)
        if result.returncode != 0 and "Invalid job id" not in result.stderr:
            raise NotReclaimed(f"scancel: {_first_line(result.stderr)}")
        return f"scancel {job}"

    def _job(self, action: ReclaimAction) -> str:
        job = str(action.target.get("workload", ""))
        if not _JOB.fullmatch(job):
            raise NotReclaimed(f"{job!r} is no Slurm job id", permanent=True)
        return job

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = None if self.environment is None else dict(self.environment)
        try:
            return subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotReclaimed(f"{command[0]}: {_first_line(str(error))}") from error


@dataclass(frozen=True)
class KubernetesBackend:
    """Evicts pods (policy/v1); disruption budgets are respected, and the pod's UID must be that of
    the idle one.
    """

    address: str
    token: Callable[[], str] = field(repr=False)
    ca_file: str | None = None
    timeout_s: float = API_SECONDS

    def is_gone(self, action: ReclaimAction) -> bool:
        """Whether the pod with this UID no longer exists, or is ending."""
        status, answer = self._ask("GET", _pod(action), None)
        if status == 404:
            return True
        if status != 200:
            raise NotReclaimed(f"the API server answered {status} {_reason(answer)}")
        metadata = answer.get("metadata", {})
        # A pod of this name with another UID is a new one, so the idle one is gone.
        return metadata.get("uid") != action.target["uid"] or bool(
            metadata.get("deletionTimestamp")
        )

    def reclaim(self, action: ReclaimAction) -> str:
        """Evict the pod."""
        namespace, name, uid = (
            str(action.target.get(key, "")) for key in ("namespace", "pod", "uid")
        )
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            # The API server checks the UID itself: between asking and evicting another pod may take
            # the name.
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        status, answer = self._ask("POST", f"{_pod(action)}/eviction", body)
        if status in (200, 201, 404):
            return f"evicted {namespace}/{name}"
        # 429: a disruption budget forbids it now. 409: another pod has the name.
        permanent = status in (400, 403, 409, 422)
        raise NotReclaimed(
            f"the API server answered {status} {_reason(answer)}", permanent=permanent
        )

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(self.address)
        connection = BoundedConnection(
            self.address,
            timeout_s=self.timeout_s,
            max_bytes=MAX_ANSWER,
            tls=lambda: ssl.create_default_context(cafile=self.ca_file),
        )
        headers = {"Authorization": f"Bearer {self.token()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            content_of = None if body is None else json.dumps(body).encode()
            answer = connection.exchange(method, parts.path.rstrip("/") + path, content_of, headers)
        except (OSError, http.client.HTTPException) as error:
            raise NotReclaimed(
                f"the API server at {parts.netloc} gave no answer ({error})"
            ) from error
        finally:
            connection.close()
        try:
            content = json.loads(answer.body)
        except ValueError:
            content = {}
        return answer.status, content if isinstance(content, dict) else {}


def _pod(action: ReclaimAction) -> str:
    namespace, name = (
        quote(str(action.target.get(key, "")), safe="") for key in ("namespace", "pod")
    )
    if not (namespace and name and action.target.get("uid")):
        raise NotReclaimed("namespace, name or UID of the pod is not known", permanent=True)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _reason(answer: Mapping[str, Any]) -> str:
    return _first_line(str(answer.get("message", "")))


@dataclass(frozen=True)
class WebhookBackend:
    """Asks a configured webhook to do it; the Idempotency-Key identifies repeated requests."""

    transport: WebhookTransport

    def is_gone(self, _action: ReclaimAction) -> bool:
        """Only the other side can know: it is asked again under the same key."""
        return False

    def reclaim(self, action: ReclaimAction) -> str:
        """Post the request."""
        request = {"do": "give_back", "team": action.team, **action.target}
        content = Content(
            f"Give back {action.target.get('workload', '')}", json.dumps(request, sort_keys=True)
        )
        # Without the current time, so that a repeated request is the same message.
        message = Message(action.key, "action", action.what, content, action.first_shown_ms, 0)
        try:
            self.transport.deliver(message, lambda: None)
        except (NotAccepted, DeliveryUnknown) as error:
            raise NotReclaimed(
                str(error), permanent=isinstance(error, NotAccepted) and error.permanent
            ) from error
        return f"{action.what} accepted it"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200] or "no output"
