"""Rows of the database become objects by the names of their columns, whatever their order."""

import ast
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuledger_collector
from gpuledger_collector.storage.rows import columns_of, object_row, to_object

COLLECTOR = Path(gpuledger_collector.__file__).parent
BY_PLACE = {"storage/telemetry/minutes.py", "ingest/remote_write/series.py"}
"""Hot, and measured: packed minutes are read a million at a time; rows of `series` are arrays of
its own.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    pool: str
    cost_micro: int
    idle_micro: int = 0
    note: str = field(default="", kw_only=True)


def make(names, values):
    cursor = SimpleNamespace(description=[SimpleNamespace(name=name) for name in names])
    return object_row(Cost)(cursor)(values)


def test_columns_in_the_order_of_the_fields_fill_them():
    """The fast way: what is left out at the end has its default."""
    assert make(["pool", "cost_micro"], ("a100", 7)) == Cost("a100", 7)


def test_a_column_that_is_added_in_front_is_refused():
    """A query with a column more never moves an amount to the next field."""
    with pytest.raises(TypeError, match="node"):
        make(["node", "pool", "cost_micro"], ("n1", "a100", 7))


def test_columns_in_another_order_reach_their_fields():
    """Two amounts that change places in a SELECT stay what they are."""
    assert make(["idle_micro", "pool", "cost_micro"], (1, "a100", 7)) == Cost("a100", 7, 1)


def test_a_field_by_keyword_alone_is_filled_by_name():
    """Fields that only a keyword fills are no part of the order."""
    names = ["pool", "cost_micro", "idle_micro", "note"]
    assert make(names, ("a100", 7, 1, "x")) == Cost("a100", 7, 1, note="x")


def test_an_object_takes_the_columns_that_it_knows():
    """Other columns of the row are for the caller; what the caller gives wins."""
    row = namedtuple("Row", ["id", "idle_micro", "cost_micro", "pool"])(1, 2, 3, "a100")
    assert to_object(Cost, row, pool="h100") == Cost("h100", 3, 2)


def test_columns_are_named_as_the_fields():
    """The list of columns of a SELECT follows the dataclass."""
    assert columns_of(Cost) == "pool, cost_micro, idle_micro, note"


def test_no_row_is_read_by_place():
    """Rows have names: a column that is inserted in a SELECT must not shift an amount."""
    by_place = {
        path.relative_to(COLLECTOR).as_posix()
        for part in ("storage", "ingest", "services")
        for path in (COLLECTOR / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if is_taken_by_place(node) or is_spread(node)
    }
    assert by_place == BY_PLACE


def is_taken_by_place(node):
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "row"
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
    )


def is_spread(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id[:1].isupper()
        and any(
            isinstance(given, ast.Starred)
            and isinstance(given.value, ast.Name)
            and given.value.id == "row"
            for given in node.args
        )
    )
