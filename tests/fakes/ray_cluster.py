"""A Ray cluster as an agent sees it: the answers of its job API over HTTP, and its processes in a
folder like /proc.

The answers are those of a real Ray 2.60 (`ray start --head`, `ray job submit --metadata-json`),
recorded, with other names in them; so are the environments: `RAY_JOB_ID` of workers, `ffffffff` of
those that were started before any job, and `RAY_JOB_CONFIG_JSON_ENV_VAR` of what a submission
starts itself. Ray itself is not among the test's requirements (384 MB).
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class JobApi(ThreadingHTTPServer):
    """Jobs by number; `requests` are the paths that were asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.jobs: dict[str, dict] = {}
        self.requests: list[str] = []
        self.status, self.body = 200, None

    def submit(self, number: str, submission: str | None, **metadata: str) -> None:
        """A job that runs: of a submission, or of a driver that connected by itself."""
        self.jobs[number] = {
            "type": "SUBMISSION" if submission else "DRIVER",
            "job_id": number,
            "submission_id": submission,
            "driver_info": {"id": number, "node_ip_address": "192.0.2.2", "pid": "5318"},
            "status": "RUNNING",
            "entrypoint": "python train.py",
            "message": "Job is currently running.",
            "error_type": None,
            "start_time": 1795782698911,
            "end_time": None,
            "metadata": metadata,
            "runtime_env": {},
            "driver_agent_http_address": "http://192.0.2.2:52365",
            "driver_node_id": "e493bee623c2300c18b82eb47b688d6e491dbf82d7433eb42a5f2170",
            "driver_exit_code": None,
        }

    def find(self, name: str) -> dict | None:
        """A job by its number or its submission, as the real one finds it."""
        return next(
            (job for job in self.jobs.values() if name in (job["job_id"], job["submission_id"])),
            None,
        )


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        name = self.path.removeprefix("/api/jobs/")
        job = self.server.find(name)
        status, body = self.server.status, self.server.body
        if status == 200 and body is None:
            status = 200 if job else 404
            body = json.dumps(job) if job else f"Job {name} does not exist"
        content = (body or "").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def job_api() -> Iterator[JobApi]:
    """A job API until the end of the block."""
    server = JobApi()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def worker(number: str) -> bytes:
    """The environment of a worker process."""
    return b"\0".join([b"PATH=/usr/bin", f"RAY_JOB_ID={number}".encode(), b"SECRET=x", b""])


def driver(submission: str, number: str | None = None) -> bytes:
    """The environment of what a submission starts itself; `number` is of who started it."""
    config = {"metadata": {"job_submission_id": submission, "job_name": submission}}
    entries = [f"RAY_JOB_CONFIG_JSON_ENV_VAR={json.dumps(config)}"]
    entries += [f"RAY_JOB_ID={number}"] if number else []
    return b"\0".join(entry.encode() for entry in entries) + b"\0"


def run_process(proc: Path, pid: int, pod_uid: str, environment: bytes) -> None:
    """A process of a pod in a folder like /proc."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{pid} (ray::A) S " + " ".join(map(str, range(30))))
    pod = pod_uid.replace("-", "_")
    (folder / "cgroup").write_text(f"0::/kubepods.slice/kubepods-pod{pod}.slice/cri-x.scope\n")
    (folder / "environ").write_bytes(environment)
