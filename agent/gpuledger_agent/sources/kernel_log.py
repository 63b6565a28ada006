"""The kernel log, read without waiting: Xids that never reach NVML (a wedged card tells them nowhere else).

Reading /dev/kmsg needs CAP_SYSLOG where kernel.dmesg_restrict is 1; without it the agent goes on and says so once.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

KMSG = Path("/dev/kmsg")
MOST_RECORDS = 2000
"""Records taken in one turn: a log that floods is read on at the next."""


class KernelLog:
    """The records that came since the last look. `problem` says why there are none; empty when there may be."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._file: int | None = None
        self.problem = ""

    def open(self) -> None:
        """Begins at the end: what was logged before this boot of the agent is history, not news."""
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.problem = f"the kernel log cannot be read ({error.strerror}): Xids come from NVML alone"

    def read(self) -> list[str]:
        """The messages of new records, oldest first; a record that was overwritten before it was read is skipped."""
        lines: list[str] = []
        if self._file is None:
            return lines
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(self._file, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # EPIPE: the ring buffer went round
                continue
            except OSError as error:
                self.problem = f"the kernel log cannot be read any more ({error.strerror})"
                self.close()
                break
            if not record:
                break
            lines += [line.partition(";")[2] or line for line in record.decode(errors="replace").splitlines()]
        return lines

    def close(self) -> None:
        """Lets the file go."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
