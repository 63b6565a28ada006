"""Tests of the way from evidence to a bill."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.ledger import fleet, ledger, run

__all__ = ["fleet", "ledger", "run"]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file of the test's own."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
