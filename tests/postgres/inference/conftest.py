"""Fixtures of shared inference: a priced fleet, and a command."""

from fakes.ledger import fleet, ledger, run

__all__ = ["fleet", "ledger", "run"]
