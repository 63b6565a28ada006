"""A report's columns: one declaration, a form for each kind and surface."""

from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.cli.options import Format
from gpuledger_collector.cli.output import report_text
from gpuledger_collector.export.findings import ANOMALIES, IDLE
from gpuledger_collector.export.report import Column, Kind, Report, heading_of, key_column
from gpuledger_collector.mcp.answers import row_model, row_of


@dataclass(frozen=True)
class Item:
    """A row of a list."""

    name: str | None
    count: int | None = None
    hours: Decimal | None = None
    cost: Money | None = None
    at_ms: int | None = None
    tags: tuple[str, ...] | None = None


REPORT = Report[Item](
    "things",
    (
        Column("name", lambda item: item.name),
        Column("count", lambda item: item.count, Kind.COUNT),
        Column("hours", lambda item: item.hours, Kind.DECIMAL),
        Column("cost", lambda item: item.cost, Kind.MONEY, about="So far."),
        Column("at", lambda item: item.at_ms, Kind.INSTANT),
        Column("tags", lambda item: item.tags, Kind.LIST, in_table=False),
        Column(
            "all",
            lambda item: {"name": item.name},
            Kind.FACTS,
            in_table=False,
            in_csv=False,
            in_answers=False,
        ),
    ),
)
FULL = Item("=1+1", 3, Decimal("1.5"), Money(-1_234_500_000, "USD"), 1_700_000_000_123, ("a", "b"))
EMPTY = Item(None)


def test_each_kind_has_a_form_for_files_and_one_for_programs():
    """Names that begin a formula are made harmless, negative amounts stay numbers; unknown is
    empty, or null.
    """
    heading, full, empty = REPORT.csv_rows([FULL, EMPTY])
    assert heading == ["name", "count", "hours", "cost", "at", "tags"]
    assert full == ["'=1+1", "3", "1.5", "-1234.50", "2023-11-14T22:13:20Z", "a; b"]
    assert empty == [""] * 6
    assert REPORT.exact(FULL) == {
        "name": "=1+1",
        "count": 3,
        "hours": "1.5",
        "cost_micro": -1_234_500_000,
        "at": "2023-11-14T22:13:20.123Z",
        "tags": ("a", "b"),
        "all": {"name": "=1+1"},
    }
    assert [value for name, value in REPORT.exact(EMPTY).items() if name != "all"] == [None] * 6


def test_commands_and_pages_write_the_same_file():
    """CSV of a command is that of the page, byte for byte; a table has instants to the minute."""
    items = [FULL, EMPTY]
    of_page = "".join(",".join(row) + "\n" for row in REPORT.csv_rows(items))
    assert report_text(Format.csv, REPORT, items, None) == of_page
    assert "2023-11-14T22:13Z" in report_text(Format.table, REPORT, items, None)


def test_assistants_get_a_field_for_each_column():
    """Amounts with their currency, what is about a field as its description, nothing that is not
    meant for them.
    """
    model = row_model(REPORT, "A thing.")
    row = row_of(model, REPORT, FULL)
    assert row.model_dump(mode="json") == {
        "name": "=1+1",
        "count": 3,
        "hours": "1.5",
        "cost": {"amount": "-1234.50", "currency": "USD"},
        "at": "2023-11-14T22:13:20.123Z",
        "tags": ["a", "b"],
    }
    assert model.model_fields["cost"].description == "So far."
    assert row_of(model, REPORT, EMPTY).model_dump()["cost"] is None


def test_a_page_shows_what_it_has_no_place_for():
    """A new column is seen on a page that was not changed for it."""
    assert REPORT.others(["name", "count", "hours", "cost", "tags"], FULL) == [
        ("at", "2023-11-14T22:13:20Z")
    ]
    assert REPORT.others(["name", "count", "hours", "cost", "tags"], EMPTY) == []


def test_names_are_used_once():
    """A report names no column twice, exact or not."""
    for report in (IDLE, ANOMALIES, REPORT):
        assert len({column.name for column in report.columns}) == len(report.columns)
        assert len({column.exact_name for column in report.columns}) == len(report.columns)


def test_headings_spell_units_as_people_do() -> None:
    """The words of a name, with GPU-hours, MIG and kWh as they are written everywhere."""
    names = ("rate_per_gpu_hour", "gpu_hours_held_idle", "gpus", "mig_instance", "energy_kwh")
    assert [heading_of(name) for name in names] == [
        *("rate per GPU-hour", "GPU-hours held idle", "GPUs", "MIG instance", "energy kWh"),
    ]
    assert key_column("gpu_model").title == "GPU model"
    assert key_column("gpu_model", heading="gpu_model").title == "gpu_model"
