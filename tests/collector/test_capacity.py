"""The inventory as agents show it: rows that never overlap, whatever comes in whatever order."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.ingest.capacity import CapacityRow, Change, Evidence, Insert, covers, plan


def apply(rows: list[CapacityRow], seen: Evidence) -> list[CapacityRow]:
    for step in plan(rows, seen):
        if isinstance(step, Insert):
            number = len(rows) + 1
            rows = [*rows, CapacityRow(number, seen.node_id, seen.pool, step.in_ms, step.out_ms)]
        else:
            rows = [change(row, step, seen) if row.id == step.id else row for row in rows]
    return sorted(rows, key=lambda row: row.in_ms)


def change(row: CapacityRow, step: Change, seen: Evidence) -> CapacityRow:
    if step.moved:
        return replace(row, node_id=seen.node_id, pool=seen.pool)
    return replace(row, in_ms=step.in_ms, out_ms=step.out_ms)


evidence = st.builds(
    Evidence,
    accelerator_id=st.just(1),
    node_id=st.integers(1, 3),
    pool=st.sampled_from(["a", "b"]),
    first_ms=st.integers(0, 50),
)


@given(st.lists(evidence, min_size=1, max_size=12))
def test_rows_never_overlap_and_reach_back_to_the_first_evidence(seen):
    """Rows abut, the last one is open, the first begins with the earliest evidence; nothing is counted twice."""
    rows: list[CapacityRow] = []
    for one in seen:
        rows = apply(rows, one)
        assert apply(rows, one) == rows, "the same evidence again changes nothing"
    assert rows[0].in_ms == min(one.first_ms for one in seen)
    assert rows[-1].out_ms is None
    for before, after in itertools.pairwise(rows):
        assert before.out_ms == after.in_ms
    assert all(row.out_ms is None or row.out_ms > row.in_ms for row in rows)


@given(st.lists(st.integers(0, 50), min_size=1))
def test_one_place_is_one_row_in_any_order(instants):
    """Evidence from one node in one pool is one row from the earliest instant on."""
    rows: list[CapacityRow] = []
    for instant in instants:
        rows = apply(rows, Evidence(1, 1, "a", instant))
    assert rows == [CapacityRow(1, 1, "a", min(instants), None)]


def test_an_inventory_file_is_the_last_word():
    """Where a row was imported, agents change nothing."""
    imported = CapacityRow(1, 1, "a", 10, 20, imported=True)
    assert plan([imported], Evidence(1, 2, "b", 5)) == []
    assert covers(imported, Evidence(1, 2, "b", 5))


def test_after_its_end_an_accelerator_comes_back():
    """Evidence after a row was closed opens a new one."""
    assert plan([CapacityRow(1, 1, "a", 10, 20)], Evidence(1, 1, "a", 30)) == [Insert(30, None)]
