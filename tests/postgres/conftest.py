"""Tests of the collector run against a real Postgres."""

from fakes.postgres import database, dsn, postgres, superuser

__all__ = ["database", "dsn", "postgres", "superuser"]
