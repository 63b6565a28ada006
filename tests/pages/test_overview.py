"""GET /: the commands' numbers on one page, as each reader may see them; safe, whole, fast, good to
look at.
"""

import base64
import csv
import io
import json
import re
import threading
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, Held
from fakes.pages import Page
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import format_instant, parse_instant
from gpuledger_collector.accounting.state_words import word_of_unpaid
from gpuledger_collector.api import fleet_pages, pages, spend_page
from gpuledger_collector.api.auth.principal import ANYBODY, Denied, Principal
from gpuledger_collector.api.fleet_map_page import fleet_page, gpu_page
from gpuledger_collector.api.list_pages import jobs_page
from gpuledger_collector.api.narrowing import WHOLE
from gpuledger_collector.api.page_routes import HourlyCache, View
from gpuledger_collector.export import html
from gpuledger_collector.export.fleet_map import MapAddress
from gpuledger_collector.insight.fleet_map import ColorBy
from gpuledger_collector.insight.forecast_history import StoredForecast
from gpuledger_collector.insight.pool_outlook import Outlook, PoolOutlook
from gpuledger_collector.services.findings import FindingList, WholeFleet
from gpuledger_collector.services.period_comparison import read_bill_change
from gpuledger_collector.storage.capacity import backtests
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_common.health import EVIDENCE, RECOVERY, next_step, verdict

from .conftest import HOSTILE, OCTOBER_NIGHT_MS

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
SECRET = "a-reader-token-that-is-long-enough-0123456789"


def overview_text(reads, outlook):
    """The overview of everything."""
    return pages.overview_page(reads, outlook, "", View(Principal("admin", "a"))).body.decode()


def test_what_is_idle_now_is_told_by_who_could_end_it():
    """The parts add up to the whole; of one kind alone there are none, and without a price no part."""

    def item(key, *, is_free, micro):
        per_day = None if micro is None else Money(micro, "USD")
        return SimpleNamespace(key=key, is_free=is_free, per_day=per_day)

    ongoing = FindingList(
        [
            item("ends", is_free=False, micro=5_000_000),
            item("waits", is_free=False, micro=3_000_000),
            item("free", is_free=True, micro=2_000_000),
            item("unpriced", is_free=True, micro=None),
        ],
        None,
    )
    acted_on = ongoing.only(lambda one: one.key == "ends")
    parts = pages._idle_parts(ongoing, acted_on)
    assert [(words, *amounts) for words, amounts in parts] == [
        ("to be given back", Money(5_000_000, "USD")),
        ("held for a reason", Money(3_000_000, "USD")),
        ("held by nobody", Money(2_000_000, "USD")),
    ]
    assert sum(amounts[0].micro for _, amounts in parts) == ongoing.per_day[0].micro
    assert pages._idle_parts(acted_on, acted_on) == []


def test_its_amounts_are_those_of_the_chargeback(rated, run, overview):
    """Each row and each total of each currency, to the cent; hostile names are text; nothing is
    wrong in the page.
    """
    page = Page(overview())
    assert page.faults == []
    rows = list(csv.DictReader(io.StringIO(run("chargeback", *MONTH, "--format", "csv")[1])))
    for currency in ("USD", "EUR"):
        (table,) = [one for one in page.tables if one.rows[0][-1] == f"cost, {currency}"]
        shown = {line[0].removesuffix(" not billed"): line[-1] for line in table.rows[1:]}
        marked = {
            line[0].removesuffix(" not billed")
            for line in table.rows[1:]
            if line[0].endswith(" not billed")
        }
        unpaid = {
            row["team"] for row in rows if row["currency"] == currency and row["billed"] == "no"
        }
        assert marked == {word_of_unpaid(name) for name in unpaid}

        def shown_name(row):
            name = row["team"].removeprefix("'")
            return word_of_unpaid(name) if row["billed"] == "no" else name

        mine = {
            shown_name(row): f"{Decimal(row['cost']):,.2f}"
            for row in rows
            if row["currency"] == currency
        }
        assert shown == {
            **mine,
            "total": (
                f"{sum(Decimal(row['cost']) for row in rows if row['currency'] == currency):,.2f}"
            ),
        }
    assert HOSTILE in page.text
    assert re.search(r"not proven yet as a whole, .+; \d+ days added up when rated", page.text), (
        page.text
    )
    # Of a young fleet nearly half of the first minutes is on its way.
    assert (
        "GPU-hours were not, those included that agents have yet to send, and are shown as"
        " unobserved." in page.text
    )
    run("reconcile", *MONTH)
    assert re.search(r"proven at \d+ [\w ]+, \d\d:\d\d", Page(overview()).text)


def test_its_first_sentence_is_the_chargebacks_waste(rated, run, overview):
    """What capacity costs, what of it bought nothing, what owners pay and what nobody does: the
    numbers of the command, in each currency.
    """
    page = Page(overview())
    told = json.loads(run("chargeback", *MONTH, "--format", "json")[1])
    assert len(told["totals"]) == 2
    for total, waste in zip(told["totals"], told["waste"], strict=True):
        currency = total["currency"]
        assert waste["currency"] == currency
        cost, wasted = Decimal(total["cost"]), Decimal(waste["cost_waste"])
        assert wasted > 0
        headline = f"Of {round(cost):,} {currency} this month, {round(wasted):,} bought nothing"
        assert headline in page.text
        assert f"Capacity costs this month {cost:,.2f} {currency}" in page.text
        assert f"Billed to owners {Decimal(total['cost_billed']):,.2f} {currency}" in page.text
        assert f"Nobody pays {Decimal(total['cost_not_billed']):,.2f} {currency}" in page.text


def test_it_says_by_how_much_the_bill_changed(rated, dsn, overview):
    """By price, GPU-hours and mix, as the periods compared say it, and which rate changed when; a
    viewer is told its own change and no rate.
    """
    text = Page(overview()).text
    with Database(dsn).transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        found = read_bill_change(
            connection,
            calendar,
            calendar.month("2025-10"),
            OCTOBER_NIGHT_MS,
            WholeFleet(),
            WholeFleet(),
        )
    total = found.compared.total("USD")
    assert total.by_price + total.by_volume + total.by_mix == total.change != 0
    parts = [
        f"{html.signed_amount(micro, 'USD')} by {part}"
        for micro, part in (
            (total.by_price, "price"),
            (total.by_volume, "GPU-hours"),
            (total.by_mix, "mix"),
        )
    ]
    assert f"What owners pay changed by {html.signed_amount(total.change, 'USD')} USD" in text
    assert ", ".join(parts) in text
    assert (
        "Rates that changed: any model, on demand, 2.333333333 to 2.10 USD an hour on 3 Oct, 00:00"
        in text
    )
    own = Page(overview(Principal("viewer", "vision", owner={"team": "vision"}))).text
    assert "What owners pay changed by" in own
    assert "Rates that changed" not in own


def test_it_says_who_wastes_most(rated, run, overview):
    """Each team's idle time in money, as the chargeback has it; whose costs most is a sentence."""
    page = Page(overview())
    rows = csv.DictReader(io.StringIO(run("chargeback", *MONTH, "--format", "csv")[1]))
    billed = [row for row in rows if row["currency"] == "USD" and row["billed"] == "yes"]
    assert "Nobody pays 2,055.02 USD unobserved 2,051.37 unallocated 3.65" in page.text
    (table,) = [one for one in page.tables if one.rows[0][-1] == "cost, USD"]
    column = table.rows[0].index("cost of idle")
    shown = {line[0]: line[column] for line in table.rows[1:]}
    known = {row["team"]: row["cost_held_idle"] for row in billed if row["cost_held_idle"]}
    assert len(known) > 1
    for team, cost in known.items():
        assert shown[team.removeprefix("'")] == f"{Decimal(cost):,.2f}"
    idle = sum(map(Decimal, known.values()))
    assert shown["total"] == f"{idle:,.2f}"
    most = max(known, key=lambda team: Decimal(known[team])).removeprefix("'")
    assert f"Most held idle: {most} , {round(Decimal(known[most])):,} USD in " in page.text
    billed_cost = sum(Decimal(row["cost"]) for row in billed)
    assert f"Billed to owners {billed_cost:,.2f} USD of which held idle {idle:,.2f} USD" in (
        page.text
    ), "what owners pay, and not a part of what nobody pays"
    assert "Owners paid most on" in page.text
    assert "Held idle includes warm replicas" in page.text, "no finding names what it calls waste"


def test_the_parts_of_what_nobody_pays_add_up_to_it(rated, run, reads):
    """Corrections of a closed month are one of them, and named where they are idle money."""
    for name in ("2025-09", "2025-10"):
        assert run("close", "--period", name)[0] == 0
    rated.evidence([Held(1, 4, 10 * DAY, 10 * DAY + HOUR, busy=HOUR // 2, idle=HOUR // 2)])
    run("chargeback", "--from", "2025-10-01", "--to", "2026-01-01")
    ((booked_ms,),) = rated.rows("SELECT DISTINCT booked_day_ms FROM correction")
    reads.clock = lambda: booked_ms + 3_600_000
    text = Page(overview_text(reads, pages.HourlyCache(Outlook))).text
    assert text.count("Nobody pays") == 1
    tile = re.search(r"Nobody pays (-[\d.]+) USD corrections of 2025-10 (-[\d.]+) ", text)
    assert tile is not None, text
    assert tile[1] == tile[2]
    spent = spend_page.spend_page(
        reads, View.narrow(ANYBODY, {}), spend_page.AskedRange("", "", None), "team"
    )
    said = "without corrections of closed months, which move it from one payer to another"
    assert said in spent.body.decode(), "a column of nobody without them is another number"
    assert (
        "of which held idle 1.05 USD not known corrections of 2025-10: 1.05 of it Nobody" in text
    ), text


def test_every_statement_that_it_leads_to_is_there(rated, dsn, overview):
    """Also those of evil names: the path comes back as the name."""
    links = [link for link in Page(overview()).links if link.startswith("/statements/")]
    assert len(links) >= 4
    with running(dsn) as collector:
        for link in links:
            status, headers, text = collector.request("GET", link)
            assert (status, Page(text).faults) == (200, []), link
            assert "script-src 'self';" in headers["Content-Security-Policy"]
            assert headers["Content-Security-Policy"].startswith(
                "default-src 'none'; style-src 'sha256-"
            )


def test_a_viewer_sees_its_own_part(rated, overview, reads):
    """Its row with the fleet's own cents, no other team, no node; a part of a team likewise; others
    are refused.
    """
    whole = Page(overview())
    page = Page(overview(Principal("viewer", "vision", owner={"team": "vision"})))
    assert page.faults == []
    for currency in ("USD", "EUR"):
        (mine,) = [one for one in page.tables if one.rows[0][-1] == f"cost, {currency}"]
        (all_,) = [one for one in whole.tables if one.rows[0][-1] == f"cost, {currency}"]
        (row,) = [line for line in all_.rows if line[0] == "vision"]
        assert mine.rows[1:] == [row, ["total", *row[1:]]]
    assert HOSTILE not in page.text
    assert "unallocated" in whole.text
    assert "unallocated" not in page.text
    assert "n1" not in page.text
    assert "Demand" not in page.text
    part = Page(
        overview(Principal("viewer", "detector", owner={"team": "vision", "project": "detector"}))
    )
    assert part.faults == []
    assert "vision/detector" in part.text
    view = View(Principal("viewer", "v", owner={"team": "vision"}))
    assert "vision" in pages.statement_page(reads, "team", "vision", "2025-10", view).body.decode()
    for level, other in (("team", HOSTILE), ("project", "detector"), ("org", "(unattributed)")):
        with pytest.raises(Denied):
            pages.statement_page(reads, level, other, "2025-10", view)
    listed = Page(pages.month_page(reads, "team", "2025-10", view).body.decode())
    assert {row[0] for row in listed.table("team").rows[1:]} == {"vision", "total"}


def test_corrections_of_closed_months_are_named(rated, run, reads):
    """A late spool of a closed month: its lines and their sum stand below the amounts in which they
    are.
    """
    for name in ("2025-09", "2025-10"):
        assert run("close", "--period", name)[0] == 0
    rated.evidence([Held(1, 4, 10 * DAY, 10 * DAY + HOUR, busy=HOUR)])
    run("chargeback", "--from", "2025-10-01", "--to", "2026-01-01")
    ((booked_ms, lines),) = rated.rows("SELECT booked_day_ms, count(*) FROM correction GROUP BY 1")
    reads.clock = lambda: booked_ms + 3_600_000
    page = Page(overview_text(reads, pages.HourlyCache(Outlook)))
    assert page.faults == []
    assert (
        f"{lines} lines correct months that are closed (which moves amounts and leaves their sum)"
        in page.text
    )
    closed = Page(
        pages.overview_page(
            reads, pages.HourlyCache(Outlook), "", View.narrow(ANYBODY, {"period": "2025-10"})
        ).body.decode()
    )
    billed_in = format_instant(booked_ms)[:7]
    moved = (
        f"Since then 1.0 GPU-hours moved: vision +2.10, nobody -2.10 USD, billed in {billed_in}."
    )
    assert moved in closed.text
    assert moved in page.text
    assert "/trust?period=2025-10" in page.links
    assert "this month" not in closed.text
    assert "fleet's GPU-time in 2025-10 was observed" in closed.text
    assert "since it was closed" not in page.text
    (table,) = [one for one in page.tables if one.rows[0][-1] == "cost, USD"]
    (row,) = [line for line in table.rows if line[0].startswith("corrections of 2025-10")]
    assert row[0].endswith("1.0 GPU-hours moved from one row to another")
    assert row[2:] == ["–", "–", "0.00", "0.00"]
    assert "-" not in "".join(line[2] for line in table.rows[1:]), "no row has negative hours"
    assert "2025-10 is the last closed month" in page.text


def test_the_first_hour_says_what_to_do(overview):
    """An empty ledger: three steps with commands, and no number at all."""
    page = Page(overview())
    assert page.faults == []
    for words in (
        "GPULEDGER_AGENT_COLLECTOR_URL=http://127.0.0.1:8440 gpuledger-agent run",
        "gpuledger import prices",
        "gpuledger demo",
    ):
        assert words in page.text
    assert page.tables == []


def test_one_gpu_without_a_price_or_a_rated_day(fleet, overview):
    """The smallest fleet: what is not known is said, and nothing is zero instead."""
    fleet.capacity(1, 30 * DAY)
    page = Page(overview())
    assert page.faults == []
    assert "Billed this month not known" in page.text
    assert "gpuledger import prices" in page.text
    assert "no day is rated yet" in page.text


def test_an_empty_answer_says_why(rated, overview):
    """A name that nobody has, a time before the ledger, one that is not rated, and a team that used
    nothing.
    """
    rated.connection.execute(
        "INSERT INTO owner (org, team, project, experiment, run, user_name) VALUES ('', 'quiet',"
        " '', '', '', '')"
    )
    for parameters, words in (
        (
            {"team": "vison"},
            ("nobody has this name", "Nothing was ever charged to team vison: is the name right?"),
        ),
        ({"period": "2024-01"}, ("before 2025-09-01", "The ledger begins on 2025-09-01")),
        ({"period": "2025-12"}, ("from 2025-12-01 on", "it is still to come")),
        ({"team": "quiet", "period": "2025-09"}, ("nothing was used", "none of its time was used")),
    ):
        text = Page(overview(**parameters)).text
        assert all(word in text for word in words), (parameters, words)


def test_slices_of_a_gpu_are_named(fleet, overview):
    """A divided GPU is one GPU, however much of it is in slices, and the slices are named."""
    fleet.accelerator(3, gpu_micro=333_333)
    for number in (1, 3):
        fleet.capacity(number, 30 * DAY)
    page = Page(overview())
    assert page.faults == []
    assert "GPUs 2 on" in page.text
    assert "divided into 1 MIG slice in part" in page.text


def test_no_gpu_but_imported_usage(run, written, overview):
    """A scheduler's records alone: amounts without an inventory; coverage is not known."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    file = written(
        "usage.csv",
        "workload_id,user,tag:team,gpus,start,end\n1,ann,vision,4,2025-10-02T00:00:00Z,2025-10-02T10:00:00Z\n",
    )
    code, _, said = run("import", "usage", file)
    assert code == 0, said
    run("chargeback", *MONTH)
    page = Page(overview())
    assert page.faults == []
    assert "80.00 USD" in page.text
    assert "Time observed not known" in page.text
    assert "all data was imported" in page.text


def test_who_may_look(dsn, rated, tmp_path):
    """With a token in force a browser is asked for it; it is a password of HTTP Basic or a bearer
    token.
    """
    secrets = tmp_path / "readers"
    secrets.write_text(SECRET + "\n")
    secrets.chmod(0o600)
    with running(dsn, reader_token_file=secrets) as collector:
        for path in ("/", "/statements/team/vision/2025-10"):
            status, headers, text = collector.request("GET", path)
            assert (status, headers["WWW-Authenticate"][:5], Page(text).faults) == (
                401,
                "Basic",
                [],
            )
            assert "vision" not in text
            assert "give your token as the password" in Page(text).text
            for given in (
                f"Bearer {SECRET}",
                "Basic " + base64.b64encode(f"any:{SECRET}".encode()).decode(),
            ):
                assert collector.request("GET", path, headers={"Authorization": given})[0] == 200
            for bad in (
                "Basic !!",
                "Basic " + base64.b64encode(b"x:y").decode(),
                "Bearer",
                "Basic /w==",
            ):
                assert collector.request("GET", path, headers={"Authorization": bad})[0] == 401


def test_what_is_not_there_is_a_page_with_a_sentence(dsn, rated):
    """404 and 422, escaped; never a 500."""
    with running(dsn) as collector:
        for path, status, words in (
            (
                "/statements/team/%3Cscript%3Ealert(1)%3C%2Fscript%3E/2025-10",
                404,
                "was billed nothing",
            ),
            ("/statements/squad/vision/2025-10", 422, "is no level"),
            ("/statements/team/vision/2025-13", 422, "is not a month"),
            ("/statements/team/October", 422, "is not a month"),
            ("/statements/team/0000-01", 422, "is not a month"),
        ):
            answered, headers, text = collector.request("GET", path)
            assert (answered, words in text) == (status, True), (path, answered, text[-600:])
            assert Page(text).faults == []
            assert headers["Cache-Control"] == "no-store"
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        for path in ("/statment", "/statement/team", "/%3Cscript%3E"):
            answered, headers, text = collector.request("GET", path, headers=browser)
            assert (answered, Page(text).faults) == (404, []), path
            assert "There is nothing at /" in Page(text).text
            assert headers["Content-Type"] == "text/html; charset=utf-8"
            assert collector.request("GET", path)[2]["detail"].startswith(
                "There is nothing at /"
            ), "a program gets JSON"
        told = collector.request("GET", "/v1/nonsense", headers=browser)[2]
        assert told == {"detail": "There is nothing at /v1/nonsense. /docs lists what there is."}
        assert "pool" in collector.request("GET", "/v1/scaling/none")[2]["detail"], (
            "a route's own sentence stays"
        )
        answered, _, told = collector.request("GET", "/statements/team/a%00b/2025-10")
        assert (answered, "NUL" in told["detail"]) == (
            422,
            True,
        ), "refused before any page is asked"


def test_a_database_that_is_away_is_a_page_too(dsn, reads):
    """503 and when to come back."""
    with running(dsn) as collector:
        from gpuledger_collector.storage import overview as stored

        real = stored.fleet
        try:
            stored.fleet = _away
            status, headers, text = collector.request("GET", "/")
        finally:
            stored.fleet = real
        assert (status, headers["Retry-After"], Page(text).faults) == (503, "5", [])


def _away(*_):
    import psycopg

    raise psycopg.OperationalError("the server closed the connection")


def test_the_page_does_not_wait_for_the_forecast(rated, reads):
    """It is rendered while the forecast is still being made."""
    finish = threading.Event()
    outlook = pages.HourlyCache(lambda: (finish.wait(60) and None) or Outlook())
    try:
        assert overview_text(reads, outlook)
        assert not finish.is_set()
    finally:
        finish.set()


def test_the_forecast_is_made_once_an_hour_and_not_waited_for():
    """None while there is none; the old one while a new one is made; a failure is not the page's."""
    made, may_go = [], threading.Event()
    may_go.set()

    def work():
        may_go.wait(60)
        made.append(1)
        if len(made) == 2:
            raise RuntimeError("no")
        return [PoolOutlook(f"p{len(made)}", (1.0,), (), "", 0)]

    outlook = pages.HourlyCache(work)
    hour = 3_600_000
    assert [one.name for one in outlook.get(0, wait_s=60)] == ["p1"]
    assert outlook.get(hour - 1)[0].name == "p1"
    assert len(made) == 1
    may_go.clear()
    for _ in range(2):  # the second try fails, the third does not
        assert outlook.get(hour)[0].name == "p1"
        may_go.set()
        outlook.thread.join(60)
        may_go.clear()
    assert outlook.get(hour)[0].name == "p3"
    assert len(made) == 3


SCREENS = pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])


@pytest.mark.slow
@SCREENS
def test_it_is_good_to_look_at(rated, overview, pictured, width, dark):
    """At a desk and on a phone, light and dark: nothing hangs over the edge."""
    assert_it_fits(pictured(overview(), width, dark=dark), width)


@pytest.mark.slow
@SCREENS
def test_an_empty_one_is_good_to_look_at(overview, pictured, width, dark):
    """Nor of a ledger that knows nothing yet."""
    assert_it_fits(pictured(overview(), width, dark=dark), width)


def assert_it_fits(taken, width):
    picture, wanted = taken
    assert wanted <= width
    assert picture.stat().st_size > 15_000


def test_a_pools_chart_has_its_days_under_it():
    """Those of its own hours, of the past and to come."""
    start = parse_instant("2025-10-29T12:00:00Z")
    one = PoolOutlook("p", (1.0,) * 72, ((1.0, 2.0, 3.0),) * 24, "", start)
    plot = pages.pool_facts(one)["plot"]
    assert re.findall(r">(\d+ [A-Z][a-z]+)</text>", plot) == ["30 Oct", "31 Oct", "1 Nov", "2 Nov"]


def test_gpus_of_a_silent_node_are_not_counted_as_well(fleet, overview, reads):
    """What they were ten minutes ago is not known of now; those of a node that reports still are."""
    fleet.node("n2")
    for number, node in ((1, "n1"), (2, "n1"), (3, "n2")):
        fleet.capacity(number, 30 * DAY, node=node)
    fleet.connection.execute("UPDATE accelerator SET health = 'ok'")
    for seconds, health in ((599, "3 ok"), (601, "1 ok 2 silent")):
        fleet.connection.execute(
            "UPDATE node SET last_seen_at = to_timestamp(%s) - %s * interval '1 second' * (name ="
            " 'n1')::int",
            (reads.now_ms / 1000, seconds),
        )
        page = Page(overview())
        assert page.faults == []
        assert f"Fleet health {health} " in page.text, page.text


def test_a_node_with_a_sick_gpu_stands_first(fleet, overview, reads):
    """Its agent is well and was heard last; the node is degraded all the same."""
    for number, node in ((1, "a-well"), (2, "b-sick"), (3, "c-well")):
        fleet.capacity(number, 30 * DAY, node=node)
    fleet.connection.execute(
        "UPDATE accelerator SET gpu_index = 4, health = CASE uuid WHEN 'GPU-0002' THEN 'degraded'"
        " ELSE 'ok' END, health_cause = CASE uuid WHEN 'GPU-0002' THEN 'slowed by heat' ELSE '' END"
    )
    fleet.connection.execute(
        "UPDATE node SET last_seen_at = to_timestamp(%s) + (name = 'b-sick')::int * interval '1"
        " second'",
        (reads.now_ms / 1000 - 60,),
    )
    page = Page(overview())
    assert page.faults == []
    assert [row[:2] for row in page.table("node").rows[1:]] == [
        ["b-sick", "degraded"],
        ["a-well", "ok"],
        ["c-well", "ok"],
    ]
    drawn = fleet_page(reads, MapAddress(None, ColorBy.STATE, "", None, None), View(ANYBODY))
    assert (
        "degraded : 1 accelerator on b-sick GPU 4 of b-sick , NVIDIA H100 80GB HBM3,"
        " since when is not known: slowed by heat" in Page(drawn.body.decode()).text
    )


def test_the_fleet_says_why_the_list_of_idle_gpus_is_shorter(fleet, reads):
    """Idle at this reading is not yet idle for long enough."""
    fleet.capacity(1, 30 * DAY)
    fleet.connection.execute(
        "INSERT INTO gpu_latest (accelerator_id, at_ms, state, gpu_utilization_ratio) SELECT id, %s,"
        " 'held', 0 FROM accelerator WHERE uuid = 'GPU-0001'",
        (reads.now_ms - 60_000,),
    )
    now = fleet_page(reads, MapAddress(None, ColorBy.STATE, "", None, None), View(ANYBODY))
    page = Page(now.body.decode())
    assert page.faults == []
    assert "held idle : 1 accelerator on n1 ; idle at this reading, warm replicas" in page.text
    assert "/idle" in page.links


class NoneYet(HourlyCache[Outlook]):
    """A forecast that is still being computed."""

    def get(self, *_):
        return None


def test_a_stored_forecast_is_shown_until_the_new_one_is_there(rated, overview, reads):
    """With the instant up to which it knew the demand, and its hours that are still to come."""
    waiting = reads.now_ms
    hour_ms = waiting // HOUR * HOUR
    band = tuple((float(hour), hour + 5.0, hour + 9.0) for hour in range(24))
    stored = StoredForecast(
        "pool", "us", hour_ms - 10 * HOUR, waiting, False, (0.1, 0.5, 0.9), band, (), {}
    )
    old = replace(stored, series="eu", origin_ms=hour_ms - 25 * HOUR)
    backtests.insert(rated.connection, [stored, old])
    none_yet = NoneYet(lambda: Outlook())
    page = Page(overview_text(reads, none_yet))
    assert page.faults == []
    assert "The last stored forecast, from what was known up to 31 Oct, 03:00 , until" in page.text
    assert "Over the next 15 hours between 9 and 32 GPUs with 80 % probability" in page.text
    assert "Pool eu" not in page.text
    view = View(Principal("admin", "a"))
    demand = Page(fleet_pages.demand_page(reads, none_yet, view).body.decode())
    assert demand.faults == []
    assert "Over the next 15 hours between 9 and 32 GPUs" in demand.text


def test_the_way_to_why_a_team_paid_more_is_seen(overview, rated):
    """It is the statement of the team; unusual spending names few teams."""
    text = Page(overview()).text
    assert "which says why it paid more or less than before: by price, volume and mix" in text
    assert "Why a team paid more or less than before stands in its statement" in text


@pytest.mark.parametrize(
    ("state", "seconds", "who"),
    [
        ("held", 60, "held by training (ada)"),
        ("unallocated", 60, "nobody holds it"),
        ("held", 900, "who holds it is not known"),
    ],
)
def test_a_sick_gpu_is_named_with_who_holds_it(fleet, overview, reads, state, seconds, who):
    """By its number on its node, which is no count, and with a link to its page; a divided board is
    one of the GPUs.
    """
    fleet.workload(4, team="vision")
    for number in (1, 2, 3, 4):
        fleet.accelerator(number)
        fleet.capacity(number, 30 * DAY)
    fleet.connection.execute(
        "UPDATE accelerator SET gpu_index = 4, health = CASE uuid WHEN 'GPU-0002' THEN 'degraded'"
        " ELSE 'ok' END, health_cause = CASE uuid WHEN 'GPU-0002' THEN 'slowed by heat' ELSE '' END"
    )
    fleet.connection.execute(
        "UPDATE accelerator SET device_uuid = 'GPU-board', gpu_micro = 250000, mig_instance ="
        " '1g.10gb' WHERE uuid IN ('GPU-0003', 'GPU-0004')"
    )
    fleet.connection.execute("UPDATE node SET last_seen_at = now() + interval '100 years'")
    fleet.connection.execute(
        "UPDATE workload SET name = 'training', user_name = 'ada' WHERE id = (SELECT min(id) FROM"
        " workload)"
    )
    fleet.connection.execute(
        "INSERT INTO gpu_latest (accelerator_id, at_ms, state, workload_id) SELECT a.id, %s, %s,"
        " (SELECT min(id) FROM workload) FROM accelerator a WHERE uuid = 'GPU-0002'",
        (reads.now_ms - seconds * 1000, state),
    )
    page = Page(overview())
    assert page.faults == []
    assert "1 degraded 2 ok of 3 GPUs, each divided one counted once, by its worst" in page.text
    named = f"GPU 4 of n1 , NVIDIA H100 80GB HBM3, since when is not known: slowed by heat; {who}"
    assert named in page.text, page.text
    assert "/fleet/gpu/GPU-0002" in page.links


def test_a_budget_that_is_spent_says_by_how_much(rated, run, written, overview, reads):
    """Over it now; its name links to what its owner spends on its days, and the marks are named."""
    budget = '[[budget]]\nname = "small"\nteam = "vision"\nperiod = "month"\namount = 10\n'
    code, _, err = run("apply", written("budgets.toml", budget + 'currency = "USD"\n'))
    assert code == 0, err
    page = Page(overview())
    spent = re.search(r"([\d.]+) of 10\.00 USD", page.text)
    assert spent is not None
    assert f"Over by {Decimal(spent[1]) - 10:,.2f} USD" in page.text
    assert "/spend?team=vision&from=2025-10-01&to=2025-11-01" in page.links
    assert "The line across a bar is the budget" in page.text
    view = View(Principal("admin", "a"))
    statement = pages.statement_page(reads, "team", "vision", "2025-10", view).body.decode()
    stated = Page(statement).text
    assert f"Over by {Decimal(spent[1]) - 10:,.2f} USD" in stated
    assert "by the end of 2025-10 about" in stated
    assert "Forecast for its end on 2025-10-31:" in stated


def test_a_budget_stands_with_its_own_days_beside_the_bill(rated, run, written, overview, reads):
    """A range from the month before to the next one: first and last day beside its name, on the
    overview and on the statement.
    """
    budget = (
        '[[budget]]\nname = "autumn"\nteam = "vision"\nperiod = "range"\nfrom = 2025-09-24\nto ='
        " 2025-11-29\n"
    )
    code, _, err = run(
        "apply", written("budgets.toml", budget + 'amount = 12000\ncurrency = "USD"\n')
    )
    assert code == 0, err
    view = View(Principal("admin", "a"))
    statement = pages.statement_page(reads, "team", "vision", "2025-10", view).body.decode()
    for text in (Page(overview()).text, Page(statement).text):
        head = r"autumn (\(vision\) )?[a-z ]+ from 2025-09-24 to 2025-11-28"
        assert re.search(rf"{head} .*of 12,000\.00 USD \(\d+ %\);", text), text


def test_a_cause_of_bad_health_has_a_next_step(fleet, overview):
    """Every fault that a counter says; the driver's own requests name it themselves."""
    faults = {name: verdict({name: 1}).cause for name in sorted(EVIDENCE) if name != RECOVERY}
    assert all(map(next_step, faults.values())), faults
    assert next_step(verdict({RECOVERY: 1}).cause) == ""
    fleet.accelerator(1)
    fleet.capacity(1, 30 * DAY)
    cause = faults["gpu_remapped_rows_pending"]
    fleet.connection.execute(
        "UPDATE accelerator SET health = 'degraded', health_cause = %s", (cause,)
    )
    fleet.connection.execute("UPDATE node SET last_seen_at = now() + interval '100 years'")
    page = Page(overview())
    assert page.faults == []
    assert f"{cause}; who holds it is not known. Next: {next_step(cause)}" in page.text


def test_idle_money_has_one_number(rated, run, overview, reads):
    """The tile, the sentence of waste and the table's total, with corrections of a closed month."""
    assert run("close", "--period", "2025-10")[0] == 0
    rated.evidence([Held(1, 4, 10 * DAY, 10 * DAY + HOUR, idle=HOUR)])
    run("chargeback", "--from", "2025-10-01", "--to", "2026-01-01")
    ((booked_ms, idle_micro),) = rated.rows(
        "SELECT booked_day_ms, sum(idle_cost_micro) FROM correction GROUP BY 1"
    )
    assert idle_micro == 2_100_000
    reads.clock = lambda: booked_ms + HOUR
    page = Page(overview_text(reads, pages.HourlyCache(Outlook)))
    assert page.faults == []
    (table,) = [one for one in page.tables if one.rows[0][-1] == "cost, USD"]
    (row,) = [line for line in table.rows if line[0].startswith("corrections of 2025-10")]
    total = table.rows[-1][-2]
    assert row[-2] == "2.10"
    assert f"of which held idle {total} USD" in page.text
    assert "corrections of 2025-10: 2.10 of it" in page.text
    assert f"held idle {total}" in page.text.partition("Waste: ")[2]


def test_a_team_with_corrections_leads_to_the_number_of_its_statement(
    rated, run, overview, reads, monkeypatch
):
    """Its row is the month's own time, its statement bills corrections of a closed month besides:
    the overview says by how much they differ, and the two add up.
    """
    november_ms = OCTOBER_NIGHT_MS + 10 * DAY
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: november_ms)
    reads.clock = lambda: november_ms
    for month in ("2025-09", "2025-10"):
        assert run("close", "--period", month)[0] == 0
    rated.capacity(1, 31 * DAY, 41 * DAY, pool="us")
    rated.evidence(
        [
            Held(1, 4, 10 * DAY, 10 * DAY + HOUR, idle=HOUR),
            Held(1, 4, 32 * DAY, 32 * DAY + 2 * HOUR, idle=2 * HOUR),
            Held(1, 6, 33 * DAY, 33 * DAY + HOUR, idle=HOUR),
        ]
    )
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-11-11")[0] == 0
    page = Page(overview_text(reads, pages.HourlyCache(Outlook)))
    assert page.faults == []
    table = next(one for one in page.tables if one.rows[0][-1] == "cost, USD")
    (vision,) = [row for row in table.rows if row[0] == "vision"]
    (other,) = [row for row in table.rows if row[0] == "(unattributed)"]
    assert (vision[-2:], other[-2:]) == (["4.20"] * 2, ["2.10"] * 2)
    assert (
        "Statements bill corrections of closed months as well: vision +2.10, held idle +2.10."
        in page.text
    )
    assert (
        "Most held idle: vision , 4 USD in 2 GPU-hours. Its statement says 6.30: with +2.10 of"
        " corrections of closed months, a row of their own below." in page.text
    )
    view = View(Principal("admin", "a"))
    statement = pages.statement_page(reads, "team", "vision", "2025-11", view).body.decode()
    assert "cost 6.30 USD" in Page(statement).text


def test_a_sick_gpu_names_who_held_it_last(fleet, run, overview, reads):
    """On the overview and on the fleet: the job, its user and who pays; nobody who held it before,
    and nobody where since when it is sick is not known.
    """
    fleet.capacity(1, 0, node="n1")
    fleet.workload(4, team="vision")
    fleet.workload(5, team="speech")
    fleet.workload(6, org="nobody's")
    for number, user in ((4, "ann"), (5, "bob"), (6, "")):
        fleet.connection.execute(
            "UPDATE workload SET name = %s, user_name = %s WHERE external_id = %s",
            (f"job-{number}", user, str(number)),
        )
    fleet.connection.execute(
        "UPDATE accelerator SET gpu_index = 4, health = 'degraded', health_cause = 'heat',"
        " health_since_ms = %s",
        (reads.now_ms - 30 * HOUR,),
    )
    sick = 29 * DAY + 6 * HOUR

    def said():
        fleet.connection.execute(
            "UPDATE node SET last_seen_at = to_timestamp(%s)", (reads.now_ms / 1000 - 60,)
        )
        pages_of = (
            overview(),
            fleet_page(reads, MapAddress(), View(ANYBODY)).body.decode(),
        )
        found = []
        for text in pages_of:
            page = Page(text)
            assert page.faults == []
            found.append(
                re.search(r"heat(?:; who holds it is not known,)?(;? last .*? ago)?", page.text)[1]
            )
        first, second = found
        assert (first or "").strip() == (second or "").strip("; ")
        return (first or "").strip()

    fleet.evidence([Held(1, 5, sick - 2 * HOUR, sick - HOUR), Held(1, 5, sick - HOUR, sick)])
    run("chargeback", *MONTH)
    assert said() == ""
    fleet.evidence([Held(1, 4, sick + 2 * HOUR, sick + 3 * HOUR - 1)])
    run("chargeback", *MONTH)
    assert (
        said()
        == "last held by job-4 (ann, team vision) in the hour from 30 Oct, 08:00, 28 hours ago"
    )
    fleet.evidence([Held(1, 6, sick + 5 * HOUR, sick + 6 * HOUR)])
    run("chargeback", *MONTH)
    assert said() == (
        "last held by job-6 (unattributed) in the hour from 30 Oct, 11:00, 25 hours ago"
    )
    fleet.connection.execute("DELETE FROM charge WHERE accelerator_id IS NOT NULL")
    assert said() == "last held by job-6 in the hour from 30 Oct, 11:00, 25 hours ago"
    fleet.connection.execute("UPDATE accelerator SET health_since_ms = NULL")
    assert said() == ""


def test_the_fleet_says_when_it_was_fullest(fleet, run, reads):
    """The sentence of the page of demand, which it leads to, with the hour on the map; of the pool
    that is shown, and of now alone.
    """
    for number, pool in ((1, "us"), (2, "us"), (3, "eu")):
        fleet.accelerator(number)
        fleet.capacity(number, 0, pool=pool)
    fleet.workload(4, team="vision")
    fleet.evidence(
        [Held(number, 4, 29 * DAY + 6 * HOUR, 29 * DAY + 7 * HOUR) for number in (1, 2)]
        + [Held(3, 4, 28 * DAY, 28 * DAY + HOUR)]
    )
    run("chargeback", *MONTH)
    demand = fleet_pages.demand_page(reads, HourlyCache(Outlook), View(ANYBODY))
    for here, hour, leads in (
        (MapAddress(), "30 Oct, 06:00 , in which 2.0 of 2 GPUs were held (100 %)", "/demand"),
        (MapAddress(pool="eu"), "29 Oct, 00:00 , in which 1.0 of 1", "/demand?pool=eu"),
    ):
        page = Page(fleet_page(reads, here, View(ANYBODY)).body.decode())
        assert page.faults == []
        assert f"Fullest of the last 7 days: the hour from {hour}" in page.text
        assert leads in page.links
        assert any(link.startswith("/fleet?at=2025-10-") for link in page.links)
    past = Page(
        fleet_page(reads, MapAddress(at_ms=reads.now_ms - DAY), View(ANYBODY)).body.decode()
    )
    assert "Fullest" not in past.text
    assert "30 Oct, 06:00 , in which 2.0 of 2" in Page(demand.body.decode()).text


def test_a_sick_gpu_says_since_when(fleet, overview, reads):
    """On the overview, on the fleet, on its node's page and on its own, which says what to do as
    well; of a silent node each says since when nobody hears of it.
    """
    fleet.capacity(1, 30 * DAY, node="n1")
    cause = "a row remap waits for a reset"
    fleet.connection.execute(
        "UPDATE accelerator SET gpu_index = 4, health = 'degraded', health_cause = %s,"
        " health_since_ms = %s",
        (cause, reads.now_ms - 30 * HOUR),
    )
    fleet.connection.execute(
        "UPDATE node SET last_seen_at = to_timestamp(%s)", (reads.now_ms / 1000 - 60,)
    )
    since = "since 30 Oct, 06:00, 30 hours ago"
    for node in (None, "n1"):
        drawn = fleet_page(reads, MapAddress(node=node), View(ANYBODY)).body.decode()
        assert f"GPU 4 of n1 , NVIDIA H100 80GB HBM3, {since} : {cause}" in Page(drawn).text
    assert f"GPU 4 of n1 , NVIDIA H100 80GB HBM3, {since} : {cause};" in Page(overview()).text

    def gpu():
        page = Page(gpu_page(reads, "GPU-0001", "", "", View(ANYBODY)).body.decode())
        assert page.faults == []
        return page.text

    assert f"degraded It has been degraded {since} : {cause}. Next: {next_step(cause)}." in gpu()
    fleet.connection.execute("UPDATE accelerator SET health_since_ms = NULL")
    assert f"It is degraded, since when is not known: {cause}." in gpu()
    fleet.connection.execute("UPDATE accelerator SET health = 'ok', health_cause = ''")
    assert "ok Well now: it reports no fault." in gpu()
    fleet.connection.execute(
        "UPDATE node SET last_seen_at = to_timestamp(%s)", (reads.now_ms / 1000 - 2 * 3600,)
    )
    silent = "since 31 Oct, 10:00, 120 minutes ago"
    assert f"Its node has been silent {silent} : how it is now is not known." in gpu()
    drawn = fleet_page(reads, MapAddress(), View(ANYBODY)).body.decode()
    assert f"silent node : 1 accelerator on n1 ({silent} )" in Page(drawn).text


def test_unknown_hours_lead_to_where_they_are_seen(rated, overview, reads):
    """What was held without a reading is the column of the jobs that it leads to, most of it first;
    what nobody observed, days of the proof that only who sees the fleet may open.
    """
    page = Page(overview())
    assert {"/trust?state=unobserved", "/jobs?sort=unknown"} <= set(page.links)
    parts = re.findall(r"([\d.,]+) (?:GPU-hours )?held without a reading", page.text)
    assert parts
    asked = (View.narrow(ANYBODY, {}), WHOLE, "", "unknown", "none")
    jobs = Page(jobs_page(reads, *asked).body.decode())
    assert jobs.faults == []
    table = jobs.table("job").rows
    column = table[0].index("without a reading")
    hours = [Decimal(row[column].replace("<", "")) for row in table[1:]]
    assert hours == sorted(hours, reverse=True)
    assert abs(sum(hours) - sum(map(Decimal, parts))) <= len(hours) * Decimal("0.1")
    viewer = Page(overview(Principal("viewer", "v", owner={"team": HOSTILE})))
    assert "held without a reading" in viewer.text
    assert not any(link.startswith("/trust") for link in viewer.links)
