"""What senders have used of their quotas, by all workers and collectors of one database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as


@dataclass(frozen=True, slots=True)
class Use:
    """Units of a quota that a payer has used; they flow back at `rate` units a second."""

    payer: str
    quota: str
    used: float
    rate: float


def settle(connection: Connection, uses: Sequence[Use]) -> list[Use]:
    """Add what this process has admitted, and return what all have: one statement."""
    # In one order, so that two collectors wait for each other and never deadlock.
    ordered = sorted(uses, key=lambda use: (use.payer, use.quota))
    return select_as(
        connection,
        Use,
        """
        INSERT INTO quota_use AS old (payer, quota, used, rate, at)
        SELECT payer, quota, used, rate, now()
        FROM unnest(%s::text[], %s::text[], %s::float8[], %s::float8[]) AS taken (payer, quota, used, rate)
        ON CONFLICT (payer, quota) DO UPDATE SET rate = excluded.rate, at = excluded.at,
            used = greatest(0, old.used - extract(epoch FROM excluded.at - old.at) * excluded.rate) + excluded.used
        RETURNING payer, quota, used, rate
        """,
        (
            [use.payer for use in ordered],
            [use.quota for use in ordered],
            [use.used for use in ordered],
            [use.rate for use in ordered],
        ),
    )


def expire(connection: Connection) -> None:
    """Delete buckets that are full again."""
    connection.execute("DELETE FROM quota_use WHERE used <= extract(epoch FROM now() - at) * rate")
