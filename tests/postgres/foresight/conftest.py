"""Tests of queues, demand and stored forecasts run on a fleet in a real Postgres."""

from fakes.ledger import fleet, ledger, run

__all__ = ["fleet", "ledger", "run"]
