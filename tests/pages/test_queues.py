"""GET /queues: who waited beside unused quota, what was borrowed and lent, and who was stopped."""

import pytest

from fakes.collector import running
from fakes.crawl import read_csv
from fakes.pages import Page
from fakes.postgres import fresh_database
from fakes.queue_hours import BORROWER, EVICTED, LENDER, PREEMPTOR, fill_queues
from fakes.two_teams import MONTH, NOW_MS, two_teams
from gpuledger_collector.accounting.period import HOUR_MS

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
START_MS = NOW_MS // HOUR_MS * HOUR_MS - HOUR_MS
REMEDY = (
    f"8.0 GPU-hours of {BORROWER} waited while {LENDER} left quota unused: let it borrow (one cohort,"
    " borrowingLimit, lendingLimit), or move quota to it"
)


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        fill_queues(dsn, START_MS)
        yield made


def ask(fleet, path, role="finance"):
    collector, secrets = fleet
    status, headers, text = collector.request(
        "GET", path, headers={**BROWSER, "Authorization": f"Bearer {secrets[role]}"}
    )
    if headers["Content-Type"].startswith("text/html"):
        assert Page(text).faults == [], path
    return status, text


def test_it_says_first_what_to_do(fleet):
    """About the queue that waited beside unused quota, with whose that was; it has the first row."""
    status, text = ask(fleet, f"/queues?period={MONTH}")
    assert status == 200
    page = Page(text)
    first, second = page.table("queue").rows[1:]
    assert first == [
        f"{BORROWER} kueue · gpus",
        "reserved 32.0",
        "used 48.0 16.0 borrowed",
        "lent 0.0",
        "unused 0.0",
        "waited 8.0 8.0 beside unused quota",
        "stopped 0",
    ]
    assert page.text.index(f"{REMEDY}.") < page.text.index(first[0])
    assert second[0] == f"{LENDER} kueue · gpus"
    assert second[3:] == ["lent 16.0", "unused 32.0", "waited not known", "stopped 1 4.0 lost"]
    assert "Waited beside unused quota 8.0 GPU-hours of 8.0 that waited for quota" in page.text
    assert "Stopped early 1 workload 4.0 GPU-hours lost" in page.text


def test_it_says_who_made_room_for_whom_and_each_quota(fleet):
    """With instants as people say them."""
    page = Page(ask(fleet, f"/queues?period={MONTH}")[1])
    (evicted,) = page.table("workload").rows[1:]
    assert evicted[0] == f"{EVICTED} {LENDER} · Preempted"
    assert evicted[2:] == [f"for {PREEMPTOR} {BORROWER}", "GPUs 8", "GPU-hours lost 4.0"]
    (quotas,) = [table.rows for table in page.tables if table.rows[0][1:2] == ["quota"]]
    assert [row[:2] for row in quotas[1:]] == [
        [f"{BORROWER} kueue · h100 · pool train", "quota 32"],
        [f"{LENDER} kueue · h100 · pool train", "quota 64"],
    ]
    assert {row[-1] for row in quotas[1:]} == {"it holds"}


def test_it_is_narrowed_by_words_and_has_files_of_each_list(fleet):
    """Words of names; what is not found leads back; CSV of hours, quotas and evictions."""
    _, text = ask(fleet, f"/queues?period={MONTH}&q=SPEECH%20kueue")
    assert [row[0] for row in Page(text).table("queue").rows[1:]] == [f"{BORROWER} kueue · gpus"]
    _, text = ask(fleet, f"/queues?period={MONTH}&q=nothing-is-called-so")
    assert "None of 2 queues has these words in its names" in Page(text).text
    for by, queues in (
        ("", [BORROWER, LENDER]),
        ("quotas", [BORROWER, LENDER]),
        ("evictions", [LENDER]),
    ):
        _, text = ask(fleet, f"/queues?period={MONTH}&format=csv&by={by}")
        head, *rows = read_csv(text)
        assert [row[head.index("queue")] for row in rows] == queues, by
    assert ask(fleet, "/queues?by=team")[0] == 422
    assert ask(fleet, "/queues?period=never")[0] == 422


def test_a_viewer_is_refused(fleet):
    """A queue belongs to no owner."""
    status, text = ask(fleet, "/queues", "viewer")
    assert status == 403
    assert LENDER not in text


def test_without_a_reading_it_says_how_to_have_some(dsn):
    """The first page that anybody sees."""
    with running(dsn) as collector:
        status, _, text = collector.request("GET", "/queues", headers=BROWSER)
    assert (status, Page(text).faults) == (200, [])
    shown = Page(text).text
    assert "None is known of this time; queues are read where kubernetes_queues is set" in shown
    assert "0.0" not in shown
