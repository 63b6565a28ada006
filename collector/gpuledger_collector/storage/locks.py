"""Every advisory lock of the product, in one place, so that no two of them can be the same by accident."""

from __future__ import annotations

import enum


@enum.unique
class Lock(enum.IntEnum):
    """Keys of pg_advisory_lock; the high bytes spell `gpu`, to stay clear of other programs in the same database."""

    MIGRATIONS = 0x67707501
    PARTITIONS = 0x67707502
    JOBS = 0x67707503
    LEDGER = 0x67707504
    IMPORTS = 0x67707505
    PRICES = 0x67707506
    FINDINGS = 0x67707509
    SCRAPES = 0x6770750A
    AUDIT = 0x6770750B
    RECOMMENDATIONS = 0x6770750C
    OUTBOX_PLAN = 0x67707510
    LETTERS = 0x67707511
    ACTIONS = 0x67707512
    """The upper half of a key whose lower half is an action."""
    SCALING = 0x67707514
    VIEWER_WALL = 0x67707515
    SERIES = 0x67707516
    PACKING = 0x67707517
    OUTBOX = 0x67707507
    """The upper half of a key whose lower half is a message."""
    BUDGETS = 0x67707508
    """The upper half of a key whose lower half is a budget."""

    def of(self, number: int) -> int:
        """The key of one thing of its kind."""
        return self << 32 | number & 0xFFFFFFFF
