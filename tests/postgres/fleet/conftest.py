"""Tests of the map of the fleet and of the receipts of its GPUs, on real ledgers."""

from fakes.ledger import fleet, run

__all__ = ["fleet", "run"]
