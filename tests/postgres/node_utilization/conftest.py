"""Tests of the heat of nodes."""

from fakes.ledger import fleet, ledger, run

__all__ = ["fleet", "ledger", "run"]
