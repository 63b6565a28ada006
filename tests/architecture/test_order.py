"""In which order tests begin: see tests/conftest.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.fixture
def in_turn(pytestconfig):
    """The function that orders tests; given their ids it answers with ids."""
    order = pytestconfig.pluginmanager.get_plugin(str(CONFTEST)).in_turn
    return lambda *ids: [item.nodeid for item in order(SimpleNamespace(nodeid=one) for one in ids)]


def test_one_that_waits_and_one_that_computes_in_turn(in_turn):
    """The long ones first; what is left of one kind follows at the end."""
    assert in_turn(
        "tests/unit/test_rows.py::test_a",
        "tests/agent/test_seen_on.py::test_a",
        "tests/postgres/test_reads.py::test_a",
        "tests/faults/test_kills.py::test_a",
        "tests/postgres/money/test_cells.py::test_a",
    ) == [
        "tests/faults/test_kills.py::test_a",
        "tests/postgres/money/test_cells.py::test_a",
        "tests/agent/test_seen_on.py::test_a",
        "tests/postgres/test_reads.py::test_a",
        "tests/unit/test_rows.py::test_a",
    ]


def test_what_shares_a_ledger_stays_together_in_its_order(in_turn):
    """A file, and the folders of which one process furnishes the ledger."""
    assert in_turn(
        "tests/dashboards/test_days.py::test_a",
        "tests/unit/test_rows.py::test_b",
        "tests/dashboards/test_panels.py::test_a",
        "tests/unit/test_rows.py::test_a",
    ) == [
        "tests/dashboards/test_days.py::test_a",
        "tests/dashboards/test_panels.py::test_a",
        "tests/unit/test_rows.py::test_b",
        "tests/unit/test_rows.py::test_a",
    ]
