"""Archive blobs: what comes out is what went in, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.storage.packing import Column, DamagedBlob, Readings, pack, same, unpack

WIDTHS = {"<f4": 32, "<f8": 64, "<i8": 64}


@st.composite
def readings(draw):
    """Any instants, any bit patterns (NaN payloads and signed zeros among them), any absences."""
    rows = draw(st.integers(0, 40))
    at_ms = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows))
    columns = {}
    for name in draw(st.lists(st.sampled_from(["a", "gpu_power_watts", "z" * 200]), unique=True)):
        kind = draw(st.sampled_from(sorted(WIDTHS)))
        few = st.sampled_from([0, 1, 2 ** (WIDTHS[kind] - 1), 2 ** WIDTHS[kind] - 1])
        bits = draw(st.lists(few | st.integers(0, 2 ** WIDTHS[kind] - 1), min_size=rows, max_size=rows))
        present = draw(st.lists(st.booleans(), min_size=rows, max_size=rows) | st.just([True] * rows))
        values = np.array(bits, dtype=f"<u{WIDTHS[kind] // 8}").view(kind)
        if kind != "<i8" and draw(st.booleans()):
            # Numbers as drivers tell them: whole, or with few decimals.
            places = draw(st.integers(0, 6))
            told = draw(st.lists(st.integers(-(10**9), 10**9), min_size=rows, max_size=rows))
            values = (np.array(told, dtype="<f8") / 10.0**places).astype(kind)
        columns[name] = Column(values, np.array(present, dtype=bool))
    return Readings(np.array(at_ms, dtype="<i8"), columns)


@given(readings())
def test_what_comes_out_is_what_went_in(made):
    """Values, NaN payloads, absences and instants survive, and packing again gives the same bytes."""
    blob = pack(made)
    found = unpack(blob)
    assert same(found, made)
    for name, column in made.columns.items():
        if column.present.any():
            assert found.columns[name].values[column.present].tobytes() == column.values[column.present].tobytes()
            assert found.columns[name].present.tolist() == column.present.tolist()
    assert found.at_ms.tolist() == made.at_ms.tolist()
    assert pack(found) == blob


def test_a_difference_of_one_bit_or_one_absence_is_seen():
    """`same` is what the packing relies on before it drops anything."""
    whole = np.ones(3, dtype=bool)
    one = Readings(np.arange(3), {"a": Column(np.array([0.0, 1, 2], dtype="<f4"), whole)})
    other = Readings(np.arange(3), {"a": Column(np.array([-0.0, 1, 2], dtype="<f4"), whole)})
    fewer = Readings(np.arange(3), {"a": Column(one.columns["a"].values, np.array([True, True, False]))})
    assert same(one, one)
    assert not same(one, other)
    assert not same(one, fewer)
    assert not same(one, Readings(np.arange(3), {}))
    assert not same(one, Readings(np.arange(1, 4), one.columns))


@pytest.mark.parametrize("cut", [0, 5, 9, 20, -1])
def test_a_blob_that_was_cut_is_refused(cut):
    """A sentence, not a guess."""
    blob = pack(Readings(np.arange(100), {"a": Column(np.arange(100, dtype="<f8"), np.arange(100) % 3 > 0)}))
    with pytest.raises(DamagedBlob):
        unpack(blob[:cut])
    with pytest.raises(DamagedBlob, match="too many"):
        unpack(blob + b"x")
    with pytest.raises(DamagedBlob, match="version 9"):
        unpack(b"\x09" + blob[1:])


def test_numbers_as_drivers_tell_them_take_few_bytes():
    """Decimals, and two columns with a constant sum, as free and used memory: the second costs next to nothing."""
    dice = np.random.default_rng(1)
    used = dice.integers(0, 80_000, 5000).astype("<f8") * 2**20
    free = 85_899_345_920.0 - used
    ratio = (dice.integers(0, 101, 5000) / 100).astype("<f4")
    whole = np.ones(5000, dtype=bool)
    alone = len(pack(Readings(np.arange(5000), {"used": Column(used, whole)})))
    made = Readings(np.arange(5000), {"free": Column(free, whole), "used": Column(used, whole)})
    assert same(unpack(pack(made)), made)
    assert len(pack(made)) < alone + 200
    assert len(pack(Readings(np.arange(5000), {"ratio": Column(ratio, whole)}))) < 5000
