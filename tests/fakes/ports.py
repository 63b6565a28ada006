"""Ports of loopback for processes that are started a moment later, and started again on the same
port.
"""

import random
import socket
from pathlib import Path

OWN_CHOICE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000
_chance = random.SystemRandom()  # not the seeded one: every worker would choose the same


def free_port() -> int:
    """A port on which nobody listens now, and that the system gives to no connection by itself.

    Below the range from which outgoing connections are numbered: one of the many of these tests
    would else take it between this answer and the listener, or while the listener is being
    restarted.
    """
    highest = int(OWN_CHOICE.read_text().split()[0]) if OWN_CHOICE.exists() else 0
    for _ in range(50 if highest > LOWEST + 1000 else 0):
        port = _chance.randrange(LOWEST, highest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
