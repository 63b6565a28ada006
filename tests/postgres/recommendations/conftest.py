"""Advice and other ledgers on a real Postgres, from the evidence to the command."""

from fakes.ledger import findings, fleet, ledger, run

__all__ = ["findings", "fleet", "ledger", "run"]
