"""Faults are done to real processes: a real collector, a real agent, a real Postgres."""

from fakes.postgres import database, dsn, postgres

__all__ = ["database", "dsn", "postgres"]
