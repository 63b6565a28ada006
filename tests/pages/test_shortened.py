"""Lists that somebody can make long: pages show the dearest rows, and the others as one, so that
rows add up.
"""

import csv
import io
import re
from dataclasses import replace
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, Held
from fakes.pages import text_of
from fakes.two_teams import finding_of
from gpuledger_collector.accounting.placement import RefusedClaim
from gpuledger_collector.accounting.reconciliation import Reconciliation
from gpuledger_collector.api import fleet_pages, list_pages, pages
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.export import shortened
from gpuledger_collector.export.site import Filters
from gpuledger_collector.insight.pool_outlook import Outlook
from gpuledger_collector.services import month_proof
from gpuledger_collector.services.forecasts import MOST_POOLS, forecast_outlook
from gpuledger_collector.storage.findings import findings

TEAMS = 130
LATE = 30 * DAY + 10 * HOUR
"""Shortly before the instant that the pages are read at: demand that goes on."""
EVERYTHING = View(Principal("admin", "a"))
EVERYBODY = list_pages.Narrowing()


@pytest.fixture
def crowded(fleet, run):
    """October of many teams, each of which held a GPU for some minutes, the first the longest;
    rated.
    """
    run("prices", "set", "--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
    minute = HOUR // 60
    intervals = []
    for number in range(1, TEAMS + 1):
        fleet.workload(number, team=f"crowd-{number:03d}")
        fleet.capacity(number, 0, 2 * HOUR)
        length = (TEAMS + 5 - number) * minute // 3 + number
        intervals.append(Held(number, number, 0, length, idle=length // 7))
    fleet.evidence(intervals)
    run("chargeback", "--from", "2025-10-01", "--to", "2025-11-01")
    return fleet


def amounts(text, section):
    """The last cell of each row of a table, and those of its foot."""
    body, foot = re.search(
        rf"{section}.*?<tbody>(.*?)</tbody>\s*<tfoot>(.*?)</tfoot>", text, re.DOTALL
    ).groups()
    cells = [
        re.findall(r'<td class="num">([\d,.]+)(?: USD)?</td></tr>', part) for part in (body, foot)
    ]
    return [[Decimal(cell.replace(",", "")) for cell in part] for part in cells]


@pytest.mark.parametrize(
    "make",
    [
        lambda reads: pages.overview_page(reads, pages.HourlyCache(Outlook), "", EVERYTHING),
        lambda reads: pages.month_page(reads, "team", "2025-10", EVERYTHING),
    ],
    ids=["overview", "statements"],
)
def test_a_page_lists_the_dearest_and_sums_the_rest(crowded, reads, make):
    """A hundred rows and one of the others; the rows are the total, and nobody is in both."""
    text = make(reads).body.decode()
    assert f"({TEAMS - shortened.MOST_ROWS} more)" in text
    assert ("crowd-100" in text, "crowd-101" in text) == (True, False)
    rows, (total,) = amounts(text, "(?:Spend by team in USD|Who pays in 2025-10)")
    assert len(rows) >= shortened.MOST_ROWS + 1
    assert sum(rows) == total


def test_csv_is_whole(crowded, reads):
    """Every team, with the same sum."""
    text = text_of(pages.month_page(reads, "team", "2025-10", replace(EVERYTHING, wants_csv=True)))
    assert (
        len(
            {
                row["team"]
                for row in csv.DictReader(io.StringIO(text))
                if row["team"].startswith("crowd")
            }
        )
        == TEAMS
    )


def test_a_terminal_sums_what_it_does_not_list(crowded, run, monkeypatch):
    """A pipe has every row; a terminal so many, one for the others, and the same totals."""
    from gpuledger_collector.cli import chargeback

    month = ("chargeback", "--from", "2025-10-01", "--to", "2025-11-01")
    assert run(*month)[1].count("crowd-") == TEAMS
    monkeypatch.setattr(chargeback, "terminal_width", lambda: 400)
    monkeypatch.setattr(chargeback, "MOST_TERMINAL_ROWS", 50)
    shown = run(*month)[1]
    assert shown.count("crowd-") == 50
    assert "(80 more)" in shown
    lines = [line.split() for line in shown.splitlines()]
    hours = [Decimal(cells[1]) for cells in lines if cells and cells[0].startswith("crowd-")]
    rest = next(Decimal(cells[2]) for cells in lines if cells[:2] == ["(80", "more)"])
    whole = csv.DictReader(io.StringIO(run(*month, "--format", "csv")[1]))
    expected = sum(Decimal(row["gpu_hours"]) for row in whole if row["team"].startswith("crowd-"))
    # Each is rounded to the tenth, for people.
    assert abs(sum(hours) + rest - expected) <= Decimal("0.05") * (len(hours) + 1)


def test_jobs_that_are_not_listed_are_summed(crowded, reads):
    """A hundred, and the number, hours and cost of the others under the list."""
    text = list_pages.jobs_page(reads, EVERYTHING, EVERYBODY, "", "cost", "none").body.decode()
    assert len(set(re.findall(r"crowd-\d+", text))) == list_pages.SHOWN
    assert re.search(r"and 30 more of [\d.]+ GPU-hours, [\d.]+ USD, in the", text)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("idle", lambda reads, view: list_pages.idle_page(reads, view, EVERYBODY, "model")),
        ("anomaly", lambda reads, view: list_pages.anomalies_page(reads, view, EVERYBODY, "none")),
    ],
    ids=["idle", "anomaly"],
)
def test_findings_that_are_not_listed_are_counted(fleet, reads, kind, make):
    """A hundred of a page; CSV has all of them."""
    times = {
        "since_ms": reads.now_ms - HOUR,
        "opened_ms": reads.now_ms - HOUR,
        "until_ms": reads.now_ms,
    }
    found = [replace(finding_of(f"crowd-{number:03d}", kind), **times) for number in range(TEAMS)]
    findings.upsert(fleet.connection, found)
    text = make(reads, EVERYTHING).body.decode()
    assert len(set(re.findall(r"crowd-\d{3}", text))) == list_pages.SHOWN
    assert f"and {TEAMS - list_pages.SHOWN} more in the" in text
    whole = text_of(make(reads, replace(EVERYTHING, wants_csv=True)))
    assert len({row["team"] for row in csv.DictReader(io.StringIO(whole))}) == TEAMS


def test_an_episode_says_how_often_its_kind_was_acknowledged(fleet, reads):
    """Twice where people said so of two episodes of the cause and job; nothing where they did not."""
    times = {"since_ms": reads.now_ms - HOUR, "until_ms": reads.now_ms}
    known = [replace(finding_of(name, "anomaly"), **times) for name in ("crowd-1", "crowd-2")]
    findings.upsert(fleet.connection, known)
    for number in range(2):
        fleet.connection.execute(
            "INSERT INTO notification (key, kind, subject, team, recipients, findings, since_ms,"
            " until_ms, notified_ms, acked_ms, acked_by, ack_until_ms) VALUES (%s, 'anomaly', '',"
            " '', '[]', %s::jsonb, 0, 0, 0, %s, 'ada', %s)",
            (f"told-{number}", f'["{known[0].key}"]', number, reads.now_ms),
        )
    text = list_pages.anomalies_page(reads, EVERYTHING, EVERYBODY, "none").body.decode()
    said = re.findall(r"(crowd-\d)|said to be intended (\d times?)", text)
    assert sum(bool(count) for _, count in said) == 1
    assert text.count("Episodes like this one were said to be intended 2 times.") == 1


def test_pools_of_less_demand_are_counted(fleet, reads, run):
    """Those of most demand are forecast and listed; a node that names pools without end makes no
    page long.
    """
    many = MOST_POOLS + 12
    for number in range(1, many + 1):
        fleet.capacity(number, LATE, LATE + HOUR, pool=f"pool-{number:03d}")
        end = LATE + number * HOUR // (many + 1)
        fleet.evidence(
            [
                Held(number, number, LATE, end),
                Held(number, None, end, LATE + HOUR, "unallocated"),
            ]
        )
    run("chargeback", "--from", "2025-10-01", "--to", "2025-11-01")
    outlook = pages.HourlyCache(lambda: forecast_outlook(reads.database, reads.now_ms))
    assert [pool.name for pool in outlook.get(reads.now_ms, wait_s=250).pools] == [
        f"pool-{number:03d}" for number in range(13, many + 1)
    ]
    for text in (
        pages.overview_page(reads, outlook, "", EVERYTHING).body.decode(),
        fleet_pages.demand_page(reads, outlook, EVERYTHING).body.decode(),
    ):
        assert len(set(re.findall(r"pool-\d+", text))) == MOST_POOLS
        assert "And 12 more pools of less demand" in text


def test_refused_claims_are_counted(crowded, reads, monkeypatch):
    """Ten sentences, and one for all others."""
    claims = [
        RefusedClaim(f"GPU-{n}", f"node-{n % 7}", "device", "", "home", n, n + 1)
        for n in range(5000)
    ]
    true = month_proof.reconcile
    monkeypatch.setattr(
        month_proof, "reconcile", lambda *given, **more: with_claims(true(*given, **more), claims)
    )
    text = fleet_pages.trust_page(reads, EVERYTHING).body.decode()
    assert text.count("is reported by home and") == 10
    assert "And 4,990 more refused claims of 7 nodes" in text
    assert len(text) < 100_000


def with_claims(sheet: Reconciliation, claims):
    return replace(sheet, claims=claims)


def test_groups_of_jobs_that_are_not_listed_are_summed(crowded, reads):
    """A hundred groups, and the number, hours and cost of the others: together they are the total
    of the list.
    """
    october = replace(EVERYTHING, filters=Filters(period="2025-10"))
    asked = (list_pages.Narrowing(), "", "cost")
    text = list_pages.jobs_page(reads, october, *asked, "team").body.decode()
    said = re.search(r"and (\d+) more groups of ([\d.]+) GPU-hours, ([\d.]+) USD", text)
    assert said[1] == str(TEAMS - list_pages.SHOWN)
    costs = costs_of(text)
    assert len(costs) == list_pages.SHOWN
    of_models = list_pages.jobs_page(reads, october, *asked, "model").body.decode()
    assert "more group" not in of_models
    assert abs(sum(costs) + Decimal(said[3]) - sum(costs_of(of_models))) < 1


def costs_of(text):
    """The costs in the only table of a page."""
    body = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)[1]
    return [Decimal(cost) for cost in re.findall(r"([\d.]+) USD</td></tr>", body)]


def test_the_total_of_a_whole_bill_is_the_total(crowded, reads):
    """However many rows stand in one; that of a narrowed bill is of what is shown."""
    whole = pages.month_page(reads, "team", "2025-10", EVERYTHING).body.decode()
    assert f"({TEAMS - shortened.MOST_ROWS} more)" in whole
    assert "total of what is shown" not in whole
    narrowing = list_pages.Narrowing(q="crowd-10")
    part = pages.month_page(reads, "team", "2025-10", EVERYTHING, narrowing).body.decode()
    assert "total of what is shown" in part
