"""Servers on loopback that answer a page as an attacker would: slowly, without end, elsewhere,
compressed, repeated.
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


def drip(connection: socket.socket) -> None:
    """Send a byte of the body now and then, for ever."""
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"#")
        time.sleep(DRIP_S)


def drip_headers(connection: socket.socket) -> None:
    """Send a byte of a header now and then, for ever."""
    connection.sendall(HEAD + b"X-Long: ")
    while True:
        connection.sendall(b"a")
        time.sleep(DRIP_S)


def say_continue(connection: socket.socket) -> None:
    """Announce an answer for ever: http.client skips each of these lines."""
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(DRIP_S)


def say_nothing(connection: socket.socket) -> None:
    """Take the request and never answer."""
    while connection.recv(4096):
        time.sleep(DRIP_S)


def never_end(connection: socket.socket) -> None:
    """Send lines as fast as they are read, for ever."""
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(LINE * 1000)


def never_end_chunked(connection: socket.socket) -> None:
    """The same in chunks, which announce no length."""
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = LINE * 1000
    while True:
        connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")


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
    respond: Callable[[socket.socket], None], asked: list[bytes] | None = None
) -> Iterator[str]:
    """The address of a server that answers every request by `respond`; requests are added to
    `asked`.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            request = connection.recv(65_536)
            if asked is not None:
                asked.append(request)
            respond(connection)

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
