"""Rules that every board keeps, whatever it shows; dashboard-linter's, where they do not need a
Prometheus.
"""

import json
import re
from itertools import combinations

import pytest
from dashboards.boards.chargeback import ODD
from dashboards.boards.finops import PARTS_OF_COST

from dashboards import build, grafana
from fakes.boards import BOARDS, panels
from gpuledger_collector.accounting.money import minor_digits
from gpuledger_collector.storage.access.readers import READABLE
from gpuledger_collector.storage.distribution import DISTRIBUTED
from gpuledger_common.catalog import BY_NAME

OUR_METRICS = re.compile(r"\bgpu_[a-z0-9_]+")
DISAGREEMENTS = ("gpu_allocated_without_process", "gpu_used_without_allocation")
EVERY = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
IDS = [f"{name}: {panel['title']}" for name, panel in EVERY]


def test_the_committed_files_are_what_the_boards_make():
    """`python -m dashboards.build` would change nothing."""
    assert build.stale() == []
    assert len(BOARDS) >= 10


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_loadable_everywhere(name):
    """The classic form of Grafana 9.3; newer ones migrate it.

    Ids are unique, panels lie beside each other.
    """
    board = BOARDS[name]
    assert board["schemaVersion"] == 37
    assert board["description"]
    assert board["timezone"] == "utc", "days of the ledger are UTC days"
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in panels(board)]
    boxes = [panel["gridPos"] for panel in board["panels"]]
    assert all(box["x"] >= 0 and box["x"] + box["w"] <= 24 and box["h"] > 0 for box in boxes)
    overlapping = [(a, b) for a, b in combinations(boxes, 2) if overlap(a, b)]
    assert overlapping == []
    assert all(titles)


def overlap(a, b):
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


def test_boards_have_addresses_of_their_own():
    """Uids and titles are unique, uids short enough for every version."""
    uids = [board["uid"] for board in BOARDS.values()]
    assert len(set(uids)) == len(uids) == len({board["title"] for board in BOARDS.values()})
    assert all(re.fullmatch(r"gpuledger-[a-z]{1,20}", uid) for uid in uids)


@pytest.mark.parametrize("name", BOARDS)
def test_a_title_is_a_short_name_and_one_question(name):
    """Links and runbooks call a board by its name; whoever opens it knows what it answers."""
    short, _, question = BOARDS[name]["title"].partition(": ")
    assert re.fullmatch(r"[A-Z][\w -]{2,24}", short)
    assert question.endswith("?")
    assert question.count("?") == 1
    assert len(question) <= 70


def test_lines_have_their_numbers_in_the_legend():
    """Mean, last and highest; of bars, which are amounts of a day, and of bands there are none."""
    with_numbers = {
        (name, panel["title"]): panel["options"]["legend"]["calcs"]
        for name, panel in EVERY
        if panel["type"] == "timeseries"
    }
    bars = {
        (name, panel["title"])
        for name, panel in EVERY
        if panel["type"] == "timeseries"
        and panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] == "bars"
    }
    without = {key for key, calcs in with_numbers.items() if not calcs}
    assert without == bars | BANDS
    assert {tuple(calcs) for calcs in with_numbers.values() if calcs} == {grafana.CALCS}


BANDS = {
    ("finops", "Burn-up of $budget, and its forecast ($currency)"),
    ("demand", "Demand, capacity and baseline"),
    ("demand", "Forecast and actual demand, all models"),
}
"""Lines with a band around them, which are read at an instant."""


def test_stacks_of_states_are_in_one_order():
    """Busy below, then idle: the same on every board, and the legend lists them so."""
    stacks = [
        panel
        for _, panel in EVERY
        if panel["type"] == "timeseries"
        and any(change["id"] == "organize" for change in panel.get("transformations", ()))
    ]
    assert len(stacks) >= 4
    assert not [panel["title"] for panel in stacks if "sortBy" in panel["options"]["legend"]]
    orders = [
        list(change["options"]["indexByName"])[1:]
        for panel in stacks
        for change in panel["transformations"]
    ]
    for order in orders:
        assert set(order) <= set(grafana.MEANING)
        assert order == [name for name in PARTS_OF_COST if name in order]


@pytest.mark.parametrize(("name", "panel"), EVERY, ids=IDS)
def test_a_panel_says_what_it_shows(name, panel):
    """Title, description, unit, what to say without data, and thresholds for parts of a whole."""
    assert panel["title"]
    assert len(panel["description"]) > 15
    assert panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["noValue"]
    if panel["type"] == "stat":
        # An unknown part must not look like a good one, whose color the lowest step has.
        (unknown,) = (each["options"] for each in defaults["mappings"] if each["type"] == "special")
        assert unknown["match"] == "null"
        assert unknown["result"]["text"] == defaults["noValue"]
        assert unknown["result"]["color"] == "text"
    # Of several numbers those that are good or bad have thresholds of their own.
    if (
        panel["type"] == "stat"
        and defaults["unit"] == "percentunit"
        and not panel["fieldConfig"]["overrides"]
    ):
        assert len(defaults["thresholds"]["steps"]) > 1
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
    assert all(target.get("rawSql") or target.get("expr") for target in panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_no_board_names_a_data_source(name):
    """Every uid is a variable of the board, so that a board works in any Grafana."""
    board = BOARDS[name]
    sources = {one["name"] for one in board["templating"]["list"] if one["type"] == "datasource"}
    used = set(re.findall(r'"uid": "([^"]*)"', json.dumps(board))) - {board["uid"]}
    assert used <= {f"${{{source}}}" for source in sources}
    assert used or not list(panels(board))


@pytest.mark.parametrize("name", BOARDS)
def test_variables_are_known_and_used(name):
    """A query asks for no variable that the board lacks, and no variable is there for nothing."""
    board = BOARDS[name]
    names = {one["name"] for one in board["templating"]["list"]}
    text = json.dumps([board["panels"], [one.get("query") for one in board["templating"]["list"]]])
    used = set(re.findall(r"\$\{(\w+)", text)) | set(re.findall(r"\$(?!__)(\w+)", text))
    texts = [panel.get(name, "") for panel in panels(board) for name in ("timeFrom", "timeShift")]
    used |= set(re.findall(r"\$\{(\w+)", " ".join(texts)))
    assert used - names - {"__url_time_range", "__data", "__field"} == set()
    assert names - used == set()


@pytest.mark.parametrize("name", BOARDS)
def test_links_lead_somewhere(name):
    """To a board that there is, with a variable that it has."""
    found = re.findall(r"/d/([a-z-]+)\?\$\{__url_time_range\}&var-(\w+)=", json.dumps(BOARDS[name]))
    boards = {
        board["uid"]: {one["name"] for one in board["templating"]["list"]}
        for board in BOARDS.values()
    }
    for uid, variable in found:
        assert variable in boards[uid], (uid, variable)


def test_boards_are_joined_by_links():
    """From money to a team, from a team to a workload, from a workload to its node."""
    leads = {
        name: set(re.findall(r"/d/([a-z-]+)\?", json.dumps(board)))
        for name, board in BOARDS.items()
    }
    assert "gpuledger-team" in leads["finops"]
    assert "gpuledger-workload" in leads["team"] & leads["idle"] & leads["node"]
    assert "gpuledger-node" in leads["workload"] & leads["fleet"] & leads["pipeline"]


def test_states_have_words_and_colors():
    """Every number that the lanes can hold is mapped to the word that SQL numbers, in that word's
    color.
    """
    options = grafana.numbered_states()["options"]
    assert [options[str(at)]["text"] for at in range(1, len(grafana.STATES) + 1)] == list(
        grafana.STATES
    )
    assert all(mapping["color"] == grafana.MEANING[mapping["text"]] for mapping in options.values())
    lanes = [panel for _, panel in EVERY if panel["type"] == "state-timeline"]
    assert lanes
    for panel in lanes:
        assert panel["fieldConfig"]["defaults"]["mappings"] == [grafana.numbered_states()]


RANGE = ("$__unixEpochNanoFrom", "$__timeFilter", "$__unixEpochFilter")


def test_rows_hold_what_their_title_says():
    """A row of the range holds what changes with the range, a row of the month or of now what does
    not.
    """
    seen = set()
    for board in BOARDS.values():
        title = ""
        for panel in board["panels"]:
            title = panel["title"] if panel["type"] == "row" else title
            about = title.lower()
            inside = panel["panels"] if panel["type"] == "row" else [panel]
            for each in (each for each in inside if each["type"] not in ("row", "text")):
                asks_range = any(
                    macro in target.get("rawSql", "")
                    for target in each["targets"]
                    for macro in RANGE
                )
                if "range" in about and "now" not in about and each["title"] not in OF_NOW:
                    assert asks_range, (title, each["title"])
                    seen.add(title)
                elif about.startswith(("this month", "to save")):
                    assert not asks_range, (title, each["title"])
                    seen.add(title)
    assert {
        "The range",
        "More of the range",
        "This month, and the last two weeks",
        "To save",
    } <= seen


OF_NOW = {
    "This month, and its forecast ($currency)",
    "Idle or underused now",
    "An hour now ($currency)",
}
"""Panels whose own titles say that the range does not change them."""


def test_macro_arguments_hold_no_parenthesis():
    """Grafana's expander would cut them in two without an error."""
    for name, panel in EVERY:
        for target in panel["targets"]:
            assert not re.search(r"\$__\w+\([^)]*\(", target.get("rawSql", "")), (
                name,
                panel["title"],
            )


def laterals(text):
    """The lateral subqueries of a query."""
    for found in re.finditer(r"\bLATERAL \(", text):
        depth, at = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield text[found.end() : at - 1]


def test_no_panel_takes_the_first_row_of_evidence_in_a_lateral_subquery():
    """Citus refuses a LIMIT there over a table that it distributes; a scalar subquery says the
    same.
    """
    texts = [
        (name, panel["title"], target.get("rawSql", ""))
        for name, panel in EVERY
        for target in panel["targets"]
    ]
    assert any(list(laterals(text)) for _, _, text in texts)
    for name, title, text in texts:
        for inner in laterals(text):
            evidence = any(re.search(rf"\b{table}\b", inner) for table in DISTRIBUTED)
            assert not (evidence and "LIMIT" in inner), (name, title)


def test_colors_are_of_the_palette():
    """Those of states, those of names, and black."""
    allowed = {
        *grafana.PALETTE,
        *grafana.NAME_PALETTE,
        *grafana.LONG_PALETTE,
        grafana.OTHERS,
        "#000000",
    }
    for board in BOARDS.values():
        assert set(re.findall(r"#[0-9A-Fa-f]{6}", json.dumps(board))) <= allowed


def test_metrics_are_in_the_catalog():
    """A board names no metric that no agent gives."""
    tables = {
        *READABLE,
        "gpu_hours",
        "gpu_hours_held_idle",
        "gpu_micro",
        "gpu_index",
        "gpu_model",
        "gpu_ns",
    }
    ours = {*BY_NAME, "gpu_health_status", "gpu_held_ratio", *DISAGREEMENTS}
    for name, panel in EVERY:
        for target in panel["targets"]:
            text = target.get("rawSql") or target["expr"]
            unknown = set(OUR_METRICS.findall(text)) - tables - ours
            assert unknown == set(), (name, panel["title"])


def test_odd_currencies_are_the_accountings():
    """The bill's SQL knows every currency whose minor unit is no hundredth."""
    assert {"JPY", "KWD", "CLF"} < set(ODD)
    assert all(minor_digits(code) != 2 for code in ODD)
