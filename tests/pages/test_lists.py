"""Lists are narrowed by their form, and an empty one says what was asked and leads on."""

import re
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from fakes.crawl import read_csv
from fakes.pages import Page
from fakes.postgres import fresh_database
from fakes.two_teams import FOREIGN, MONTH, NOW_MS, OWN, day, finding_of, idle_job, two_teams
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.spend_series import GROUPINGS
from gpuledger_collector.api import fleet_pages, list_pages, pages
from gpuledger_collector.api.narrowing import WHOLE
from gpuledger_collector.api.page_routes import PageRoute
from gpuledger_collector.export.runs import as_html
from gpuledger_collector.insight.bottlenecks import BottleneckReport
from gpuledger_collector.insight.durations import lasting
from gpuledger_collector.services.runs import read_job
from gpuledger_collector.storage.findings import findings

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
FREE = 5
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pages.md"


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
    assert text.index("Held, and doing nothing") < text.index("Held by nobody")
    (row,) = table_after(text, "Held by nobody")
    assert row[1] == f"{FREE} GPUs"
    assert row[2] == "node-0, node-1"
    assert row[4].startswith(f"{FREE * 24}.00 USD")
    held = table_after(text, "Held, and doing nothing")[0][3]
    assert re.search(r"^[\d.]+ USD an hour [\d.]+ USD a day [\d.]+ USD so far$", held), held
    rows = table_after(ask(fleet, "/idle?by=node")[1], "Held by nobody")
    assert [(cells[0], cells[1]) for cells in rows] == [("node-0", "3 GPUs"), ("node-1", "2 GPUs")]
    _, one_by_one = ask(fleet, "/idle?by=none")
    assert all(f"GPU-free-{number}" in one_by_one for number in range(FREE))
    assert ask(fleet, "/idle?by=color")[0] == 422


def test_the_overview_has_the_command_of_what_is_to_be_given_back(fleet):
    """What to act on stands first, as in the whole list, with its command in the row."""
    (first, *_) = table_after(ask(fleet, "/idle")[1], "Held, and doing nothing")
    (row, *_) = table_after(ask(fleet, "/")[1], "Held idle: what to act on first")
    assert first[4].startswith("scancel "), first
    assert first[4] in row[0]


def test_a_group_of_free_gpus_keeps_what_the_list_is_narrowed_to(fleet):
    """Its link leads to its own rows alone: as many as it counts, of the same range."""
    here = f"/idle?period={MONTH}&pool=spare&q=gpu-FREE-4"
    _, text = ask(fleet, here)
    (group,) = table_after(text, "Held by nobody")
    assert group[1] == "1 GPU"
    (link,) = {link for link in Page(text).links if "state=unallocated" in link}
    (row,) = table_after(ask(fleet, link)[1], "One by one")
    assert "GPU-free-4" in row[0]
    asked = parse_qs(urlsplit(link).query)
    assert (asked["period"], asked["pool"], asked["q"]) == ([MONTH], ["spare"], ["gpu-FREE-4"])


@pytest.mark.parametrize(
    ("query", "stream"),
    [
        ("", "/live"),
        ("?node=node-0&pool=(unnamed)&q=gpu", "/live?pool=%28unnamed%29&amp;node=node-0"),
        (f"?period={MONTH}&node=node-0", None),
    ],
)
def test_the_stream_is_narrowed_as_the_list_is(fleet, query, stream):
    """What changes on other nodes and pools is not told; a past range hears nothing."""
    _, text = ask(fleet, f"/idle{query}")
    assert re.findall(r'data-stream="([^"]*)"', text) == ([stream] if stream else [])


def test_a_range_counts_gpus_once_and_their_episodes(fleet):
    """How many GPUs were idle, and how often: the lines of the file."""
    _, text = ask(fleet, f"/idle?period={MONTH}")
    lines = len(read_csv(ask(fleet, f"/idle?period={MONTH}&format=csv")[1])) - 1
    assert re.search(rf"Idle in {MONTH} \d+ GPUs {lines} episodes, ", Page(text).text)
    assert "Held by nobody at some time, each GPU counted once" in text


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("node=node-0", 3),
        ("pool=spare", FREE),
        ("state=unallocated", FREE),
        ("q=gpu-FREE-4", 1),
        (f"username={OWN}-user", 1),
    ],
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


def test_the_guide_names_every_choice():
    """Whoever writes an address by hand finds in docs/guides/pages.md what a list knows."""
    (part,) = re.findall(r"## An address can be.*?(?=\n## )", GUIDE.read_text(), re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", part))))
    choices = [
        *asdict(WHOLE),
        *list_pages.GROUPINGS,
        *list_pages.JOB_GROUPINGS,
        *list_pages.ANOMALY_GROUPINGS,
        *GROUPINGS,
        *pages.BILL_STATES,
        *fleet_pages.DAY_STATES,
    ]
    assert {choice for choice in choices if choice} <= named


def test_jobs_are_searched_and_narrowed(fleet):
    """By a part of a name, by node, pool and model; the form keeps what was asked."""
    for query in (f"q={OWN}-JOB", f"node={OWN}-node", f"pool={OWN}-pool", f"q={OWN}-user"):
        _, text = ask(fleet, f"/jobs?{query}&period={MONTH}")
        assert f"{OWN}-job</a>" in text, query
        assert f"{FOREIGN}-job</a>" not in text, query
        rows = read_csv(ask(fleet, f"/jobs?{query}&period={MONTH}&format=csv")[1])
        assert len(rows) == 2, query
    assert f'value="{OWN}-node" selected' in ask(fleet, f"/jobs?node={OWN}-node&period={MONTH}")[1]
    _, text = ask(fleet, f"/jobs?username={OWN}-user&period={MONTH}")
    assert f"{OWN}-job</a>" in text
    assert f"{FOREIGN}-job</a>" not in text
    # The form keeps whom a link chose, and lets go of it.
    assert "username" in form_of(text)
    assert f'value="{OWN}-user" selected' in text
    assert "username" not in form_of(ask(fleet, f"/jobs?period={MONTH}")[1])
    _, text = ask(fleet, f"/jobs?username={OWN}-use&period={MONTH}")
    assert "is what you asked for" in text
    # Hours to the tenth, as elsewhere, and what one of them cost beside the charge.
    _, text = ask(fleet, f"/jobs?sort=price&period={MONTH}")
    (row,) = [row for row in re.findall(r"<tr>.*?</tr>", text) if f"{OWN}-job</a>" in row]
    head, *rows = read_csv(ask(fleet, f"/jobs?sort=price&period={MONTH}&format=csv")[1])
    (paid,) = [one[head.index("cost_per_gpu_hour")] for one in rows if f"{OWN}-job" in one]
    assert f'<span class="sub">{paid} a GPU-hour</span>' in row
    assert re.search(r'<td class="num">[\d,]+\.\d</td>', row), row
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


FIELDS = {
    "/spend": {"team", "by", "from", "to"},
    "/jobs": {"q", "team", "node", "pool", "by", "sort", "from", "to"},
    "/idle": {"q", "team", "node", "state", "by", "from", "to"},
    "/anomalies": {"q", "team", "by", "from", "to"},
    "/statements/{level}/{month}": {"q", "period", "by", "state"},
    "/demand": {"q", "model", "gpus"},
    "/models": {"q"},
    "/queues": {"q", "from", "to"},
    "/trust": {"state", "from", "to"},
    "/fleet": {"at", "color", "by"},
    "/fleet/gpu/{gpu:name}": {"from", "to"},
}
"""Every list, and what its form asks for at least."""
NOT_LISTS = {
    "/": "each of its parts leads to its list",
    "/statements": "leads to the lists of this month",
    "/statements/{level}": "leads to the list of this month",
    "/statements/{level}/{owner:name}/{month}": "the bill of one owner in one month",
    "/jobs/{job:name}": "one job, whole",
    "/pools/{pool:name}": "one pool, whole",
}
"""Pages without a form, and why."""
PLACES = {"level": "team", "month": MONTH, "gpu:name": f"GPU-{OWN}"}


def page_paths(found):
    """The paths of all pages, also of routers that are kept as routers."""
    for route in found:
        if hasattr(route, "original_router"):
            yield from page_paths(route.original_router.routes)
        elif isinstance(route, PageRoute):
            yield route.path


def form_of(text):
    """The names of the fields that a reader sees in the only form of a page."""
    (form,) = re.findall(r'<form class="filters[^"]*" method="get".*?</form>', text, re.DOTALL)
    fields = re.findall(r"<(?:input|select)\b[^>]*>", form)
    return {re.search(r'name="(\w+)"', field)[1] for field in fields if "hidden" not in field}


def test_every_list_has_its_form(fleet):
    """A new page is a list with a form that needs no script, or says why it is none."""
    paths = set(page_paths(fleet[0].parts.app.routes))
    assert paths == FIELDS.keys() | NOT_LISTS.keys()
    for path, fields in FIELDS.items():
        asked = re.sub(r"\{(.*?)\}", lambda place: PLACES[place[1]], path)
        status, text = ask(fleet, asked)
        assert status == 200, asked
        assert form_of(text) >= fields, (path, form_of(text))


def test_what_a_form_chose_stays_in_it_and_in_links(fleet):
    """Team, grouping and search are in the form, the CSV and the links to another range."""
    for path in ("/jobs", "/idle", "/anomalies"):
        _, text = ask(fleet, f"{path}?team={OWN}&by=none&q={OWN[:3]}&days=7")
        assert f'<option value="{OWN}" selected>{OWN}</option>' in text, path
        assert f'name="q" value="{OWN[:3]}"' in text, path
        assert '<input type="hidden" name="days" value="7">' in text, path
        links = Page(text).links
        for part in (f"team={OWN}", f"q={OWN[:3]}"):
            assert any("days=30" in link and part in link for link in links) or path == "/anomalies"
            assert any("format=csv" in link and part in link for link in links), path
    assert ask(fleet, f"/spend?team={OWN}&by=project")[1].count(" selected>") == 2


@pytest.mark.parametrize("by", ["team", "user", "model", "state", "day"])
def test_jobs_in_groups(fleet, by):
    """The groups have all jobs and all hours of the list, and each leads to its own."""
    _, text = ask(fleet, f"/jobs?by={by}&days=7")
    rows = Page(text).tables[0].rows[1:]
    _, whole = ask(fleet, "/jobs?days=7")
    assert f"<strong>{sum(int(row[1]) for row in rows)} jobs</strong>" in whole
    ungrouped = Page(whole).tables[0].rows[1:]
    hours = [
        sum(float(row[at].replace(",", "")) for row in found)
        for found, at in ((rows, 2), (ungrouped, 4))
    ]
    assert hours[0] == pytest.approx(hours[1], abs=0.2)
    main = text[text.index("<main") :]
    links = [unescape(link) for link in re.findall(r'<th scope="row"><a href="([^"]*)"', main)]
    # What is charged in a range is not what began in it.
    assert len(links) == (0 if by == "day" else len(rows))
    for link, row in zip(links, rows, strict=by != "day"):
        assert ("username=" if by == "user" else f"{by}=") in link
        assert f"<strong>{row[1]} job" in ask(fleet, link)[1], link
    assert ask(fleet, "/jobs?by=color")[0] == 422


@pytest.mark.parametrize("by", ["team", "state", "day"])
def test_unusual_spending_in_groups(fleet, by):
    """Each leads to its episodes."""
    _, text = ask(fleet, f"/anomalies?by={by}")
    main = text[text.index("<main") :]
    links = [unescape(link) for link in re.findall(r'<th scope="row"><a href="([^"]*)"', main)]
    rows = Page(text).tables[0].rows[1:]
    assert (
        sum(int(row[1]) for row in rows)
        == len(read_csv(ask(fleet, "/anomalies?format=csv")[1])) - 1
    )
    assert len(links) == (0 if by == "day" else len(rows))
    for link, row in zip(links, rows, strict=by != "day"):
        assert f"<strong>{row[1]} episode" in ask(fleet, link)[1], link
    assert ask(fleet, "/anomalies?by=color")[0] == 422


def test_statements_are_searched_and_led_to_another_month(fleet):
    """Rows keep their amounts; the form's month and level are those of the path."""
    path = f"/statements/team/{MONTH}"
    _, text = ask(fleet, f"{path}?q={OWN}")
    rows = Page(text).tables[0].rows
    assert [row[0] for row in rows[1:]] == [OWN, "total of what is shown"]
    whole = Page(ask(fleet, path)[1]).tables[0].rows
    assert rows[1] in whole
    assert f'href="{path}">Show all of them' in ask(fleet, f"{path}?q=nobody-at-all")[1]
    assert ask(fleet, f"{path}?state=color")[0] == 422
    collector, secrets = fleet
    headers = {**BROWSER, "Authorization": f"Bearer {secrets['finance']}"}
    status, answered, _ = collector.request(
        "GET", f"{path}?period=2026-01&by=project&q=x", headers=headers
    )
    assert (status, answered["Location"]) == (303, "/statements/project/2026-01?q=x")


def main_of(text):
    return text[text.index("<main") : text.index("</main>")]


UNKNOWN_TEAM, BEFORE = f"{OWN[:-1]}m", "period=2020-01"
EMPTY = {
    **{
        f"{path}?team={UNKNOWN_TEAM}": ("is the name right?", f"{path}?team={OWN}")
        for path in ("/", "/jobs", "/idle", "/anomalies", "/spend")
    },
    **{
        f"{path}?{BEFORE}": ("The ledger begins on", path)
        for path in ("/", "/jobs", "/idle", "/anomalies", "/trust")
    },
    f"/spend?{BEFORE}": ("The ledger begins on", "/spend?by=team"),
    "/spend?team=%28unattributed%29": (
        "Nothing was charged to team (unattributed)",
        "/spend?by=project",
    ),
    "/statements/team/2020-01": ("The ledger begins on", f"/statements/team/{MONTH}"),
    **{
        f"{path}?team=%28unattributed%29": ("Nothing was charged to team (unattributed)", path)
        for path in ("/", "/jobs")
    },
    "/idle?team=%28unattributed%29": ("No GPU of team (unattributed) is idle now", "/idle"),
    "/anomalies?team=%28unattributed%29": (
        "Nothing stood out of team (unattributed)",
        "/anomalies",
    ),
    **{
        f"{path}?q=no-such-word": ("what you asked for", path)
        for path in ("/jobs", "/idle", "/anomalies", f"/statements/team/{MONTH}", "/demand")
    },
    "/jobs?state=ended": ("No job in", "/jobs"),
    "/trust?state=wrong": ("what you asked for", "/trust"),
    "/fleet?pool=no-such-pool": ("Nothing of pool no-such-pool", "/fleet"),
}
"""Addresses with nothing to show: the sentence of each, and the way back."""


@pytest.mark.parametrize("path", EMPTY)
def test_what_is_empty_or_wrong_says_so_and_leads_back(fleet, path):
    """Each in its own sentence, on every list."""
    said, back = EMPTY[path]
    status, text = ask(fleet, path)
    assert status == 200
    assert said in Page(text).text, path
    assert f'href="{back}"' in main_of(text), path


@pytest.mark.parametrize(
    "path",
    [
        "/no-such-place",
        "/jobs/no-such-place",
        "/pools/no-such-place",
        "/fleet/gpu/no-such-place",
        f"/statements/team/no-such-place/{MONTH}",
    ],
)
def test_a_refusal_says_what_was_asked(fleet, path):
    """And leads on."""
    status, text = ask(fleet, path)
    assert status == 404
    assert "no-such-place" in Page(main_of_page(text)).text
    assert 'href="/"' in main_of(text)


def main_of_page(text):
    """The same page with its main part alone."""
    return (
        "<!DOCTYPE html>\n<html><title></title><header></header><h1></h1>"
        f"{main_of(text)}</main><footer></footer></html>"
    )


def test_a_running_job_says_so_and_its_price_has_a_currency(fleet):
    """Its last hour has not ended: the hour's end is no end of the job."""
    text = Page(ask(fleet, f"/jobs/{OWN}-job")[1]).text
    assert re.search(r"since \d+ \w+, \d\d:00 , still running", text)
    assert "144.00 2.00 USD 288.00 USD" in text
    assert "It never used" not in text


def test_a_job_that_never_used_its_gpu_says_so(fleet):
    """Not that nothing was found and all is fine; with the command that ends it."""
    collector, _ = fleet
    with psycopg.connect(collector.dsn) as connection:
        report = read_job(connection, f"{OWN}-job", None, NOW_MS)
    assert report.give_back == f"scancel {OWN}-1"
    unused = [replace(line, busy_ns=0, idle_ns=line.gpu_ns) for line in report.receipt.held]
    unused_report = replace(
        report,
        receipt=replace(report.receipt, held=unused),
        judgment=BottleneckReport(60, fine=["input"]),
    )
    text = Page(as_html(unused_report)).text
    assert f"It never used what it held. Give back what it holds: scancel {OWN}-1" in text
    assert "Nothing was found" not in text
    assert "Looked at and fine" not in text
    unknown = [replace(line, busy_ns=0, unknown_ns=line.idle_ns) for line in unused]
    nobody_knows = replace(unused_report, receipt=replace(report.receipt, held=unknown))
    assert "It never used" not in as_html(nobody_knows)
