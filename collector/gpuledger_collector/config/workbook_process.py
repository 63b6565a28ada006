"""Read a sheet of an .xlsx workbook and print it as CSV: a process of its own, whose memory and
time are bounded.

    python -P -m gpuledger_collector.config.workbook_process FILE [SHEET]

The reader builds a sheet with all its cells between the first and the last one in memory, and a
text for each cell that names it: a file of some kilobytes can ask for hundreds of gigabytes. So the
kernel bounds the process, not this code. The first line of the output is JSON: the name of the
sheet, or what is wrong with the file in a sentence.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import posixpath
import sys
import zipfile
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree
from xml.parsers import expat

from gpuledger_collector.config.bounded_process import bound_process

MAX_INFLATED_BYTES = 256 * 1024 * 1024
SAVE_AS = "save its sheet as .xlsx, or as CSV UTF-8"
_WORKBOOK, _RELATIONS = "xl/workbook.xml", "xl/_rels/workbook.xml.rels"
_HOUR_SECONDS, _MINUTE_SECONDS = 3600, 60


class NotReadable(Exception):
    """The sentence that says why a workbook cannot be read, without the name of the file."""


def sheet_parts(archive: zipfile.ZipFile) -> dict[str, str]:
    """The names of the sheets in their order, with the part of the archive that holds each.

    Raises NotReadable for what is no workbook of this kind.
    """
    parts = {info.filename: info for info in archive.infolist()}
    if any(info.flag_bits & 1 for info in parts.values()):
        raise NotReadable(f"is protected by a password; {SAVE_AS} without it")
    if any(name.endswith("vbaProject.bin") for name in parts):
        raise NotReadable(f"is a workbook with macros (.xlsm); {SAVE_AS}")
    if _WORKBOOK not in parts or _RELATIONS not in parts:
        kind = (
            "another kind of workbook"
            if {"mimetype", "xl/workbook.bin"} & set(parts)
            else "an archive"
        )
        raise NotReadable(f"is {kind} and no .xlsx; {SAVE_AS}")
    if sum(info.file_size for info in parts.values()) > MAX_INFLATED_BYTES:
        raise NotReadable(
            f"is larger than {MAX_INFLATED_BYTES // 2**20} MiB when it is inflated; split it"
        )
    relations = {
        relation.get("Id"): (
            posixpath.normpath(posixpath.join("/xl", relation.get("Target", ""))).lstrip("/")
        )
        for relation in ElementTree.fromstring(archive.read(_RELATIONS))  # noqa: S314  # bounded by the process
    }
    sheets: dict[str, str] = {}
    for element in ElementTree.fromstring(archive.read(_WORKBOOK)).iter():  # noqa: S314  # the same
        if element.tag.endswith("}sheet"):
            relation = next((value for key, value in element.items() if key.endswith("}id")), None)
            part = relations.get(relation, "")
            if part.startswith("xl/worksheets/"):
                sheets[element.get("name", "")] = part
    return sheets


def choose(sheets: dict[str, str], name: str | None) -> str:
    """The name of the sheet that was asked for, or of the first one. Raises NotReadable."""
    if not sheets:
        raise NotReadable("is a workbook without a sheet of cells")
    if name is None:
        return next(iter(sheets))
    if name not in sheets:
        near = get_close_matches(name, sheets, 1)
        hint = (
            f"; did you mean {near[0]!r}?"
            if near
            else f"; it has {', '.join(map(repr, list(sheets)[:10]))}"
        )
        raise NotReadable(f"has no sheet {name!r}{hint}")
    return name


class _CellCheck:
    """Finds cells that would be read as empty and are not: errors, and formulas whose value nobody
    has computed.
    """

    def __init__(self, sheet: str) -> None:
        self._sheet = sheet
        self._cell, self._kind = "", ""
        self._has_formula = self._in_value = False
        self._value: list[str] = []

    def check(self, part: BinaryIO) -> None:
        """Read a sheet's part. Raises NotReadable for the first such cell."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.ParseFile(part)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2]
        if name == "c":
            self._cell, self._kind = attributes.get("r", "?"), attributes.get("t", "n")
            self._has_formula, self._value = False, []
        elif name == "f":
            self._has_formula = True
        self._in_value = name == "v"

    def _text(self, text: str) -> None:
        if self._in_value:
            self._value.append(text)

    def _end(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        if name == "v":
            self._in_value = False
        if name != "c":
            return
        place = f"cell {self._cell} of sheet {self._sheet!r}"
        value = "".join(self._value)
        if self._kind == "e":
            raise NotReadable(f"{place} holds the error {value}; mend it, or {SAVE_AS} without it")
        if self._has_formula and not value and self._kind != "str":
            cure = "open the file in a spreadsheet and save it there, so that the value is in it"
            raise NotReadable(f"{place} has a formula and no value; {cure}")


def text_of(cell: object) -> str:
    """A cell as a CSV of the sheet would have it; dates and times in the order of ISO 8601."""
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else format(Decimal(repr(cell)), "f")
    if isinstance(cell, dt.datetime):
        # A spreadsheet keeps an instant as a number of days, which is exact to a millisecond only.
        millis = round(cell.microsecond / 1000)
        at = cell.replace(microsecond=0) + dt.timedelta(milliseconds=millis)
        return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")
    if isinstance(cell, dt.date):
        return cell.isoformat()
    if isinstance(cell, dt.timedelta):
        seconds = round(cell.total_seconds())
        hours, rest = divmod(seconds, _HOUR_SECONDS)
        return f"{hours // 24}-{hours % 24:02}:{rest // _MINUTE_SECONDS:02}:{rest % _MINUTE_SECONDS:02}"
    if isinstance(cell, dt.time):
        return cell.isoformat(timespec="seconds")
    # A line end within a cell would move the numbers of the lines after it.
    return " ".join(str(cell).splitlines()) if cell else ""


def print_sheet(path: Path, wanted: str | None) -> None:
    """Print the sheet. Raises NotReadable before anything is printed."""
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        with zipfile.ZipFile(path) as archive:
            sheets = sheet_parts(archive)
            name = choose(sheets, wanted)
            with archive.open(sheets[name]) as part:
                _CellCheck(name).check(part)  # type: ignore[arg-type]  # a ZipExtFile is read alike
        rows = CalamineWorkbook.from_path(path).get_sheet_by_name(name).iter_rows()
    except (
        zipfile.BadZipFile,
        KeyError,
        CalamineError,
        expat.ExpatError,
        ElementTree.ParseError,
    ) as error:
        raise NotReadable(f"is no whole workbook; {SAVE_AS} again") from error
    sys.stdout.write(json.dumps({"sheet": name}) + "\n")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        # A row without a cell is a line without a character, as in a CSV.
        cells = [text_of(cell) for cell in row]
        if any(cells):
            writer.writerow(cells)
        else:
            sys.stdout.write("\n")


def main(arguments: list[str]) -> int:
    """Print the sheet, or what is wrong in a sentence; 0 for both."""
    bound_process()
    try:
        print_sheet(Path(arguments[0]), arguments[1] if len(arguments) > 1 else None)
    except NotReadable as refused:
        sys.stdout.write(json.dumps({"problem": str(refused)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
