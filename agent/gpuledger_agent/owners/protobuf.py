"""A reader of protobuf messages, as small as our need: it walks fields, skips what it does not know, bounds everything.

Wire format: protobuf.dev/programming-guides/encoding. A message is a run of (tag, content); the tag is a varint of
field number and wire type. Nothing but BadMessage comes out of it, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger_common.readings import AgentError

MAX_FIELDS = 250_000
"""Fields read of one message with all that is nested in it: ten times what 500 pods with 64 replicas each need."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


class BadMessage(AgentError):
    """Bytes that are no protobuf message of the kind expected, or more of them than we take."""


class Reader:
    """Reads one message; the budget of fields is shared by all that is nested in it."""

    def __init__(self, most_fields: int = MAX_FIELDS) -> None:
        self._left = most_fields

    def parts(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """(field number, content) of each field that is a text or a message."""
        return ((number, content) for number, content in self.fields(message) if isinstance(content, bytes))

    def fields(self, message: bytes) -> Iterator[tuple[int, int | bytes]]:
        """(field number, content) of each number, text and message; fixed words are skipped."""
        at = 0
        while at < len(message):
            self._left -= 1
            if self._left < 0:
                raise BadMessage("the message has more fields than are taken")
            tag, at = _varint(message, at)
            number, wire = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise BadMessage(f"field number {number} is out of range")
            if wire == _VARINT:
                value, at = _varint(message, at)
                yield number, value
                continue
            size, at = _varint(message, at) if wire == _BYTES else (_fixed_size(wire), at)
            if at + size > len(message):
                raise BadMessage("the message ends inside a field")
            if wire == _BYTES:
                yield number, message[at : at + size]
            at += size


def text(content: bytes) -> str:
    """A string field. Raises BadMessage for bytes that are not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadMessage("a text is not UTF-8") from error


def _fixed_size(wire: int) -> int:
    if wire == _FIXED64:
        return 8
    if wire == _FIXED32:
        return 4
    raise BadMessage(f"wire type {wire} is not known")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for position in range(_VARINT_BYTES):
        if at >= len(message):
            raise BadMessage("the message ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at
    raise BadMessage("a number has more than ten bytes")
