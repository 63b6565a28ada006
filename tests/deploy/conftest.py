"""A real Postgres for what is installed before it; Helm and kubeconform, ready built beside the
project.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import ready_engines
from fakes.postgres import database, dsn, postgres

__all__ = ["database", "dsn", "postgres"]


@pytest.fixture(scope="session")
def chart_tools() -> Iterator[Path]:
    """The folder with `helm` and `kubeconform`."""
    with ready_engines.unpacked("helm") as folder:
        yield folder


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> str:
    """The Helm that HELM names, that is installed, or that stands ready beside the project."""
    installed = os.environ.get("HELM") or shutil.which("helm")
    return installed or str(ready_engines.program(request.getfixturevalue("chart_tools"), "helm"))
