"""Fixtures: a collector over HTTP and the command line on one database."""

from fakes.facts import world
from fakes.ledger import run
from fakes.postgres import database, dsn, postgres

__all__ = ["database", "dsn", "postgres", "run", "world"]
