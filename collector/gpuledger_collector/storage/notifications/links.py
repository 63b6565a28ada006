"""Links of mails that were used: each works once, whoever presses its button and however often."""

from __future__ import annotations

from gpuledger_collector.storage.locks import Connection


def used_ms(connection: Connection, mac: str) -> int | None:
    """When the link with this signature was used; None: not yet."""
    row = connection.execute(
        "SELECT used_ms FROM acknowledged_link WHERE mac = %s", (mac,)
    ).fetchone()
    return None if row is None else int(row[0])


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
