"""What a reader sees of a board before any number: titles that are not cut, links, durations and
whole axes.
"""

import re

import psycopg
import pytest

from fakes.boards import BOARDS, SPAN, asked, chosen, options, panels, reads_postgres
from fakes.postgres import fresh_database

EVERY = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
IDS = [f"{name}: {panel['title']}" for name, panel in EVERY]


PIXELS = {
    3.5: "ijl'",
    4.0: "IJ",
    4.5: "f ,/:.",
    5.0: "()-",
    5.5: "rt",
    7.0: "sz",
    7.5: "cFL",
    8.0: "akovxyPTY",
    8.5: "bdeghnpquES0123456789",
    9.0: "ABKVXZ",
    9.5: "CR",
    10.0: "HNU",
    10.5: "DGOQ",
    11.0: "w",
    11.5: "M",
    13.0: "m%",
    13.5: "W",
}
"""Letters by the pixels that they take in a title: measured in Grafana 9.4, where none of 40 took 4
more.
"""


def width(title):
    """How many pixels a title takes."""
    return sum(
        pixels for letter in title for pixels, letters in PIXELS.items() if letter in letters
    )


def room(columns):
    """The pixels that a panel of so many of 24 columns leaves to its title in a window of 1280;
    more is cut.
    """
    return 52.3 * columns - 49


@pytest.mark.parametrize(("name", "panel"), EVERY, ids=IDS)
def test_no_title_is_longer_than_its_panel(name, panel):
    """With a currency and a budget in the place of their variables."""
    title = panel["title"].replace("$currency", "USD").replace("$budget", "a budget of a long name")
    assert width(title) <= room(panel["gridPos"]["w"]), title


def units(panel):
    config = panel["fieldConfig"]
    properties = [each for override in config["overrides"] for each in override["properties"]]
    return [
        config["defaults"]["unit"],
        *(each["value"] for each in properties if each["id"] == "unit"),
    ]


def test_durations_are_written_in_days_and_hours():
    """Only the axis of a chart may choose its unit; elsewhere Grafana would write 4.66 weeks."""
    written = {
        (name, panel["title"]): units(panel)
        for name, panel in EVERY
        if panel["type"] != "timeseries"
    }
    assert [key for key, names in written.items() if set(names) & {"s", "m", "h", "d", "ms"}] == []
    assert sum("dtdhms" in names for names in written.values()) >= 5


EXACT_MONEY = {
    ("chargeback", "By team ($currency)"),
    ("chargeback", "By team and project ($currency)"),
    ("finops", "Busy hour, $currency"),
    ("research", "A busy GPU-hour ($currency)"),
}
"""The bill keeps the zeros of its cents, as its files do, and a rate has no thousands."""


def test_money_has_separators_of_thousands():
    """No unit of Grafana has these and two decimals as well; elsewhere the separators help more."""
    money = {
        (name, panel["title"])
        for name, panel in EVERY
        if panel["type"] in {"stat", "table"}
        and ("$currency" in panel["title"] or "currenc" in panel["targets"][0].get("rawSql", ""))
        and panel["fieldConfig"]["defaults"].get("decimals") == 2
        and panel["fieldConfig"]["defaults"]["unit"] == "none"
    }
    assert money == EXACT_MONEY


def test_prices_of_tokens_keep_their_zeros():
    """0.660 beside 0.323: parts of a unit of money need no separators."""
    found = {panel["title"]: panel["fieldConfig"]["defaults"] for _, panel in EVERY}
    for title in (
        "A million tokens, by server ($currency)",
        "A million input tokens at held cost, by day ($currency)",
    ):
        assert (found[title]["unit"], found[title]["decimals"]) == ("none", 3)


def expressions(panel):
    return [target["expr"] for target in panel["targets"] if "expr" in target]


def test_counts_are_whole_and_quantiles_are_numbers():
    """Prometheus extrapolates an increase to fractions, and a quantile of nothing is NaN, which the
    legend's mean would be, too.
    """
    counts = [
        panel for _, panel in EVERY if any("increase(" in text for text in expressions(panel))
    ]
    assert len(counts) >= 3
    assert {panel["fieldConfig"]["defaults"].get("decimals") for panel in counts} == {0}
    quantiles = [
        text for _, panel in EVERY for text in expressions(panel) if "histogram_quantile(" in text
    ]
    assert quantiles
    assert [text for text in quantiles if not text.endswith(" >= 0")] == []


def test_hours_are_named_without_a_currency():
    """Hours are in no currency; the description says whose hours they are."""
    titles = [(name, panel["title"]) for name, panel in EVERY if "hours" in panel["title"]]
    assert [title for title in titles if "$currency" in title[1] and "cost" not in title[1]] == []


def links(panel):
    config = panel["fieldConfig"]
    properties = [each for override in config["overrides"] for each in override["properties"]]
    own = [link for each in properties if each["id"] == "links" for link in each["value"]]
    return [link["url"] for link in [*config["defaults"]["links"], *own]]


LEADS = {
    ("finops", "Budgets in money, and their forecasts"): "gpuledger-finops",
    ("finops", "Budgets in GPU-hours, and their forecasts"): "gpuledger-team",
    ("finops", "Waste ($currency)"): "gpuledger-idle",
    ("finops", "Waste share"): "gpuledger-idle",
    ("finops", "Unpriced hours"): "gpuledger-chargeback",
    ("finops", "Reconciled"): "gpuledger-pipeline",
    ("finops", "Idle GPUs, a day ($currency)"): "gpuledger-idle",
    ("team", "People ($currency)"): "gpuledger-team",
    ("team", "Held idle cost ($currency)"): "gpuledger-idle",
    ("team", "Idle, of known time"): "gpuledger-idle",
    ("research", "Idle, of known time"): "gpuledger-idle",
    ("demand", "Held now"): "gpuledger-fleet",
    ("fleet", "State of every GPU"): "gpuledger-node",
}
"""Panels that make a reader ask for more, and where a click leads; the numbers of other boards have
theirs below.
"""


def test_what_makes_a_reader_ask_leads_on():
    """Budgets, people, cells and the numbers whose reasons are on another board."""
    found = {(name, panel["title"]): links(panel) for name, panel in EVERY}
    for key, uid in LEADS.items():
        assert any(url.startswith(f"/d/{uid}?") for url in found[key]), key


def test_a_cell_of_the_matrix_names_its_gpu():
    """The name of a cell's column is that of the GPU; the node is in the first column of its row."""
    (panel,) = [panel for name, panel in EVERY if panel["title"] == "State of every GPU"]
    (url,) = [link["url"] for link in panel["fieldConfig"]["defaults"]["links"]]
    assert "var-node=${__data.fields[0]:percentencode}" in url
    assert "var-accelerator=${__field.name:percentencode}" in url


def test_models_of_a_column_have_a_line_each():
    """Two beside each other and one below have three sizes, as if one mattered most."""
    (panel,) = [panel for _, panel in EVERY if panel["title"] == "Headroom of the scarcest models"]
    assert panel["options"]["orientation"] == "horizontal"


def test_the_names_of_the_matrix_stand_over_its_words():
    """Its states are numbers, whose names Grafana would put on the right."""
    (panel,) = [panel for _, panel in EVERY if panel["title"] == "State of every GPU"]
    (align,) = [
        override["properties"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byRegexp", "options": "/^GPU /"}
    ]
    assert align == [{"id": "custom.align", "value": "left"}]


def test_no_chart_reaches_far_beyond_what_it_draws():
    """A fixed range in the future would be empty from the end of a quarter on."""
    for name, panel in EVERY:
        assert not re.match(r"\+\d", panel.get("timeFrom", "")), (name, panel["title"])


LONG = {
    ("finops", "Budgets in money, and their forecasts", "thresholds"): 330,
    ("finops", "Anomalies", "why"): 760,
    ("fleet", "Accelerators, worst first", "cause"): 365,
    ("fleet", "Errors that accelerators count", "errors"): 960,
    ("idle", "Open findings of workloads", "finding"): 190,
    ("research", "Projects ($currency)", "models"): 330,
}
"""Columns whose texts are long, and the pixels that these need."""
SCREEN = 1240
"""Pixels for panels on a screen of 1280."""


def widths(panel):
    """The columns of a table that have a width, with it."""
    return {
        override["matcher"]["options"]: setting["value"]
        for override in panel["fieldConfig"]["overrides"]
        for setting in override["properties"]
        if setting["id"] == "custom.width"
    }


CELL = 14
"""Pixels of a cell beside its text."""
FRAME = 18
"""Pixels of a panel beside its table."""
LONGEST_MODEL, LONGEST_WITHOUT_NVIDIA = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
TABLES = [(name, panel) for name, panel in EVERY if panel["type"] == "table"]


@pytest.fixture(scope="module")
def columns(postgres):
    """The columns of every table, by board and title, in the order of its query."""
    found = {}
    with fresh_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        for name, board in BOARDS.items():
            if reads_postgres(board):
                values = chosen(board, options(connection, board, SPAN), "all")
                for query in asked(name, values, SPAN):
                    if query.kind == "table":
                        cursor = connection.execute(query.sql.encode())
                        found[name, query.title] = [each.name for each in cursor.description]
    return found


def hidden(panel):
    return {
        override["matcher"]["options"]
        for override in panel["fieldConfig"]["overrides"]
        for setting in override["properties"]
        if setting == {"id": "custom.hidden", "value": True}
    }


def widths_shown(panel, names):
    """The pixels of every column in a window of 1280: those without a width share what is left."""
    shown = [name for name in names if name not in hidden(panel)]
    fixed = widths(panel)
    left = SCREEN * panel["gridPos"]["w"] / 24 - FRAME - sum(fixed.get(name, 0) for name in shown)
    sharing = sum(name not in fixed for name in shown)
    return {
        name: fixed.get(name)
        or max(left / sharing, panel["fieldConfig"]["defaults"]["custom"]["minWidth"])
        for name in shown
    }


@pytest.mark.parametrize(
    ("name", "panel"), TABLES, ids=[f"{name}: {panel['title']}" for name, panel in TABLES]
)
def test_no_heading_and_no_model_is_wider_than_its_column(columns, name, panel):
    """Where a transformation makes the columns, they are not those of the query."""
    if panel.get("transformations"):
        assert panel["title"] in {"State of every GPU", "Latest readings"}
        return
    room = widths_shown(panel, columns[name, panel["title"]])
    short = {each: width(each) + CELL - pixels for each, pixels in room.items()}
    assert {each: pixels for each, pixels in short.items() if pixels > 0} == {}
    if "model" in room:
        is_short = "'^NVIDIA '" in panel["targets"][0]["rawSql"]
        longest = LONGEST_WITHOUT_NVIDIA if is_short else LONGEST_MODEL
        assert room["model"] >= width(longest) + CELL


@pytest.mark.parametrize(("name", "title", "long"), LONG)
def test_a_long_text_has_room_on_a_small_screen(name, title, long):
    """It has a width of its own, or what all others leave, which then have one each."""
    (panel,) = [panel for panel in panels(BOARDS[name]) if panel["title"] == title]
    fixed = widths(panel)
    left = SCREEN * panel["gridPos"]["w"] / 24 - sum(fixed.values())
    assert fixed.get(long, left) >= LONG[name, title, long]
    assert left >= (0 if long in fixed else LONG[name, title, long])


def test_instants_are_shown_whole():
    """To the minute, in 140 pixels at least; with seconds in 150."""
    for name, board in BOARDS.items():
        for panel in panels(board):
            for override in (
                panel["fieldConfig"].get("overrides", ()) if "fieldConfig" in panel else ()
            ):
                settings = {setting["id"]: setting["value"] for setting in override["properties"]}
                unit, width = str(settings.get("unit", "")), settings.get("custom.width", 1000)
                assert unit != "dateTimeAsIso", (name, panel["title"])
                least = (
                    150
                    if unit.endswith("HH:mm:ss")
                    else 140
                    if unit.startswith("time:YYYY-MM-DD HH")
                    else 0
                )
                assert width >= least, (name, panel["title"], override["matcher"])
