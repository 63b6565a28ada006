"""Sockets of the address: one for a collector that is one process, one for each of its workers
else.
"""

from __future__ import annotations

import contextlib
import socket
import time

from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.errors import EnvironmentLacks

BACKLOG = 2048
"""Connections that wait to be accepted; the kernel may allow fewer."""
TAKEN_SECONDS = 2.0
"""How long to try again: the workers of a killed supervisor end within moments of it."""


def listen(settings: Settings) -> socket.socket:
    """Open the listening socket. Raises EnvironmentLacks when the address is unavailable."""
    return _bind(settings, settings.listen_port)


def listen_shared(settings: Settings, count: int) -> list[socket.socket]:
    """Bind several sockets to one address, among which the kernel spreads connections.

    The first one listens, so that the address is taken and what connects waits and is not refused.
    Whoever serves another one listens on it then: no connection goes to a worker that still starts.
    Raises EnvironmentLacks when the address is unavailable.
    """
    # Sockets of two collectors may share an address as well, so that one without sharing finds out
    # whether it is free.
    deadline = time.monotonic() + TAKEN_SECONDS
    while True:
        try:
            with _bind(settings, settings.listen_port) as probe:
                port = probe.getsockname()[1]
            break
        except EnvironmentLacks:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    bound = [_bind(settings, port, shared=True) for _ in range(count)]
    bound[0].listen(BACKLOG)
    return bound


def stop_listening(listener: socket.socket) -> None:
    """Let the others of an address have all connections, until somebody listens on this socket
    again.
    """
    with contextlib.suppress(OSError):  # it is closed
        # Shutting down a socket on which nobody listens would end every connection that it accepts
        # later.
        if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listener.shutdown(socket.SHUT_RDWR)


def _bind(settings: Settings, port: int, shared: bool = False) -> socket.socket:
    host = settings.listen_host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not shared:
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        bound = socket.socket(family)
        try:
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                bound.setsockopt(socket.SOL_SOCKET, option, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((host, port))
        except OSError:
            bound.close()
            raise
        return bound
    except OSError as error:
        raise EnvironmentLacks(
            f"{settings.listen} cannot be listened on ({error.strerror or error}): is a collector"
            " running already? GPULEDGER_LISTEN names another address"
        ) from error


def address_of(settings: Settings, listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_certificate_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
