"""Fixtures of shared inference: a priced fleet, a command, a declaration and a shared server."""

from fakes.ledger import fleet, ledger, run
from fakes.shared_server import apply, served

__all__ = ["apply", "fleet", "ledger", "run", "served"]
