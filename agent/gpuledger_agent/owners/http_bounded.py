"""Read an HTTP answer within a size and a deadline: a socket's timeout starts anew with each byte."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable

_CHUNK = 64 * 1024


def read_body(
    answer: http.client.HTTPResponse, max_bytes: int, until: float, clock: Callable[[], float] = time.monotonic
) -> bytes:
    """The body, or its first `max_bytes` + 1. Raises OSError (TimeoutError past `until`) or HTTPException."""
    body = bytearray()
    while len(body) <= max_bytes:
        if clock() > until:
            raise TimeoutError("the answer took too long")
        piece = answer.read1(min(_CHUNK, max_bytes + 1 - len(body)))
        if not piece:
            if answer.length:
                raise http.client.IncompleteRead(bytes(body), answer.length)
            break
        body += piece
    return bytes(body)
