"""Servers on loopback that answer a page as an attacker would: slowly, without end, elsewhere,
compressed, repeated.

A page without end does end, long after any caller here should have left it, and fails the test
then: without the deadline that a test is about, the test fails within half a minute and does not
hang.
"""

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
LINE = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",modelName="H100"} 5\n'
DRIP_S = 0.02
END_S = 20.0
"""When a page that drips ends after all: many times what a caller may wait for one."""
END_BLOCKS = 1000
"""When a page that is sent at once ends, in blocks of 1,000 lines: 60 MB, several times what is
read of it.
"""


class CallerStayed(Exception):
    """A page was read to its late end."""


def drip_bytes(connection: socket.socket, piece: bytes) -> None:
    """Send these bytes again and again.

    Raises OSError when the caller leaves, CallerStayed when it does not.
    """
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        connection.sendall(piece)
        time.sleep(DRIP_S)
    raise CallerStayed


def drip(connection: socket.socket) -> None:
    """Send a byte of the body now and then."""
    connection.sendall(HEAD + b"\r\n")
    drip_bytes(connection, b"#")


def drip_headers(connection: socket.socket) -> None:
    """Send a byte of a header now and then."""
    connection.sendall(HEAD + b"X-Long: ")
    drip_bytes(connection, b"a")


def say_continue(connection: socket.socket) -> None:
    """Announce an answer again and again: http.client skips each of these lines."""
    drip_bytes(connection, b"HTTP/1.1 100 Continue\r\n\r\n")


def say_nothing(connection: socket.socket) -> None:
    """Take the request and do not answer."""
    connection.settimeout(END_S)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        raise CallerStayed from None


def never_end(connection: socket.socket) -> None:
    """Send lines as fast as they are read."""
    connection.sendall(HEAD + b"\r\n")
    for _ in range(END_BLOCKS):
        connection.sendall(LINE * 1000)
    raise CallerStayed


def never_end_chunked(connection: socket.socket) -> None:
    """The same in chunks, which announce no length."""
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = LINE * 1000
    for _ in range(END_BLOCKS):
        connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    raise CallerStayed


def inflate(connection: socket.socket) -> None:
    """A compressed page that nobody asked for."""
    body = gzip.compress(b"a 1\n" * 1_000_000)
    connection.sendall(
        HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


def send(body: bytes) -> Callable[[socket.socket], None]:
    """A page that is complete."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    return respond


def redirect(address: str) -> Callable[[socket.socket], None]:
    """A redirection to another address."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(
            f"HTTP/1.1 302 Found\r\nLocation: {address}\r\nContent-Length: 0\r\n\r\n".encode()
        )

    return respond


@contextmanager
def hostile(
    respond: Callable[[socket.socket], None],
    asked: list[bytes] | None = None,
    speaks_first: bool = False,
) -> Iterator[str]:
    """The address of a server that answers every request by `respond`; requests are added to
    `asked`.

    Nobody may have read a page to its late end.
    """
    listener, stayed = socket.create_server(("127.0.0.1", 0)), []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            request = b"" if speaks_first else connection.recv(65_536)
            if asked is not None:
                asked.append(request)
            try:
                respond(connection)
            except CallerStayed as error:
                stayed.append(error)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    assert not stayed, (
        "the caller had no deadline and no size for the page: it read it to its late end"
    )
