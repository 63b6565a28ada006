"""A reader of files in a process of its own, whose memory and time the kernel bounds: for formats of
which a few kilobytes can ask for gigabytes, and whose readers are written in other languages.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.config import files
from gpuledger_common.bounded_file import FileTooLarge, read_stream

MAX_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_CPU_SECONDS = 300
_OUT_OF_BOUNDS = {-signal.SIGABRT, -signal.SIGKILL, -signal.SIGXCPU, -signal.SIGSEGV}
"""How the process ends when the kernel refuses it memory or time; what is written in Rust or C++
aborts.
"""
_MEMORY_ERRORS = ("MemoryError", "malloc of size", "bad_alloc")


def bound_process(max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
    """Let the kernel refuse this process memory and time beyond the bounds, and write no core file."""
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclass(frozen=True)
class Output:
    """What a process printed, how it ended, and what it said on standard error."""

    text: str
    code: int
    errors: str

    @property
    def is_out_of_bounds(self) -> bool:
        """Whether the process ended because it was refused memory or time."""
        return self.code in _OUT_OF_BOUNDS or any(word in self.errors for word in _MEMORY_ERRORS)


def run(module: str, path: Path, arguments: Sequence[str] = ()) -> Output:
    """Run a module of this package on a file, and take what it prints.

    Raises FileTooLarge where it prints more than `MAX_FILE_BYTES`.
    """
    command = [sys.executable, "-P", "-m", module, str(path.absolute()), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            output = read_stream(process.stdout, path, files.MAX_FILE_BYTES)
        except FileTooLarge:
            process.kill()
            raise
        # What it says there is a traceback, which fits into a pipe.
        errors = process.stderr.read().decode(errors="replace")
        code = process.wait()
    return Output(output.decode(), code, errors)
