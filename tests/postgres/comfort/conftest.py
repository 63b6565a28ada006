"""Fixtures of tests of what every command owes its user."""

from fakes.ledger import fleet, run

__all__ = ["fleet", "run"]
