"""Plots of spend: what is drawn is as large as what it says, and every bar leads somewhere."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.export import html
from gpuledger_collector.export.plots import axis_values
from gpuledger_collector.export.spend import SHADES, team_css
from gpuledger_collector.export.spend_plots import (
    FLOW_SCALE,
    Bar,
    FlowNode,
    Limit,
    Segment,
    draw_bars,
    draw_flow,
    draw_running_total,
)
from gpuledger_collector.insight.fleet_map import MOST_TEAMS

RECT = re.compile(
    r'<rect class="([\w-]+)" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"'
)
BAND = re.compile(r'<path class="flow-band ([\w-]+)" d="M([\d.]+) ([\d.]+)C.*?v([\d.]+)C')


@given(st.floats(-1e9, 1e9, allow_subnormal=False), st.floats(0, 1e9))
def test_an_axis_holds_its_values_and_zero(low, spread):
    """In a few even steps."""
    values = axis_values(low, low + spread)
    assert values[0] <= min(low, 0) * (1 - 1e-9)
    assert values[-1] >= max(low + spread, 0) * (1 - 1e-9)
    assert any(abs(value) < 1e-9 for value in values)
    steps = {round(after - before, 6) for before, after in pairwise(values)}
    assert max(steps) - min(steps) <= 1e-6 * max(1, *map(abs, values))


def test_an_axis_ends_with_the_step_that_its_highest_value_is_in():
    """A chart of 48 GPUs leaves no half of itself empty."""
    assert axis_values(0, 48 * 1.08) == [0, 20, 40, 60]
    assert axis_values(0, 4536) == [0, 2000, 4000, 6000]


def test_every_bar_and_segment_is_a_link_with_words():
    """A bucket is reached by the tabulator key, its parts by the pointer; unknown is no bar."""
    bars = [
        Bar(
            "1 Nov",
            [Segment("group-0", 30, "a: 30", "/spend?team=a"), Segment("group-1", -10, "b", "/b")],
            "1 Nov: 20",
            "/spend?from=1",
        ),
        Bar("2 Nov", None, "2 Nov: nothing is known", ""),
        Bar("3 Nov", (), "", ""),
    ]
    drawn = str(draw_bars(bars, "Spend", "two bars", "USD a day"))
    assert 'role="group" aria-label="Spend: two bars"' in drawn
    assert re.findall(r'<a href="([^"]+)"( tabindex="-1")?><title>([^<]+)<', drawn) == [
        ("/spend?from=1", "", "1 Nov: 20"),
        ("/spend?team=a", ' tabindex="-1"', "a: 30"),
        ("/b", ' tabindex="-1"', "b"),
    ]
    assert '<rect class="gap"' in drawn
    heights = {css: float(height) for css, _, height in RECT.findall(drawn)}
    assert heights["group-0"] == 3 * heights["group-1"]


def test_names_are_text():
    """Markup in a name is shown, not run."""
    evil = "<script>alert(1)</script>"
    bars = [Bar(evil, [Segment("group-0", 1, evil, f'/?"{evil}')], evil, "/")]
    flow = [[FlowNode("a", 5, evil, "5", [(0, 5)])], [FlowNode("b", 5, evil, "5")]]
    running = draw_running_total(
        [(0, 0), (0.5, 1)], (2, 3, 4), [Limit(3, evil)], [(0, evil)], evil, evil, evil
    )
    for drawn in (draw_bars(bars, evil, evil, evil), draw_flow(flow, evil, evil), running):
        assert "<script" not in str(drawn)
        assert "nan" not in str(drawn)


@st.composite
def flows(draw):
    """Capacity, uses and ends: what flows in flows out."""
    matrix = draw(
        st.lists(
            st.lists(st.integers(0, 10**7), min_size=4, max_size=4), min_size=1, max_size=6
        ).filter(lambda rows: any(map(any, rows)))
    )
    matrix = [row for row in matrix if any(row)]
    ends = [sum(row[at] for row in matrix) for at in range(4)]
    uses = [
        FlowNode("state-held", sum(row), f"use {number}", "", [*enumerate(row)])
        for number, row in enumerate(matrix)
    ]
    whole = FlowNode(
        "flow-capacity", sum(ends), "all", "", [(at, use.value) for at, use in enumerate(uses)]
    )
    return [[whole], uses, [FlowNode("flow-team", end, "team", "") for end in ends]]


@given(flows())
def test_widths_of_a_flow_add_up(columns):
    """The bands that leave the uses are as wide as the capacity, and lie one upon the other."""
    drawn = str(draw_flow(columns, "a title", "words"))
    bands = [(css, float(x), float(y), float(size)) for css, x, y, size in BAND.findall(drawn)]
    assert len(bands) == len(columns[1]) * 5
    for css in ("flow-capacity", "state-held"):
        sizes = [size for name, _, _, size in bands if name == css]
        assert abs(sum(sizes) - FLOW_SCALE) <= 0.005 * len(sizes) + 1e-9
    nodes = [float(height) for _, _, height in RECT.findall(drawn)]
    assert abs(sum(nodes) - 3 * FLOW_SCALE) <= 0.005 * len(nodes) + 1e-9
    leaving = [(y, size) for name, _, y, size in bands if name == "flow-capacity"]
    for (y, size), (following, _) in pairwise(leaving):
        assert abs(y + size - following) <= 0.011


def test_teams_that_share_a_color_have_other_shades():
    """The first two dozen teams of a ledger are told apart, and each style exists."""
    styles = [team_css(number) for number in range(MOST_TEAMS * SHADES)]
    assert len(set(styles)) == len(styles)
    assert styles[0] == "group-0"
    assert all(
        f".{name} " in html.css() or f".{name}," in html.css()
        for css in styles
        for name in css.split()
    )
