"""Every board in a real Grafana, over the tests' own Postgres: it loads, each query answers, each
choice matters.

Needs a running Grafana: GPULEDGER_TEST_GRAFANA_URL (see fakes/real_grafana.py).
"""

import math
import os

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fakes.boards import (
    BOARDS,
    QUOTE,
    SPAN,
    chosen,
    hidden,
    options,
    panels,
    reads_postgres,
    variables,
)
from fakes.grafana import interpolated
from fakes.postgres import administrator
from fakes.real_grafana import RealGrafana, hash_for_grafana

# Taken out of the environment: the commands that the fixtures run refuse variables that are no
# setting.
URL = os.environ.pop("GPULEDGER_TEST_GRAFANA_URL", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not URL, reason="no Grafana to ask: set GPULEDGER_TEST_GRAFANA_URL"),
]
BY_POSTGRES = sorted(name for name, board in BOARDS.items() if reads_postgres(board))
CHOICES = [
    (name, variable)
    for name in BY_POSTGRES
    for variable in variables(BOARDS[name])
    if not hidden(BOARDS[name], variable)
]
"""What a reader chooses; a hidden variable follows from others."""


@pytest.fixture(scope="module")
def grafana(postgres, reader, seeded):
    """The running Grafana, with a data source over the seeded ledger, as the role for dashboards.

    The newest readings are of this minute meanwhile, as they are where agents run.
    """
    running = RealGrafana(URL)
    hash_for_grafana(administrator(postgres), reader.info.user, reader.info.password)
    running.add_postgres(make_conninfo(reader.info.dsn, password=reader.info.password))
    with psycopg.connect(seeded, autocommit=True) as connection:
        (age_ms,) = connection.execute(
            "SELECT (extract(epoch FROM now()) * 1000)::bigint - max(at_ms) FROM gpu_latest"
        ).fetchone()
        connection.execute("UPDATE gpu_latest SET at_ms = at_ms + %s", (age_ms,))
        yield running
        connection.execute("UPDATE gpu_latest SET at_ms = at_ms - %s", (age_ms,))
    running.remove_postgres()


def answers(grafana, name, values):
    """The frames of every Postgres query of a board, by panel and query."""
    board = BOARDS[name]
    found = {}
    for panel in panels(board):
        for target in panel["targets"]:
            if target["datasource"]["type"] == "postgres":
                text = interpolated(target["rawSql"], variables(board), values)
                interval_s = SPAN.interval_s(panel.get("interval", ""))
                found[panel["title"], target["refId"]] = grafana.ask(
                    text, target["format"], SPAN, interval_s
                )
    return found


def cells(frames):
    """Every value of an answer but the instants, which name no amount."""
    return [
        value
        for frame in frames
        for field, column in zip(frame["schema"]["fields"], frame["data"]["values"], strict=True)
        if field["type"] != "time"
        for value in column
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_kept_as_it_is(grafana, name):
    """Saved and read again, it has all its panels, variables and annotations."""
    try:
        stored = grafana.keep(BOARDS[name])
    finally:
        grafana.drop(BOARDS[name])
    for part in ("panels", "templating", "annotations", "time"):
        assert stored[part] == BOARDS[name][part]


@pytest.mark.parametrize("name", BY_POSTGRES)
def test_every_query_answers(grafana, reader, name):
    """Without an error, with values; series are wide, a field a name, and lanes of states are
    numbers.
    """
    values = chosen(BOARDS[name], options(reader, BOARDS[name], SPAN), "all")
    made = answers(grafana, name, values)
    shown = {panel["title"]: panel for panel in panels(BOARDS[name])}
    for (title, _), frames in made.items():
        panel = shown[title]
        if "may be empty" not in panel["description"].lower():
            assert any(value is not None for value in cells(frames)), (name, title)
        if panel["targets"][0]["format"] == "time_series":
            for frame in frames:
                kinds = [field["type"] for field in frame["schema"]["fields"]]
                assert kinds[:1] in ([], ["time"]), (name, title)
                assert set(kinds[1:]) <= {"number"}, (name, title, kinds)


def test_lanes_of_states_are_gpus(grafana, reader):
    """The timeline has a field for each GPU of the node, named by it, and its numbers are states
    with a word.
    """
    values = chosen(BOARDS["node"], options(reader, BOARDS["node"], SPAN), "all")
    (frame,) = answers(grafana, "node", values)["State by hour", "A"]
    (count,) = reader.execute(
        "SELECT count(*) FROM capacity c JOIN node n ON n.id = c.node_id AND n.name = %s WHERE"
        " c.out_ms IS NULL",
        (values["node"],),
    ).fetchone()
    lanes = frame["schema"]["fields"][1:]
    names = [lane["labels"]["metric"] if lane.get("labels") else lane["name"] for lane in lanes]
    assert len(names) == len(set(names)) == count
    assert all(name.startswith("GPU ") for name in names)
    (panel,) = (panel for panel in panels(BOARDS["node"]) if panel["title"] == "State by hour")
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    states = {
        value for column in frame["data"]["values"][1:] for value in column if value is not None
    }
    assert states
    assert {f"{state:g}" for state in states} <= set(words)


PRICED = ("finops", "idle", "research", "team")
"""Boards whose charts have a mark where a price of the seed begins."""


@pytest.mark.parametrize("name", BY_POSTGRES)
def test_annotations_answer(grafana, reader, name):
    """Marks on charts are times with a text."""
    values = chosen(BOARDS[name], options(reader, BOARDS[name], SPAN), "all")
    found = 0
    for mark in BOARDS[name]["annotations"]["list"]:
        text = interpolated(mark["target"]["rawSql"], variables(BOARDS[name]), values)
        for frame in grafana.ask(text, "table", SPAN, 60):  # none where nothing happened
            assert [field["name"] for field in frame["schema"]["fields"]][:2] == ["time", "text"]
            found += 1
    assert found or name not in PRICED


FIRST = "coalesce(f.currency <> ${currency:sqlstring}, true)"
"""What only puts the rows of the chosen currency first filters nothing."""


@pytest.mark.parametrize(("name", "variable"), CHOICES)
def test_a_choice_changes_what_it_filters(grafana, reader, name, variable):
    """Whoever chooses what nobody has sees other answers in every panel that mentions the choice
    and showed amounts.
    """
    offered = options(reader, BOARDS[name], SPAN)
    values = chosen(BOARDS[name], offered, "all")
    nobody = {**values, variable: [QUOTE] if variables(BOARDS[name])[variable]["multi"] else QUOTE}
    asked = {
        (panel["title"], target["refId"])
        for panel in panels(BOARDS[name])
        for target in panel["targets"]
        if f"${{{variable}:" in target.get("rawSql", "").replace(FIRST, "")
    }
    before, after = answers(grafana, name, values), answers(grafana, name, nobody)
    unchanged = {key for key in before if cells(before[key]) == cells(after[key])}
    amounts = {
        key
        for key in before
        if any(isinstance(value, int | float) and value for value in cells(before[key]))
    }
    assert asked & amounts, f"no panel of {name} follows {variable}"
    assert asked & amounts & unchanged == set()


@pytest.mark.parametrize(("name", "variable"), CHOICES)
def test_a_list_of_choices_has_values_and_names(grafana, reader, name, variable):
    """One column, or the two that Grafana knows by their names."""
    values = chosen(BOARDS[name], options(reader, BOARDS[name], SPAN), "all")
    known = variables(BOARDS[name])
    frames = grafana.ask(interpolated(known[variable]["query"], known, values), "table", SPAN, 60)
    names = [field["name"] for field in frames[0]["schema"]["fields"]]
    assert len(names) == 1 or names == ["__value", "__text"]
    assert all(frames[0]["data"]["values"][-1])
    assert math.prod(len(set(column)) == len(column) for column in frames[0]["data"]["values"])
