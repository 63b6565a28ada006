"""Closing a month: sealed by the database, exported the same ever after, amended by corrections
alone.
"""

import csv
import datetime as dt
import io
import json
import re
from decimal import Decimal

import psycopg
import pytest

from fakes.books import Command
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Fleet, Held
from fakes.furnishing import furnishing
from fakes.worlds import world
from gpuledger_collector.accounting.period import Period, month, parse_instant
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.statement import read_statement
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
LATER = ("--from", "2025-11-01", "--to", "2027-12-01")


def furnish(dsn):
    """Two accelerators for two days, three holders, one price."""
    with furnishing(dsn) as (fleet, run, _):
        run("prices", "set", "--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
        for number in (1, 2):
            fleet.capacity(number, 0, 2 * DAY)
        fleet.evidence(
            [
                Held(1, 1, 0, HOUR, busy=HOUR // 2, idle=HOUR // 4),
                Held(1, 2, HOUR, 3 * HOUR, busy=HOUR),
                Held(2, 3, 5 * HOUR, 6 * HOUR),
                Held(2, None, 7 * HOUR, 8 * HOUR, "unallocated"),
            ]
        )


@pytest.fixture
@world(furnish)
def furnished(fleet):
    """The ledger of `furnish`."""
    return fleet


def exports(run) -> tuple[str, ...]:
    forms = [
        ("--by", "team"),
        ("--by", "team,workload"),
        ("--by", "team", "--format", "json"),
        ("--by", "workload"),
    ]
    return tuple(
        run("chargeback", *MONTH, *form, *(() if "json" in form else ("--format", "csv")))[1]
        for form in forms
    )


def focus(run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run("chargeback", *MONTH, "--format", "focus")[1])))


def change_everything(fleet, run) -> None:
    """Late evidence of an hour that nobody had seen, another price from the past, other names and
    tags.
    """
    fleet.evidence(
        [Held(2, 1, 20 * HOUR, 21 * HOUR, busy=HOUR), Held(1, 3, DAY + HOUR, DAY + 2 * HOUR)]
    )
    run("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-10-02")
    fleet.connection.execute(
        "UPDATE workload SET name = 'renamed', tags = '{\"team\": \"other\"}', user_name = 'zoe'"
    )


def test_a_month_is_closed_once_with_a_receipt(furnished, run):
    """The invoices are the chargeback to the cent; a dry run shows the same and closes nothing."""
    code, shown, _ = run("close", "--period", "2025-10", "--dry-run", "--format", "json")
    assert code == 0
    assert run("periods")[1] == "no month is closed\n"
    code, closed, _ = run("close", "--period", "2025-10", "--by", "amina", "--format", "json")
    assert code == 0
    receipt = json.loads(closed)
    assert receipt["seal"] == json.loads(shown)["seal"]
    assert receipt["closed_by"] == "amina"
    rows = csv.DictReader(io.StringIO(run("chargeback", *MONTH, "--format", "csv")[1]))
    assert {row["team"]: row["cost"] for row in rows} == {
        one["owner"]: one["amount"] for one in receipt["invoices"]
    }
    assert receipt["totals"] == {
        "USD": str(sum(Decimal(one["amount"]) for one in receipt["invoices"]))
    }
    code, _, said = run("close", "--period", "2025-10")
    assert code == 1
    assert "closed already (by amina)" in said
    code, listed, _ = run("periods", "--verify", "2025-10")
    assert (code, "every line is as it was sealed" in listed) == (0, True)


def test_a_closed_month_is_exported_the_same_ever_after(furnished, run):
    """Late evidence, another price, other names: byte for byte the same chargeback, and FOCUS but
    for its numbers.
    """
    run("close", "--period", "2025-10")
    before = exports(run), focus(run)
    change_everything(furnished, run)
    assert (exports(run), focus(run)) == before
    assert run("periods", "--verify", "2025-10")[0] == 0


def test_what_comes_late_is_a_correction_that_adds_up(furnished, run, ledger):
    """Billed in October plus booked later = October rated anew, per owner and to the micro-unit;
    and it reconciles.
    """
    run("close", "--period", "2025-10")
    change_everything(furnished, run)
    refresh(ledger, month("2025-10"), NOW_MS)
    both = furnished.rows(
        "SELECT owner_id, state, sum(gpu_ns), sum(cost_micro), sum(busy_ns) FROM (SELECT owner_id,"
        " state, gpu_ns, cost_micro, busy_ns FROM charge UNION ALL SELECT owner_id, state, gpu_ns,"
        " cost_micro, busy_ns FROM correction) c GROUP BY 1, 2 HAVING sum(gpu_ns) <> 0 ORDER BY"
        " 1, 2"
    )
    with ledger.transaction(Lock.LEDGER) as connection:
        sheet = reconcile(connection, month("2025-10"))
    assert sheet.holds
    assert furnished.rows("SELECT count(*) > 0, sum(gpu_ns) FROM correction") == [(True, 0)]
    # the same history without a close
    for table in ("correction", "corrected_day", "invoice", "closed_workload", "billing_period"):
        furnished.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    for table in ("charge", "ledger_day", "conservation_check"):
        furnished.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    furnished.connection.execute("DELETE FROM invoice")
    furnished.connection.execute("DELETE FROM closed_workload")
    furnished.connection.execute("DELETE FROM billing_period")
    furnished.connection.execute("DELETE FROM correction")
    furnished.connection.execute("DELETE FROM conservation_check")
    refresh(ledger, month("2025-10"), NOW_MS)
    alone = furnished.rows(
        "SELECT owner_id, state, sum(gpu_ns), sum(cost_micro), sum(busy_ns) FROM charge "
        "GROUP BY 1, 2 HAVING sum(gpu_ns) <> 0 ORDER BY 1, 2"
    )
    assert both == alone


def test_corrections_are_billed_in_the_month_in_which_they_are_booked(furnished, run):
    """The late hour shows up in the open month, under its team, with ChargeClass Correction for its
    own day.
    """
    run("close", "--period", "2025-10")
    furnished.evidence([Held(2, 1, 20 * HOUR, 21 * HOUR, busy=HOUR)])
    run("reconcile", "--period", "2025-10")  # rates what is late
    rows = list(csv.DictReader(io.StringIO(run("chargeback", *LATER, "--format", "csv")[1])))
    assert {row["team"]: (row["gpu_hours"], row["cost"]) for row in rows} == {
        "team-1": ("1.000000", "2.33"),
        "(unobserved)": ("-1.000000", "-2.33"),
    }
    lines = list(csv.DictReader(io.StringIO(run("chargeback", *LATER, "--format", "focus")[1])))
    usage = [line for line in lines if line["ChargeCategory"] == "Usage"]
    assert {line["ChargeClass"] for line in usage} == {"Correction"}
    assert {line["ChargePeriodStart"][:10] for line in usage} == {"2025-10-01"}
    assert all(line["BillingPeriodStart"] > "2025-10-31" for line in lines)
    assert sum(Decimal(line["BilledCost"]) for line in lines) == 0
    assert {row["InvoiceId"].split("/")[0] for row in focus(run)} == {"2025-10"}


def test_up_to_date_is_up_to_date_after_a_correction(furnished, run, ledger):
    """The same late evidence is booked once, however often the day is rated."""
    run("close", "--period", "2025-10")
    furnished.evidence([Held(2, 1, 20 * HOUR, 21 * HOUR)])
    refresh(ledger, month("2025-10"), NOW_MS)
    once = furnished.rows("SELECT count(*), sum(cost_micro) FROM correction")
    furnished.connection.execute(
        "INSERT INTO day_recompute (day_ms) VALUES (%s), (%s)", (OCTOBER, OCTOBER + DAY)
    )
    assert refresh(ledger, month("2025-10"), NOW_MS) == 2
    assert refresh(ledger, month("2025-10"), NOW_MS) == 0
    assert furnished.rows("SELECT count(*), sum(cost_micro) FROM correction") == once


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charge SET cost_micro = cost_micro + 1",
        "UPDATE charge SET day_ms = day_ms - 5184000000",
        "DELETE FROM charge",
        "INSERT INTO charge SELECT * FROM charge LIMIT 1",
        "TRUNCATE charge",
        "UPDATE ledger_day SET cost_micro = 0",
        "DELETE FROM ledger_day WHERE state = 'held'",
        "DELETE FROM conservation_check",
        "UPDATE conservation_check SET holds = false",
        "DELETE FROM billing_period",
        "UPDATE billing_period SET seal = 'x'",
        "TRUNCATE billing_period CASCADE",
        "UPDATE invoice SET minor = 0",
        (
            "INSERT INTO invoice SELECT period_start_ms, currency, 'somebody', 1, 1 FROM invoice"
            " LIMIT 1"
        ),
        "DELETE FROM closed_workload",
        (
            "INSERT INTO correction (booked_day_ms, recorded_ms, day_ms, start_ms, end_ms, state,"
            " gpu_ns, busy_ns, idle_ns, unknown_ns) SELECT day_ms, 1, day_ms, 1, 2, 'held', 1, 1,"
            " 0, 0 FROM charge LIMIT 1"
        ),
    ],
)
def test_sql_cannot_change_what_is_closed(furnished, run, statement):
    """Under the role that owns the tables, every way to touch a closed month's rows is refused,
    naming the month.
    """
    run("close", "--period", "2025-10")
    dump = furnished.rows("SELECT * FROM charge ORDER BY 1, 2, 4, 5, 7")
    with pytest.raises(psycopg.Error, match=r"closed|only takes new rows|never afterwards"):
        furnished.connection.execute(statement)
    assert furnished.rows("SELECT * FROM charge ORDER BY 1, 2, 4, 5, 7") == dump


def test_the_seal_finds_what_an_administrator_did(furnished, run):
    """Whoever takes the triggers away changes a line, and the seal does not fit any more."""
    run("close", "--period", "2025-10")
    furnished.connection.execute("ALTER TABLE charge DISABLE TRIGGER USER")
    furnished.connection.execute(
        "UPDATE charge SET cost_micro = cost_micro - 1 WHERE state = 'held'"
    )
    furnished.connection.execute("ALTER TABLE charge ENABLE TRIGGER USER")
    code, out, _ = run("periods", "--verify", "2025-10")
    assert code == 1
    assert "NOT those that were sealed" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--period", "2031-01"], 1, "2031-01 is not over"),
        (["--period", "October"], 2, "October"),
        (["--period", "2025-10", "--level", "floor"], 2, "'floor' is none of"),
        (["--period", "2025-09"], 1, "nothing was charged in 2025-09"),
    ],
)
def test_what_cannot_be_closed_is_one_sentence(furnished, run, arguments, code, words):
    """And nothing is closed by it."""
    answer = run("close", *arguments)
    assert (answer[0], answer[1]) == (code, "")
    assert words in answer[2]
    assert run("periods")[1] == "no month is closed\n"


def test_usage_without_a_price_is_closed_on_purpose_only(furnished, run, fleet):
    """A GPU that no rate covers keeps the month open until somebody says that this is meant."""
    run(
        "prices",
        "set",
        "--rate",
        "1",
        "--currency",
        "USD",
        "--from",
        "2025-01-01",
        "--pool",
        "other",
    )
    fleet.accelerator(9, model="B300")
    rate = ("--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
    run("prices", "set", *rate, "--to", "2025-01-02")
    run("prices", "set", *rate, "--model", "H100")
    fleet.capacity(9, 0, DAY)
    code, _, said = run("close", "--period", "2025-10")
    assert code == 1
    assert "24.000000 GPU-hours have no price" in said
    assert run("close", "--period", "2025-10", "--allow-unpriced")[0] == 0


def test_an_open_month_stays_as_it_was(furnished, run, ledger, fleet):
    """Closing October binds October: the days around it are rated as before."""
    fleet.capacity(3, -2 * DAY, 40 * DAY)
    run("close", "--period", "2025-10")
    fleet.evidence([Held(3, 2, 35 * DAY, 35 * DAY + HOUR), Held(3, 2, -DAY, -DAY + HOUR)])
    refresh(ledger, Period(OCTOBER - 2 * DAY, OCTOBER + 40 * DAY), NOW_MS)
    assert fleet.rows("SELECT count(*) FROM correction") == [(0,)]
    assert fleet.rows(
        "SELECT count(*) FROM charge WHERE state = 'held' AND accelerator_id = "
        "(SELECT id FROM accelerator WHERE uuid = 'GPU-0003')"
    ) == [(2,)]


def test_corrections_are_shown_by_owner(furnished, run):
    """What came late about a closed month, and nothing else; of an open month there are none to
    show.
    """
    code, _, said = run("corrections", "--period", "2025-10")
    assert (code, "2025-10 is open" in said) == (1, True)
    run("close", "--period", "2025-10")
    assert run("corrections", "--period", "2025-10")[:2] == (0, "2025-10 has no correction\n")
    furnished.evidence([Held(2, 1, 20 * HOUR, 21 * HOUR, busy=HOUR)])
    rows = list(
        csv.DictReader(io.StringIO(run("corrections", "--period", "2025-10", "--format", "csv")[1]))
    )
    assert {row["team"]: (row["gpu_hours"], row["cost"]) for row in rows} == {
        "team-1": ("1.000000", "2.33"),
        "(unobserved)": ("-1.000000", "-2.33"),
    }


def test_a_month_of_which_nothing_has_a_price_is_closed_without_an_invoice(fleet, run):
    """The receipt says the hours, and a total of nothing."""
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 1, 0, HOUR)])
    code, out, err = run("close", "--period", "2025-10", "--allow-unpriced")
    assert (code, err) == (0, "")
    assert "24.000000 GPU-hours in 2 lines" in out
    assert fleet.rows("SELECT * FROM invoice") == []


def furnish_late(dsn):
    """October is closed, November has an hour of its own, and an hour of October came after the
    close.
    """
    furnish(dsn)
    fleet, run = Fleet(dsn), Command(dsn)
    fleet.capacity(3, 31 * DAY, 31 * DAY + 2 * HOUR)
    fleet.evidence([Held(3, 4, 31 * DAY, 31 * DAY + 2 * HOUR)])
    assert run("close", "--period", "2025-10")[0] == 0
    fleet.evidence([Held(2, 1, 20 * HOUR, 21 * HOUR, busy=HOUR)])
    fleet.connection.close()


@pytest.fixture
@world(furnish_late)
def late(fleet):
    """The ledger of `furnish_late`."""
    return fleet


def at(monkeypatch, instant):
    """Set the clock of the command."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: parse_instant(instant))


NOVEMBER = ("--from", "2025-11-01", "--to", "2025-12-01")
DECEMBER = ("--from", "2025-12-01", "--to", "2026-01-01")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("chargeback", *DECEMBER, "--format", "csv"), "2.33"),
        (("chargeback", *DECEMBER, "--format", "focus"), "Correction"),
        (("statement", "--owner", "team-1", "--period", "2025-12", "-o", "page.html"), "2.33"),
    ],
)
def test_a_report_has_what_is_booked_in_its_period_whoever_looked_before(
    late, run, monkeypatch, tmp_path, command, words
):
    """Late evidence of October is a correction of December, without anybody asking for October
    first.
    """
    monkeypatch.chdir(tmp_path)
    at(monkeypatch, "2025-12-20T12:00:00+00:00")
    code, told, wrong = run(*command)
    assert code == 0, wrong
    page = tmp_path / "page.html"
    assert words in (page.read_text() if page.exists() else told)
    assert late.rows("SELECT count(*) FROM correction") == [(2,)]


def test_a_report_of_another_period_books_nothing(late, run, monkeypatch):
    """A correction is booked on the day on which it is found: it is no part of a month that is
    over, nor of October.
    """
    at(monkeypatch, "2025-12-02T12:00:00+00:00")
    assert "2.33" not in run("chargeback", *NOVEMBER, "--format", "csv")[1]
    assert late.rows("SELECT count(*) FROM correction") == [(0,)]


def test_a_close_takes_along_what_came_late_of_closed_months(late, run, monkeypatch):
    """Without a server that rates all the time: what waits is booked on the last day of the month
    that is closed.
    """
    at(monkeypatch, "2025-12-02T12:00:00+00:00")
    code, text, wrong = run("close", "--period", "2025-11", "--format", "json")
    assert code == 0, wrong
    receipt = json.loads(text)
    assert receipt["corrections"]["lines"] == 2
    assert {one["owner"]: one["amount"] for one in receipt["invoices"]}["team-1"] == "7.00"
    assert late.rows("SELECT count(*) FROM hour_recompute") == [(0,)]
    last, found = (
        1_764_460_800_000,
        int(dt.datetime(2025, 12, 2, 12, tzinfo=dt.UTC).timestamp() * 1000),
    )
    assert set(late.rows("SELECT booked_day_ms, recorded_ms FROM correction")) == {(last, found)}


def test_nothing_is_folded_or_rated_again_where_nothing_came_late(
    furnished, run, ledger, monkeypatch
):
    """A look at the marks of closed months, at those of the period and at its days: three units of
    work, no more.
    """
    run("close", "--period", "2025-10")
    units = []
    opened = Database.transaction
    monkeypatch.setattr(
        Database,
        "transaction",
        lambda self, *more, **options: units.append(1) or opened(self, *more, **options),
    )
    later = Period(month("2025-10").end_ms, month("2025-11").end_ms)
    refresh(ledger, later, NOW_MS)
    assert len(units) == 3
    furnished.evidence([Held(2, 1, 20 * HOUR, 21 * HOUR, busy=HOUR)])
    assert refresh(ledger, later, NOW_MS) == 1


def test_no_row_of_a_team_shows_negative_time(furnished, run, monkeypatch):
    """What a correction takes back stands in a row that names the month it corrects; the rows add
    up to the total.
    """
    assert run("close", "--period", "2025-10")[0] == 0
    furnished.capacity(3, 31 * DAY, 31 * DAY + HOUR)
    furnished.evidence([Held(3, 1, 31 * DAY, 31 * DAY + HOUR)])
    furnished.evidence([Held(2, 3, 20 * HOUR, 21 * HOUR)])
    furnished.connection.execute(
        "UPDATE workload SET tags = '{\"team\": \"other\"}' WHERE key = 'slurm::2'"
    )
    at(monkeypatch, "2025-11-20T12:00:00+00:00")
    rows = list(csv.DictReader(io.StringIO(run("chargeback", *NOVEMBER, "--format", "csv")[1])))
    shown = {(row["team"], row["correction_of"]): row["gpu_hours"] for row in rows}
    assert shown == {
        ("team-1", ""): "1.000000",
        ("team-0", "2025-10"): "1.000000",
        ("(unobserved)", "2025-10"): "-1.000000",
        ("team-2", "2025-10"): "-2.000000",
        ("other", "2025-10"): "2.000000",
    }
    report = json.loads(run("chargeback", *NOVEMBER, "--format", "json")[1])
    assert {(row["team"], row["correction_of"]) for row in report["rows"]} == {
        (team, month or None) for team, month in shown
    }
    (total,) = report["totals"]
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal(total["cost"]) == Decimal("2.33")
    table = run("chargeback", *NOVEMBER)[1]
    assert "correction_of" in table
    assert re.search(r"team-2 +-2(\.0)? .*2025-10", table)


def test_a_statement_shows_no_negative_time_but_in_lines_of_corrections(furnished, run, ledger):
    """Team-2 loses two hours of October in November, in which it held one: that hour stands alone."""
    assert run("close", "--period", "2025-10")[0] == 0
    furnished.capacity(3, 31 * DAY, 31 * DAY + HOUR)
    furnished.evidence([Held(3, 5, 31 * DAY, 31 * DAY + HOUR)])
    furnished.evidence([Held(2, 3, 20 * HOUR, 21 * HOUR)])
    furnished.connection.execute(
        "UPDATE workload SET tags = '{\"team\": \"other\"}' WHERE key = 'slurm::2'"
    )
    refresh(ledger, Period(OCTOBER, month("2025-11").end_ms), NOW_MS)
    with ledger.transaction() as connection:
        (section,) = read_statement(connection, "team", "team-2", "2025-11", NOW_MS).sections
    assert section.row.gpu_ns < 0 < section.held.gpu_ns == HOUR * 1_000_000
    for table in (section.jobs, section.models, section.below):
        assert any(one.gpu_ns < 0 for one in table)
        assert all(one.gpu_ns > 0 or one.label[-1] == "correction of 2025-10" for one in table)
        assert sum(one.cost_minor for one in table) == section.row.cost_minor
    assert ("5", "", "team-2", "NVIDIA H100 80GB HBM3") in {one.label for one in section.jobs}
