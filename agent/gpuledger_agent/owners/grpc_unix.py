"""One unary gRPC call over a unix socket, without grpcio: `import grpc` alone costs an agent 11 to
30 MiB.

gRPC is HTTP/2 with a five-byte prefix before each message and the status in the trailers
(github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). `h2` does frames, flow control and header
compression; it does no I/O, so the deadline of the whole call is kept here. Every call has its own
connection: a kubelet that restarts is then no special case.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gpuledger_common.readings import AgentError

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.events import Event

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_PREFIX = 5
_CHUNK = 64 * 1024


class CallFailed(AgentError):
    """A call without a usable answer: no listener, too slow, too large, or a status other than OK."""


@dataclass
class _Answer:
    """An answer as received so far; `headers` are those of the response and its trailers."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False


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
    from h2.exceptions import H2Error

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
    except H2Error as error:
        raise CallFailed(f"{path}: violates HTTP/2: {error or type(error).__name__}") from error
    except CallFailed as error:
        raise CallFailed(f"{path}: {error}") from error


def _exchange(
    connection: socket.socket, method: str, message: bytes, metadata: dict[str, str], until: float
) -> _Answer:
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    http2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    http2.initiate_connection()
    stream = http2.get_next_available_stream_id()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "gpuledger-agent",
    }
    http2.send_headers(stream, [*headers.items(), *metadata.items()])
    # The prefix of a message: not compressed, and its length in four bytes.
    http2.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    answer = _Answer()
    # Each step first sends what h2 has queued (the request, later window updates), then reads and
    # handles events.
    while not answer.ended:
        connection.settimeout(_remaining(until))
        # The server has answered and closed; its answer can still be read.
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(http2.data_to_send())
        connection.settimeout(_remaining(until))
        received = connection.recv(_CHUNK)
        if not received:
            raise CallFailed("the connection closed before the answer was complete")
        for event in http2.receive_data(received):
            _handle(event, answer, http2, stream)
    return answer


def _remaining(until: float) -> float:
    remaining = until - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _text(part: bytes | str) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _handle(event: Event, answer: _Answer, http2: H2Connection, stream: int) -> None:
    from h2 import events

    if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
        answer.headers |= {_text(name): _text(value) for name, value in event.headers or ()}
    elif isinstance(event, events.DataReceived):
        answer.body += event.data or b""
        if len(answer.body) > MAX_MESSAGE_BYTES + _PREFIX:
            raise CallFailed(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
        if event.flow_controlled_length:
            # Without it the flow-control window closes, and the server stops after 64 KiB.
            http2.acknowledge_received_data(event.flow_controlled_length, stream)
    elif isinstance(event, events.StreamEnded):
        answer.ended = True
    elif isinstance(event, events.StreamReset):
        raise CallFailed(f"the call was reset with HTTP/2 error {event.error_code}")
    elif isinstance(event, events.ConnectionTerminated) and not answer.ended and event.error_code:
        raise CallFailed(f"the server went away with HTTP/2 error {event.error_code}")


def _message(answer: _Answer) -> bytes:
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
