"""Findings are searched on a real Postgres, from the rollup to the command."""

from fakes.ledger import findings, fleet, ledger, run

__all__ = ["findings", "fleet", "ledger", "run"]
