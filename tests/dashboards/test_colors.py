"""Colors: a state has one of its own, and a model, team or project keeps one that is no state's,
whatever is chosen.
"""

import json
import re
import shutil
import subprocess
from itertools import combinations

import psycopg
import pytest
from dashboards.boards.finops import PARTS_OF_COST
from dashboards.sql import mark_names

from dashboards import grafana
from fakes.boards import BOARDS, SPAN, asked, chosen, options, panels
from fakes.grafana import color_of

NAMED = [
    ("team", "Cost a day, by team ($currency)", "team"),
    ("research", "Cost a day, by project ($currency)", "project"),
    ("research", "GPU-hours a day, by model", "model"),
]
"""Charts whose series are models, teams or projects, and the variable that chooses some of them."""


def test_each_state_has_a_color_of_its_own():
    """On a lane, in a cell and in a stack; held is the sum of busy and idle, and never beside busy."""
    apart = [name for name in grafana.STATES if name != "held"]
    for names in (apart, PARTS_OF_COST, ("ok", "degraded", "failed", "unknown")):
        for one, other in combinations(names, 2):
            assert grafana.MEANING[one] != grafana.MEANING[other], (one, other)


def test_no_name_has_the_color_of_a_state():
    """Nor that of all others."""
    for palette in (grafana.NAME_PALETTE, grafana.LONG_PALETTE):
        assert not set(palette) & set(grafana.MEANING.values())
        assert len(set(palette)) == len(palette)


def luminance(color):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["#FFFFFF", "#181B1F"], ids=["light", "dark"])
def test_projects_and_models_can_be_seen_in_both_themes(ground):
    """Each of the sixteen, on the ground of Grafana's panels."""
    for color in grafana.LONG_PALETTE:
        low, high = sorted((luminance(color), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) > 2.2, color


def test_as_many_names_as_a_chart_shows_have_colors_of_their_own(seeded):
    """Nine and seven more that a choice may bring: sixteen names, sixteen colors."""
    names = [f"team / project-{number:02}" for number in range(len(grafana.LONG_PALETTE))]
    values = ", ".join(f"('{name}', {at})" for at, name in enumerate(names))
    query = mark_names(
        f"SELECT 1 AS time, k.name AS metric, 1 AS cost FROM (VALUES {values}) k (name, first)",
        f"SELECT * FROM (VALUES {values}) k (name, first)",
        "cost",
        grafana.LONG_PALETTE,
    )
    with psycopg.connect(seeded) as connection:
        marked = [metric for _, metric, _ in connection.execute(query.encode())]
    (panel,) = [panel for panel in panels(BOARDS["research"]) if panel["title"] == NAMED[1][1]]
    assert {color_of(panel, name) for name in marked} == set(grafana.LONG_PALETTE)


def test_every_chart_by_name_is_in_the_list():
    """A chart whose title says that its series are models, teams or projects; the live one has a
    test of its own.
    """
    by_name = {
        (name, panel["title"])
        for name, board in BOARDS.items()
        for panel in panels(board)
        if panel["type"] == "timeseries"
        and re.search(r", by (model|team|project)\b", panel["title"])
    }
    assert by_name - {(board, title) for board, title, _ in NAMED} == {
        ("live", "Held GPUs, by team")
    }


def test_names_that_are_marked_have_the_colors_of_their_marks():
    """Without them Grafana would color by order, and the marks would say nothing."""
    marked = {
        (name, panel["title"]): color_of(panel, f"a name{grafana.MARK}")
        for name, board in BOARDS.items()
        for panel in panels(board)
        if any(f"repeat('{grafana.MARK}'" in each.get("rawSql", "") for each in panel["targets"])
    }
    assert len(marked) > len(NAMED)
    assert set(marked.values()) == {grafana.NAME_PALETTE[0]}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no prometheus (apt-get install prometheus)"
)
def test_teams_of_the_live_board_keep_their_place_under_every_filter(tmp_path):
    """Grafana colors what Prometheus answers by its order: each team is in the answer, at 0 where
    it holds nothing.
    """
    (panel,) = [panel for panel in panels(BOARDS["live"]) if panel["title"] == "Held GPUs, by team"]
    query = panel["targets"][0]["expr"]
    series = {
        ("n1", "a", "vision"): 1,
        ("n1", "b", ""): 0.5,
        ("n2", "c", "nlp"): 1,
        ("n2", "d", "nlp"): 1,
    }
    given = [
        {
            "series": f'gpu_held_ratio{{node="{node}", uuid="{uuid}", team="{team}"}}',
            "values": str(value),
        }
        for (node, uuid, team), value in series.items()
    ]
    expected = {
        ".+": {"(no team)": 0.5, "nlp": 2, "vision": 1},
        "n2": {"(no team)": 0, "nlp": 2, "vision": 0},
    }
    asked_for = [
        {
            "expr": query.replace("$node", node).replace("$uuid", ".+"),
            "eval_time": "0m",
            "exp_samples": [
                {"labels": f'{{team="{team}"}}', "value": value} for team, value in held.items()
            ],
        }
        for node, held in expected.items()
    ]
    tests = {
        "evaluation_interval": "1m",
        "tests": [{"input_series": given, "promql_expr_test": asked_for}],
    }
    (tmp_path / "live.json").write_text(json.dumps(tests))
    checked = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "live.json"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("board", "title", "variable"), NAMED)
def test_a_name_keeps_its_color_under_every_filter(seeded, board, title, variable):
    """Chosen alone, each has the color that it has among all; few are told apart."""
    (panel,) = [panel for panel in panels(BOARDS[board]) if panel["title"] == title]

    def colors(connection, **choice):
        offered = options(connection, BOARDS[board], SPAN)
        values = chosen(BOARDS[board], offered, "all") | choice
        (query,) = [query for query in asked(board, values, SPAN) if query.title == title]
        names = {metric for _, metric, _ in connection.execute(query.sql.encode())}
        return {name.rstrip(): color_of(panel, name) for name in names}

    with psycopg.connect(seeded) as connection:
        among_all = colors(connection)
        assert len(among_all) >= 2
        palette = grafana.NAME_PALETTE if variable == "team" else grafana.LONG_PALETTE
        assert set(among_all.values()) <= {*palette, grafana.OTHERS}
        if len(among_all) < len(palette):  # more names than colors share them
            assert len(set(among_all.values())) == len(among_all)
        for name, color in among_all.items():
            alone = colors(connection, **{variable: [name.rpartition(" / ")[2]]})
            if name in alone:  # "all others" is a choice of nobody
                assert alone[name] == color
