"""Standard input of `gpuledger mcp`, line by line: one without an end does not fill the memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import BinaryIO

import anyio.to_thread

MAX_LINE_BYTES = 64 * 1024
"""Of a message, as the body of a request over HTTP has: every parameter is a short scalar."""
TOO_LONG = f"a line is longer than {MAX_LINE_BYTES} bytes"


class BoundedLines:
    """The lines of a stream as text, for the SDK, which parses each.

    In place of a line that is too long stands a sentence that is no message: the SDK refuses it and
    goes on with the next.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._read):
            yield line

    def _read(self) -> str:
        line = self._stream.readline(MAX_LINE_BYTES + 1)
        if len(line) <= MAX_LINE_BYTES:
            return line.decode("utf-8", errors="replace")
        while line and not line.endswith(b"\n"):
            line = self._stream.readline(MAX_LINE_BYTES)
        return TOO_LONG
