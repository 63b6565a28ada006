"""Several collectors before one Postgres, and a balancer before them that asks /readyz."""

import asyncio
import contextlib
import http.client
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fakes.processes import BIN, CollectorProcess

QUICK = {
    f"GPULEDGER_{name}_SECONDS": "1"
    for name in (
        "ROLL_UP",
        "RATE",
        "BUDGET",
        "SEND",
        "NOTIFICATION",
        "SCALING",
        "IDLE",
        "SHUTDOWN_DELAY",
    )
} | {"GPULEDGER_PACK_AFTER_DAYS": "3650"}
"""Jobs every second, a second to leave, and samples that stay where tests count them."""


class Replica(CollectorProcess):
    """`gpuledger serve` on a database that others use too."""

    def __init__(self, folder: Path, number: int, dsn: str, **settings: str) -> None:
        home = folder / f"replica-{number}"
        home.mkdir()
        super().__init__(home, **{"GPULEDGER_DSN": dsn, **QUICK, **settings})
        self._dsn = dsn

    def dsn(self) -> str:
        return self._dsn

    def leads(self) -> bool:
        """Whether it runs the jobs."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return "gpuledger_jobs_leader 1.0" in self.get("/metrics")[1]
        return False

    def job_runs(self) -> int:
        """Runs of jobs that it ended since its start."""
        found = re.findall(
            r"^gpuledger_job_runs_total\{.*\} ([0-9.]+)$", self.get("/metrics")[1], re.MULTILINE
        )
        return round(sum(map(float, found)))

    def ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/readyz")[0] == 200
        return False

    def log(self) -> str:
        return (self.folder / "collector.log").read_text()


class Patched(Replica):
    """A collector of another version: the same code with other migrations."""

    def __init__(
        self, folder: Path, number: int, dsn: str, migrations: Path, **settings: str
    ) -> None:
        super().__init__(folder, number, dsn, **settings)
        self._code = (
            "import pathlib; from gpuledger_collector.storage.server import schema_version;"
            f"schema_version.scripts = lambda: pathlib.Path({str(migrations)!r});"
            "from gpuledger_collector.cli import main; main()"
        )

    def start(self) -> None:
        with (self.folder / "collector.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "python", "-c", self._code, "serve"],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )


@contextlib.contextmanager
def replicas(folder: Path, dsn: str, count: int = 2, **settings: str) -> Iterator[list[Replica]]:
    """Collectors that are ready; gone when the block ends."""
    made = [Replica(folder, number, dsn, **settings) for number in range(count)]
    try:
        for one in made:
            one.start()
        for one in made:
            one.wait_ready()
        yield made
    finally:
        for one in made:
            if one.process is not None and one.process.poll() is None:
                one.kill()


def until(what, seconds: float = 90) -> float:
    """Waits until `what()` holds; the seconds that it took."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < seconds, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - begun


class Balancer:
    """Connections go in turn to the upstreams of which /readyz said 200 a moment ago; bytes are not
    looked at.
    """

    EVERY_S = 0.1

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.ready: list[int] = list(ports)
        self.taken = dict.fromkeys(ports, 0)
        self._next = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task] = set()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Balancer":
        self._thread.start()
        assert self._begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        looks = asyncio.create_task(self._look())
        self._begun.set()
        await self._stop.wait()
        looks.cancel()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(looks, *self._tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            self.ready = [port for port in self.ports if await self._is_ready(port)]
            await asyncio.sleep(self.EVERY_S)

    async def _is_ready(self, port: int) -> bool:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                status = (await reader.readuntil(b"\r\n")).split()[1]
                writer.close()
                return status == b"200"
        return False

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = asyncio.current_task()
        self._tasks.add(mine)
        try:
            for port in self._in_turn():
                with contextlib.suppress(OSError):
                    back, forth = await asyncio.open_connection("127.0.0.1", port)
                    self.taken[port] += 1
                    await asyncio.gather(self._pipe(reader, forth), self._pipe(back, writer))
                    forth.close()
                    return
        finally:
            self._tasks.discard(mine)
            writer.close()

    def _in_turn(self) -> list[int]:
        self._next += 1
        ready = list(self.ready)
        place = self._next % max(1, len(ready))
        return ready[place:] + ready[:place]

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one side ends; then the other is told."""
        with contextlib.suppress(OSError):
            while part := await reader.read(2**16):
                writer.write(part)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
