"""Archive blobs: what comes out is what went in, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.insight.readings import Column, Readings
from gpuledger_collector.storage.telemetry import sample_codec
from gpuledger_collector.storage.telemetry.sample_codec import DamagedBlob, pack, same, unpack

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
        bits = draw(
            st.lists(few | st.integers(0, 2 ** WIDTHS[kind] - 1), min_size=rows, max_size=rows)
        )
        present = draw(
            st.lists(st.booleans(), min_size=rows, max_size=rows) | st.just([True] * rows)
        )
        values = np.array(bits, dtype=f"<u{WIDTHS[kind] // 8}").view(kind)
        if kind != "<i8" and draw(st.booleans()):
            # Numbers as drivers tell them: whole, or with few decimals.
            places = draw(st.integers(0, 6))
            told = draw(st.lists(st.integers(-(10**9), 10**9), min_size=rows, max_size=rows))
            values = (np.array(told, dtype="<f8") / 10.0**places).astype(kind)
        columns[name] = Column(values, np.array(present, dtype=bool))
    return Readings(np.array(at_ms, dtype="<i8"), columns)


@st.composite
def noise(draw):
    """Columns as cards give them: noise in a narrow range, with usage intervals that stand still,
    outliers and absences.
    """
    rows = draw(st.integers(1, 300))
    dice = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns = {}
    for name in "abc":
        kind = draw(st.sampled_from(sorted(WIDTHS)))
        span = 2 ** draw(st.integers(0, 63))
        bits = draw(st.integers(0, 2**64 - 1)) + dice.integers(
            0, span, rows, dtype="<u8", endpoint=True
        )
        values = bits.astype(f"<u{WIDTHS[kind] // 8}").view(kind)
        if kind != "<i8" and draw(st.booleans()):
            places = draw(st.integers(0, 6))
            values = (
                draw(st.integers(-(10**6), 10**6)) + dice.integers(0, span % 10**6 + 1, rows)
            ) / 10.0**places
            values = values.astype(kind)
        still = dice.random(rows) < draw(st.sampled_from([0, 0.5, 1]))
        values = values[np.maximum.accumulate(np.where(still, 0, np.arange(rows)))]
        columns[name] = Column(values, dice.random(rows) < draw(st.sampled_from([0.9, 1])))
    return Readings(np.arange(rows, dtype="<i8") * 10_000, columns)


@given(readings() | noise())
def test_what_comes_out_is_what_went_in(made):
    """Values, NaN payloads, absences and instants survive, and packing again gives the same bytes."""
    blob = pack(made)
    found = unpack(blob)
    assert same(found, made)
    for name, column in made.columns.items():
        if column.present.any():
            assert (
                found.columns[name].values[column.present].tobytes()
                == column.values[column.present].tobytes()
            )
            assert found.columns[name].present.tolist() == column.present.tolist()
    assert found.at_ms.tolist() == made.at_ms.tolist()
    assert pack(found) == blob


@given(noise())
def test_every_transform_restores_the_values(made):
    """Also those that are not the smallest and so would not be written, at every shift."""
    for column in made.columns.values():
        values = np.ascontiguousarray(column.values[column.present])
        if not len(values):
            continue
        for transform, blocks in sample_codec._encodings(values, None):
            decoded = sample_codec._decode(
                b"".join(blocks), transform, values.dtype, len(values), None
            )
            assert decoded.tobytes() == values.tobytes(), transform


def test_a_counter_takes_hardly_more_than_the_bits_of_its_steps():
    """Energy that grows by one of 4,096 whole numbers of joules in 10 s: 12 bits a step."""
    steps = np.random.default_rng(1).integers(5000, 5000 + 4096, 8640)
    energy = Column((4e9 + np.cumsum(steps)).astype("<f8"), np.ones(8640, dtype=bool))
    assert len(pack(Readings(np.arange(8640), {"energy": energy}))) < 1.03 * 8640 * 12 / 8


def test_a_difference_of_one_bit_or_one_absence_is_seen():
    """`same` is what the packing relies on before it drops anything."""
    whole = np.ones(3, dtype=bool)
    one = Readings(np.arange(3), {"a": Column(np.array([0.0, 1, 2], dtype="<f4"), whole)})
    other = Readings(np.arange(3), {"a": Column(np.array([-0.0, 1, 2], dtype="<f4"), whole)})
    fewer = Readings(
        np.arange(3), {"a": Column(one.columns["a"].values, np.array([True, True, False]))}
    )
    assert same(one, one)
    assert not same(one, other)
    assert not same(one, fewer)
    assert not same(one, Readings(np.arange(3), {}))
    assert not same(one, Readings(np.arange(1, 4), one.columns))


@pytest.mark.parametrize("cut", [0, 5, 9, 20, -1])
def test_a_blob_that_was_cut_is_refused(cut):
    """A sentence, not a guess."""
    blob = pack(
        Readings(np.arange(100), {"a": Column(np.arange(100, dtype="<f8"), np.arange(100) % 3 > 0)})
    )
    with pytest.raises(DamagedBlob):
        unpack(blob[:cut])
    with pytest.raises(DamagedBlob, match="too many"):
        unpack(blob + b"x")
    with pytest.raises(DamagedBlob, match="version 9, and this program reads version 1"):
        unpack(b"\x09" + blob[1:])


def test_numbers_as_drivers_tell_them_take_few_bytes():
    """Decimals, and two columns with a constant sum, as free and used memory: the second costs next
    to nothing.
    """
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


def test_noise_takes_hardly_more_than_its_bits():
    """Six decimals in a range of 0.1 are 16.6 bits; idle minutes in between cost next to nothing."""
    dice = np.random.default_rng(1)
    ratio = np.round(0.86 + 0.1 * dice.random(8640), 6).astype("<f4")
    whole = np.ones(8640, dtype=bool)
    bound = np.log2(10**5) / 8 * 8640
    assert len(pack(Readings(np.arange(8640), {"ratio": Column(ratio, whole)}))) < 1.03 * bound
    ratio[np.arange(8640) % 360 < 180] = 0.03
    assert len(pack(Readings(np.arange(8640), {"ratio": Column(ratio, whole)}))) < 1.06 * bound / 2


def golden_readings():
    """What the kept blob was packed from: a column for each transform."""
    place = np.arange(400, dtype="<u8")
    dice = place * np.uint64(0x9E3779B97F4A7C15)
    dice = (dice ^ dice >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    dice = (dice ^ dice >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    whole = np.ones(400, dtype=bool)
    free = (dice >> np.uint64(48)).astype("<f8") * 2**20
    gray = (place + 5000) * np.uint64(0x9E3779B9) % np.uint64(2**16)
    gray ^= gray >> np.uint64(1)
    steps = np.bitwise_xor.accumulate(
        np.uint64(1) << place * np.uint64(7) % np.uint64(61) * (dice % np.uint64(2))
    )
    few = np.array([0.0, -0.0, np.nan, 8], dtype="<f4")
    columns = {
        "a_any_bits": Column(dice.astype("<u4").view("<f4"), place % 5 > 0),
        "b_free": Column(free, whole),
        "c_used": Column(85_899_345_920.0 - free, whole),
        "d_few": Column(few[dice % np.uint64(4)], whole),
        "e_flips": Column(steps.view("<f8"), whole),
        "f_counter": Column((place * 1_000_003 + dice % np.uint64(9)).astype("<i8"), place > 9),
        "g_ratio": Column((dice % np.uint64(1001)).astype("<f8") / 1000, whole),
        "h_energy": Column((place * 70 + dice % np.uint64(8)).astype("<f8") / 10, whole),
        "i_noise": Column(
            (0.9 + (dice >> np.uint64(40)).astype("<f8") / 2**28).astype("<f4"), place % 7 > 0
        ),
        "j_ticks": Column(np.cumsum(dice >> np.uint64(50)).astype("<i8"), whole),
        "k_energy": Column(np.cumsum(dice >> np.uint64(53)).astype("<f8") / 1000, whole),
    }
    return Readings((1_760_000_000_000 + place * 10_000 + place % 7).astype("<i8"), columns)


def test_a_kept_blob_is_read():
    """An archive outlives the program that wrote it."""
    blob = (Path(__file__).parent / "golden" / "archive_version_1.blob").read_bytes()
    assert blob[0] == 1
    assert same(unpack(blob), golden_readings())
