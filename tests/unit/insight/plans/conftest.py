"""A real Postgres for what plans read from a ledger and leave in it."""

from fakes.postgres import dsn, postgres

__all__ = ["dsn", "postgres"]
