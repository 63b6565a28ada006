"""Lists are narrowed by their form, and an empty one says what was asked and leads on."""

import re
from dataclasses import replace

import psycopg
import pytest

from fakes.crawl import read_csv
from fakes.pages import Page
from fakes.postgres import fresh_database
from fakes.two_teams import FOREIGN, MONTH, OWN, day, finding_of, idle_job, two_teams
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.durations import lasting
from gpuledger_collector.storage.findings import findings

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
FREE = 5


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    """Two teams, one idle GPU of each, and five GPUs of one model that nobody holds, on two nodes."""
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        for team in (OWN, FOREIGN):
            idle_job(dsn, team)
        held = finding_of(OWN, "idle")
        free = [
            replace(
                held,
                key=f"free-{number}",
                state="unallocated",
                subject=f"GPU-free-{number}",
                team="",
                owner={},
                workload_id=None,
                currency="USD",
                per_day_micro=24_000_000,
                evidence={"node": f"node-{number % 2}", "pool": "spare"},
            )
            for number in range(FREE)
        ]
        with psycopg.connect(dsn) as connection:
            findings.upsert(connection, free)
        yield made


def ask(fleet, path, role="finance"):
    collector, secrets = fleet
    status, headers, text = collector.request(
        "GET", path, headers={**BROWSER, "Authorization": f"Bearer {secrets[role]}"}
    )
    if headers["Content-Type"].startswith("text/html"):
        assert Page(text).faults == [], path
    return status, text


def table_after(text, caption):
    """The cells of the table with this caption."""
    (part,) = re.findall(rf"<table[^>]*>\s*<caption>{caption}.*?</table>", text, re.DOTALL)
    frame = (
        f"<!DOCTYPE html>\n<html><title></title><header></header><main></main>"
        f"<footer></footer><h1></h1>{part}</html>"
    )
    return Page(frame).tables[0].rows[1:]


def test_free_gpus_stand_in_groups_and_held_ones_first(fleet):
    """Five equal lines are one, with their number and the cost of a day; by node they are two."""
    _, text = ask(fleet, "/idle")
    assert text.index("Held, and doing nothing") < text.index("Held by nobody, and free to use")
    (row,) = table_after(text, "Held by nobody")
    assert row[1] == f"{FREE} GPUs"
    assert row[2] == "node-0, node-1"
    assert row[4].startswith(f"{FREE * 24}.00 USD")
    rows = table_after(ask(fleet, "/idle?by=node")[1], "Held by nobody")
    assert [(cells[0], cells[1]) for cells in rows] == [("node-0", "3 GPUs"), ("node-1", "2 GPUs")]
    _, one_by_one = ask(fleet, "/idle?by=none")
    assert all(f"GPU-free-{number}" in one_by_one for number in range(FREE))
    assert ask(fleet, "/idle?by=color")[0] == 422


@pytest.mark.parametrize(
    ("query", "count"),
    [("node=node-0", 3), ("pool=spare", FREE), ("state=unallocated", FREE), ("q=gpu-FREE-4", 1)],
)
def test_idle_is_narrowed_and_its_csv_is_the_same_view(fleet, query, count):
    """What the form asks for, on the page and in the file that the page links to."""
    _, text = ask(fleet, f"/idle?{query}&by=none")
    assert f"<dd>{count} GPU" in text
    (csv,) = {link for link in Page(text).links if "format=csv" in link}
    assert len(read_csv(ask(fleet, csv)[1])) == count + 1
    whole = len(read_csv(ask(fleet, "/idle?format=csv")[1])) - 1
    assert whole > count
    assert f"of {whole} in the whole list" in text


def test_jobs_are_searched_and_narrowed(fleet):
    """By a part of a name, by node, pool and model; the form keeps what was asked."""
    for query in (f"q={OWN}-JOB", f"node={OWN}-node", f"pool={OWN}-pool", f"q={OWN}-user"):
        _, text = ask(fleet, f"/jobs?{query}&period={MONTH}")
        assert f"{OWN}-job</a>" in text, query
        assert f"{FOREIGN}-job</a>" not in text, query
        rows = read_csv(ask(fleet, f"/jobs?{query}&period={MONTH}&format=csv")[1])
        assert len(rows) == 2, query
    assert f'value="{OWN}-node" selected' in ask(fleet, f"/jobs?node={OWN}-node&period={MONTH}")[1]
    # A pattern of SQL is a text here.
    _, text = ask(fleet, f"/jobs?q=%25&period={MONTH}")
    assert "is what you asked for" in text
    assert f'href="/jobs?period={MONTH}"' in text


def test_a_range_is_days_or_dates_or_a_period(fleet):
    """The narrowest of what a form sends counts; other pages keep it; what is no range is refused."""
    for query in (
        "days=7",
        f"from={day(-7)}&to={day(1)}",
        f"from={day(-7)}",
        "days=7&period=2020-01",
    ):
        for path in ("/", "/jobs", "/idle", "/anomalies", "/trust"):
            status, text = ask(fleet, f"{path}?{query}")
            assert status == 200, (path, query)
            links = Page(text).links
            kept = "days=7" if query.startswith("days") else f"from={day(-7)}"
            assert any(link.startswith("/jobs?") and kept in link for link in links), (path, query)
    assert f"{OWN}-job</a>" in ask(fleet, "/jobs?days=7")[1]
    for query in ("days=0", "days=x", "from=never&to=2026-01-01", f"to={day(0)}"):
        assert ask(fleet, f"/jobs?{query}")[0] == 422, query


def test_every_empty_answer_has_its_own_sentence(fleet):
    """A mistyped team with the nearest names, a month before the ledger, one to come, and a team
    without usage.
    """
    for path in ("/", "/jobs"):
        _, mistyped = ask(fleet, f"{path}?team={OWN[:-1]}m")
        assert "is the name right?" in mistyped
        assert f'href="{path}?team={OWN}">{OWN}</a>' in mistyped
        assert "The ledger begins on" in ask(fleet, f"{path}?period=2020-01")[1]
        assert "it is still to come" in ask(fleet, f"{path}?period={int(MONTH[:4]) + 1}-12")[1]
    status, text = ask(fleet, f"/statements/team/{OWN[:-1]}m/{MONTH}")
    assert status == 404
    assert f"The nearest: {OWN}" in text


def test_the_overview_says_what_free_gpus_cost(fleet):
    """To who sees the fleet; what nobody holds is in no owner's part."""
    said = f"GPUs that nobody holds cost {FREE * 24} a day."
    assert said in Page(ask(fleet, "/")[1]).text
    assert "nobody holds cost" not in Page(ask(fleet, "/", "viewer")[1]).text


def test_a_viewer_is_not_told_whether_a_name_is_somebody_elses(fleet):
    """A name that another team has and one that nobody has get the same answer."""
    for path in ("/", "/jobs"):
        foreign, invented = f"{FOREIGN}-project", "no-such-project"
        answers = [
            ask(fleet, f"{path}?project={name}&period={MONTH}", "viewer")[1].replace(name, "X")
            for name in (foreign, invented)
        ]
        told = [re.search(r"Nothing was (?:ever )?charged[^<]*", text).group() for text in answers]
        assert told == ["Nothing was ever charged to project X: is the name right?"] * 2, path
        assert FOREIGN not in answers[0]


def test_a_range_in_the_name_of_a_file_is_harmless(fleet):
    """A line break or a letter that no header holds is a dash of the name, and no fault."""
    for wanted in ("2026-Q3%0A", "2026-Q3%E2%80%83"):
        status, text = ask(fleet, f"/idle?format=csv&period={wanted}")
        assert status == 200, text
        assert text.startswith("node,")


def test_a_range_that_is_too_long_for_a_chart_has_an_overview(fleet):
    """The overview leaves the chart out; the page of spend says what it shows at most."""
    status, text = ask(fleet, "/?from=1990-01-01")
    assert (status, 'class="plot bars' in text) == (200, False)
    assert ask(fleet, "/spend?from=1990-01-01&to=2026-01-01")[0] == 422


def test_a_viewer_is_offered_its_own_places_only(fleet):
    """The choices of a form name nothing of others, nor does a search find it."""
    for path in ("/jobs", "/idle", "/anomalies"):
        for query in ("", f"?q={FOREIGN[:3]}"):
            _, text = ask(fleet, path + query, "viewer")
            assert FOREIGN not in text, (path, query)


@pytest.mark.parametrize(
    ("length_ms", "said"),
    [
        (47 * HOUR_MS, "47 hours"),
        (15.6 * DAY_MS, "16 days"),
        (90 * 60_000, "90 minutes"),
        (59_000, "less than a minute"),
    ],
)
def test_lengths_are_rounded_and_not_cut(length_ms, said):
    """47 hours are not one day."""
    assert lasting(length_ms) == said
