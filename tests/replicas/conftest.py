"""Replicas are real processes before one real Postgres."""

import shutil

import pytest

from fakes.ledger import fleet, run
from fakes.postgres import database, dsn, open_folder, postgres

__all__ = ["database", "dsn", "fleet", "postgres", "run"]


@pytest.fixture
def folder():
    """A folder for the processes' files."""
    path = open_folder("gpuledger-replicas-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
