"""GET /spend: the chargeback of any range over time, each bar a link to its part; as each reader may
see it.
"""

import csv
import io
import re
from collections import defaultdict
from decimal import Decimal
from urllib.parse import urlsplit

import pytest

from fakes.collector import running
from fakes.pages import Page, text_of
from gpuledger_collector.accounting.spend_series import GROUPINGS
from gpuledger_collector.api import spend_page
from gpuledger_collector.api.auth.principal import ANYBODY, Principal
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.services.team_numbers import number_teams

from .conftest import HOSTILE

pytestmark = pytest.mark.slow
OCTOBER = {"start": "2025-10-01", "end": "2025-11-01"}
VISION = Principal("viewer", "v", owner={"team": "vision"})


def ask(reads, who=ANYBODY, by="", days=None, narrowed=None, **dates):
    """The text of the page of a range."""
    asked = spend_page.AskedRange(dates.get("start", ""), dates.get("end", ""), days)
    view = View.narrow(who, narrowed or {})
    return text_of(spend_page.spend_page(reads, view, asked, by))


def amount(text):
    return Decimal(text.replace(",", "").removeprefix("<"))


def test_its_amounts_are_those_of_the_chargeback(rated, run, reads):
    """By each dimension, in two currencies; the page is whole and shows evil names as text."""
    rows = list(
        csv.DictReader(
            io.StringIO(
                run("chargeback", "--from", "2025-10-01", "--to", "2025-11-01", "--format", "csv")[
                    1
                ]
            )
        )
    )
    totals = defaultdict(Decimal)
    for row in rows:
        if row["currency"]:
            totals[row["currency"]] += Decimal(row["cost_total"] or row["cost"])
    assert len(totals) == 2
    for by in GROUPINGS:
        page = Page(ask(reads, by=by, **OCTOBER))
        assert page.faults == [], by
        for currency, total in totals.items():
            (table,) = [
                table
                for table in page.tables
                if table.rows[0][0] == by and table.rows[0][-1] == f"cost, {currency}"
            ]
            assert amount(table.rows[-1][-1]) == total, (by, currency)
            assert sum(amount(row[-1]) for row in table.rows[1:-1]) == total, (by, currency)
    assert HOSTILE in Page(ask(reads, by="team", **OCTOBER)).text


def test_each_day_is_a_row_and_they_add_up(rated, reads):
    """To what owners pay and what nobody does; one sentence says on which day owners paid most."""
    page = Page(ask(reads, by="team", **OCTOBER))
    for currency in ("USD", "EUR"):
        (days,) = [
            table.rows for table in page.tables if table.rows[0][-1] == f"its part, {currency}"
        ]
        assert days[0][:3] == ["day", "billed to owners", "nobody pays"]
        (teams,) = [
            table.rows
            for table in page.tables
            if (table.rows[0][0], table.rows[0][-1]) == ("team", f"cost, {currency}")
        ]
        for column in (1, 2):
            total = amount(days[-1][column])
            assert sum(amount(row[column]) for row in days[1:-1]) == total
            unpaid = column == 2
            assert total == sum(
                amount(row[-1]) for row in teams[1:-1] if row[0].endswith("nobody pays") == unpaid
            )
        dearest = max(days[1:-1], key=lambda row: amount(row[1]))
        on_phones = f"{dearest[-2]} {dearest[-1]}"
        assert dearest[0].endswith(on_phones)
        day = dearest[0].removesuffix(on_phones).strip()
        said = f"Owners paid most on {day}: {dearest[1]} {currency}, of it {dearest[-2]}"
        assert said in re.sub(" (?=[:,.])", "", page.text)
    # The label of a bar, too.
    label = rf"{day}: {dearest[1]} EUR billed to owners, [0-9.,]+ nobody pays<"
    assert re.search(label, ask(reads, by="team", **OCTOBER))


def test_the_oldest_of_many_days_are_one_row(rated, reads, monkeypatch):
    """The table has a bound, and still adds up."""
    whole = Page(ask(reads, by="team", **OCTOBER))
    monkeypatch.setattr(spend_page, "MOST_ROWS", 6)
    page = Page(ask(reads, by="team", **OCTOBER))
    (cut, days) = (
        next(table.rows for table in each.tables if table.rows[0][-1] == "its part, USD")
        for each in (page, whole)
    )
    assert len(cut) == 2 + 6 < len(days)
    assert cut[1][0] == f"{len(days) - 2 - 5} days before"
    assert cut[2:] == days[-6:]
    assert sum(amount(row[1]) for row in cut[1:-1]) == amount(cut[-1][1])


def test_a_team_keeps_its_color(rated, reads):
    """In every range and for every reader: as on the map of the fleet."""

    def color(who=ANYBODY, **dates):
        text = ask(reads, who, by="team", **dates)
        return set(re.findall(r'<rect class="([^"]*)"[^>]*/></svg>vision<', text))

    month = color(**OCTOBER)
    assert len(month) == 1
    for dates in (
        {"start": f"2025-10-{day:02}", "end": f"2025-10-{day + 1:02}"} for day in (1, 2, 3, 31)
    ):
        if dates["end"] == "2025-10-32":
            dates["end"] = "2025-11-01"
        assert color(**dates) == color(VISION, **dates) == month, dates
    with reads.database.transaction(read_only=True) as connection:
        number = number_teams(connection)["vision"]
    assert month == {f"group-{number}"}


def test_the_file_adds_up_to_the_page(rated, reads):
    """A row for each group and bucket; texts are made harmless."""
    text = ask(reads, by="team", narrowed={"format": "csv"}, **OCTOBER)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["from"][:7] for row in rows} == {"2025-10"}
    assert {row["billed"] for row in rows} == {"yes", "no"}
    page = Page(ask(reads, by="team", **OCTOBER))
    for currency in ("USD", "EUR"):
        table = next(table for table in page.tables if table.rows[0][-1] == f"cost, {currency}")
        filed = sum(Decimal(row["cost"]) for row in rows if row["currency"] == currency)
        assert filed == amount(table.rows[-1][-1])


def test_bars_lead_to_the_day_the_team_its_jobs_and_their_receipt(rated, dsn):
    """Each link of the way answers with a whole page, also those of evil names."""
    with running(dsn) as collector:

        def get(path):
            status, _, text = collector.request("GET", path)
            page = Page(text)
            assert (status, page.faults) == (200, []), path
            return page

        month = get("/spend?period=2025-10")
        days = [
            link for link in month.links if re.search(r"by=team&from=2025-10-\d\d&to=2025-1", link)
        ]
        assert days
        day = get(days[0])
        assert "by hour" in day.text
        teams = sorted(
            {
                link
                for link in day.links
                if link.startswith("/spend?team=") and "from=2025-10" in link
            }
        )
        assert any("script" in link for link in teams)
        receipts = set()
        for link in teams:
            team = get(urlsplit(link)._replace(fragment="").geturl())
            assert "jobs" in team.ids
            receipts |= {link for link in team.links if link.startswith("/jobs/")}
        assert receipts
        for link in receipts:
            get(link)


def test_a_viewer_sees_its_own_part(rated, reads):
    """Its own rows and jobs, by every dimension, and no unallocated time."""
    for by in GROUPINGS:
        page = Page(ask(reads, VISION, by=by, **OCTOBER))
        assert page.faults == []
        assert HOSTILE not in page.text
        assert "unallocated" not in page.text
        assert "nobody pays" not in page.text
    whole = Page(ask(reads, by="team", **OCTOBER))
    own = Page(ask(reads, VISION, by="team", **OCTOBER))
    for currency in ("USD", "EUR"):
        shown, all_rows = (
            next(table for table in page.tables if table.rows[0][-1] == f"cost, {currency}").rows
            for page in (own, whole)
        )
        assert shown[1] in all_rows
        assert [row[0] for row in shown[1:]] == ["vision", "total"]


@pytest.mark.parametrize(
    "query",
    [
        "from=2025-10-01",
        "from=2025-10-02&to=2025-10-01",
        "by=node",
        "days=9999",
        "days=-1",
        "from=never&to=2025-10-01",
        "period=2025-13",
    ],
)
def test_a_wrong_range_is_refused_in_a_sentence(dsn, query):
    """Never with a fault of the server."""
    with running(dsn) as collector:
        status, _, text = collector.request("GET", f"/spend?{query}")
    assert status == 422, text


def test_days_that_nobody_rated_are_not_zero(rated, reads):
    """A range before the ledger began, and an hourly one: each says what it is."""
    before = Page(ask(reads, start="2024-01-01", end="2024-02-01"))
    assert before.faults == []
    assert "nothing is known of the time before" in before.text
    assert "0.00" not in before.text
    hours = Page(ask(reads, start="2025-10-30", end="2025-10-31"))
    assert hours.faults == []
    assert "spread over the hours by the GPU-time" in hours.text


@pytest.mark.parametrize("who", [ANYBODY, VISION], ids=["finance", "viewer"])
def test_an_hour_leads_to_its_own_jobs(rated, reads, who):
    """What each job held in it, and the part of its day's cost: they add up to what the page says of
    the hour, and over all hours to the day of each job.
    """
    dates = {"start": "2025-10-03", "end": "2025-10-04"}
    day = Page(ask(reads, who, by="team", **dates))
    (steps,) = [table.rows[1:-1] for table in day.tables if table.rows[0][-1] == "its part, USD"]
    paid = {row[0].partition(" vision")[0]: amount(row[1]) for row in steps if amount(row[1])}
    links = sorted({link for link in day.links if "&at=2025-10-03T" in link and "#jobs" in link})
    assert {re.search(r"at=2025-10-03T(\d\d)%3A00Z#jobs", link)[1] for link in links} >= {
        name[-5:-3] for name in paid
    }
    held, cost = defaultdict(Decimal), defaultdict(Decimal)
    for name, whole in paid.items():
        hour = f"2025-10-03T{name[-5:]}Z"
        asked = spend_page.AskedRange(dates["start"], dates["end"], None)
        view = View.narrow(who, {})
        page = Page(text_of(spend_page.spend_page(reads, view, asked, "team", hour)))
        assert page.faults == []
        rows = [row for row in page.table("job").rows[1:] if row[-1].endswith(" USD")]
        assert abs(sum(amount(row[-1].removesuffix(" USD")) for row in rows) - whole) <= len(
            rows
        ) / Decimal(100)
        for row in rows:
            held[row[0]] += amount(row[2])
            cost[row[0]] += amount(row[-1].removesuffix(" USD"))
        assert "The jobs of the whole day" in page.text
        leads = f"/fleet?at={hour.replace(':', '%3A')}&color=owner"
        assert (leads in page.links) == (who is ANYBODY)
        assert any(link.startswith("/jobs/slurm") for link in page.links)
    listed = [row for row in day.table("job").rows[1:] if row[-1].endswith(" USD")]
    assert listed
    for row in listed:
        assert abs(held[row[0]] - amount(row[2])) < 1
        assert abs(cost[row[0]] - amount(row[-1].removesuffix(" USD"))) <= Decimal("0.05")


def test_an_hour_that_is_none_shows_the_jobs_of_the_range(rated, reads):
    """One outside of the range, and one of a range that is shown by days."""
    hour = "2025-10-09T05:00Z"
    for dates in (("2025-10-03", "2025-10-04"), ("2025-10-01", "2025-11-01")):
        asked = spend_page.AskedRange(*dates, None)
        text = text_of(
            spend_page.spend_page(reads, View.narrow(VISION, {}), asked, "project", hour)
        )
        assert "What each job held and cost" in Page(text).text
    with pytest.raises(ValueError, match="never"):
        spend_page.spend_page(reads, View.narrow(VISION, {}), asked, "project", "never")
