"""A real Postgres for what is installed before it."""

from fakes.postgres import database, dsn, postgres

__all__ = ["database", "dsn", "postgres"]
