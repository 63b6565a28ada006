"""Tests of what keeps a ledger: backup, restore, erasure."""

from fakes.ledger import findings, fleet, ledger, run

__all__ = ["findings", "fleet", "ledger", "run"]
