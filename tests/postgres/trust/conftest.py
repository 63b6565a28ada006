"""The command line on a database of the test's own."""

import pytest
from typer.testing import CliRunner

from gpuledger_collector.cli import build


@pytest.fixture
def command(dsn):
    own = dsn

    def run(*arguments, dsn=own):
        return CliRunner().invoke(build(), [*map(str, arguments), "--dsn", dsn])

    return run
