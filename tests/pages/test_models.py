"""GET /models: what shared model servers cost and who asked, as each reader may see it."""

import re
from decimal import Decimal
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from fakes.crawl import read_csv
from fakes.pages import Page
from fakes.postgres import fresh_database
from fakes.two_teams import FOREIGN, MONTH, NOW_MS, OWN, two_teams
from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, month
from gpuledger_collector.ingest.batches import counters

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
KEYS = {OWN: f"{OWN}-key", FOREIGN: f"{FOREIGN}-key"}
FIRST_MS = max(NOW_MS // HOUR_MS * HOUR_MS - 2 * DAY_MS, month(MONTH).start_ms)
HOURS = (NOW_MS // HOUR_MS * HOUR_MS - FIRST_MS) // HOUR_MS
"""Whole hours of the month in which both keys asked: each 9,000 input and 1,000 output tokens."""
SERVED = {"prompt_tokens": 20_000, "generated_tokens": 2_000}
"""What the server counts in an hour: a tenth of it for nobody whom the gateway knows."""


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    """Two teams that share the first one's GPU, whose server counts what it serves."""
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        with psycopg.connect(dsn) as connection:
            (workload,) = connection.execute(
                "SELECT id FROM workload WHERE external_id = %s", (f"{OWN}-1",)
            ).fetchone()
            series = {
                name: counters.Series(workload, "agent", "http://s/metrics", "m=a", name, "vllm")
                for name in SERVED
            }
            rows = [
                (series[name], CounterReading(FIRST_MS + at * 300_000, an_hour * at // 12))
                for name, an_hour in SERVED.items()
                for at in range(12 * HOURS + 1)
            ]
            counters.store_readings(connection, rows)
        yield made


def ask(fleet, path, role="finance"):
    collector, secrets = fleet
    status, headers, text = collector.request(
        "GET", path, headers={**BROWSER, "Authorization": f"Bearer {secrets[role]}"}
    )
    if headers["Content-Type"].startswith("text/html"):
        assert Page(text).faults == [], path
    return status, text


def rows_of(text):
    """The rows of the tenants' table by tenant, and its total."""
    (table,) = re.findall(r"<table[^>]*>\s*<caption>Who asked.*?</table>", text, re.DOTALL)
    frame = (
        f"<!DOCTYPE html>\n<html><title></title><header></header><main></main>"
        f"<footer></footer><h1></h1>{table}</html>"
    )
    return {row[0].split()[0]: row for row in Page(frame).tables[0].rows[1:]}


def amount(cell):
    return Decimal(re.match(r"[\d,.]+", cell.strip())[0].replace(",", ""))


def test_it_says_what_tokens_cost_and_who_asked(fleet):
    """Cost, prices at held and used cost, coverage; tenants in the order of the chart, and a total
    that they add up to; what matches no server.
    """
    status, text = ask(fleet, f"/models?period={MONTH}")
    assert status == 200
    shown = Page(text).text
    assert "50.0 % of it idle time" in shown
    rows = rows_of(text)
    assert list(rows)[:2] == [KEYS[OWN], KEYS[FOREIGN]]
    assert list(rows)[-1] == "total"
    parts = [amount(row[-1]) for name, row in rows.items() if name != "total"]
    assert sum(parts) == amount(rows["total"][-1])
    assert f"Cost {rows['total'][-1].split()[0]} USD" in shown
    assert f"{9000 * HOURS:,}" in rows[KEYS[OWN]][2]
    assert rows[KEYS[OWN]][1] == OWN
    # A million of output costs four times one of input, and at used cost half of it.
    prices = re.search(
        r"input ([\d,.]+) ([\d,.]+) cached input ([\d,.]+) [\d,.]+ output ([\d,.]+) ([\d,.]+)",
        shown,
    )
    held, used, cached, output, _ = (Decimal(text.replace(",", "")) for text in prices.groups())
    assert abs(held - 2 * used) < Decimal("0.001")
    assert abs(held - 10 * cached) < Decimal("0.001")
    assert abs(output - 4 * held) < Decimal("0.001")
    assert "90.9 % of those that the server counted" in shown
    assert "Litellm: lost: " in shown
    assert "match no [[inference]] table" in shown


def test_a_bar_leads_to_its_day_and_its_parts_to_a_tenant_of_it(fleet):
    """A day of one tenant is a page too, whose cost is less than the server's."""
    _, text = ask(fleet, f"/models?period={MONTH}")
    links = [link for link in Page(text).links if link.startswith("/models?") and "from=" in link]
    own = [link for link in links if parse_qs(urlsplit(link).query).get("q") == [KEYS[OWN]]]
    assert own
    status, text = ask(fleet, own[0])
    assert status == 200
    rows = rows_of(text)
    assert set(rows) == {KEYS[OWN], "total"}


def test_a_viewer_sees_its_own_line_alone(fleet):
    """No other tenant, no sum of the server, no name that is not its own; as CSV too."""
    status, text = ask(fleet, f"/models?period={MONTH}", "viewer")
    assert status == 200
    assert set(rows_of(text)) == {KEYS[OWN], "total"}
    shown = Page(text).text
    assert FOREIGN not in text
    assert "of it idle time" not in shown
    assert "moves nothing" not in shown
    whole = rows_of(ask(fleet, f"/models?period={MONTH}")[1])
    assert rows_of(text)[KEYS[OWN]] == whole[KEYS[OWN]]
    _, file = ask(fleet, f"/models?period={MONTH}&format=csv", "viewer")
    assert [row[1] for row in read_csv(file)[1:]] == [KEYS[OWN]]
    assert ask(fleet, f"/models?team={FOREIGN}", "viewer")[0] == 403


def test_it_is_narrowed_by_its_form_and_by_owner(fleet):
    """Words of names, and a team; what is not found is said, and leads back."""
    for query in (f"q={KEYS[FOREIGN].upper()}", f"team={FOREIGN}"):
        status, text = ask(fleet, f"/models?period={MONTH}&{query}")
        assert status == 200
        assert set(rows_of(text)) == {KEYS[FOREIGN], "total"}, query
    status, text = ask(fleet, f"/models?period={MONTH}&q=nothing-is-called-so")
    assert "None of 1 model server has these words in its names" in Page(text).text
    assert ask(fleet, "/models?period=never")[0] == 422


def test_without_a_server_it_says_how_to_declare_one(dsn):
    """The first page that anybody sees."""
    from fakes.collector import running

    with running(dsn) as collector:
        status, _, text = collector.request("GET", "/models", headers=BROWSER)
    assert (status, Page(text).faults) == (200, [])
    assert "Declare one as [[inference]]" in Page(text).text
