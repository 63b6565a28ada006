"""Budgets over a real ledger: what is told, when, to whom, and only once."""

from __future__ import annotations

import csv
import io
import json
import threading

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import parse_instant
from gpuledger_collector.export.budgets import BUDGETS, STANDINGS
from gpuledger_collector.export.statement import budget_facts
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.budget_status import statuses
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.storage.billing import budgets as stored
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

VISION = """
[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 400
currency = "USD"
actual = [50, 80, 100]
forecast = [100]
recipients = ["lead@example.com"]
escalate_to = ["head@example.com"]
"""


def keys(fleet) -> list[str]:
    return [
        "/".join(row[0].split("/")[3:])
        for row in fleet.rows("SELECT key FROM outbox ORDER BY made_ms, id")
    ]


def test_a_month_tells_of_each_threshold_once(october, apply, watch) -> None:
    """24 a day reach 50 % of 400 on the 9th; the forecast is sure on its third day; 80 % and 100 %
    follow.
    """
    assert apply(VISION)[1].splitlines()[-1].startswith("budgets: 1 added")
    told = {day: watch(day) for day in range(1, 32)}
    assert keys(october) == [
        "forecast/100",
        "actual/50",
        "actual/80",
        "actual/100",
        "actual/100/escalated",
    ]
    assert [day for day, count in told.items() if count] == [7, 9, 14, 16, 17]
    assert sum(watch(day) for day in (16, 20, 31)) == 0
    assert october.rows("SELECT recipient, count(*) FROM outbox GROUP BY 1 ORDER BY 1") == [
        ("head@example.com", 1),
        ("lead@example.com", 4),
    ]


def test_figures_are_the_ledgers_own(october, apply, run) -> None:
    """Spent is what the chargeback says of the same days, to the micro-unit; the run-out lies where
    the sum says.
    """
    apply(VISION)
    (status,) = statuses(october.connection, OCTOBER + 10 * DAY)
    bill = json.loads(
        run(
            "chargeback",
            "--from",
            "2025-10-01",
            "--to",
            "2025-10-11",
            "--by",
            "team",
            "--format",
            "json",
        )[1]
    )
    (mine,) = [row for row in bill["rows"] if row["team"] == "vision"]
    assert status.spend.micro == mine["cost_micro"] == 240 * MICRO
    assert status.spend.idle_micro == mine["held_idle_cost_micro"]
    assert status.ahead is not None
    assert status.ahead.middle_micro == 31 * 24 * MICRO
    assert status.ahead.run_out_ms == OCTOBER + 16 * DAY
    assert status.ahead.low_micro <= status.ahead.middle_micro <= status.ahead.high_micro
    even = 400 * 1000 // 31 // 24
    assert status.pace_percents == (100 * 1000 // even, 100 * 1000 // even)
    early = statuses(october.connection, OCTOBER + 4 * DAY)[0]
    assert early.ahead is None


def test_nothing_of_a_month_is_rated_so_nothing_is_known(october, apply, dsn) -> None:
    """No budget stands at 0 % of its amount and of its time because its month is not rated."""
    apply(VISION)
    (status,) = statuses(october.connection, NOW_MS + 40 * DAY)
    row = BUDGETS.exact(status)
    unknown = ("spent", "spent_percent", "elapsed_percent", "forecast", "run_out")
    assert {name: row[name] for name in unknown} == dict.fromkeys(unknown)
    shown = STANDINGS.texts(status)
    assert {shown[name] for name in ("spent", "percent", "elapsed", "run_out")} == {"-"}
    page = budget_facts(status)
    assert (page["state"], page["spent"], page["elapsed"]) == ("not known", "not known", None)
    assert watch_budgets(Database(dsn), NOW_MS + 40 * DAY, budget_mail.write) == 0


def test_a_budget_that_is_spent_does_not_run_out_any_more(october, apply) -> None:
    """At 24 a day 400 are spent on the 16th: until then a day is named, and after it none."""
    apply(VISION)
    for day, is_spent in ((14, False), (20, True)):
        (status,) = statuses(october.connection, OCTOBER + day * DAY)
        row = BUDGETS.exact(status)
        assert (row["spent_percent"] >= 100) is is_spent
        days = {row[name] for name in ("run_out", "run_out_earliest", "run_out_latest")}
        assert (days == {None}) is is_spent, day
        page = budget_facts(status)
        over_end = f"{status.ahead.middle_micro / MICRO - 400:.0f}"
        over_now = f"{status.spend.micro / MICRO - 400:.2f}" if is_spent else None
        assert (page["over_now"], page["over_end"]) == (over_now, over_end), day


def test_the_run_out_is_a_day_of_the_billing_zone(october, apply, dsn) -> None:
    """24 a day of 400 are gone on the 17th, which begins at four in UTC."""
    apply('billing_zone = "America/New_York"\n' + VISION)
    rate_usage(Database(dsn), NOW_MS)
    (status,) = statuses(october.connection, OCTOBER + 10 * DAY + 4 * HOUR)
    assert status.ahead is not None
    assert status.spend.micro == 240 * MICRO
    row = BUDGETS.exact(status)
    assert (row["period_from"], row["run_out"]) == ("2025-10-01", "2025-10-17")


def test_within_a_day_pace_and_rated_time_count(october, apply) -> None:
    """At noon the ledger shows what is rated by then, and no more."""
    apply(VISION)
    october.connection.execute(
        "UPDATE conservation_check SET until_ms = day_ms + %s WHERE day_ms = %s",
        (12 * HOUR, OCTOBER + 9 * DAY),
    )
    october.connection.execute(
        "DELETE FROM conservation_check WHERE day_ms > %s", (OCTOBER + 9 * DAY,)
    )
    (status,) = statuses(october.connection, OCTOBER + 10 * DAY)
    assert status.known_ms == OCTOBER + 9 * DAY + 12 * HOUR
    assert status.ahead is not None
    assert status.ahead.days_of_history == 9


def test_two_watchers_at_once_tell_once(october, apply, dsn) -> None:
    """Replicas that overlap see one budget one after the other."""
    apply(VISION)
    barrier = threading.Barrier(4)
    counts = []

    def watcher() -> None:
        barrier.wait()
        counts.append(
            watch_budgets(
                Database(dsn),
                OCTOBER + 9 * DAY,
                budget_mail.write,
            )
        )

    threads = [threading.Thread(target=watcher) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == [0, 0, 0, 1]
    assert keys(october) == ["actual/50"]


def test_a_watcher_that_dies_leaves_nothing_half_told(october, apply, dsn) -> None:
    """States and messages are one transaction: a failure while the mail is written undoes both."""
    apply(VISION)

    def failing(_news):
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError):
        watch_budgets(Database(dsn), OCTOBER + 9 * DAY, failing)
    assert october.rows("SELECT count(*) FROM budget_alert") == [(0,)]
    assert watch_budgets(Database(dsn), OCTOBER + 9 * DAY, budget_mail.write) == 1


def test_one_alert_is_one_alert(october, apply, watch, run) -> None:
    """In what `ack` and `replay` say."""
    apply(VISION.replace("actual = [50, 80, 100]", "actual = [50]").replace("[100]", "[]", 1))
    replayed = run("budgets", "replay", "--from", "2025-10-01", "--to", "2025-10-18", "--dry-run")
    assert replayed[1].splitlines()[-1] == "1 alert (dry run: nobody is notified)"
    watch(17)
    assert run("budgets", "ack", "vision", "--by", "ada")[1] == "1 alert acknowledged\n"


def test_acknowledged_alerts_are_not_escalated(october, apply, watch, run) -> None:
    """Who says that they know stops the escalation; a name that is none is refused."""
    apply(VISION)
    watch(17)
    assert run("budgets", "ack", "vision", "--by", "ada")[1] == "3 alerts acknowledged\n"
    assert watch(19) == 0
    assert october.rows(
        "SELECT DISTINCT state, acked_by FROM budget_alert WHERE rule = 'actual'"
    ) == [("acked", "ada")]
    assert run("budgets", "ack", "nlp")[0] == 2


def test_the_drivers_of_a_mail_add_up(october, apply, watch) -> None:
    """The attached CSV's rows add up to the change that the mail names, and its parts to each row."""
    apply(VISION)
    for day in range(5, 18):
        watch(day)
    text, attachments = october.rows(
        "SELECT text, attachments FROM outbox WHERE key LIKE '%%actual/100'"
    )[0]
    rows = list(csv.DictReader(io.StringIO(attachments["drivers.csv"])))
    micros = [
        {name: round(float(row[name]) * MICRO) for name in ("change", "price", "volume", "mix")}
        for row in rows
    ]
    assert all(row["change"] == row["price"] + row["volume"] + row["mix"] for row in micros)
    total = sum(row["change"] for row in micros)
    assert (
        f"since the last mail cost {total // MICRO}.{total % MICRO // 10_000:02d} USD more than"
        in text
    )
    assert rows[0]["workload"] == "train-2"


def test_days_before_the_ledger_are_not_compared_with(october, apply, watch) -> None:
    """The ledger began with the month: what was spent is told, and not as if it had been nothing
    before.
    """
    apply(VISION)
    watch(9)
    text, attachments = october.rows(
        "SELECT text, attachments FROM outbox WHERE key LIKE '%%actual/50'"
    )[0]
    assert (
        "Where it went since the period began: 216.00 USD\n"
        "(1 Oct to 9 Oct; there is no whole day before to compare with" in text
    )
    assert "What changed" not in text
    (row,) = csv.DictReader(io.StringIO(attachments["drivers.csv"]))
    assert (row["before"], row["after"], row["change"], row["volume"]) == ("", "216.000000", "", "")


def test_as_many_days_are_compared_as_the_ledger_knows(october, apply, watch) -> None:
    """Three whole days before the period, or two where evidence began within the first: as many of
    the days since.
    """

    def told(span: str, day: int) -> str:
        october.connection.execute("DELETE FROM outbox; DELETE FROM budget_alert")
        apply(span)
        watch(day)
        ((text,),) = october.rows("SELECT text FROM outbox WHERE key LIKE '%%actual/50'")
        return str(text)

    said = "The last {} cost as much as the {} before"
    days = "({}, as far back as the ledger goes)"
    span = VISION.replace('"month"', '"range"\nfrom = 2025-10-04\nto = 2025-11-01').replace(
        "= 400", "= 300"
    )
    text = told(span, 10)
    assert said.format("3 days", "3 days") in text
    assert days.format("8 Oct to 10 Oct compared with 1 Oct to 3 Oct") in text
    october.connection.execute("UPDATE capacity SET in_ms = in_ms + %s", (HOUR,))
    text = told(span, 10)
    assert said.format("2 days", "2 days") in text
    assert days.format("9 Oct to 10 Oct compared with 2 Oct to 3 Oct") in text
    whole = told(span.replace("2025-10-04", "2025-10-11"), 17)
    assert "The week since the period began cost 48.00 USD more than the week before" in whole
    assert "(11 Oct to 17 Oct compared with 4 Oct to 10 Oct)" in whole


def test_a_larger_amount_is_a_new_budget_and_new_recipients_are_not(october, apply, watch) -> None:
    """A changed amount has fresh thresholds; changed recipients keep what was told."""
    apply(VISION)
    assert watch(9) == 1
    assert "0 added, 1 superseded" in apply(VISION.replace("lead@", "boss@"))[1]
    assert watch(9.1) == 0
    apply(VISION.replace("amount = 400", "amount = 420"))
    assert watch(9.2) == 1
    assert (
        apply(VISION.replace("amount = 400", "amount = 420"))[1]
        .splitlines()[-1]
        .startswith("budgets: 0 added, 0 superseded, 1 unchanged")
    )
    assert apply("budget = []")[0] == 0
    assert october.rows("SELECT count(*) FROM budget WHERE superseded_at IS NULL") == [(0,)]


def test_quiet_hours_hold_back_all_but_a_spent_budget(october, apply, watch) -> None:
    """What fires at midnight waits for the morning, unless everything is spent."""
    apply(VISION + 'quiet = "22:00-07:00"\n')
    watch(9)
    watch(17)
    assert october.rows(
        "SELECT split_part(key, '/', 5), (not_before_ms - made_ms) / 3600000 FROM outbox ORDER"
        " BY id"
    ) == [
        ("50", 7),
        ("100", 0),
    ]


def test_a_replay_tells_what_would_have_been_told(october, apply, run) -> None:
    """A dry replay prints the same alerts and leaves no trace; a real one puts them into the
    outbox, once.
    """
    apply(VISION)
    span = ("budgets", "replay", "--from", "2025-10-01", "--to", "2025-11-01")
    dry = run(*span, "--dry-run")
    assert dry[1].splitlines()[-1] == "5 alerts (dry run: nobody is notified)"
    assert october.rows(
        "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM budget_alert)"
    ) == [(0, 0)]
    assert run(*span)[1].splitlines()[:-1] == dry[1].splitlines()[:-1]
    assert len(keys(october)) == 5
    assert run(*span)[1] == "0 alerts\n"


def test_every_form_shows_the_same(october, apply, run, connect, monkeypatch) -> None:
    """Table, CSV and JSON of `gpuledger budgets`; a spent budget ends with 1 when asked for."""

    from gpuledger_collector import wiring

    monkeypatch.setattr(wiring, "read_clock", lambda: parse_instant("2025-10-20T00:00:00Z"))
    apply(VISION)
    code, out, _ = run("budgets", "--format", "json", "--exit-code")
    (row,) = json.loads(out)["budgets"]
    assert (code, row["spent"], row["amount"], row["spent_percent"]) == (1, "552.00", "400.00", 138)
    (cells,) = csv.DictReader(io.StringIO(run("budgets", "--format", "csv")[1]))
    assert {name: cells[name] for name in ("spent", "forecast", "budget")} == {
        "spent": "552.00",
        "forecast": row["forecast"],
        "budget": "vision",
    }
    assert "USD 552.00" in run("budgets")[1]
    assert run("budgets", "list", "--format", "csv") == run("budgets", "--format", "csv")


def test_mistakes_in_a_budget_are_named_with_their_line(apply, fleet) -> None:
    """Each bad field is one sentence with file and line, and nothing is applied."""
    wrong = """
[[budget]]
name = "a"
teem = "x"
period = "monthly"
amount = -5
currency = "usd"
actual = [0]
recipients = ["a@b.c\\nBcc: x@y.z", "slack:"]
quiet = "7-8"
[[budget]]
name = "b"
period = "range"
from = 2025-10-02
to = 2025-10-01
amount = 1.5
currency = "EUR"
"""
    code, _, err = apply(wrong)
    assert code == 2
    for said in (
        ":2:",
        "is it 'team'?",
        "'monthly' is not one of",
        "'-5' is not an amount",
        "'usd'",
        "whole number of percent",
        "slack:NAME",
        "22:00-07:00",
        ":11:",
        "does not lie after from",
    ):
        assert said in err, (said, err)
    with fleet.connection as connection:
        assert stored.current(connection) == []


def test_the_api_says_what_the_command_says(october, apply, run, connect, dsn, monkeypatch) -> None:
    """GET /v1/budgets gives the rows of `gpuledger budgets --format json`."""

    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from gpuledger_collector import wiring
    from gpuledger_collector.api import ledger
    from gpuledger_collector.api.auth.keys import Keys
    from gpuledger_collector.api.context import ReadContext
    from gpuledger_collector.api.reader_limits import ReaderLimits
    from gpuledger_collector.services.tokens import TokenStore
    from gpuledger_collector.storage.database import Database

    at_ms = parse_instant("2025-10-20T00:00:00Z")
    monkeypatch.setattr(wiring, "read_clock", lambda: at_ms)
    apply(VISION)
    app = FastAPI()
    keys = Keys(TokenStore(Database(dsn)), lambda: 0)
    app.state.reader_limits = ReaderLimits(keys)
    app.include_router(ledger.router(ReadContext(Database(dsn), lambda: at_ms, keys)))
    answer = TestClient(app).get("/v1/budgets")
    assert answer.status_code == 200
    assert answer.json() == json.loads(run("budgets", "--format", "json")[1])
