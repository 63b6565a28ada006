"""Ways to give back what is idle: Slurm's scancel, an eviction by Kubernetes, a webhook that does it.

Each can be asked whether its work is done already, so that one who ended in the middle is followed by one who asks
first: what is done is done once. None of them acts on a workload that is no longer the one that was judged.
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

from gpuledger_collector.notifications.transport import NotKnown, NotTaken
from gpuledger_collector.notifications.webhooks import Hook
from gpuledger_collector.storage.notifications.finding_rules import Action
from gpuledger_collector.storage.notifications.messages import Content, Message

LONGEST_ANSWER = 1 << 20
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


class NotDone(Exception):
    """It was not done. `permanent`: nor will it ever be by asking again."""

    def __init__(self, sentence: str, *, permanent: bool = False) -> None:
        super().__init__(sentence)
        self.permanent = permanent


class Way(Protocol):
    """One way to give back what a workload holds."""

    def gone(self, action: Action) -> bool:
        """Whether the workload is gone, or is going. Raises NotDone when that cannot be told."""

    def act(self, action: Action) -> str:
        """Give it back; what was done, in a sentence. Raises NotDone."""


@dataclass(frozen=True)
class Slurm:
    """`scancel` and `squeue` of this machine; a job of another user than the one that was judged is left alone."""

    scancel: str = "scancel"
    squeue: str = "squeue"
    environment: Mapping[str, str] | None = None
    timeout_s: float = 30.0

    def gone(self, action: Action) -> bool:
        """By squeue: a job that it does not know has ended."""
        job, user = self._job(action), str(action.target.get("user", ""))
        done = self._run(self.squeue, "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%u")
        if done.returncode != 0:
            if "Invalid job id" in done.stderr:
                return True
            raise NotDone(f"squeue: {_first(done.stderr)}")
        rows = [line.strip().split("|") for line in done.stdout.splitlines() if line.strip()]
        others = {row[1] for row in rows if len(row) == 2} - {user}
        if user and others:
            raise NotDone(f"job {job} is {', '.join(sorted(others))}'s, not {user}'s: left alone", permanent=True)
        return all(row[0] in _GONE for row in rows)

    def act(self, action: Action) -> str:
        """Cancel the job."""
        job = self._job(action)
        done = self._run(self.scancel, job)
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise NotDone(f"scancel: {_first(done.stderr)}")
        return f"scancel {job}"

    def _job(self, action: Action) -> str:
        job = str(action.target.get("workload", ""))
        if not _JOB.fullmatch(job):
            raise NotDone(f"{job!r} is no Slurm job id", permanent=True)
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
            raise NotDone(f"{command[0]}: {_first(str(error))}") from error


@dataclass(frozen=True)
class Kubernetes:
    """Evictions (policy/v1) at an API server; disruption budgets are kept, and the pod's UID must be the judged one."""

    address: str
    token: Callable[[], str] = field(repr=False)
    ca_file: str | None = None
    timeout_s: float = 20.0

    def gone(self, action: Action) -> bool:
        """Whether the pod of this UID is not there any more, or is ending."""
        status, answer = self._ask("GET", _pod(action), None)
        if status == 404:
            return True
        if status != 200:
            raise NotDone(f"the API server answered {status} {_said(answer)}")
        facts = answer.get("metadata", {})
        return facts.get("uid") != action.target["uid"] or bool(facts.get("deletionTimestamp"))

    def act(self, action: Action) -> str:
        """Evict the pod."""
        space, name, uid = (str(action.target.get(key, "")) for key in ("namespace", "pod", "uid"))
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": space},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        status, answer = self._ask("POST", f"{_pod(action)}/eviction", body)
        if status in (200, 201, 404):
            return f"evicted {space}/{name}"
        # 429: a disruption budget says not now. 409: another pod bears the name.
        raise NotDone(f"the API server answered {status} {_said(answer)}", permanent=status in (400, 403, 409, 422))

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(self.address)
        context = ssl.create_default_context(cafile=self.ca_file)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=self.timeout_s, context=context)
        headers = {"Authorization": f"Bearer {self.token()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(
                method, parts.path.rstrip("/") + path, None if body is None else json.dumps(body), headers
            )
            answer = connection.getresponse()
            text = answer.read(LONGEST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise NotDone(f"the API server at {parts.netloc} gave no answer ({error})") from error
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        return answer.status, found if isinstance(found, dict) else {}


def _pod(action: Action) -> str:
    space, name = (quote(str(action.target.get(key, "")), safe="") for key in ("namespace", "pod"))
    if not (space and name and action.target.get("uid")):
        raise NotDone("namespace, name or UID of the pod is not known", permanent=True)
    return f"/api/v1/namespaces/{space}/pods/{name}"


def _said(answer: Mapping[str, Any]) -> str:
    return _first(str(answer.get("message", "")))


@dataclass(frozen=True)
class ByHook:
    """A configured webhook is asked to do it; the same Idempotency-Key tells it that it was asked before."""

    hook: Hook

    def gone(self, _action: Action) -> bool:
        """Only the other side can know: it is asked again under the same key."""
        return False

    def act(self, action: Action) -> str:
        """Ask once."""
        said = {"do": "give_back", "team": action.team, **action.target}
        content = Content(f"Give back {action.target.get('workload', '')}", json.dumps(said, sort_keys=True))
        # No instant of now: a repeat is the same message.
        message = Message(action.key, "action", action.what, content, action.first_shown_ms, 0)
        try:
            self.hook.deliver(message, lambda: None)
        except (NotTaken, NotKnown) as error:
            raise NotDone(str(error), permanent=isinstance(error, NotTaken) and error.permanent) from error
        return f"{action.what} took it"


def _first(text: str) -> str:
    return text.strip().partition("\n")[0][:200] or "said nothing"
