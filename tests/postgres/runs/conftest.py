"""Fixtures of runs: a priced fleet, and a command."""

from fakes.ledger import findings, fleet, ledger, run

__all__ = ["findings", "fleet", "ledger", "run"]
