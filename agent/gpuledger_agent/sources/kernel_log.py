"""The kernel log, read without blocking, for Xids that never reach NVML: a hung card reports them
nowhere else.

Reading /dev/kmsg needs CAP_SYSLOG where kernel.dmesg_restrict is 1; without it the agent has NVML's
events only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

KMSG = Path("/dev/kmsg")
MAX_RECORDS = 2000
"""Records read in one turn; a flooding log is continued in the next."""


class KernelLog:
    """The records since the last read. `problem` says why they cannot be read, else it is empty."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._file: int | None = None
        self.problem = ""

    def open(self) -> None:
        """Start at the end of the log: earlier records are not news."""
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.problem = (
                f"the kernel log cannot be read ({error.strerror}): Xids come from NVML alone"
            )

    def read(self) -> list[str]:
        """The messages of new records, oldest first; a record that was overwritten before it was
        read is skipped.
        """
        lines: list[str] = []
        if self._file is None:
            return lines
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(self._file, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # EPIPE: the ring buffer has overwritten the record
                continue
            except OSError as error:
                self.problem = f"the kernel log can no longer be read ({error.strerror})"
                self.close()
                break
            if not record:
                break
            lines += [
                line.partition(";")[2] or line
                for line in record.decode(errors="replace").splitlines()
            ]
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
