"""gpuledger serve: the parent process of workers and of the jobs.

It binds the sockets, starts a worker for each, which listens once it serves, and one process for
the jobs, and keeps them running. It owns the embedded database, and accepts and reads nothing
itself. A process that ends unasked is started again, with a back-off when it keeps ending; the
other workers have its connections meanwhile. Workers are replicas on one machine: jobs, batches and
messages are each once among them because the database decides it (docs/decisions/0030-workers.md);
the jobs have a process of their own, so that no answer waits for a computation
(docs/decisions/0047-jobs-beside.md).

Signals: TERM and INT stop all of them in order. HUP lets the workers read the token files at once
and then replaces each process by a new one of what is installed now: an old worker stops accepting
once its successor serves, and new jobs lead once the old ones have ended. Sockets stay open
meanwhile, so that no connection is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuledger_collector import wiring
from gpuledger_collector.listening import address_of, listen_shared, stop_listening
from gpuledger_collector.logs import configure_logging
from gpuledger_collector.settings import Settings
from gpuledger_collector.worker_group import JOBS, GroupState, Place
from gpuledger_common.systemd import notify

LEAST_CORES = 4
"""On fewer a second worker costs more CPU for each batch than it brings (docs/performance.md)."""
MOST_AUTO = 4
"""One database takes what they commit; each further one costs memory and sessions."""
STEADY_SECONDS = 60.0
"""A worker that lived so long is started again at once."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
"""Back-off of a worker that keeps ending."""
KILL_SECONDS = 10
"""How much longer than its settings allow a replaced worker may take to end."""
PERMANENT = (2, 3)
"""Exit codes that say that starting again does not help: bad settings, an environment that lacks
something.
"""

log = logging.getLogger(__name__)


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = next(line for line in lines if line.startswith("0::")).removeprefix("0::/")
        quota, period = (Path("/sys/fs/cgroup") / group / "cpu.max").read_text().split()
        # A quota of "max" is no number: there is none.
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def worker_count(wanted: int, cores: int) -> int:
    """The number of workers by the setting `workers`, on so many cores: half of them are left to
    the database.
    """
    if wanted:
        return wanted
    return 1 if cores < LEAST_CORES else min(MOST_AUTO, cores // 2)


def supervise(
    settings: Settings,
    count: int,
    say: Callable[[str], None],
    command: Sequence[str] | None = None,
) -> int:
    """Run workers, and the jobs where this collector has them, until a signal; returns the exit
    code.

    `command`: the arguments of Python that start one, to which its place is added; as this process
    was started by default.

    Raises StorageError when they cannot be started.
    """
    configure_logging(settings)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in listen_shared(settings, count)]
        if settings.database_dsn() is None:
            opened = stack.enter_context(wiring.database(settings))
            assert opened.server is not None
            stack.enter_context(opened.server.kept_running())
        folder = stack.enter_context(metrics_folder())
        return asyncio.run(Supervisor(settings, listeners, folder, say, command).run())


@contextlib.contextmanager
def metrics_folder() -> Iterator[Path]:
    """A folder for the counters of all workers, in memory where the system has such a file system."""
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a folder of its own in it
    in_memory = memory.is_dir() and os.access(memory, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-metrics-", dir=memory if in_memory else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False)
class Worker:
    """A process: a worker, or the jobs."""

    metrics_name: str
    process: asyncio.subprocess.Process
    channel: asyncio.StreamWriter
    is_ready: bool = False
    """Whether it works."""
    began: float = field(default_factory=time.monotonic)

    def send(self, line: bytes) -> None:
        """Send a line, unless the worker has ended."""
        with contextlib.suppress(OSError):
            self.channel.write(line)

    def signal(self, number: int) -> None:
        """Send a signal, unless the worker has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass(eq=False)
class Slot:
    """The place of one process: its name, its socket if it is a worker, and who has it now."""

    name: str
    listener: socket.socket | None = None
    worker: Worker | None = None
    wait_s: float = 0.0
    """How long to wait when the worker ends again."""
    change: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the worker is replaced or started again."""

    @property
    def serves(self) -> bool:
        """Whether its process works."""
        return self.worker is not None and self.worker.is_ready

    def __str__(self) -> str:
        return "the process of the jobs" if self.name == JOBS else f"worker {self.name}"


class Supervisor:
    """Keeps one worker on each of these sockets, and the jobs where the settings want them."""

    def __init__(
        self,
        settings: Settings,
        listeners: list[socket.socket],
        folder: Path,
        say: Callable[[str], None],
        command: Sequence[str] | None = None,
    ) -> None:
        self._command = sys.orig_argv[1:] if command is None else command
        self._settings, self._folder, self._say = settings, folder, say
        self._address = address_of(settings, listeners[0])
        self._slots = [Slot(str(number), listener) for number, listener in enumerate(listeners, 1)]
        self._jobs = [Slot(JOBS)] if settings.jobs else []
        self._alive: set[Worker] = set()
        self._restarts = 0
        self._exit_code = 0
        self._has_served = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._reload = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Run until a signal, or until a worker cannot start at all; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        # The first one alone: what keeps all of them from starting is said once.
        for slot in self._slots:
            if not self._stopping.is_set():
                await self._start(slot)
            if slot is self._slots[0]:
                await self._wait_until(lambda: self._slots[0].serves)
        await self._wait_until(lambda: all(slot.serves for slot in self._slots))
        if not self._stopping.is_set():
            self._has_served = True
            for slot in self._jobs:
                await self._start(slot)
            self._say(f"gpuledger listens on {self._address}")
            notify("READY=1")
            self._begin(self._reload_when_asked())
        await self._stopping.wait()
        notify("STOPPING=1")
        while self._alive:
            self._changed.clear()
            await self._changed.wait()
        return self._exit_code

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the workers holds, or the collector is stopped."""
        while not (condition() or self._stopping.is_set()):
            self._changed.clear()
            await self._changed.wait()

    # one process

    async def _start(self, slot: Slot) -> Worker:
        """Start a process on a slot; it becomes the slot's own, unless another one has it still."""
        name = await self._free_name(slot)
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            inherited = [] if slot.listener is None else [slot.listener.fileno()]
            place = Place(
                slot.name,
                len(self._slots),
                name,
                str(self._folder),
                theirs.fileno(),
                *inherited,
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *[*self._command, "--worker", msgspec.json.encode(place).decode()],
                pass_fds=(place.channel, *inherited),
                # Ctrl-C goes to the process group of a terminal: it is for the supervisor, which
                # stops its workers.
                start_new_session=True,
                # Only this process speaks with systemd.
                env={
                    variable: value
                    for variable, value in os.environ.items()
                    if variable != "NOTIFY_SOCKET"
                },
            )
            unless_started.pop_all()
        lines, channel = await asyncio.open_connection(sock=ours)
        worker = Worker(name, process, channel)
        self._alive.add(worker)
        if slot.worker is None:
            slot.worker = worker
        self._begin(self._listen(worker, lines))
        self._begin(self._watch(slot, worker))
        self._tell()
        if self._stopping.is_set():
            worker.signal(signal.SIGTERM)
        return worker

    async def _try_start(self, slot: Slot) -> Worker | None:
        """Start a process; None where the machine has no memory for it, or no Python any more."""
        try:
            return await self._start(slot)
        except OSError as error:
            log.error("%s cannot be started: %s", slot, error)  # noqa: TRY400 - it says it all
            return None

    async def _free_name(self, slot: Slot) -> str:
        """A name of the slot among the metrics.

        There are two, one for a process and one for its successor. Whoever takes the name of a
        process that ended goes on with its counters, so that their sums never fall and files do not
        pile up.
        """
        while True:
            taken = {worker.metrics_name for worker in self._alive}
            for name in (f"{slot.name}a", f"{slot.name}b"):
                if name not in taken:
                    return name
            self._changed.clear()
            await self._changed.wait()

    async def _listen(self, worker: Worker, lines: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            worker.is_ready = bool(await lines.readline())
            if worker.is_ready:
                self._leave_connections_to_others()
            self._tell()

    def _leave_connections_to_others(self) -> None:
        """Stop listening where no worker is: all had ended, and what connects there waits for one
        to be started.
        """
        for slot in self._slots:
            # A successor would listen on the same socket.
            if slot.listener and slot.worker is None and not slot.change.locked():
                stop_listening(slot.listener)

    async def _watch(self, slot: Slot, worker: Worker) -> None:
        """Wait for the end of a process, and start it again where nobody asked for its end."""
        code = await worker.process.wait()
        self._alive.discard(worker)
        worker.channel.close()
        for file in self._folder.glob(f"gauge_live*_{worker.metrics_name}.db"):
            file.unlink()
        was_own = slot.worker is worker
        if was_own:
            slot.worker = None
            # Otherwise the kernel would give its part of the connections to a socket on which
            # nobody accepts for as long as a worker takes to start.
            if slot.listener is not None and any(other.serves for other in self._slots):
                stop_listening(slot.listener)
        self._tell()
        if not was_own or self._stopping.is_set():
            return
        if not self._has_served and code in PERMANENT:  # it has said why
            self._exit_code = code
            self._stop(signal.SIGTERM)
            return
        if worker.is_ready and time.monotonic() - worker.began >= STEADY_SECONDS:
            slot.wait_s = 0.0
        log.warning("%s has ended (%s); it is started again", slot, _reason(code))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), slot.wait_s)
        slot.wait_s = min(LONGEST_WAIT_SECONDS, max(FIRST_WAIT_SECONDS, 2 * slot.wait_s))
        async with slot.change:
            while slot.worker is None and not self._stopping.is_set():
                if await self._try_start(slot) is not None:
                    self._restarts += 1
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), LONGEST_WAIT_SECONDS)

    # all processes

    def _tell(self) -> None:
        """Tell all of them who works."""
        pids = {
            slot.name: slot.worker.process.pid
            for slot in [*self._slots, *self._jobs]
            if slot.worker and slot.worker.is_ready
        }
        state = GroupState(pids, self._restarts, self._stopping.is_set())
        line = msgspec.json.encode(state) + b"\n"
        for worker in self._alive:
            worker.send(line)
        self._changed.set()

    def _stop(self, number: int) -> None:
        """Stop all of them; a second signal is passed on to those that still drain."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._tell()
            for slot in self._slots:
                # The workers have descriptors of their own: once those are closed connections are
                # refused.
                if slot.listener is not None:  # as each of them has
                    slot.listener.close()
        for worker in self._alive:
            worker.signal(number)

    def _begin_reload(self) -> None:
        for worker in self._alive:
            # Before that the signal would end it, and it reads the files anyway; the jobs ignore it.
            if worker.is_ready:
                worker.signal(signal.SIGHUP)
        self._reload.set()

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            # The jobs last: a successor of them waits for the lock until the old ones have ended.
            for slot in [*self._slots, *self._jobs]:
                async with slot.change:
                    if not await self._replace(slot):
                        log.error("%s stays as it is: its successor could not start", slot)
                        break
                if slot is self._slots[-1]:
                    log.info("all workers were replaced")

    async def _replace(self, slot: Slot) -> bool:
        """Start a successor and stop the old process once it works; False when it ended before
        that.
        """
        old = slot.worker
        if old is None or self._stopping.is_set():  # whoever is started again is new
            return True
        new = await self._try_start(slot)
        if new is None:
            return False
        await self._wait_until(lambda: new.is_ready or new not in self._alive)
        if self._stopping.is_set():
            return True
        if new not in self._alive:
            return False
        slot.worker = new
        self._tell()
        old.signal(signal.SIGTERM)
        seconds = (
            self._settings.shutdown_delay_seconds + 3 * self._settings.drain_seconds + KILL_SECONDS
        )
        try:
            await asyncio.wait_for(old.process.wait(), seconds)
        except TimeoutError:
            log.warning("%s did not end within %d s and is killed", slot, seconds)
            old.signal(signal.SIGKILL)
        return True


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
