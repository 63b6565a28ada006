"""A minimal reader of protobuf messages: it walks fields, skips unknown ones, and limits their
number.

Wire format: protobuf.dev/programming-guides/encoding. A message is a sequence of (tag, content);
the tag is a varint of field number and wire type. Whatever the bytes are, the only exception raised
is BadMessage.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger_common.readings import AgentError

MAX_FIELDS = 250_000
"""Fields read of one message with everything nested in it: ten times what 500 pods with 64 replicas
each need.
"""
_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
"""Bytes of a fixed-size field by wire type."""
_VARINT_BYTES = 10


class BadMessage(AgentError):
    """The bytes are not a protobuf message of the expected kind, or have too many fields."""


class Reader:
    """Reads one message; everything nested in it shares one budget of fields."""

    def __init__(self, max_fields: int = MAX_FIELDS) -> None:
        self._remaining = max_fields

    def parts(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """(field number, content) of each field that is a string or a message."""
        return (
            (number, content)
            for number, content in self.fields(message)
            if isinstance(content, bytes)
        )

    def fields(self, message: bytes) -> Iterator[tuple[int, int | bytes]]:
        """(field number, content) of each varint, string and message; fixed-size fields are
        skipped.
        """
        at = 0
        while at < len(message):
            self._remaining -= 1
            if self._remaining < 0:
                raise BadMessage("the message has too many fields")
            tag, at = _varint(message, at)
            number, wire = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise BadMessage(f"field number {number} is out of range")
            if wire == _VARINT:
                value, at = _varint(message, at)
                yield number, value
                continue
            if wire not in {_BYTES, *_FIXED_SIZES}:
                raise BadMessage(f"wire type {wire} is not known")
            size, at = _varint(message, at) if wire == _BYTES else (_FIXED_SIZES[wire], at)
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
        raise BadMessage("a string is not UTF-8") from error


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
