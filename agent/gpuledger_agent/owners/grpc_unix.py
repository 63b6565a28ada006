"""One unary gRPC call over a unix socket, without grpcio: `import grpc` alone costs an agent 11 to 30 MiB.

gRPC is HTTP/2 with a five-byte prefix before each message and the status in the trailers
(github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). `h2` does frames, flow control and header compression;
it does no I/O, so the deadline of the whole call is kept here. Every call has its own connection: a kubelet that
restarts is then no special case.
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
    """A call without an answer: nobody listens, too slow, too big, a status other than OK. The sentence says which."""


@dataclass
class _Answer:
    """What has come of an answer so far; header names and values are those of the response and its trailers."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False


def call(
    path: Path, method: str, message: bytes = b"", *, timeout_s: float = 2.0, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The answer to `method` (`/package.Service/Method`). Raises CallFailed, never later than `timeout_s`."""
    from h2.exceptions import H2Error

    until = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(timeout_s)
            line.connect(str(path))
            return _message(_talk(line, method, message, dict(metadata or {}), until))
    except TimeoutError as error:
        raise CallFailed(f"{path}: no whole answer within {timeout_s:g} s") from error
    except OSError as error:
        raise CallFailed(f"{path}: {error.strerror or error}") from error
    except H2Error as error:
        raise CallFailed(f"{path}: does not speak HTTP/2 as it should: {error or type(error).__name__}") from error
    except CallFailed as error:
        raise CallFailed(f"{path}: {error}") from error


def _talk(line: socket.socket, method: str, message: bytes, metadata: dict[str, str], until: float) -> _Answer:
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    speaker = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    speaker.initiate_connection()
    stream = speaker.get_next_available_stream_id()
    speaker.send_headers(
        stream,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "gpuledger-agent"),
            *metadata.items(),
        ],
    )
    speaker.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    answer = _Answer()
    while not answer.ended:
        line.settimeout(_left(until))
        with contextlib.suppress(BrokenPipeError):  # it has said all and closed; what it said can still be read
            line.sendall(speaker.data_to_send())
        line.settimeout(_left(until))
        received = line.recv(_CHUNK)
        if not received:
            raise CallFailed("the connection closed before the answer was whole")
        for event in speaker.receive_data(received):
            _take(event, answer, speaker, stream)
    return answer


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _text(part: bytes | str) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _take(event: Event, answer: _Answer, speaker: H2Connection, stream: int) -> None:
    from h2 import events

    if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
        answer.headers |= {_text(name): _text(value) for name, value in event.headers or ()}
    elif isinstance(event, events.DataReceived):
        answer.body += event.data or b""
        if len(answer.body) > MAX_MESSAGE_BYTES + _PREFIX:
            raise CallFailed(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
        if event.flow_controlled_length:
            speaker.acknowledge_received_data(event.flow_controlled_length, stream)
    elif isinstance(event, events.StreamEnded):
        answer.ended = True
    elif isinstance(event, events.StreamReset):
        raise CallFailed(f"the call was reset with HTTP/2 error {event.error_code}")
    elif isinstance(event, events.ConnectionTerminated) and not answer.ended and event.error_code:
        raise CallFailed(f"the server went away with HTTP/2 error {event.error_code}")


def _message(answer: _Answer) -> bytes:
    if answer.headers.get(":status") != "200":
        raise CallFailed(f"HTTP status {answer.headers.get(':status')}")
    status = answer.headers.get("grpc-status")
    if status != "0":
        said = unquote(answer.headers.get("grpc-message", ""))[:200]
        raise CallFailed(f"gRPC status {status or 'missing'}{': ' + said if said else ''}")
    if len(answer.body) < _PREFIX:
        raise CallFailed("the answer holds no message")
    if answer.body[0]:
        raise CallFailed("the message is compressed, which was not asked for")
    size = int.from_bytes(answer.body[1:_PREFIX], "big")
    if size != len(answer.body) - _PREFIX:
        raise CallFailed(f"the message should have {size} bytes and has {len(answer.body) - _PREFIX}")
    return bytes(answer.body[_PREFIX:])
