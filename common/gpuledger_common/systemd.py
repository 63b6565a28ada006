"""sd_notify(3): tell systemd that the service is ready, alive, reloading or stopping (Type=notify)."""

from __future__ import annotations

import contextlib
import os
import socket

SEND_TIMEOUT_S = 1.0
"""How long systemd may leave the datagram unread; its queue holds about ten."""


def notify(state: str) -> None:
    """Send one datagram such as `READY=1` to NOTIFY_SOCKET, if systemd set it.

    A failure never stops the service.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(SEND_TIMEOUT_S)
        # A leading @ stands for the NUL byte of the abstract namespace (unix(7)).
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(state.encode())
