"""Which links of mails were used; each changes something once, whoever presses its button, and however often."""

from __future__ import annotations

from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]


def used_ms(connection: Connection, mac: str) -> int | None:
    """When the link of this signature was used; None: not yet."""
    row = connection.execute("SELECT used_ms FROM acknowledged_link WHERE mac = %s", (mac,)).fetchone()
    return None if row is None else int(row[0])


def use(connection: Connection, mac: str, at_ms: int) -> bool:
    """Use the link up, in the caller's transaction; False where somebody else has, or is just doing so."""
    return bool(
        connection.execute(
            "INSERT INTO acknowledged_link (mac, used_ms) VALUES (%s, %s) ON CONFLICT (mac) DO NOTHING", (mac, at_ms)
        ).rowcount
    )
