"""The map of the fleet and the boards of Grafana: the same states, words and colors."""

import re
from importlib import resources

import psycopg
from dashboards.boards.fleet import NEEDS, STATE_NOW, THERE
from dashboards.grafana import MEANING, NAME_PALETTE, OTHERS
from dashboards.sql import TEAM_NAMES

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.export.fleet_map import CLASSES
from gpuledger_collector.insight.fleet_map import HEALTHS, STATES, ColorBy
from gpuledger_collector.services.fleet_map import MapQuestion, read_fleet_map
from gpuledger_collector.storage.database import Database

STYLE = resources.files("gpuledger_collector").joinpath("templates/style.css")
CSS = re.sub(r"/\*.*?\*/", "", STYLE.read_text("utf-8"), flags=re.DOTALL)


def color_of(css: str) -> str:
    (color,) = (
        color
        for names, color in re.findall(r"([^{}]+){ fill: ([^;]+); }", CSS)
        if f".m-{css}" in {name.strip() for name in names.split(",")}
    )
    if named := re.fullmatch(r"var\(--([\w-]+)\)", color):
        (color, *_) = re.findall(rf"--{named[1]}: (#\w+);", CSS) if named[1] != "ink" else [color]
    return color.upper() if color.startswith("#") else color


def test_states_have_the_words_and_colors_of_the_boards():
    """Degraded is black on light and white on dark there, and the color of the text here; what is
    unobserved is hatched in the boards' color.
    """
    assert STATES == NEEDS
    for name in {*STATES, *HEALTHS}:
        css = CLASSES[name]
        if MEANING[name] == "text":
            assert color_of(css) == "var(--ink)"
        elif name == "unobserved":
            assert color_of(css) == "url(#hatched)"
            assert color_of("hatch") == MEANING[name]
        else:
            assert color_of(css) == MEANING[name].upper(), name
    assert color_of("others") == OTHERS
    assert [color_of(f"team{at}") for at in range(len(NAME_PALETTE))] == list(NAME_PALETTE)


def test_degraded_is_not_idle():
    """No two states have one color, but for what is not known or not used in two lists."""
    colors = [color_of(CLASSES[name]) for name in STATES]
    assert len(set(colors)) == len(colors)


def test_now_is_the_matrix_of_the_board(seeded):
    """Each GPU of the seeded fleet has the state of the board's matrix."""
    with psycopg.connect(seeded) as connection:
        rows = connection.execute(
            f"SELECT a.uuid, {STATE_NOW}, (extract(epoch FROM now()) * 1000)::bigint FROM {THERE}"
            " LEFT JOIN gpu_latest l ON l.accelerator_id = a.id"
        ).fetchall()
    now_ms = rows[0][2]
    with Database(seeded).transaction(read_only=True) as connection:
        drawn = read_fleet_map(connection, MapQuestion(), now_ms)
    assert {item.uuid: item.prevailing_state for item in drawn.items if not item.is_rest} == {
        uuid: state for uuid, state, _ in rows
    }
    assert len({state for _, state, _ in rows}) >= 2


def test_teams_have_the_colors_of_the_boards(seeded):
    """The number of a team's color is that of its place among all teams, as boards count."""
    with Database(seeded).transaction(read_only=True) as connection:
        hour_ms = connection.execute("SELECT max(hour_ms) - 7200000 FROM usage_hour").fetchone()[0]
        asked = MapQuestion(at_ms=hour_ms, color=ColorBy.OWNER)
        drawn = read_fleet_map(connection, asked, hour_ms + 9_000_000)
        names = connection.execute(f"SELECT name FROM ({TEAM_NAMES}) k ORDER BY first, name")
        places = {name: at for at, (name,) in enumerate(names.fetchall())}
    assert drawn.colored_teams
    assert UNATTRIBUTED not in drawn.colored_teams or UNATTRIBUTED in places
    for team, number in drawn.colored_teams.items():
        assert number == places[team] % len(NAME_PALETTE)
