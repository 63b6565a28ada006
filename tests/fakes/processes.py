"""Real processes of the product, started and killed as an operator or a crash would."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fakes.batches import body_of
from fakes.ports import free_port
from gpuledger_collector.worker_group import JOBS

BIN = Path(sys.executable).parent
MSGPACK = {"Content-Type": "application/msgpack", "Content-Encoding": "zstd"}


def environment(**changes: str) -> dict[str, str]:
    """This environment without the product's own settings, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULEDGER_")}
    return {**kept, **changes}


class CollectorProcess:
    """`gpuledger serve` with its embedded database in a folder, on a port of its own."""

    def __init__(self, folder: Path, programs: Path = BIN, **settings: str) -> None:
        self.folder, self.programs = folder, programs
        self.port = free_port()
        own = {
            "GPULEDGER_DATA_DIR": str(folder / "data"),
            "GPULEDGER_LISTEN": f"127.0.0.1:{self.port}",
            "GPULEDGER_MAX_EVIDENCE_AGE_DAYS": "0",  # tests and measurements send fixed days
            "GPULEDGER_WORKERS": "1",  # whatever this machine has
        }
        self.environment = environment(**{**own, **settings})
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self.folder / "collector.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "gpuledger", "serve"],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def wait_ready(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/readyz")[0] == 200:
                    return
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "collector.log").read_text()[-3000:]
            time.sleep(0.05)
        raise AssertionError("not ready: " + (self.folder / "collector.log").read_text()[-3000:])

    def wait_serving(self, workers: int, seconds: float = 120) -> None:
        """Wait until all workers serve."""
        self.wait_ready(seconds)
        deadline = time.monotonic() + seconds
        while workers > 1 and f'"workers":"{workers} of {workers}"' not in self.get("/readyz")[1]:
            assert time.monotonic() < deadline, self.get("/readyz")
            time.sleep(0.05)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def send(self, made) -> int | None:
        """HTTP status of one batch, None when no answer came."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/v1/batches", body_of(made), MSGPACK)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def workers(self) -> dict[str, int]:
        """Process ids of the workers by their numbers; none where one process is all."""
        return {name: pid for name, pid in self.processes().items() if name != JOBS}

    def processes(self) -> dict[str, int]:
        """Process ids of the workers by their numbers, and of the jobs by JOBS."""
        assert self.process is not None
        found = {}
        for pid in (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"--worker" in words:
                    place = json.loads(words[words.index(b"--worker") + 1])
                    found[place["name"]] = int(pid)
        return found

    def kill(self) -> None:
        """As the out-of-memory killer would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 60) -> int:
        """As an operator would; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def dsn(self) -> str:
        return self._address("gpuledger", "password")

    def admin_dsn(self) -> str:
        return self._address("gpuledger_admin", "admin-password")

    def _address(self, role: str, file: str) -> str:
        data = self.folder / "data"
        port, password = (data / "port").read_text().strip(), (data / file).read_text().strip()
        return f"postgresql://{role}:{password}@127.0.0.1:{port}/gpuledger"

    def postmaster(self) -> int:
        home = self.folder / "data" / (self.folder / "data" / "home").read_text().strip()
        return int((home / "cluster" / "postmaster.pid").read_text().split()[0])

    def kill_postgres(self, how: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self.postmaster(), how)


@contextlib.contextmanager
def collector_process(
    folder: Path, programs: Path = BIN, **settings: str
) -> Iterator[CollectorProcess]:
    """A running collector; it and its database are gone when the block ends."""
    made = CollectorProcess(folder, programs, **settings)
    made.start()
    try:
        made.wait_ready()
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.stop()
