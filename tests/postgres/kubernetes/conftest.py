"""Fixtures: a GPU node of a cluster, a collector over HTTP and the command line on one database."""

import pytest

from fakes.apiserver import api_server
from fakes.facts import world
from fakes.kubernetes_node import kubernetes_node
from fakes.ledger import run
from fakes.postgres import database, dsn, postgres

__all__ = ["api", "database", "dsn", "node", "postgres", "run", "world"]


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def node(api, world, tmp_path):
    """A node of four cards at 10 USD an hour."""
    with kubernetes_node(tmp_path, api, world, 4) as running:
        world.price()
        yield running
