"""Parquet: the figures of the CSV as exact decimals, nulls where nothing is known, a sentence
without pyarrow.
"""

import csv
import io
import sys
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.export import focus, focus_split

pq = pytest.importorskip("pyarrow.parquet")
MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")


@pytest.fixture
def october(fleet, run):
    run(
        "prices",
        "set",
        "--rate",
        "2.333333333",
        "--list-rate",
        "3",
        "--currency",
        "USD",
        "--from",
        "2025-01-01",
    )
    fleet.capacity(1, 0, 2 * DAY)
    fleet.evidence(
        [Held(1, 1, 0, HOUR, busy=HOUR // 3, idle=HOUR // 7), Held(1, 2, 5 * HOUR, 7 * HOUR + 11)]
    )
    return run


def same(path, text):
    """Every cell of the table is that of the CSV, numbers as numbers; no column is a float."""
    table = pq.read_table(path)
    assert not [field for field in table.schema if str(field.type) in {"float", "double"}]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert table.column_names == list(rows[0])
    for mine, theirs in zip(table.to_pylist(), rows, strict=True):
        for name, cell in theirs.items():
            value = mine[name]
            if isinstance(value, Decimal):
                assert value == Decimal(cell), name
            elif value is None:
                assert cell == "", name
            elif isinstance(value, str):
                assert value == cell
            else:
                assert value.strftime("%Y-%m-%dT%H:%M:%SZ") == cell
    return table


def test_a_chargeback_is_the_csv(october, tmp_path):
    """Hours and money are decimals of six places."""
    path = tmp_path / "chargeback.parquet"
    assert (
        october("chargeback", *MONTH, "--by", "team,pool", "--format", "parquet", "-o", path)[0]
        == 0
    )
    table = same(path, october("chargeback", *MONTH, "--by", "team,pool", "--format", "csv")[1])
    assert str(table.schema.field("cost").type) == "decimal128(38, 6)"


@pytest.mark.parametrize(
    ("version", "columns"), [("1.2", focus.COLUMNS), ("1.4", focus_split.COLUMNS)]
)
def test_focus_is_the_csv(october, tmp_path, version, columns):
    """Costs keep their eighteen places."""
    path, asked = (
        tmp_path / "bill.parquet",
        (*MONTH, "--format", "focus", "--focus-version", version),
    )
    assert october("chargeback", *asked, "-o", path)[0] == 0
    table = same(path, october("chargeback", *asked)[1])
    assert tuple(table.column_names) == columns
    assert str(table.schema.field("BilledCost").type) == "decimal128(38, 18)"


def test_samples_keep_the_kind_in_which_they_are_stored(october, fleet, run, tmp_path):
    """Absent readings are null, never 0."""
    (tmp_path / "samples.csv").write_text(
        "ts,uuid,gpu_utilization_ratio,gpu_power_watts\n2025-10-01T00:00:00Z,GPU-0001,0.5,\n2025-10-01T00:00:10Z,GPU-0001,,300\n"
    )
    assert run("import", "samples", tmp_path / "samples.csv")[0] == 0
    path = tmp_path / "out.parquet"
    where = ("--gpu", "GPU-0001", "--from", "2025-10-01", "--to", "2025-10-02")
    code, _, told = run("export", "samples", *where, "--format", "parquet", "-o", path)
    assert code == 0, told
    rows = pq.read_table(path).to_pylist()
    assert [(row["gpu_utilization_ratio"], row["gpu_power_watts"]) for row in rows] == [
        (0.5, None),
        (None, 300.0),
    ]
    assert [row["ts"].isoformat() for row in rows] == [
        "2025-10-01T00:00:00+00:00",
        "2025-10-01T00:00:10+00:00",
    ]


def test_without_pyarrow_it_says_what_to_install(october, tmp_path, monkeypatch):
    """Exit code 3 and one sentence; a missing -o is bad input."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for asked in (
        ("chargeback", *MONTH, "--format", "parquet"),
        ("export", "samples", "--gpu", "GPU-0001", *MONTH, "--format", "parquet"),
    ):
        code, _, told = october(*asked, "-o", tmp_path / "out.parquet")
        assert (code, told.strip()) == (
            3,
            (
                "Parquet needs pyarrow, which is not installed: pip install 'pyarrow>=18', or with"
                " pipx: pipx inject gpuledger 'pyarrow>=18'"
            ),
        )
        assert october(*asked)[0] == 2
    assert not (tmp_path / "out.parquet").exists()
