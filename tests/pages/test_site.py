"""All pages together: links lead somewhere (fakes.crawl says which are followed), every CSV can be
read, and a viewer sees its own part only.
"""

import json
import re
from dataclasses import replace
from html import unescape
from urllib.parse import urldefrag, urlsplit

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.collector import running
from fakes.crawl import Crawl, read_csv
from fakes.pages import Page, written_instants
from fakes.postgres import fresh_database
from fakes.two_teams import FOREIGN, MONTH, NOW_MS, OWN, finding_of, idle_job, two_teams
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.cli import build
from gpuledger_collector.storage.findings import findings

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
START = f"/?period={MONTH}"
PAGES = (
    "/",
    "/fleet",
    "/statements",
    "/spend",
    "/jobs",
    "/models",
    "/idle",
    "/anomalies",
    "/demand",
    "/queues",
    "/trust",
)
NARROWED = f"team={OWN}&period={MONTH}"


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        for team in (OWN, FOREIGN):
            idle_job(dsn, team)
        yield made


def ask(fleet, path, role="finance"):
    collector, secrets = fleet
    return collector.request(
        "GET", path, headers={**BROWSER, "Authorization": f"Bearer {secrets[role]}"}
    )


def crawl(fleet, role, *starts, **options):
    """The pages and CSVs that this role can reach from the overview."""
    return Crawl(lambda path: ask(fleet, path, role), **options).run("/", START, *starts)


@pytest.fixture(scope="module")
def crawled(fleet):
    # Pages that combine nothing new, and are left out, lead to a project without its team.
    projects = [f"/?project={team}-project" for team in (OWN, FOREIGN)]
    return crawl(fleet, "finance", f"/idle?period={MONTH}", *projects)


def test_every_link_answers_and_every_csv_can_be_read(crawled):
    """From the overview each kind of page is reached, each with all others in its header, and as
    CSV.
    """
    kinds = {"/" + path.split("/")[1].partition("?")[0] for path in crawled.pages}
    assert kinds == {
        "/",
        "/statements",
        "/jobs",
        "/models",
        "/idle",
        "/anomalies",
        "/demand",
        "/queues",
        "/pools",
        "/trust",
        "/spend",
        "/fleet",
        "/docs",
    }
    for path, page in crawled.pages.items():
        led = {urlsplit(link).path.split("/")[1] for link in page.links if link[0] == "/"}
        assert led >= {kind.strip("/") for kind in PAGES}, path
    files = {"/" + path.split("/")[1].partition("?")[0] for path in crawled.files}
    assert files >= {"/statements", "/jobs", "/idle", "/anomalies", "/trust", "/fleet", "/spend"}
    assert {path.partition("?")[0] for path in crawled.pages} >= {
        f"/fleet/gpu/GPU-{team}" for team in (OWN, FOREIGN)
    }


def test_instants_are_said_as_people_do_on_every_page(crawled):
    """`8 Nov, 05:00` and not `2026-11-08T05:00Z`, wherever one is read; each has its title."""
    shown = {
        found: path for path in crawled.pages for found in written_instants(crawled.texts[path])
    }
    assert shown == {}
    kinds = {
        "/" + path.split("/")[1].partition("?")[0]
        for path in crawled.pages
        if "<time " in crawled.texts[path]
    }
    assert kinds >= {*PAGES, "/pools"}


def test_the_way_from_the_overview_to_a_job_and_back(crawled):
    """Overview, team, statement, month, job, idle list, anomaly: each leads to the next."""
    statement = f"/statements/team/{OWN}/{MONTH}"
    assert statement in crawled.pages[START].links
    assert f"/statements/team/{MONTH}" in crawled.pages[statement].links
    # From its tables narrowed to the month, from a sentence of unusual spending to the team.
    jobs = {
        urldefrag(link).url
        for link in crawled.pages[statement].links
        if link.startswith(f"/jobs/{OWN}-job")
    }
    assert len({urlsplit(link).path for link in jobs}) == 1
    for job in jobs:
        assert f"/?team={OWN}" in crawled.pages[job].links
    assert f"/jobs/slurm%3A%3A{OWN}-1" in crawled.pages[f"/idle?period={MONTH}"].links
    anomaly = next(
        link
        for link in crawled.pages[START].links
        if link.startswith("/anomalies?") and "#" in link
    )
    assert urldefrag(anomaly).url in crawled.pages


def test_a_viewer_sees_its_own_part_of_every_page(fleet):
    """Every page and CSV that a viewer can reach tells of no other team; what is another's is
    refused in a sentence.
    """
    crawled = crawl(fleet, "viewer", follows_all=True)
    assert len(crawled.pages) >= 10
    assert len(crawled.files) >= 4
    shown = json.dumps(crawled.texts)
    assert OWN in shown
    assert FOREIGN not in shown
    for page in crawled.pages.values():
        assert not {"/fleet", "/demand", "/queues", "/trust"} & {
            urlsplit(link).path for link in page.links
        }
    for path in (
        "/fleet",
        "/demand",
        "/queues",
        "/trust",
        "/pools/x",
        f"/?team={FOREIGN}",
        f"/idle?team={FOREIGN}&format=csv",
    ):
        status, _, text = ask(fleet, path, "viewer")
        assert (status, Page(text).faults) == (403, []), path
    for path in (f"/jobs/{FOREIGN}-1", f"/jobs/slurm%3A%3A{FOREIGN}-1", f"/jobs/{FOREIGN}-job"):
        status, _, text = ask(fleet, path, "viewer")
        assert (status, Page(text).faults) == (404, []), path


def test_a_job_of_two_owners_is_no_viewers(fleet):
    """Where a part of a job is charged to another, a viewer does not get its receipt."""
    collector, _ = fleet
    with psycopg.connect(collector.dsn) as connection:
        other = connection.execute("SELECT id FROM owner WHERE team = %s", (FOREIGN,)).fetchone()[0]
        (line,) = connection.execute(
            "SELECT ctid FROM charge WHERE state = 'held' AND workload_id = (SELECT id FROM"
            " workload WHERE external_id = %s) LIMIT 1",
            (f"{OWN}-1",),
        ).fetchone()
        (before,) = connection.execute(
            "SELECT owner_id FROM charge WHERE ctid = %s", (line,)
        ).fetchone()
        changed = (
            "UPDATE charge SET owner_id = %s WHERE ctid = (SELECT ctid FROM charge WHERE state ="
            " 'held' AND "
        )
        changed += (
            "owner_id = %s AND workload_id = (SELECT id FROM workload WHERE external_id = %s)"
            " LIMIT 1)"
        )
        connection.execute(changed, (other, before, f"{OWN}-1"))
    try:
        status, _, text = ask(fleet, f"/jobs/{OWN}-1", "viewer")
        assert (status, "a part of this job is charged to others" in text) == (403, True)
        assert ask(fleet, f"/jobs/{OWN}-1")[0] == 200
    finally:
        with psycopg.connect(collector.dsn) as connection:
            connection.execute(changed, (before, other, f"{OWN}-1"))


@pytest.mark.parametrize(
    ("path", "command"),
    [
        (f"/idle?period={MONTH}", ("idle", "--period", MONTH)),
        (f"/anomalies?period={MONTH}", ("anomalies", "--period", MONTH)),
        (f"/models?period={MONTH}", ("inference", "list", "--period", MONTH)),
        (f"/queues?period={MONTH}", ("queues", "list", "--period", MONTH)),
        (f"/queues?period={MONTH}&by=quotas", ("queues", "quotas", "--period", MONTH)),
        (f"/queues?period={MONTH}&by=evictions", ("queues", "evictions", "--period", MONTH)),
        (f"/jobs?period={MONTH}", ("runs", "--period", MONTH, "--top", "0")),
        (f"/statements/team/{MONTH}", ("chargeback", "--period", MONTH, "--by", "team")),
    ],
)
def test_the_csv_of_a_page_is_that_of_the_command(fleet, monkeypatch, path, command):
    """The same columns and rows, to the cent."""
    # The detectors would judge the evidence anew, and these findings are the test's own.
    for module in ("idle.find_idle", "anomalies.find_anomalies"):
        monkeypatch.setattr(f"gpuledger_collector.cli.{module}", lambda *_: None)
    collector, _ = fleet
    printed = CliRunner().invoke(build(), [*command, "--format", "csv", "--dsn", collector.dsn])
    assert printed.exit_code == 0, printed.output
    status, _, text = ask(fleet, f"{path}{'&' if '?' in path else '?'}format=csv")
    assert (status, text) == (200, printed.stdout)


def main_of(text):
    return text[text.index("<main") : text.index("</main>")]


def test_a_page_is_narrowed_by_its_address(fleet):
    """Period and owner are parameters; what they leave out is not there, and the header keeps them."""
    for path in ("/idle", "/jobs", "/anomalies"):
        whole, narrowed = (
            ask(fleet, f"{path}?{query}")[2] for query in (f"period={MONTH}", NARROWED)
        )
        assert FOREIGN in main_of(whole), path
        assert FOREIGN not in main_of(narrowed), path  # its form offers every team
        assert OWN in narrowed, path
        page = Page(narrowed)
        assert f"team {OWN}" in page.text
        assert f"{path}?period={MONTH}" in page.links, "without the owner"
        assert f"/jobs?period={MONTH}&team={OWN}" in page.links
    assert FOREIGN not in ask(fleet, f"/?{NARROWED}")[2]
    assert ask(fleet, "/?team=(unattributed)")[0] == 200
    year, quarter = MONTH[:4], (int(MONTH[5:]) + 2) // 3
    for path in [path for path in PAGES if path != "/statements"]:  # those are of a month each
        for name in (year, f"{year}-Q{quarter}"):
            status, _, text = ask(fleet, f"{path}?period={name}")
            assert (status, Page(text).faults) == (200, []), (path, name)
    for path in (
        "/jobs?period=yesterday",
        "/jobs?period=FY2027",
        "/trust?period=2026-13",
        "/jobs?sort=name",
    ):
        status, _, text = ask(fleet, path)
        assert (status, Page(text).faults) == (422, []), path
    assert "is not a period; write it as 2026-10" in unescape(
        ask(fleet, "/jobs?period=yesterday")[2]
    )


def test_the_idle_page_says_how_to_give_each_back(fleet):
    """Node, owner, since when, what an hour costs, and the command; of what nobody holds that it is
    free.
    """
    page = Page(ask(fleet, "/idle")[2])
    rows = {row[1]: row for row in page.table("node and GPU").rows[1:] if "GPU 0" in row[0]}
    row = rows[f"{OWN} {OWN}-job · {OWN}-user"]
    assert row[0].startswith(f"{OWN}-node, GPU 0 NVIDIA L4 · GPU-{OWN}")
    assert "gone idle" in row[0]
    assert row[3].startswith("1.00 USD an hour")
    assert row[4] == f"scancel {OWN}-1"
    zombies = [row for row in page.table("node and GPU").rows[1:] if "not released" in row[0]]
    assert [row[4] for row in zombies] == [
        "Its job has ended: end the process that is left, or drain the node."
    ] * 2


def test_the_first_sentence_says_who_could_give_gpus_back(fleet):
    """The holders that the idle page lists, with reason, cost of a day and command; a viewer's own
    alone; of a month that is over none.
    """
    page = Page(ask(fleet, "/")[2])
    assert "these 2 holders could give back 48 a day" in page.text
    for team in (OWN, FOREIGN):
        assert f"{team}-job {team} · {team}-user" in page.text
        assert f"/jobs/slurm%3A%3A{team}-1" in page.links
        said = rf"Gone idle: 1 GPU for \d+ minutes 24\.00 USD a day scancel {team}-1"
        assert re.search(said, page.text)
    own = Page(ask(fleet, "/", "viewer")[2]).text
    assert "this holder could give back 24 a day" in own
    assert f"scancel {OWN}-1" in own
    assert FOREIGN not in own
    assert "could give back" not in Page(ask(fleet, "/?period=2025-01")[2]).text


def test_what_nobody_holds_is_no_owners_part(fleet, monkeypatch):
    """A free GPU is not the usage of an owner whom nobody knows: not on its list, its statement, or
    in its row.
    """
    monkeypatch.setattr("gpuledger_collector.cli.idle.find_idle", lambda *_: None)
    collector, _ = fleet
    idle = replace(finding_of(OWN, "idle"), team="", owner={})
    free = replace(idle, key="free", state="unallocated", subject="GPU-free")
    unknown = replace(idle, key="unknown", state="gone_idle", subject="GPU-unknown")
    with psycopg.connect(collector.dsn) as connection:
        findings.upsert(connection, [free, unknown])
    try:
        assert "GPU-free" in ask(fleet, "/idle?by=none")[2]
        for path in (
            "/idle?team=(unattributed)",
            "/?team=(unattributed)",
            f"/statements/team/(unattributed)/{MONTH}",
        ):
            status, _, text = ask(fleet, path)
            assert (status, "GPU-unknown" in text, "GPU-free" in text) == (200, True, False), path
        command = ["idle", "--period", MONTH, "--format", "csv", "--dsn", collector.dsn]
        by_team = CliRunner().invoke(build(), [*command, "--by", "team"])
        assert {line.split(",")[0] for line in by_team.stdout.splitlines()} >= {
            "(nobody)",
            "(unattributed)",
        }
        listed = CliRunner().invoke(build(), [*command, "--team", "(unattributed)"]).stdout
        assert ("GPU-unknown" in listed, "GPU-free" in listed) == (True, False)
    finally:
        with psycopg.connect(collector.dsn) as connection:
            connection.execute("DELETE FROM finding WHERE key IN ('free', 'unknown')")


def test_several_jobs_of_one_name_are_a_list(fleet):
    """An id leads to the receipt; a name that two jobs have to the list of both, still narrowed."""
    collector, _ = fleet
    with psycopg.connect(collector.dsn) as connection:
        connection.execute("UPDATE workload SET name = 'train'")
    try:
        status, headers, _ = ask(fleet, f"/jobs/train?{NARROWED}")
        assert (status, headers["Location"]) == (303, f"/jobs?period={MONTH}&team={OWN}&name=train")
        (row,) = Page(ask(fleet, headers["Location"])[2]).table("job").rows[1:]
        # Its state is left out: a run that no record ends has ended once an hour passes without it.
        assert row[0].rpartition(" · ")[0] == f"train {OWN} · {OWN}-user · NVIDIA L4"
        assert len(Page(ask(fleet, f"/jobs?period={MONTH}&name=train")[2]).table("job").rows) == 3
    finally:
        with psycopg.connect(collector.dsn) as connection:
            connection.execute(
                "UPDATE workload SET name = split_part(external_id, '-', 1) || '-job'"
            )


def test_a_page_reloads_itself_only_while_something_is_made(fleet):
    """An hour of the past that waits to be folded: a header, a sentence, and a link that stops it."""
    collector, _ = fleet
    quiet = ask(fleet, "/idle")
    assert quiet[1]["Refresh"] is None
    assert "reloads itself" not in quiet[2]
    with psycopg.connect(collector.dsn) as connection:
        # An accelerator that nobody folds: the request stays.
        connection.execute(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (0, %s)",
            (NOW_MS - HOUR_MS * 9,),
        )
    try:
        _, headers, text = ask(fleet, f"/idle?{NARROWED}")
        assert headers["Refresh"] == "15"
        assert (
            "is being added up. This page reloads itself every 15 seconds until that is done."
            in Page(text).text
        )
        (still,) = [link for link in Page(text).links if "reload=off" in link]
        _, headers, text = ask(fleet, still)
        assert headers["Refresh"] is None
        assert f"team {OWN}" in Page(text).text, "still narrowed"
    finally:
        with psycopg.connect(collector.dsn) as connection:
            connection.execute("DELETE FROM hour_recompute WHERE accelerator_id = 0")


def test_an_empty_ledger_has_helpful_pages(dsn):
    """Each page says what is not known and what to do; no amount and no zero stands for it."""
    with running(dsn) as collector:
        for path in (
            *(page for page in PAGES if page != "/statements"),
            f"/statements/team/{MONTH}",
        ):
            status, _, text = collector.request("GET", path, headers=BROWSER)
            page = Page(text)
            assert (status, page.faults) == (200, []), path
            assert "USD" not in page.text, path
            assert not re.search(r"(?<![:\d])0 GPU", page.text), path
            assert "gpuledger" in page.text, path
        assert "not known" in Page(collector.request("GET", "/idle", headers=BROWSER)[2]).text
        for path in (
            "/idle",
            "/anomalies",
            "/jobs",
            "/models",
            "/spend",
            "/trust",
            "/demand",
            "/queues",
            f"/statements/team/{MONTH}",
        ):
            status, _, text = collector.request("GET", f"{path}?format=csv")
            assert (status, len(read_csv(text))) == (200, 1), path
