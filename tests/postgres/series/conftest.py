"""Tests of five-minute series and raw samples."""

from fakes.ledger import fleet, ledger, run

__all__ = ["fleet", "ledger", "run"]
