"""Links of mails that were used: each works once, whoever presses its button and however often."""

from __future__ import annotations

from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_number


def used_ms(connection: Connection, mac: str) -> int | None:
    """When the link with this signature was used; None: not yet."""
    return select_number(connection, "SELECT used_ms FROM acknowledged_link WHERE mac = %s", (mac,))


def use(connection: Connection, mac: str, at_ms: int) -> bool:
    """Mark the link as used, in the caller's transaction; False when somebody else has, or is about
    to.
    """
    return bool(
        connection.execute(
            "INSERT INTO acknowledged_link (mac, used_ms) VALUES (%s, %s) ON CONFLICT (mac) DO"
            " NOTHING",
            (mac, at_ms),
        ).rowcount
    )
