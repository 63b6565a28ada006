"""Sheets of .xlsx workbooks as CSV text, read by a process whose memory and time are bounded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.config import files
from gpuledger_common.bounded_file import FileTooLarge, read_stream

ZIP, OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How workbooks begin: .xlsx and .ods are archives; .xls, and whatever has a password, are of an
older kind.
"""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_OUT_OF_BOUNDS = {-signal.SIGABRT, -signal.SIGKILL, -signal.SIGXCPU, -signal.SIGSEGV}
"""How the process ends when the kernel refuses it memory or time; what is written in Rust aborts.
"""
_MEMORY_ERROR = "MemoryError"


class WorkbookRefused(Exception):
    """The sentence that says why a workbook cannot be read, without the name of the file."""


@dataclass(frozen=True)
class Sheet:
    """A sheet as CSV text with commas; line N is row N."""

    name: str
    text: str


def is_workbook(content: bytes | bytearray) -> bool:
    """Whether a file's content begins as a workbook does."""
    return content.startswith((ZIP, OLE))


def read_sheet(path: Path, content: bytes | bytearray, name: str | None = None) -> Sheet:
    """The sheet of this name, or the first one, of a file with this content.

    Raises WorkbookRefused and OSError.
    """
    if content.startswith(OLE):
        if _ENCRYPTED in content:
            raise WorkbookRefused(
                "is protected by a password; save its sheet as .xlsx, or as CSV UTF-8, without it"
            )
        raise WorkbookRefused(
            "is a workbook of an old kind (.xls); save its sheet as .xlsx, or as CSV UTF-8"
        )
    if path.suffix == ".gz":
        raise WorkbookRefused("is a workbook in a .gz; unpack it: gunzip -k " + path.name)
    output, code, errors = _run(path, name)
    if code in _OUT_OF_BOUNDS or _MEMORY_ERROR in errors:
        raise WorkbookRefused(
            "is a workbook that takes over 1 GiB to read; save its sheet as CSV UTF-8"
        )
    if code:
        raise RuntimeError(f"the reader of workbooks ended with {code}: {errors.strip()[-500:]}")
    first, _, text = output.partition("\n")
    said = json.loads(first)
    if "problem" in said:
        raise WorkbookRefused(said["problem"])
    return Sheet(said["sheet"], text)


def _run(path: Path, name: str | None) -> tuple[str, int, str]:
    """What the process prints, how it ends, and what it says on standard error."""
    module = "gpuledger_collector.config.workbook_process"
    command = [
        sys.executable,
        "-P",
        "-m",
        module,
        str(path.absolute()),
        *([] if name is None else [name]),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
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
    return output.decode(), code, errors
