"""Sheets of .xlsx workbooks as CSV text, read by a process whose memory and time are bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.config import bounded_process

ZIP, OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How workbooks begin: .xlsx and .ods are archives; .xls, and whatever has a password, are of an
older kind.
"""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_PROCESS = "gpuledger_collector.config.workbook_process"


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
    output = bounded_process.run(_PROCESS, path, [] if name is None else [name])
    if output.is_out_of_bounds:
        raise WorkbookRefused(
            "is a workbook that takes over 1 GiB to read; save its sheet as CSV UTF-8"
        )
    if output.code:
        raise RuntimeError(
            f"the reader of workbooks ended with {output.code}: {output.errors.strip()[-500:]}"
        )
    first, _, text = output.text.partition("\n")
    said = json.loads(first)
    if "problem" in said:
        raise WorkbookRefused(said["problem"])
    return Sheet(said["sheet"], text)
