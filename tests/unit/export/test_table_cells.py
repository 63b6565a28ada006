"""Tables for people: as many digits as decide something, and nothing that reads as zero and is not."""

from decimal import Decimal
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.cli.options import Format
from gpuledger_collector.cli.output import report_text, table_text
from gpuledger_collector.export.report import Column, Kind, Report, key_column, series_column
from gpuledger_collector.export.table_cells import BLOCKS, ROUNDED, WIDEST, sparkline, table_cells

HOURS = st.decimals(Decimal("-1e9"), Decimal("1e9"), places=6)


def cells(kind, *values):
    return table_cells(Column("value", itemgetter(0), kind), [(value,) for value in values])


def usd(text):
    return Money(int(Decimal(text) * 1_000_000), "USD")


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        (Kind.MONEY, [usd("1234567.891"), usd("0.5")], ["1,234,567.89", "0.50"]),
        (Kind.MONEY, [usd("1234567.891"), usd("1000.01")], ["1,234,568", "1,000"]),
        (Kind.MONEY, [usd("1234567.891"), usd("0")], ["1,234,568", "0"]),
        (Kind.MONEY, [usd("-2000.5"), usd("-1500")], ["-2,000", "-1,500"]),
        (Kind.MONEY, [Money(1_500_000_000, "JPY"), None], ["1,500", ""]),
        (Kind.HOURS, ["60.000000", "12.000000"], ["60.0", "12.0"]),
        (Kind.HOURS, ["121.714260", "0.000001", "0.000000"], ["121.7", "<0.1", "0.0"]),
        (Kind.HOURS, [Decimal("12345.6"), Decimal("2000.2"), None], ["12,345.6", "2,000.2", ""]),
        (Kind.HOURS, ["not yet", "1.25"], ["not yet", "1.2"]),
        (Kind.GPUS, [32.0, "1024.0", None], ["32", "1,024", ""]),
        (Kind.GPUS, [Decimal("1.5"), 32.0, 0.01], ["1.5", "32.0", "<0.1"]),
        (Kind.PERCENT, ["83.3", "45.8%", "0.2", "99.9%"], ["83", "46 %", "<1", ">99 %"]),
        (Kind.SIZE, ["0.007500", "1254.25"], ["0.008", "1,254.250"]),
        (Kind.SIZE, ["3.501", "12.25"], ["3.50", "12.25"]),
        (Kind.ESTIMATE, [12.0, 1234.0], ["12", "1,234"]),
        (Kind.COUNT, [1234567, 0], ["1,234,567", "0"]),
        (Kind.NUMBER, [20261127], ["20261127"]),
        (Kind.DECIMAL, ["2.123456789"], ["2.123456789"]),
    ],
)
def test_cells(kind, values, shown) -> None:
    """Hours have one place, and GPUs where one is divided; the smallest amount of a column decides
    its places; unknown is empty, a rate is exact.
    """
    assert cells(kind, *values) == shown


@given(st.lists(HOURS, min_size=1, max_size=8))
def test_a_cell_is_its_number_rounded_once(values) -> None:
    """Within half of the last place; what is not zero does not read as zero; all have the same
    places.
    """
    texts = cells(Kind.HOURS, *values)
    places = {len(text.partition(".")[2]) for text in texts}
    assert places == {1}
    half = Decimal("0.05")
    for text, value in zip(texts, values, strict=True):
        if text[0] in "<>":
            assert value
            assert abs(value) <= half
        else:
            shown = Decimal(text.replace(",", ""))
            assert abs(shown - value) <= half
            assert bool(shown) == bool(value)


def test_files_stay_exact() -> None:
    """CSV and JSON have every digit, and no line of blocks."""
    report = Report(
        "things",
        (
            key_column("hours", Kind.HOURS),
            key_column("cost", Kind.MONEY),
            series_column("days", itemgetter("days")),
        ),
    )
    rows = [{"hours": "2121.714260", "cost": usd("1234567.89"), "days": [1, None, 2]}]
    assert report_text(Format.csv, report, rows, None) == "hours,cost\n2121.714260,1234567.89\n"
    assert report.texts(rows[0]) == {"hours": "2121.714260", "cost": "1234567.89"}
    assert report.exact(rows[0]) == {"hours": "2121.714260", "cost_micro": 1_234_567_890_000}
    assert report_text(Format.table, report, rows, None).splitlines()[1].split() == [
        "2,121.7",
        "1,234,568",
        "▅",
        "█",
    ]


def test_rounded_rows_say_so() -> None:
    """Below a table with totals whose rows lost digits; not where they are whole."""
    columns = (key_column("hours", Kind.HOURS),)
    thirds = [{"hours": "0.333333"}] * 3
    assert table_text(columns, thirds, None, [{"hours": "0.999999"}]).endswith(f"\n{ROUNDED}\n")
    whole = [{"hours": "2.000000"}] * 3
    assert ROUNDED not in table_text(columns, whole, None, [{"hours": "6.000000"}])
    assert ROUNDED not in table_text(columns, thirds, None)


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e9)), max_size=200))
def test_a_sparkline_keeps_what_is_not_known(values) -> None:
    """As long as its values, or the widest; only what is known has a block, zero the lowest one."""
    line = sparkline(values)
    assert len(line) == min(len(values), WIDEST)
    assert set(line) <= {*BLOCKS, " "}
    if len(values) <= WIDEST:
        assert [block == " " for block in line] == [value is None for value in values]
        highest = max((value for value in values if value is not None), default=0)
        assert highest <= 0 or line[values.index(highest)] == BLOCKS[-1]


def test_a_sparkline_goes_first() -> None:
    """In a terminal that is too narrow; then texts are folded, and in one that is wide it is in one
    piece.
    """
    columns = (key_column("name"), series_column("days", lambda _: range(30), "by day"))
    row = [{"name": "a rather long name"}]
    assert "▁" not in table_text(columns, row, 40)
    assert "a rather long name" in table_text(columns, row, 40)
    assert sparkline(range(30)) in table_text(columns, row, 80)
    assert sparkline([0, 0, None]) == "▁▁ "


def test_words_and_instants_stay_in_one_piece() -> None:
    """A column that may be left out is, before a word is broken; an instant is never broken."""
    columns = (
        key_column("name"),
        key_column("at", Kind.INSTANT),
        key_column("more", is_optional=True),
    )
    row = {"name": "(commitment_unused)", "at": 1_700_000_000_000, "more": "another text"}
    wide = table_text(columns, [row], 60).splitlines()[1]
    assert wide == "(commitment_unused)  2023-11-14T22:13Z  another text"
    narrow = table_text(columns, [row], 40).splitlines()[1]
    assert narrow == "(commitment_unused)  2023-11-14T22:13Z"
    assert "2023-11-14T22:13Z" in table_text(columns, [row], 28)


def test_a_table_that_is_a_little_too_wide_breaks_as_little_as_it_must():
    """Four words of twenty letters and three gaps are 86 wide: one less breaks one word."""
    columns = [Column(name, itemgetter(at)) for at, name in enumerate("abcd")]
    word = "abcdefghijklmnopqrst"
    whole = table_text(columns, [(word,) * 4], 86)
    assert whole.count(word) == 4
    broken = table_text(columns, [(word,) * 4], 85)
    assert broken.count(word) == 3
    assert max(map(len, broken.splitlines())) <= 85
    assert max(map(len, table_text(columns, [(word,) * 4], 20).splitlines())) > 20
