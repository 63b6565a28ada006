"""Fixtures of tests that go from evidence to a command: a fleet, its ledger and findings, and the
command itself.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fakes.fleet import Fleet
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.storage.database import Database

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet(dsn: str) -> Iterator[Fleet]:
    """An empty fleet in a database of its own."""
    made = Fleet(dsn)
    yield made
    made.connection.close()


@pytest.fixture
def ledger(dsn: str) -> Database:
    """The ledger of that database."""
    return Database(dsn)


@pytest.fixture
def findings(dsn: str) -> Database:
    """The findings of that database."""
    return Database(dsn)


@pytest.fixture
def run(dsn: str) -> Run:
    """Runs a gpuledger command on that database: exit code, standard output, standard error."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", dsn])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            sentence, code = explain(result.exception)  # type: ignore[arg-type]
            return code, result.stdout, result.stderr + sentence
        return result.exit_code, result.stdout, result.stderr

    return command
