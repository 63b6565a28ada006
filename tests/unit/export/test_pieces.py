"""Long answers are made and sent piece by piece: what is held at once does not grow with the number
of rows.
"""

import csv
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.pages import text_of
from gpuledger_collector.api.context import in_pieces
from gpuledger_collector.export.cells import json_text
from gpuledger_collector.export.pieces import PIECE, Packed, csv_pieces, json_pieces

texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


class Taken:
    """Rows without end, and how many of them were taken."""

    def __init__(self, row):
        self.row, self.count = row, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return self.row


@given(content=st.dictionaries(texts, values, min_size=1), rows=st.lists(values, max_size=6))
def test_pieces_of_an_object_are_the_whole_text(content, rows):
    """A list that is taken row by row is written like one that is there."""
    whole = json_text({"rows": rows, **content, "more": rows}) + "\n"
    assert "".join(json_pieces({"rows": iter(rows), **content, "more": iter(rows)})) == whole


@given(rows=st.lists(st.lists(texts, min_size=1)))
def test_pieces_of_rows_are_the_whole_text(rows):
    """As one writer writes them."""
    whole = io.StringIO()
    csv.writer(whole, lineterminator="\n").writerows(rows)
    packed = Packed(csv_pieces(rows))
    assert b"".join(packed).decode() == whole.getvalue()
    assert packed.bytes == len(whole.getvalue().encode())


@pytest.mark.parametrize(
    ("write", "row"),
    [(csv_pieces, ["x" * 100]), (lambda rows: json_pieces({"rows": rows}), {"name": "x" * 100})],
    ids=["CSV", "JSON"],
)
def test_rows_are_not_taken_ahead(write, row):
    """Of a list without end each piece takes what it holds; no piece is longer than it should be by
    more than a row.
    """
    rows = Taken(row)
    for number, piece in enumerate(itertools.islice(write(rows), 20), start=1):
        assert PIECE <= len(piece) < PIECE + 500
        assert rows.count * 100 < number * (PIECE + 500)


def test_an_answer_that_waits_holds_a_fraction_of_its_text():
    """Compressed, and given in pieces of at most PIECE bytes."""
    packed = Packed(
        csv_pieces([f"team-{number}", number * 12_345, "USD"] for number in range(100_000))
    )
    assert packed.bytes > 20 * PIECE
    assert packed.held_bytes < packed.bytes // 3
    assert max(map(len, packed)) <= PIECE


def test_what_fails_while_it_is_made_is_no_answer():
    """The last row fails: not a byte was sent, so the client gets an error and no cut file."""

    def rows():
        yield from (["x" * 1000] for _ in range(1000))
        raise ValueError("the last one")

    with pytest.raises(ValueError, match="the last one"):
        in_pieces(csv_pieces(rows()), "text/csv")


def test_an_answer_says_its_length():
    """So a client notices that it was cut."""
    answer = in_pieces(["ä", "b"], "text/csv", {"X": "y"})
    assert (answer.headers["content-length"], answer.headers["x"]) == ("3", "y")
    assert text_of(answer) == "äb"
