"""Real engines: each supported Postgres, a pooler, a replica."""

import shutil

import pytest

from fakes.postgres import open_folder


@pytest.fixture(scope="module")
def folder():
    """A folder for the servers of a file."""
    path = open_folder("gpuledger-engines-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
