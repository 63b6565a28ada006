"""What one unary gRPC call needs of HTTP/2 (RFC 9113): a request on a stream of its own, and its
answer.

This side announces no table for header compression and windows for a whole answer. What is left of
HPACK (RFC 7541) is its literals, seven entries of its static table and its Huffman code; flow
control needs no frames. Whatever the bytes are, the only exception raised is BadFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuledger_common.readings import AgentError

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_STREAM = 1
_FRAME_HEAD, _MAX_FRAME = 9, 16_384
"""Size of the head of a frame, and of the longest content of one that nobody negotiated."""
_FIRST_WINDOW = 65_535
_MAX_HEADER_BYTES = 64 * 1024
_STATUS = dict(zip(range(8, 15), ("200", "204", "206", "304", "400", "404", "500"), strict=True))
"""The entries of HPACK's static table that an answer is read by; all are of `:status`."""
_STATIC_ENTRIES = 61
_HUFFMAN = {
    5: "012aceiost",
    6: " %-./3456789=A_bdfghlmnpru",
    7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: "&*,;XZ",
    10: '!"()?',
    11: "'+|",
    12: "#>",
    13: "\0$@[]~",
    14: "^}",
    15: "<`{",
    19: "\\",
}
"""Characters by the length of their code, which is canonical: codes of one length follow each other
in the order of the characters, and those of the next length follow them. Others (a tab, bytes above
ASCII) have longer codes, and stand in no header that is read here.
"""
_MAX_CODE = max(_HUFFMAN)


def _huffman_codes() -> dict[int, str]:
    """Characters by their code with a 1 before it, which keeps its leading zeros."""
    codes, code, before = {}, 0, 0
    for length, characters in _HUFFMAN.items():
        code <<= length - before
        before = length
        for character in characters:
            codes[1 << length | code] = character
            code += 1
    return codes


_CHARACTERS = _huffman_codes()


class BadFrame(AgentError):
    """The bytes are not HTTP/2, or not an answer to this request."""


def request(headers: Mapping[str, str], body: bytes, window: int) -> bytes:
    """All that a client sends for one request; `window`: bytes of the largest answer."""
    settings = b"".join(
        name.to_bytes(2, "big") + value.to_bytes(4, "big")
        for name, value in ((1, 0), (2, 0), (4, window))  # table of headers, push, window
    )
    block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers.items())
    return b"".join(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _frame(_SETTINGS, 0, 0, settings),
            _frame(_WINDOW_UPDATE, 0, 0, (window - _FIRST_WINDOW).to_bytes(4, "big")),
            _frame(_HEADERS, _END_HEADERS, _STREAM, block),
            _frame(_DATA, _END_STREAM, _STREAM, body),
        )
    )


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return b"%b%c%c%b%b" % (
        len(content).to_bytes(3, "big"),
        kind,
        flags,
        stream.to_bytes(4, "big"),
        content,
    )


def _literal(text: str) -> bytes:
    """A string as it is, with its length before it in seven bits and, where need be, more bytes."""
    coded = text.encode()
    rest = len(coded) - 127
    if rest < 0:
        return bytes([len(coded)]) + coded
    length = bytearray([127])
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*length, rest]) + coded


@dataclass(slots=True)
class Answer:
    """An answer as received so far; `headers` are those of the response and its trailers."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _unread: bytearray = field(default_factory=bytearray)
    _block: bytearray | None = None
    """Headers of which more is to come."""
    _ends_with_block: bool = False
    _begun: bool = False

    def receive(self, received: bytes) -> bytes:
        """Take in what was received; returns what is to be sent. Raises BadFrame."""
        self._unread += received
        replies = b""
        for kind, flags, stream, content in self._frames():
            if not self._begun and kind != _SETTINGS:
                raise BadFrame("the server does not speak HTTP/2")
            self._begun = True
            if (self._block is None) == (kind == _CONTINUATION):
                raise BadFrame(f"a frame of kind {kind} is out of its order")
            if kind in {_SETTINGS, _PING} and not flags & _ACK:
                replies += _frame(kind, _ACK, 0, content if kind == _PING else b"")
            elif kind in {_DATA, _HEADERS, _RST_STREAM, _PUSH_PROMISE, _CONTINUATION}:
                if stream != _STREAM:
                    raise BadFrame(f"a frame is of stream {stream}, which was not asked for")
                self._take(kind, flags, content)
            elif kind == _GOAWAY and not self.ended and any(content[4:8]):
                error = int.from_bytes(content[4:8], "big")
                raise BadFrame(f"the server went away with HTTP/2 error {error}")
        return replies

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and content of each frame that is complete."""
        unread = self._unread
        while len(unread) >= _FRAME_HEAD:
            end = _FRAME_HEAD + int.from_bytes(unread[:3], "big")
            if end > _FRAME_HEAD + _MAX_FRAME:
                raise BadFrame("a frame is too large, or not one of HTTP/2")
            if len(unread) < end:
                return
            kind, flags, stream = unread[3], unread[4], int.from_bytes(unread[5:9], "big")
            content = bytes(unread[_FRAME_HEAD:end])
            del unread[:end]
            yield kind, flags, stream & 0x7FFFFFFF, content

    def _take(self, kind: int, flags: int, content: bytes) -> None:
        """A frame of the stream."""
        if kind == _RST_STREAM:
            error = int.from_bytes(content, "big")
            raise BadFrame(f"the call was reset with HTTP/2 error {error}")
        if kind == _PUSH_PROMISE:
            raise BadFrame("the server pushes, which was refused")
        if kind != _CONTINUATION:
            content = _without_padding(content, flags)
            self._ends_with_block = bool(flags & _END_STREAM)
        if kind == _DATA:
            self.body += content
            self.ended = self._ends_with_block
            return
        if kind == _HEADERS and flags & _PRIORITY:
            content = content[5:]
        block = (self._block or bytearray()) + content
        if len(block) > _MAX_HEADER_BYTES:
            raise BadFrame("the headers are too large")
        if flags & _END_HEADERS:
            self.headers.update(read_headers(bytes(block)))
            self._block, self.ended = None, self._ends_with_block
        else:
            self._block = block


def _without_padding(content: bytes, flags: int) -> bytes:
    if not flags & _PADDED:
        return content
    if not content or content[0] >= len(content):
        raise BadFrame("a frame has more padding than content")
    return content[1 : len(content) - content[0]]


def read_headers(block: bytes) -> Iterator[tuple[str, str]]:
    """Names and values of a block of headers, without those whose name only a table has; of such
    ones only `:status` is known. Raises BadFrame.
    """
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _integer(block, at, 7)
            _require_static(index)
            if index in _STATUS:
                yield ":status", _STATUS[index]
        elif first & 0xE0 == 0x20:  # a new size of the table, which can only be 0
            _, at = _integer(block, at, 5)
        else:
            index, at = _integer(block, at, 6 if first & 0x40 else 4)
            name = ":status" if index in _STATUS else ""
            if index:
                _require_static(index)
            else:
                name, at = _string(block, at)
            value, at = _string(block, at)
            if name:
                yield name, value


def _require_static(index: int) -> None:
    if not 0 < index <= _STATIC_ENTRIES:
        raise BadFrame(f"header {index} is in no table")


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number that begins in the last bits of a byte, and where it ends."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for position in range(4):
        if at >= len(block):
            break
        value += (block[at] & 127) << 7 * position
        at += 1
        if block[at - 1] < 128:
            return value, at
    raise BadFrame("a number in the headers does not end")


def _string(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise BadFrame("the headers end inside a field")
    is_coded = block[at] & 0x80
    length, at = _integer(block, at, 7)
    coded = block[at : at + length]
    if len(coded) < length:
        raise BadFrame("the headers end inside a field")
    return read_huffman(coded) if is_coded else coded.decode(errors="replace"), at + length


def read_huffman(coded: bytes) -> str:
    """Text from HPACK's Huffman code, up to the first character without a code in the table, for
    which U+FFFD stands. Raises BadFrame.
    """
    text, code = "", 1
    for byte in coded:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            character = _CHARACTERS.get(code)
            if character is not None:
                text, code = text + character, 1
            elif code >> _MAX_CODE:
                return text + "\N{REPLACEMENT CHARACTER}"
    # The rest of the last byte is filled with ones.
    if code > 0xFF or code & code + 1:
        raise BadFrame("a header ends inside a character")
    return text
