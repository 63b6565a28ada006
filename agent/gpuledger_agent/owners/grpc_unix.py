"""One unary gRPC call over a unix socket, without grpcio: `import grpc` alone costs an agent 11 to
30 MiB.

gRPC is HTTP/2 with a five-byte prefix before each message and the status in the trailers
(github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). `http2` has no I/O, so the deadline of the
whole call is kept here. Every call has its own connection: a kubelet that restarts is then no
special case.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from gpuledger_agent.owners.http2 import Answer, BadFrame, request
from gpuledger_common.readings import AgentError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_PREFIX = 5
_CHUNK = 64 * 1024


class CallFailed(AgentError):
    """A call without a usable answer: no listener, too slow, too large, or a status other than OK."""


def call(
    path: Path,
    method: str,
    message: bytes = b"",
    *,
    timeout_s: float = 2.0,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Call `method` (`/package.Service/Method`).

    Raises CallFailed, after `timeout_s` at the latest.
    """
    until = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            return _message(_exchange(connection, method, message, dict(metadata or {}), until))
    except TimeoutError as error:
        raise CallFailed(f"{path}: no complete answer within {timeout_s:g} s") from error
    except OSError as error:
        raise CallFailed(f"{path}: {error.strerror or error}") from error
    except (BadFrame, CallFailed) as error:
        raise CallFailed(f"{path}: {error}") from error


def _exchange(
    connection: socket.socket, method: str, message: bytes, metadata: dict[str, str], until: float
) -> Answer:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "gpuledger-agent",
    }
    # The prefix of a message: not compressed, and its length in four bytes.
    body = b"\0" + len(message).to_bytes(4, "big") + message
    answer, waiting = Answer(), request({**headers, **metadata}, body, MAX_MESSAGE_BYTES + _CHUNK)
    while not answer.ended:
        if waiting:
            connection.settimeout(_remaining(until))
            # The server has answered and closed; its answer can still be read.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(waiting)
        connection.settimeout(_remaining(until))
        received = connection.recv(_CHUNK)
        if not received:
            raise CallFailed("the connection closed before the answer was complete")
        waiting = answer.receive(received)
        if len(answer.body) > MAX_MESSAGE_BYTES + _PREFIX:
            raise CallFailed(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
    return answer


def _remaining(until: float) -> float:
    remaining = until - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _message(answer: Answer) -> bytes:
    # gRPC answers 200 even for a failed call; its own status is in the trailers.
    if answer.headers.get(":status") != "200":
        raise CallFailed(f"HTTP status {answer.headers.get(':status')}")
    status = answer.headers.get("grpc-status")
    if status != "0":
        reason = unquote(answer.headers.get("grpc-message", ""))[:200]
        raise CallFailed(f"gRPC status {status or 'missing'}{': ' + reason if reason else ''}")
    if len(answer.body) < _PREFIX:
        raise CallFailed("the answer has no message")
    if answer.body[0]:
        raise CallFailed("the message is compressed, which was not asked for")
    size = int.from_bytes(answer.body[1:_PREFIX], "big")
    if size != len(answer.body) - _PREFIX:
        raise CallFailed(f"the message has {len(answer.body) - _PREFIX} bytes instead of {size}")
    return bytes(answer.body[_PREFIX:])
