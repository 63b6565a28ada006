"""Columns and binary COPY: what goes in comes out, absent as NULL, whatever the pattern."""

import contextlib
import itertools

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.ingest.batches.attributes import ResolvedBatch
from gpuledger_collector.ingest.batches.columns import BinaryArray, blank, pack, to_array
from gpuledger_collector.ingest.batches.decode import DecodedBatch, RecordList
from gpuledger_collector.ingest.batches.samples import join_samples
from gpuledger_collector.ingest.batches.slow_values import KnownValues
from gpuledger_collector.ingest.batches.validate import METRIC_KINDS, accept
from gpuledger_common.wire import ABSENT_INT64, Column, Heartbeat, WireAccelerator
from gpuledger_common.wire import Samples as WireSamples

NOW_MS = 1_700_000_000_000

floats32 = st.floats(width=32, allow_nan=True, allow_infinity=False) | st.none()
floats64 = st.floats(allow_nan=True, allow_infinity=False) | st.none()
integers = st.integers(-(2**63) + 1, 2**63 - 1) | st.none()
rows = st.lists(
    st.tuples(st.integers(0, 2**40), floats32, floats64, integers), min_size=1, max_size=40
)


@pytest.fixture
def table(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE t (id bigint, a real, b double precision, c bigint)")
        yield connection


@examples(30)
@given(given_rows=rows)
def test_packed_rows_arrive_as_they_were(table, given_rows):
    """Binary COPY of any rows with any pattern of absent values reads back as the same rows."""
    table.execute("TRUNCATE t")
    columns = [
        np.array([row[0] for row in given_rows], dtype="<i8"),
        np.array([np.nan if row[1] is None else row[1] for row in given_rows], dtype="<f4"),
        np.array([np.nan if row[2] is None else row[2] for row in given_rows], dtype="<f8"),
        np.array([ABSENT_INT64 if row[3] is None else row[3] for row in given_rows], dtype="<i8"),
    ]
    with table.cursor() as cursor, cursor.copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(b"".join(pack(columns)))

    def absent(value):
        return None if value is None or value != value else value

    expected = [(row[0], absent(row[1]), absent(row[2]), row[3]) for row in given_rows]
    # In binary: the text form of a real is the shortest that reads back as that real, and Python
    # would widen it.
    arrived = table.execute("SELECT * FROM t", binary=True).fetchall()
    assert sorted(arrived, key=repr) == sorted(expected, key=repr)


@examples(20)
@given(
    singles=st.lists(floats32, min_size=1),
    doubles=st.lists(floats64, min_size=1),
    whole=st.lists(integers, min_size=1),
)
def test_arrays_arrive_as_they_were(table, singles, doubles, whole):
    """Numbers of each kind as a parameter: Postgres has the same values at the same places, absent
    as NULL.
    """
    given_arrays = (
        np.array([np.nan if value is None else value for value in singles], dtype="<f4"),
        np.array([np.nan if value is None else value for value in doubles], dtype="<f8"),
        np.array([ABSENT_INT64 if value is None else value for value in whole], dtype="<i8"),
    )
    arrived = table.execute(
        "SELECT %b::real[], %b::double precision[], %b::bigint[]",
        [*map(BinaryArray, given_arrays)],
        binary=True,
    ).fetchone()
    expected = [
        [None if value != value else value for value in values]
        for values in (singles, doubles, whole)
    ]
    assert list(arrived) == expected


one_of_each_kind = {kind: name for name, kind in METRIC_KINDS.items()}
wire_columns = st.dictionaries(
    st.sampled_from(["no_metric", *one_of_each_kind.values()]),
    st.tuples(st.sampled_from(["f4", "f8", "i8"]), st.integers(0, 3), st.booleans(), st.booleans()),
)


@given(st.lists(st.tuples(st.integers(1, 3), wire_columns), min_size=1, max_size=4))
def test_columns_that_are_joined_are_read_as_each_alone(made):
    """Columns of several batches, as bytes, as lists, with infinities, of another kind or length:
    each batch's part of what is joined is what `to_array` makes of its column alone, and blank
    where it has none that can be kept.
    """
    batches = [
        DecodedBatch(
            version=1,
            node="n",
            epoch="00000000-0000-4000-8000-000000000000",
            seq=1,
            heartbeat=Heartbeat("", "", "ok"),
            accelerators=RecordList([WireAccelerator("G", "G", 0, "m")]),
            workloads=RecordList([]),
            usage_intervals=[],
            rejected=[],
            sha256=b"",
            size=0,
            samples=WireSamples(
                [0] * rows, [NOW_MS] * rows, {n: column_of(*one) for n, one in columns.items()}
            ),
        )
        for rows, columns in made
    ]
    accepted = [accept(batch, NOW_MS) for batch in batches]
    joined = join_samples([ResolvedBatch(batch, 7, {0: 5}, {}, {0: 9}, {}) for batch in accepted])
    assert joined is not None
    begin = 0
    for batch in batches:
        rows = len(batch.samples.at_ms)
        for name, values in joined.columns.items():
            alone = blank(rows, METRIC_KINDS[name])
            with contextlib.suppress(ValueError, KeyError):
                alone = to_array(batch.samples.columns[name], rows, METRIC_KINDS[name])
            assert values.dtype == alone.dtype
            np.testing.assert_array_equal(values[begin : begin + rows], alone)
        begin += rows
    assert joined.accelerator.tolist() == [5] * begin


def column_of(kind, length, infinite, as_list):
    """A column of the wire with 1, 2, ..., or an infinity at first."""
    values = np.arange(1, length + 1, dtype="<" + kind)
    if infinite and length and kind != "i8":
        values[0] = np.inf
    return Column(kind, values.tolist() if as_list else values.tobytes())


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (Column("f4", [1.5, None]), "f4", [1.5, None]),
        (Column("f8", [1.5, None]), "f4", [1.5, None]),
        (Column("i8", [2, None]), "f4", [2.0, None]),
        (Column("f8", [2.0, None]), "i8", [2, None]),
        (Column("f8", [1e300, 1.0]), "f4", [None, 1.0]),
        (Column("f8", [1e300, 1.0]), "i8", [None, 1]),
        (Column("f4", np.array([1, np.inf], dtype="<f4").tobytes()), "f4", [1.0, None]),
        (Column("i8", np.array([5, ABSENT_INT64], dtype="<i8").tobytes()), "i8", [5, None]),
    ],
)
def test_columns_become_the_kind_that_is_stored(column, kind, expected):
    """Kinds are converted without inventing a number: what does not fit is absent."""
    values = to_array(column, 2, kind).tolist()
    assert [
        None if value in (ABSENT_INT64,) or value != value else value for value in values
    ] == expected


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (Column("f4", [1.0]), "1 values for 2 rows"),
        (Column("f4", b"123"), "no whole number"),
        (Column("i8", [1, 2.5]), "fraction"),
        (Column("i8", [1, 2**70]), "cannot hold"),
        (Column("f8", [1, 10**400]), "cannot hold"),
    ],
)
def test_bad_columns_say_why(column, reason):
    """A column that cannot be read is a sentence."""
    with pytest.raises(ValueError, match=reason):
        to_array(column, 2, column.kind)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 30), st.sampled_from([1.0, 2.0, None])),
        min_size=1,
    )
)
def test_slow_metrics_can_be_read_back_at_any_instant(readings):
    """The changes alone give each accelerator's value at each instant that was read, in order of
    time.
    """
    once = {(accelerator, at): value for accelerator, at, value in readings}
    row = np.array([accelerator - 1 for accelerator, _ in once])
    at_ms = np.array([at for _, at in once], dtype="<i8")
    values = np.array([[np.nan if value is None else value] for value in once.values()])
    before = KnownValues(np.full((3, 1), -1), np.full((3, 1), np.nan))
    changed = before.select_changed(row, at_ms, values)
    known = {
        key: value
        for (key, value), is_changed in zip(once.items(), changed[:, 0], strict=True)
        if is_changed
    }
    for (accelerator, at), value in once.items():
        if value is not None:
            latest = max(when for who, when in known if who == accelerator and when <= at)
            assert known[accelerator, latest] == value
    for accelerator in {key[0] for key in known}:
        series = [known[key] for key in sorted(known) if key[0] == accelerator]
        assert all(before != after for before, after in itertools.pairwise(series))
