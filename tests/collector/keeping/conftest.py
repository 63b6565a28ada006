"""Tests of what keeps a ledger: backup, restore, erasure."""

from fakes.ledger import fleet, ledger, run

__all__ = ["fleet", "ledger", "run"]
