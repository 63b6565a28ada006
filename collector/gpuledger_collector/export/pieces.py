"""Long texts in pieces: rows are written as they are taken, so that neither all of them nor the
whole text is held.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping

from gpuledger_common.escapes import escape_lines

PIECE = 65_536
"""Characters from which on a piece is handed on."""


def csv_pieces(rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Rows as CSV, with LF."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        if text.tell() >= PIECE:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def json_pieces(content: Mapping[str, object]) -> Iterator[str]:
    """An object as `cells.json_text` writes it; iterators among its values are lists, written as
    they are taken.
    """
    text = io.StringIO()
    for start, (name, value) in zip(
        ("{\n", *[",\n"] * len(content)), content.items(), strict=False
    ):
        text.write(f"{start}  {_json(name)}: ")
        if not isinstance(value, Iterator):
            text.write(_json(value, 2))
            continue
        before = "[\n"
        for item in value:
            text.write(f"{before}    {_json(item, 4)}")
            before = ",\n"
            if text.tell() >= PIECE:
                yield escape_lines(text.getvalue())
                text.seek(0)
                text.truncate()
        text.write("[]" if before == "[\n" else "\n  ]")
    text.write("\n}\n")
    yield escape_lines(text.getvalue())


def _json(value: object, depth: int = 0) -> str:
    """A value in the lines of an indented object; in JSON every line feed is one of the layout."""
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + " " * depth)


class Packed:
    """A text that waits to be sent: compressed, made and given piece by piece."""

    def __init__(self, pieces: Iterable[str]) -> None:
        compressor = zlib.compressobj(level=1)
        self._blocks: list[bytes] = []
        self.bytes = 0
        """Length of the text in UTF-8."""
        for piece in pieces:
            encoded = piece.encode()
            self.bytes += len(encoded)
            self._blocks.append(compressor.compress(encoded))
        self._blocks.append(compressor.flush())

    @property
    def held_bytes(self) -> int:
        """What is held of it."""
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[bytes]:
        """The text in UTF-8, at most PIECE bytes at a time."""
        decompressor = zlib.decompressobj()
        for block in self._blocks:
            rest = block
            while rest:
                yield decompressor.decompress(rest, PIECE)
                rest = decompressor.unconsumed_tail
        yield decompressor.flush()
