"""Run commands of the product side by side, each in a process of its own that is forked from this
one.

Importing takes most commands longer than their work. A fork has imported it already; everything
else is as if a shell had started the command: its arguments, environment, folder, output and exit
code.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO

from gpuledger_collector.cli.common import INTERRUPTED

Command = tuple[str, ...]
"""A program of the product with its arguments."""
PROGRAMS = {"gpuledger": "gpuledger_collector.__main__", "gpuledger-agent": "gpuledger_agent.cli"}
"""The module of each program, whose `main` reads sys.argv and ends by sys.exit."""
CORES = len(os.sched_getaffinity(0))
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 10
"""How long a command may take to end when it is asked to."""


def preload(modules: Sequence[str]) -> None:
    """Import modules once for all commands to come."""
    for module in (*PROGRAMS.values(), *modules):
        import_module(module)
    # What is imported stays: a collection in a fork would copy every page of it.
    gc.freeze()


@dataclass
class Run:
    """A command with what became of it."""

    command: Command
    process: ForkProcess | None = None
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.is_alive()

    @property
    def code(self) -> int | None:
        """Its exit code; None when it was not started."""
        return None if self.process is None else self.process.exitcode

    def text(self) -> str:
        """What it printed."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")


def run_lanes(
    lanes: Sequence[Sequence[Command]], environment: Mapping[str, str], folder: Path
) -> list[Run]:
    """Run the commands of each lane one after the other, as many lanes at a time as there are
    cores.

    Returns all of them, lane by lane. After a failure nothing more is started.
    """
    runs = [[Run(command) for command in lane] for lane in lanes]
    waiting = [deque(lane) for lane in runs]
    running: dict[int, Run] = {}
    failed = False
    try:
        while True:
            for number, lane in enumerate(waiting):
                if lane and not failed and number not in running and len(running) < CORES:
                    running[number] = lane.popleft()
                    _start(running[number], environment, folder)
            if not running:
                break
            connection.wait(
                [run.process.sentinel for run in running.values() if run.process is not None]
            )
            ended = [number for number, run in running.items() if not run.is_running]
            # Asked once: what failed between two looks would be taken for what went well.
            failed = failed or any(running[number].code for number in ended)
            for number in ended:
                del running[number]
    except BaseException:
        _end([run for run in running.values() if run.is_running])
        raise
    return [run for lane in runs for run in lane]


def _start(run: Run, environment: Mapping[str, str], folder: Path) -> None:
    process = get_context("fork").Process(
        target=_become, args=(run.command, environment, folder, run.output.fileno())
    )
    # An interrupt reaches the fork as well. It waits until that is the command, which knows what to
    # do with it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        process.start()
        run.process = process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(command: Command, environment: Mapping[str, str], folder: Path, output: int) -> None:
    """Turn this process into one that a shell has started with a command."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it is asked for again, in the command's own environment
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        import_module(PROGRAMS[command[0]]).main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(runs: Sequence[Run]) -> None:
    """SIGTERM to all, patience, then SIGKILL."""
    processes = [run.process for run in runs if run.process is not None]
    with ignore_interrupts():
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(GRACE_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore interrupts while the block runs: a second Ctrl-C must leave no process behind."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
