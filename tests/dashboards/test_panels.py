"""Every panel of every board, on a real Postgres, as the role that may only read."""

import csv
import datetime as dt
import io
import json
from decimal import Decimal

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.boards import (
    BOARDS,
    SINCE,
    SPAN,
    UNTIL,
    asked,
    chosen,
    options,
    reads_postgres,
    variables,
)
from fakes.grafana import Range, expanded, interpolated
from gpuledger_collector.cli import build

pytestmark = pytest.mark.slow

BY_POSTGRES = sorted(name for name, board in BOARDS.items() if reads_postgres(board))
RAW = ("gpu_sample", "usage_interval")
NUMERIC = {"int2", "int4", "int8", "float4", "float8", "numeric"}


def answers(reader, name, choice, span=SPAN):
    values = chosen(BOARDS[name], options(reader, BOARDS[name], span), choice)
    for one in asked(name, values, span):
        try:
            cursor = reader.execute(one.sql.encode())
            yield (
                one,
                [column.name for column in cursor.description],
                kinds(reader, cursor),
                cursor.fetchall(),
            )
        except psycopg.Error as error:
            raise AssertionError(f"{one} ({choice}): {error}\n{one.sql}") from error


def kinds(reader, cursor):
    return [reader.adapters.types.get(column.type_code).name for column in cursor.description]


@pytest.mark.parametrize("choice", ["all", "first", "two", "quote"])
@pytest.mark.parametrize("name", BY_POSTGRES)
def test_panels_answer(reader, name, choice):
    """No error under any choice; the columns that the panel's form asks for; with all chosen, rows."""
    for one, names, types, rows in answers(reader, name, choice):
        if one.form == "time_series":
            check_series(one, names, types, rows)
        if choice == "all" and not one.empty:
            assert rows, f"{one} has no rows\n{one.sql}"
            assert any(value is not None for row in rows for value in row), (
                f"{one} knows nothing\n{one.sql}"
            )


def check_series(one, names, types, rows):
    """Grafana's long form: time first and ascending, then the series' name as text, then numbers.

    Lanes of states are numbers too: of text beside a name, Grafana makes one lane of names and one
    of text.
    """
    assert names[0] == "time", one
    assert types[0] in ("timestamptz", "float8", "int8", "numeric"), one
    assert [row[0] for row in rows] == sorted(row[0] for row in rows), one
    rest = dict(zip(names[1:], types[1:], strict=True))
    if "metric" in rest:
        assert rest.pop("metric") == "text", one
        assert all(row[names.index("metric")] is not None for row in rows), one
    assert rest, one
    assert set(rest.values()) <= NUMERIC, (str(one), rest)


@pytest.mark.parametrize("choice", ["all", "first"])
@pytest.mark.parametrize("name", BY_POSTGRES)
def test_annotations_answer(reader, name, choice):
    """Marks are times with a text; the Xid of the sick GPU is on the boards that show GPUs, on that
    of one node if it is chosen: which one is offered first depends on the hour.
    """
    board = BOARDS[name]
    offered = options(reader, board, SPAN)
    values = chosen(board, offered, choice)
    choices = [values | {"node": node} for node in offered["node"]] if name == "node" else [values]
    for mark in board["annotations"]["list"]:
        found = []
        for each in choices:
            text = interpolated(mark["target"]["rawSql"], variables(board), each)
            cursor = reader.execute(expanded(text, SPAN, 60).encode())
            assert [column.name for column in cursor.description] == ["time", "text", "tags"]
            found += cursor.fetchall()
        if mark["name"].startswith("Xid") and name in ("fleet", "node") and choice == "all":
            assert any("Xid error, 79" in row[1] for row in found)


@pytest.mark.parametrize("name", BY_POSTGRES)
def test_panels_answer_without_a_gpu(nothing, name):
    """A fresh installation shows empty panels, not errors."""
    for _ in answers(nothing, name, "all"):
        pass


@pytest.mark.parametrize("name", BY_POSTGRES)
def test_ranges_of_every_length(reader, name):
    """An hour, a year, and a range before everything."""
    for since, until in (
        (UNTIL - dt.timedelta(hours=1), UNTIL),
        (UNTIL - dt.timedelta(days=365), UNTIL),
        (UNTIL - dt.timedelta(days=900), UNTIL - dt.timedelta(days=899)),
    ):
        for _ in answers(reader, name, "all", Range(since, until)):
            pass


@pytest.mark.parametrize("name", BY_POSTGRES)
def test_no_panel_touches_raw_evidence(reader, seeded, name):
    """By plan, not by text: neither samples nor usage intervals are read, nor may the role read
    them.
    """
    values = chosen(BOARDS[name], options(reader, BOARDS[name], SPAN), "all")
    for one in asked(name, values, SPAN):
        (plan,) = reader.execute(f"EXPLAIN (FORMAT JSON) {one.sql}".encode()).fetchone()
        touched = relations(plan)
        assert not [relation for relation in touched if relation.startswith(RAW)], (
            str(one),
            touched,
        )


def relations(node):
    """Every relation of a plan."""
    if isinstance(node, list):
        return {name for one in node for name in relations(one)}
    if not isinstance(node, dict):
        return set()
    own = {node["Relation Name"]} if "Relation Name" in node else set()
    return own | {name for value in node.values() for name in relations(value)}


@pytest.mark.parametrize("table", RAW)
def test_the_role_may_not_read_raw_evidence(reader, table):
    """What no board needs, the role cannot see."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(f"SELECT * FROM {table}")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM charge", "CREATE TABLE mine (x int)", "UPDATE node SET name = ''"]
)
def test_the_role_may_not_write(reader, statement):
    """Reading only, twice over: by grant and by its transactions."""
    with pytest.raises(
        (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
    ):
        reader.execute(statement)
    reader.execute("SET default_transaction_read_only = off")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(statement)
    reader.execute("SET default_transaction_read_only = on")


def panel(reader, name, title, span):
    for one, names, _, rows in answers(reader, name, "all", span):
        if one.title == title:
            return [dict(zip(names, row, strict=True)) for row in rows]
    raise AssertionError(title)


def ledger(seeded, *arguments):
    result = CliRunner().invoke(
        build(),
        [
            "chargeback",
            "--from",
            str(SINCE.date()),
            "--to",
            str((UNTIL + dt.timedelta(days=1)).date()),
            *arguments,
            "--dsn",
            seeded,
        ],
    )
    return result.stdout


@pytest.mark.parametrize(
    ("title", "by"),
    [("By team ($currency)", "team"), ("By team and project ($currency)", "team,project")],
)
def test_the_bill_is_the_csv(reader, seeded, title, by):
    """Cell by cell, in the same order, to the cent and to the sixth place of the hours; what stands
    beside is not.
    """
    columns = (
        *by.split(","),
        "gpu_hours",
        "gpu_hours_held_idle",
        "cost",
        "cost_held_idle",
        "currency",
        "correction_of",
    )
    made = csv.DictReader(io.StringIO(ledger(seeded, "--by", by, "--format", "csv")))
    wanted = [{name: row[name] for name in columns} for row in made]
    shown = panel(reader, "chargeback", title, SPAN)
    assert len(wanted) > 5
    assert [cells(row) for row in shown] == wanted


def cells(row):
    places = {"gpu_hours": 6, "gpu_hours_held_idle": 6, "cost": 2, "cost_held_idle": 2}
    made = {}
    for name, value in row.items():
        made[name] = (
            f"{value:.{places[name]}f}" if name in places and value is not None else value or ""
        )
        if name in places and value is not None:
            assert Decimal(made[name]) == value, (name, value)
    return made


def test_sums_are_the_clis(reader, seeded):
    """Spend, team costs and idle costs are the exact amounts behind the CLI's JSON."""
    made = json.loads(ledger(seeded, "--by", "team", "--format", "json"))
    (total,) = [row for row in made["totals"] if row["currency"] == "USD"]
    (spend,) = panel(reader, "finops", "Spend ($currency)", SPAN)
    assert spend["spend"] == Decimal(total["cost_micro"]) / 1_000_000
    table = panel(reader, "finops", "Teams ($currency)", SPAN)
    teams = {(row["team"], row["correction of"]): row for row in table}
    nobody = {"(unallocated)", "(unavailable)", "(unobserved)", "(stranded)"}
    rows = [row for row in made["rows"] if row["team"] not in nobody and row["currency"]]
    held = {(row["team"], row["correction_of"]): row for row in rows}
    assert set(teams) == set(held)
    for name, row in held.items():
        assert teams[name]["cost"] == Decimal(row["cost_micro"]) / 1_000_000
        assert teams[name]["held idle cost"] == Decimal(row["held_idle_cost_micro"]) / 1_000_000
    (waste,) = panel(reader, "finops", "Waste ($currency)", SPAN)
    (whole,) = [one for one in made["waste"] if one["currency"] == "USD"]
    wasted = {"(unallocated)", "(stranded)", "(commitment_unused)"}
    unheld = sum(row["cost_micro"] for row in made["rows"] if row["team"] in wasted)
    assert waste["waste"] == Decimal(unheld + total["held_idle_cost_micro"]) / 1_000_000
    assert waste["waste"] == Decimal(whole["waste_cost_micro"]) / 1_000_000
    assert any(month is not None for _, month in teams)
    by_state = panel(reader, "finops", "Spend per day, by state ($currency)", SPAN)
    corrections = sum(
        row["cost_micro"] for row in made["rows"] if row["correction_of"] and row["currency"]
    )
    assert corrections != 0, (
        "they are in the tables and not in the bars of the day on which they are booked"
    )
    assert sum(row["cost"] for row in by_state) == spend["spend"] - Decimal(corrections) / 1_000_000


TIME = {
    "GPU-hours",
    "GPU-hours held",
    "idle GPU-hours",
    "gpu_hours",
    "gpu_hours_held_idle",
    "hours",
    "idle part",
    "part",
}


@pytest.mark.parametrize("name", ["finops", "team", "research", "idle", "workload", "chargeback"])
def test_no_panel_shows_negative_time_but_under_the_name_of_a_correction(reader, name):
    """Hours of a team, a user, a workload or a day; what a correction takes back says which month
    it corrects.
    """
    corrections = 0
    for one, names, _, rows in answers(reader, name, "all", SPAN):
        for row in (dict(zip(names, row, strict=True)) for row in rows):
            said = [row.get("correction of"), row.get("correction_of"), row.get("metric")]
            amends = any(
                cell and (str(cell).startswith("correction of") or cell != row.get("metric"))
                for cell in said
            )
            corrections += amends
            for column in TIME & set(row):
                assert amends or row[column] is None or row[column] >= 0, (one.title, row)
    assert corrections or name == "workload"
