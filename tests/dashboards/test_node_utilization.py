"""Heat maps of nodes on the fleet board: the means of the minutes, cell by cell, at every length of
range.
"""

import datetime as dt
from collections import defaultdict

import psycopg
import pytest

from fakes.boards import BOARDS, UNTIL, asked, chosen, panels
from fakes.grafana import Range

COLUMNS = {"Utilization of nodes": "utilization_ratio", "SM activity of nodes": "sm_active_ratio"}
QUARTER_S, HOUR_S = 900, 3600


def cells(reader, title, span, nodes=("$__all",)):
    values = {**chosen(BOARDS["fleet"], {}, "all"), "node": list(nodes)}
    (found,) = (one for one in asked("fleet", values, span) if one.title == title)
    return reader.execute(found.sql.encode()).fetchall()


def by_minutes(reader, column, span, step_s):
    """The same from every minute of the range's hours (quarters), by plain Python: means by step
    and node.
    """
    start, end = (int(at.timestamp()) for at in (span.since, span.until))
    edge_s = min(step_s, HOUR_S)
    found = defaultdict(list)
    for at_s, node, value in reader.execute(
        f"SELECT m.minute_ms / 1000, n.name, m.{column}::float8 FROM gpu_minute m JOIN capacity c "
        "ON c.accelerator_id = m.accelerator_id AND c.in_ms < m.minute_ms + 60000 "
        "AND coalesce(c.out_ms, m.minute_ms + 1) > m.minute_ms JOIN node n ON n.id = c.node_id "
        f"WHERE m.{column} IS NOT NULL AND m.minute_ms >= %s AND m.minute_ms < %s",
        ((start - start % edge_s) * 1000, (end + edge_s - 1) // edge_s * edge_s * 1000),
    ):
        found[at_s - at_s % step_s, node].append(value)
    return {key: sum(values) / len(values) for key, values in found.items()}


@pytest.mark.parametrize("title", COLUMNS)
@pytest.mark.parametrize(
    ("hours", "step_s"),
    [(1, QUARTER_S), (24, QUARTER_S), (48, QUARTER_S), (48.1, HOUR_S), (96, HOUR_S)],
)
def test_a_cell_is_the_mean_of_its_minutes(reader, title, hours, step_s):
    """Quarters of an hour up to two days, hours beyond; in order of time and name, every cell once
    and none more.
    """
    span = Range(UNTIL - dt.timedelta(hours=hours), UNTIL)
    shown = cells(reader, title, span)
    assert [row[:2] for row in shown] == sorted({row[:2] for row in shown})
    wanted = by_minutes(reader, COLUMNS[title], span, step_s)
    assert {row[:2]: row[2] for row in shown} == pytest.approx(wanted, abs=1e-6)
    assert len(wanted) > 10


def test_weeks_are_drawn_in_steps_of_several_hours(reader):
    """At most 96 steps, whatever the range, and each cell weighs the hours by their minutes."""
    span = Range(UNTIL - dt.timedelta(days=30), UNTIL)
    shown = cells(reader, "Utilization of nodes", span)
    wanted = by_minutes(reader, "utilization_ratio", span, 8 * HOUR_S)
    assert {row[:2]: row[2] for row in shown} == pytest.approx(wanted, abs=1e-6)


def test_a_chosen_node_is_shown_alone(reader):
    """And one that nobody has shows nothing."""
    span = Range(UNTIL - dt.timedelta(hours=6), UNTIL)
    names = {name for _, name, _ in cells(reader, "Utilization of nodes", span)}
    one = min(names)
    assert {name for _, name, _ in cells(reader, "Utilization of nodes", span, [one])} == {one}
    assert cells(reader, "Utilization of nodes", span, ["nobody's"]) == []


def test_an_idle_node_is_drawn_and_an_unknown_one_is_not(seeded, reader):
    """0 is a cell of 0, which the panel does not filter away; null is no cell."""
    hour = UNTIL - dt.timedelta(days=200)
    with psycopg.connect(seeded, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO node_utilization SELECT %s, min(id), '{1}', '{0,NULL,NULL,NULL}',"
            " '{15,0,0,0}', '{NULL,NULL,NULL,NULL}', '{0,0,0,0}' FROM node",
            (int(hour.timestamp() * 1000),),
        )
    span = Range(hour, hour + dt.timedelta(hours=1))
    assert [(row[0], row[2]) for row in cells(reader, "Utilization of nodes", span)] == [
        (int(hour.timestamp()), 0.0)
    ]
    assert cells(reader, "SM activity of nodes", span) == []
    for panel in panels(BOARDS["fleet"]):
        if panel["title"] in COLUMNS:
            assert panel["options"]["filterValues"]["le"] < 0
