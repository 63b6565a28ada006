"""One color for each state: on bars, flows and the map of the fleet alike, and on the boards."""

import re
from collections import defaultdict

from dashboards.grafana import GRAY, PURPLE, SKY, YELLOW

from gpuledger_collector.export import html

ALIKE = (
    ("fill-busy", "state-held", "m-busy"),
    ("fill-idle", "state-held_idle", "m-idle"),
    ("fill-unknown", "m-activity-unknown"),
    *((f"state-{name}", f"m-{name}") for name in ("unallocated", "unavailable", "stranded")),
    ("state-unobserved", "m-hatch"),
    *((f"group-{number}", f"m-team{number}") for number in range(8)),
)
"""Classes that mean the same."""


def fills():
    """The fills of each class, rule by rule."""
    found = defaultdict(list)
    for selectors, fill in re.findall(r"([^{}]+)\{ fill: ([^;}]+);", html.css()):
        for name in re.findall(r"\.([\w-]+)(?=\s*(?:,|$))", selectors.strip()):
            found[name].append(fill)
    return found


def test_a_state_has_one_color():
    """Said once, however the picture is drawn."""
    found = fills()
    for names in ALIKE:
        assert len({fill for name in names for fill in found[name]}) == 1, names
        assert all(len(found[name]) == 1 for name in names), names


def test_the_colors_are_those_of_the_boards():
    """Of activity that is not known, too."""
    root = html.css().lower()
    for name, color in (
        ("unknown", YELLOW),
        ("state-unallocated", GRAY),
        ("state-unobserved", PURPLE),
        ("state-stranded", SKY),
    ):
        assert set(re.findall(rf"--{name}: (#\w+);", root)) == {color.lower()}, name


def test_what_is_not_to_be_printed_is_not():
    """Forms and sliders are of no use on paper."""
    printed = html.css().partition("@media print")[2]
    hidden = re.search(r"([^{}]*)\{ display: none; \}", printed)[1]
    assert {".no-print", ".filters", "nav"} <= {name.strip() for name in hidden.split(",")}
