"""One HTTP exchange within a deadline and a size, for everything that agent and collector ask.

A socket's timeout starts anew with each byte, so a server that sends a byte now and then holds its
caller for as long as it likes. Here every step (the name, the connection, TLS, each byte sent and
received) gets only what is left of one deadline. Redirections are not followed, compressed answers
are neither asked for nor taken, and no proxy is used.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuledger_common.escapes import escape_text

_CHUNK = 64 * 1024
_DROP_SECONDS = 1.0
"""For the body of an answer of which only the status matters."""
_PORTS = {"http": 80, "https": 443}


class AnswerTooLarge(OSError):
    """An answer beyond the size that its caller allows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Socket(socket.socket):
    """A socket that waits for each part of an answer only as long as the exchange has left."""

    remaining_s: Callable[[], float]

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        self.settimeout(self.remaining_s())
        return super().recv_into(*arguments, **options)


class _TlsSocket(ssl.SSLSocket):
    """The same over TLS."""

    remaining_s: Callable[[], float] | None = None
    """None during the handshake, for which Python itself has one deadline."""

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        if self.remaining_s is not None:
            self.settimeout(self.remaining_s())
        return super().recv_into(*arguments, **options)


class BoundedConnection(http.client.HTTPConnection):
    """A connection to one server, on which each exchange as a whole is bounded; it is reopened
    where it was closed.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        max_bytes: int,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        unix_path: Path | None = None,
        pinned: tuple[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s`, for a whole exchange, may be changed between two of them; `pinned`: the
        numeric address to connect to, whatever the name resolves to by then.
        """
        parts = urlsplit(url)
        self.default_port = _PORTS[parts.scheme]
        super().__init__(parts.hostname or "", parts.port or self.default_port)
        self._tls = tls if parts.scheme == "https" else None
        self.timeout_s, self._max_bytes, self._unix_path, self._clock = (
            timeout_s,
            max_bytes,
            unix_path,
            clock,
        )
        self._pinned, self._until = pinned, 0.0

    def open(self) -> None:
        """Connect, within a deadline of its own. Raises OSError."""
        self._begin()
        self.connect()

    def exchange(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and read its answer.

        Raises OSError (TimeoutError past the deadline, AnswerTooLarge), http.client.HTTPException
        or ValueError.
        """
        return self._exchange(method, target, body, headers, self._read_body)

    def exchange_head(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and read status and headers; of the body is dropped what comes in time.

        Raises as `exchange`.

        The connection is closed.
        """
        answer = self._exchange(method, target, body, headers, self._drop_body)
        self.close()
        return answer

    def _exchange(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        read: Callable[[http.client.HTTPResponse], bytes],
    ) -> Answer:
        self._begin()
        try:
            self.request(method, target, body, dict(headers or {}))
            response = self.getresponse()
            answer = Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                read(response),
            )
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"no complete answer within {self.timeout_s:.3g} s") from error
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            raise
        # Otherwise the next request on a connection that the server closes would fail.
        if response.will_close:
            self.close()
        return answer

    def _begin(self) -> None:
        self._until = self._clock() + self.timeout_s

    def connect(self) -> None:
        """Connect within what is left of the deadline."""
        plain = (
            self._connect_unix(self._unix_path)
            if self._unix_path is not None
            else self._connect_tcp()
        )
        plain.remaining_s = self._remaining_s
        self.sock = plain
        if self._tls is not None:
            context = self._tls()
            context.sslsocket_class = _TlsSocket
            plain.settimeout(self._remaining_s())
            secure = context.wrap_socket(plain, server_hostname=plain_name(self.host))
            assert isinstance(secure, _TlsSocket)
            secure.remaining_s = self._remaining_s
            self.sock = secure

    def send(self, data: Any) -> None:
        """Send within what is left of the deadline."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self._remaining_s())
        super().send(data)

    def _remaining_s(self) -> float:
        remaining_s = self._until - self._clock()
        if remaining_s <= 0:
            raise TimeoutError
        return remaining_s

    def _connect_unix(self, path: Path) -> _Socket:
        connection = _Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        return self._connect_within(connection, str(path))

    def _connect_tcp(self) -> _Socket:
        if self._pinned is not None:
            family = socket.AF_INET6 if ":" in self._pinned[0] else socket.AF_INET
            return self._connect_within(_Socket(family, socket.SOCK_STREAM), self._pinned)
        failure: OSError = OSError(f"{self.host}: the name has no address")
        for family, kind, protocol, _, address in resolve(
            self.host, self.port, self._remaining_s()
        ):
            try:
                connection = self._connect_within(_Socket(family, kind, protocol), address)
            except TimeoutError:
                raise
            except OSError as error:  # the next address may answer
                failure = error
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        raise failure

    def _connect_within(self, connection: _Socket, address: Any) -> _Socket:
        try:
            connection.settimeout(self._remaining_s())
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection

    def _read_body(self, response: http.client.HTTPResponse) -> bytes:
        encoding = response.getheader("Content-Encoding", "identity").strip().lower()
        if encoding not in {"", "identity"}:
            raise http.client.HTTPException(
                f"the answer is compressed ({encoding[:20]!r}), which was not asked for"
            )
        body = bytearray()
        while piece := response.read1(min(_CHUNK, self._max_bytes + 1 - len(body))):
            self._remaining_s()  # a server that is always a little ahead never makes a read wait
            body += piece
            if len(body) > self._max_bytes:
                raise AnswerTooLarge(f"the answer is larger than {self._max_bytes} bytes")
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        response.close()  # which leaves the connection open for the next exchange
        return bytes(body)

    def _drop_body(self, response: http.client.HTTPResponse) -> bytes:
        self._until = min(self._until, self._clock() + _DROP_SECONDS)
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._read_body(response)
        return b""


def get_page(
    url: str, *, timeout_s: float, max_bytes: int, clock: Callable[[], float] = time.monotonic
) -> str:
    """The text of a page. Raises OSError, http.client.HTTPException or ValueError."""
    parts = urlsplit(url)
    connection = BoundedConnection(url, timeout_s=timeout_s, max_bytes=max_bytes, clock=clock)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        answer = connection.exchange("GET", target, headers={"Accept": "text/plain;version=0.0.4"})
    finally:
        connection.close()
    if 300 <= answer.status < 400:
        location = escape_text(answer.headers.get("location", "another address")[:200])
        raise ValueError(
            f"HTTP status {answer.status}: it redirects to {location}, which is not followed"
        )
    if answer.status != http.client.OK:
        raise ValueError(f"HTTP status {answer.status}")
    return answer.body.decode("utf-8", errors="replace")


def plain_name(host: str) -> str | bytes:
    """A name as bytes where it is ASCII: Python then needs no tables of other scripts, 0.1 MiB."""
    return host.encode() if host.isascii() else host


def resolve(host: str, port: int, timeout_s: float) -> list[Any]:
    """What a name resolves to. Raises OSError, TimeoutError past `timeout_s`."""
    name = plain_name(host)
    try:
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        pass  # a name
    found: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            found.put(list(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)))
        except Exception as error:  # handed to the caller; UnicodeError is one of them
            found.put(error)

    # The system's resolver has no deadline: in a thread of its own it ends when its name servers
    # have timed out.
    threading.Thread(target=resolve, name="resolve", daemon=True).start()
    try:
        addresses = found.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(addresses, Exception):
        raise addresses
    return addresses
