"""The tools' answers: the numbers of commands and pages to the last digit, whole in total, narrowed
by reader.
"""

import json
import re
from decimal import Decimal

import psycopg
import pytest

from fakes.assistant import dumped
from fakes.books import tables
from fakes.facts import AUGUST_MS
from fakes.pages import Page
from gpuledger_collector.mcp.ledger import readers_of
from gpuledger_collector.mcp.questions import QUESTIONS
from gpuledger_collector.mcp.tools import bills
from gpuledger_collector.storage.database import Database
from gpuledger_common.plurals import plural

JULY, AUGUST, SEPTEMBER = "2026-07", "2026-08", "2026-09"


def amount(money: dict[str, str]) -> Decimal:
    assert money["currency"] == "USD"
    return Decimal(money["amount"])


EXPECTED = {
    "get_cost": lambda reply: {row["names"]["team"] for row in reply.rows} >= {"alpha", "bravo"},
    "get_gpu_waste": lambda reply: (
        reply.content["status"] in {"ok", "empty", "partial"} and reply.totals
    ),
    "get_rightsizing": lambda reply: [row["team"] for row in reply.rows] == ["alpha", "bravo"],
    "explain_change": lambda reply: reply.rows and reply.totals[0]["change"]["currency"] == "USD",
    "get_efficiency": lambda reply: reply.totals[0]["cost_allocated"]["currency"] == "USD",
    "compare_periods": lambda reply: (
        {row["status"] for row in reply.rows} <= {"new", "removed", "changed", "unchanged"}
    ),
    "get_statement": lambda reply: reply.totals[0]["status"] == "closed" and reply.rows,
    "verify_statement": lambda reply: reply.totals[0]["holds"] and reply.rows[0]["check"] == "seal",
    "list_idle_gpus": lambda reply: {row["team"] for row in reply.rows} == {"alpha", "bravo"},
    "get_device_usage": lambda reply: reply.rows and reply.totals[0]["count"] == len(reply.rows),
}
"""What each recorded question's answer must show."""


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.tool for question in QUESTIONS])
def test_a_recorded_question_is_answered_with_its_proof(books, question):
    """Each of the ten gets rows, totals, the state of the proof and a link."""
    own = question.fill_in("alpha", AUGUST)
    assert "{" not in own.text
    reply = books.assistant().ask(own.tool, **own.arguments)
    assert not reply.is_error, reply.text
    assert EXPECTED[own.tool](reply), reply.text
    assert reply.content["link"].startswith("https://ledger.example/")
    assert set(reply.content["period"]) == {"start", "end", "zone"}
    estimated = own.tool in {"get_rightsizing", "list_idle_gpus"}
    assert reply.content["proof"]["state"] == ("estimated" if estimated else "sealed")
    assert json.loads(reply.text) == reply.content


@pytest.mark.parametrize("month", [AUGUST, SEPTEMBER])
def test_cost_is_the_chargeback_to_the_last_digit(books, month):
    """Rows, totals and micro-units are those of `gpuledger chargeback`."""
    bill = json.loads(
        books.out("chargeback", "--period", month, "--by", "team", "--format", "json")
    )
    reply = books.assistant().ask("get_cost", period=month, limit=200)
    assert [
        (row["names"]["team"], row["cost"]["amount"], row["held"]["value"]) for row in reply.rows
    ] == [(row["team"], row["cost"], row["gpu_hours"]) for row in bill["rows"]]
    ((total, shown),) = zip(bill["totals"], reply.totals, strict=True)
    assert shown["cost"]["amount"] == total["cost"]
    assert amount(shown["cost_exact"]) * 10**6 == total["cost_micro"]
    assert shown["held"]["value"] == total["gpu_hours"]
    assert sum(amount(row["cost"]) for row in reply.rows) == amount(shown["cost"])


@pytest.mark.parametrize("owner", [None, {"team": "alpha"}], ids=["finance", "viewer"])
@pytest.mark.parametrize("section", ["jobs", "models", "below", "days"])
def test_a_statement_is_its_invoice(books, owner, section):
    """The totals are the invoice of the receipt, for the owner's viewer too; each section adds up
    to them.
    """
    receipt = json.loads(books.out("periods", "--verify", AUGUST, "--format", "json"))[0]
    bill = json.loads(books.out("chargeback", "--period", AUGUST, "--format", "json"))
    (row,) = [row for row in bill["rows"] if row["team"] == "alpha"]
    reply = books.assistant(owner).ask(
        "get_statement", owner="alpha", month=AUGUST, section=section, limit=200
    )
    assert reply.content["proof"]["seals"][0]["seal"] == receipt["seal"]
    (total,) = reply.totals
    assert total["cost_total"]["amount"] == row["cost_total"] if row["cost_total"] else row["cost"]
    lines = sum(amount(line["cost"]) for line in reply.rows if line["cost"] is not None)
    assert lines == amount(total["cost_exact" if section == "days" else "cost"])


@pytest.mark.parametrize("by", ["team", "workload,model", "node"])
def test_a_change_is_split_exactly(books, by):
    """Price, volume and mix add up to each change, the changes to the total, and both ends to the
    chargeback.
    """
    reply = books.assistant().ask(
        "compare_periods", period=SEPTEMBER, base_period=AUGUST, group_by=by, limit=200
    )
    (total,) = reply.totals
    for change in [*reply.rows, total]:
        assert amount(change["after"]) - amount(change["before"]) == amount(change["change"])
        assert sum(amount(change[part]) for part in ("by_price", "by_volume", "by_mix")) == amount(
            change["change"]
        )
    for end, month in (("before", AUGUST), ("after", SEPTEMBER)):
        bill = json.loads(
            books.out("chargeback", "--period", month, "--by", by, "--format", "json")
        )
        assert amount(total[end]) * 10**6 == sum(row["cost_micro"] for row in bill["rows"])
        assert sum(amount(row[end]) for row in reply.rows) == amount(total[end])


@pytest.mark.parametrize("tool", ["compare_periods", "explain_change"])
def test_as_many_days_are_compared(books, tool):
    """Of an unfinished period its whole days with as many before; of a month what the ledger has on
    both sides.
    """
    assistant = books.assistant()
    reply = assistant.ask(tool, start="2026-09-15", end="2026-09-25")
    assert reply.content["period"] == {
        "start": "2026-09-15T00:00:00Z",
        "end": "2026-09-21T00:00:00Z",
        "zone": "UTC",
    }
    (total,) = reply.totals
    assert (total["base"]["start"], total["base"]["end"]) == (
        "2026-09-09T00:00:00Z",
        "2026-09-15T00:00:00Z",
    )
    assert (total["days_before"], total["days_after"]) == (6, 6)
    reply = assistant.ask(tool, period=AUGUST)
    (total,) = reply.totals
    assert total["base"]["end"] == reply.content["period"]["start"] == "2026-08-01T00:00:00Z"
    assert total["days_before"] == total["days_after"] == 11
    assert reply.content["status"] == "partial"
    assert "Of 31 whole days so far, those up to 2026-08-11 are compared" in reply.content["reason"]


@pytest.mark.parametrize("tool", ["compare_periods", "explain_change"])
def test_what_is_not_known_is_not_compared(books, tool):
    """A month before the ledger began cost nobody knows what: no row is called new, and nothing is
    zero.
    """
    for arguments in (
        {"period": AUGUST, "base_period": "2026-01"},
        {"period": "2026-01", "base_period": AUGUST},
        {"start": "2026-07-21", "end": "2026-07-22"},
    ):
        reply = books.assistant().ask(tool, **arguments)
        assert (reply.content["status"], reply.rows, reply.totals) == ("empty", [], [])
        assert "nothing to compare" in reply.content["reason"]
        assert "base_period" in reply.content["next_step"]


@pytest.mark.parametrize("month", [AUGUST, SEPTEMBER])
def test_the_head_of_a_statement_is_told(books, month):
    """By how much and why, word for word as on the page, for the owner's viewer too; jobs say of how
    many runs they are.
    """
    page = Page(books.out("statement", "--owner", "alpha", "--period", month)).text
    for owner in (None, {"team": "alpha"}):
        reply = books.assistant(owner).ask("get_statement", owner="alpha", month=month)
        (total,) = reply.totals
        assert re.match(
            r"What you held from \S+ to \S+ cost \S+ USD (more|less) than", total["change"]
        )
        assert total["change"].removesuffix(".") in page.replace(" ,", ","), page[:900]
        assert all(f"{plural(row['runs'], 'run')}" in page for row in reply.rows)
        (models,) = {
            row.get("runs")
            for row in books.assistant(owner)
            .ask("get_statement", owner="alpha", month=month, section="models")
            .rows
        }
        assert models is None


@pytest.mark.parametrize("where", ["", "team=alpha"])
def test_the_largest_cause_of_a_change_is_named(books, where):
    """It goes the way of the change, in the amounts of the answer, with the job that moved most of
    it by key and name; where nothing changed there is none.
    """
    asked = {"period": SEPTEMBER, "base_period": AUGUST, "where": where, "limit": 200}
    reply = books.assistant().ask("explain_change", **asked)
    (total,) = reply.totals
    changes = {"price": "prices", "volume": "GPU-hours", "mix": "GPUs"}
    largest = max(changes, key=lambda part: amount(total[f"by_{part}"]) * amount(total["change"]))
    said = total["main_cause"]
    assert changes[largest] in said, said
    assert f"{amount(total[f'by_{largest}']):+,.2f} USD" in said, said
    assert any(row["names"]["workload"] in said for row in reply.rows), said
    same = books.assistant().ask("explain_change", **asked | {"base_period": SEPTEMBER})
    assert {one["main_cause"] for one in same.totals} <= {""}


def test_corrections_make_no_time_unknown(books):
    """The month that bills corrections of August has their cost; hours that they take back are no
    time of it.
    """
    with psycopg.connect(books.dsn) as connection:
        ((month,),) = connection.execute(
            "SELECT DISTINCT to_char(to_timestamp(booked_day_ms / 1000), 'YYYY-MM') FROM correction"
        ).fetchall()
    cost = books.assistant().ask("get_cost", period=month)
    assert any(
        row["correction_of"] == AUGUST and row["held"]["value"].startswith("-") for row in cost.rows
    )
    (total,) = books.assistant().ask("get_efficiency", period=month).totals
    assert Decimal(total["unknown"]["value"]) >= 0
    events = (
        books.assistant()
        .ask("explain_change", period=month, base_period=AUGUST)
        .totals[0]["events"]
    )
    assert [event["text"] for event in events] == [
        "corrections of the closed month 2026-08 are billed in this period"
    ]


def test_workloads_have_their_names(books):
    """Beside the key that conditions take, rows of workloads show the name and the user as
    reported.
    """
    with psycopg.connect(books.dsn) as connection:
        named = dict(connection.execute("SELECT key, coalesce(name, '') FROM workload").fetchall())
    for tool, arguments in (
        ("get_cost", {"group_by": "workload"}),
        ("get_efficiency", {"group_by": "workload,model"}),
        ("compare_periods", {"group_by": "workload"}),
    ):
        rows = books.assistant().ask(tool, period=AUGUST, **arguments).rows
        own = [row["names"] for row in rows if row["names"]["workload"] in named]
        assert own
        assert all(names.get("workload_name", "") == named[names["workload"]] for names in own)


def test_waste_and_efficiency_are_parts_of_the_same_cost(books):
    """Idle time and what nobody held is waste, as in the chargeback; the ratio is used cost over
    all cost.
    """
    bill = json.loads(books.out("chargeback", "--period", JULY, "--format", "json"))
    waste = books.assistant().ask("get_gpu_waste", period=JULY)
    (total,) = waste.totals
    assert total["waste"]["amount"] == bill["waste"][0]["cost_waste"]
    assert [(row["names"]["team"], row["waste"]["amount"]) for row in waste.rows][-1] == (
        "alpha",
        "25.00",
    )
    assert total["held_idle"]["amount"] == "25.00"
    assert amount(total["unallocated"]) >= 50
    assert sum(amount(row["waste"]) for row in waste.rows) == amount(total["waste"])
    assert [
        row["names"]["team"]
        for row in books.assistant().ask("get_gpu_waste", period=JULY, min_waste="26").rows
    ] == [row["names"]["team"] for row in waste.rows[:-1]]
    efficiency = books.assistant().ask("get_efficiency", period=JULY)
    (alpha,) = [row for row in efficiency.rows if row["names"]["team"] == "alpha"]
    assert (alpha["efficiency"], alpha["cost_used"]["amount"], alpha["is_exact"]) == (
        "0.5000",
        "25.00",
        True,
    )
    (total,) = efficiency.totals
    assert total["cost_allocated"]["amount"] == bill["totals"][0]["cost"]
    assert total["cost_used"]["amount"] == "25.00"
    assert (
        total["efficiency"]
        == f"{amount(total['cost_used']) / amount(total['cost_allocated']):.8f}"[:6]
    )


def test_pages_of_rows_hold_every_row_once(books):
    """Rows come in pages by `next_cursor`; totals are whole on each of them."""
    assistant = books.assistant()
    whole = assistant.ask("get_cost", period=AUGUST, group_by="workload,node,model", limit=200)
    assert whole.content["row_count"] == len(whole.rows) > 4
    rows, cursor = [], ""
    while True:
        page = assistant.ask(
            "get_cost", period=AUGUST, group_by="workload,node,model", limit=2, cursor=cursor
        )
        assert page.totals == whole.totals
        assert page.content["row_count"] == len(whole.rows)
        rows += page.rows
        cursor = page.content["next_cursor"]
        assert page.content["truncated"] == bool(cursor)
        if not cursor:
            break
    assert rows == whole.rows


def test_conditions_narrow_rows_and_their_total(books):
    """`where` keeps the rows of a team, whatever they are grouped by."""
    reply = books.assistant().ask("get_cost", period=AUGUST, group_by="model", where="team=alpha")
    whole = books.assistant().ask("get_cost", period=AUGUST, group_by="team")
    (team,) = [row for row in whole.rows if row["names"]["team"] == "alpha"]
    assert {row["names"]["team"] for row in reply.rows} == {"alpha"}
    assert reply.totals[0]["cost"] == team["cost"]


def test_a_month_is_closed_with_its_seal_and_a_changed_line_breaks_it(books):
    """verify_statement reads the lines again; a sealed line that is changed behind the product's
    back is found.
    """
    change = (
        "UPDATE charge SET cost_micro = cost_micro + %s WHERE (tableoid, ctid) = (SELECT tableoid,"
        " ctid FROM charge WHERE day_ms >= %s AND cost_micro > 0 ORDER BY day_ms, accelerator_id,"
        " start_ms LIMIT 1)"
    )
    assistant = books.assistant()
    assert assistant.ask("verify_statement", month=AUGUST, recompute=True).totals[0]["holds"]
    with psycopg.connect(books.superuser) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(change, (1, AUGUST_MS))
    try:
        reply = assistant.ask("verify_statement", month=AUGUST)
        assert not reply.totals[0]["holds"]
        assert not reply.rows[0]["holds"]
        assert reply.content["proof"]["state"] == "broken"
    finally:
        with psycopg.connect(books.superuser) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(change, (-1, AUGUST_MS))
    assert assistant.ask("verify_statement", month=AUGUST).totals[0]["holds"]


def test_a_viewer_sees_the_viewers_rows(books):
    """No answer of any tool to alpha's viewer holds a name of bravo; what concerns the fleet is
    refused.
    """
    viewer = books.assistant({"team": "alpha"})
    calls = [
        ("describe_ledger", {}),
        *[
            ("list_values", {"dimension": name, "period": AUGUST})
            for name in ("team", "workload", "node", "pool")
        ],
        *[
            ("get_cost", {"period": month, "group_by": "team,workload,node"})
            for month in (AUGUST, SEPTEMBER)
        ],
        ("get_gpu_waste", {"period": JULY, "group_by": "workload"}),
        ("get_efficiency", {"period": AUGUST}),
        ("compare_periods", {"period": SEPTEMBER, "group_by": "team,node"}),
        ("explain_change", {"period": SEPTEMBER}),
        ("get_statement", {"owner": "alpha", "month": AUGUST}),
        ("verify_statement", {"month": AUGUST}),
        ("list_idle_gpus", {}),
        ("get_rightsizing", {}),
    ]
    for tool, arguments in calls:
        reply = viewer.ask(tool, **arguments)
        assert not reply.is_error, (tool, reply.text)
        assert reply.content["status"] != "empty", (tool, reply.text)
        for foreign in ("bravo", "n2", "n3", "n9", "(unallocated)", "(unobserved)"):
            assert not re.search(rf'["-]{re.escape(foreign)}["-]', dumped(reply)), (
                tool,
                reply.text,
            )
    assert viewer.ask("get_cost", period=AUGUST).totals[0]["cost"]["amount"] == "240.00"
    for tool, arguments in (
        ("get_statement", {"owner": "bravo", "month": AUGUST}),
        ("get_statement", {"owner": "o", "level": "org", "month": AUGUST}),
        ("get_device_usage", {"period": AUGUST}),
    ):
        reply = viewer.ask(tool, **arguments)
        assert reply.is_error
        assert "this token sees one owner's part only" in reply.text


def test_no_tool_writes(books):
    """After every question and many bad ones each table holds what it held."""
    before = tables(books.dsn)
    for question in QUESTIONS:
        own = question.fill_in("alpha", AUGUST)
        books.assistant().ask(own.tool, **own.arguments)
        books.assistant({"team": "alpha"}).ask(own.tool, **own.arguments)
    assert tables(books.dsn) == before


def test_sessions_of_tools_cannot_write(books):
    """The handle that tools get refuses a write, whatever the tool does."""
    with (
        readers_of(Database(books.dsn)).connect() as connection,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        connection.execute("DELETE FROM budget")


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("get_cost", {"period": "2026-13"}, "period: '2026-13' is not a month"),
        ("get_cost", {"period": "soon"}, "period: 'soon' is not a period"),
        ("get_cost", {"start": "2026-08-01"}, "start and end: give both"),
        ("get_cost", {"start": "2026-09-01", "end": "2026-08-01"}, "is empty"),
        (
            "get_cost",
            {"period": "2026-08", "start": "2026-08-01", "end": "2026-08-02"},
            "give period alone",
        ),
        ("get_cost", {"start": "2020-01-01", "end": "2026-01-01"}, "at most 400 days"),
        ("get_cost", {"group_by": "teem"}, "group_by: give one to 3 of org, team"),
        ("get_cost", {"group_by": "org,team,project,run"}, "group_by: give one to 3"),
        ("get_cost", {"where": "team"}, "where: give DIMENSION=VALUE"),
        ("get_cost", {"where": "team=a\0b"}, "where: give DIMENSION=VALUE"),
        ("get_cost", {"cursor": "-1"}, "cursor: give next_cursor"),
        ("get_cost", {"cursor": "9999999"}, "cursor: give next_cursor"),
        ("get_cost", {"limit": 201}, "limit: give at most 200"),
        ("get_cost", {"limit": 0}, "limit: give at least 1"),
        ("get_cost", {"group_by": "x" * 501}, "group_by: give at most 500 characters"),
        ("get_gpu_waste", {"min_waste": "lots"}, "min_waste: 'lots' is not an amount"),
        (
            "compare_periods",
            {"base_period": "never"},
            "base_period, base_start and base_end: period",
        ),
        ("get_statement", {"owner": "alpha", "month": "2026"}, "is not a month"),
        ("get_statement", {"owner": "a\0", "month": "2026-08"}, "NUL"),
        ("get_statement", {"owner": "alpha", "month": "2026-08", "level": "realm"}, "level"),
        ("get_device_usage", {"device": "a\0"}, "NUL"),
        ("list_values", {"dimension": "password"}, "dimension"),
        (
            "get_cost",
            {"where": {"team": "alpha"}},
            "where: give a text, such as team=vision, not an object",
        ),
        ("get_cost", {"limit": "many"}, "limit: give a whole number, not 'many'"),
        ("get_statement", {"month": "2026-08"}, "owner: is missing"),
        ("forecast_spend", {"level": "realm"}, "level: give one of org, team"),
        ("forecast_demand", {"pool": "nosuch"}, "pool: nothing is known of 'nosuch'"),
        ("forecast_demand", {"hours": 1000}, "hours: give at most 168"),
        ("run_sql", {"query": "SELECT 1"}, "run_sql"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_right(books, tool, arguments, words):
    """The sentence names the parameter and an example."""
    try:
        reply = books.assistant().ask(tool, **arguments)
    except Exception as error:
        assert words in str(error)  # noqa: PT017 - an unknown tool is an error of the protocol
        return
    assert reply.is_error
    assert words in reply.text
    assert not re.search("pydantic|validation error|https?:|type=", reply.text)


def test_a_fault_of_our_own_reaches_no_client(books, monkeypatch):
    """Neither SQL nor a path nor an address; a database that is away is named as such."""

    def fail(error):
        def read(*_arguments):
            raise error

        return read

    monkeypatch.setattr(
        bills, "read_bill", fail(RuntimeError("SELECT secret FROM /etc/passwd at 10.0.0.1"))
    )
    assert books.assistant().ask("get_cost").text == "Error executing tool get_cost"
    monkeypatch.setattr(bills, "read_bill", fail(psycopg.OperationalError("10.0.0.1 refused")))
    assert books.assistant().ask("get_cost").text.endswith("database unavailable; retry later")
    monkeypatch.setattr(bills, "read_bill", fail(psycopg.errors.QueryCanceled("statement timeout")))
    assert "shorter period" in books.assistant().ask("get_cost").text


def test_the_log_has_a_line_for_each_call(books, caplog):
    """Who called which tool with which parameters, and how many rows it got; no value, no token."""
    with caplog.at_level("INFO", "gpuledger_collector.mcp.server"):
        books.assistant().ask("get_cost", period=AUGUST, where="team=alpha", limit=1)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.name == "gpuledger_collector.mcp.server"
    ]
    words = "parameters: group_by, limit, period, where"
    assert re.fullmatch(rf"tool get_cost for tester: 1 of 1 rows in \d+ ms; {words}", line)
    assert "alpha" not in line
