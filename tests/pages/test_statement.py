"""The statement: the chargeback's numbers to the cent, taken apart without rest, safe, whole, and
good to look at.
"""

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.pages import Page
from gpuledger_collector.accounting.budgets import MONTH as MONTHLY
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.period import UTC_DAYS, Period
from gpuledger_collector.accounting.period import month as month_of
from gpuledger_collector.accounting.reserved_names import unescape_name
from gpuledger_collector.accounting.statement import (
    compared_windows,
    days_left_out,
    month_before,
    split_minor,
    weekdays_unlike,
)
from gpuledger_collector.api.auth.principal import ANYBODY
from gpuledger_collector.api.list_pages import jobs_page
from gpuledger_collector.api.narrowing import Narrowing
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.export.html import hours
from gpuledger_collector.export.site import Site
from gpuledger_collector.export.statement import as_html, say_changes
from gpuledger_collector.services.budget_status import status_of
from gpuledger_collector.services.findings import WholeFleet
from gpuledger_collector.services.period_comparison import compare_periods
from gpuledger_collector.services.statement import (
    NoStatement,
    monthly_chargeback,
    read_statement,
    read_statements,
)
from gpuledger_collector.storage.billing import statements
from gpuledger_collector.storage.findings import findings
from gpuledger_common.plurals import plural

from .conftest import HOSTILE, OCTOBER_NIGHT_MS

pytestmark = pytest.mark.slow

NOW_MS = OCTOBER_NIGHT_MS + 10 * DAY
MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
TEAMS = ("vision", HOSTILE, "(unattributed)")


def billed(run, by="team"):
    """The chargeback's rows as the command prints them."""
    return list(
        csv.DictReader(io.StringIO(run("chargeback", *MONTH, "--by", by, "--format", "csv")[1]))
    )


def number(text):
    return Decimal(text.replace(",", ""))


def made_of(ledger, owner, level="team", month="2025-10", now_ms=NOW_MS):
    with ledger.transaction(read_only=True) as connection:
        return read_statement(connection, level, owner, month, now_ms)


@pytest.mark.parametrize("owner", TEAMS)
def test_its_numbers_are_those_of_the_chargeback(furnished, run, tmp_path, owner):
    """What is paid and what idle cost, per currency; each table of a currency adds up to it;
    nothing is wrong in it.
    """
    file = tmp_path / "it.html"
    assert run("statement", "--owner", owner, "--period", "2025-10", "-o", file)[0] == 0
    page = Page(file.read_text())
    assert page.faults == []
    rows = [row for row in billed(run) if row["team"].removeprefix("'") == owner]
    assert rows
    for row in rows:
        shown = f"{Decimal(row['cost']):,.2f} {row['currency']}"
        assert f"You pay {shown}" in page.text
        assert (
            f"cost {number(row['cost_held_idle']):,.2f} {row['currency']}"
            if row["cost_held_idle"]
            else "its cost is not known"
        ) in page.text
        tables = [
            one
            for one in page.tables
            if one.rows[0][-1] == f"cost, {row['currency']}"
            and one.rows[0][0] in {"job", "project", "model"}
        ]
        assert len(tables) == 3
        for table in tables:
            assert sum(number(line[-1]) for line in table.rows[1:]) == Decimal(row["cost"])
            idle = [number(line[-2]) for line in table.rows[1:] if line[-2] != "not known"]
            assert sum(idle) == (Decimal(row["cost_held_idle"]) if row["cost_held_idle"] else 0)


def test_drivers_add_up_to_the_change(furnished, run, ledger):
    """Over all drivers, and in each, to the micro-unit; both ends are what the chargeback says of
    those months.
    """
    run("chargeback", *MONTH)
    run("chargeback", "--from", "2025-09-01", "--to", "2025-10-01")
    made = made_of(ledger, "vision")
    assert set(made.changes) == {"USD", "EUR"}
    for currency, change in made.changes.items():
        assert sum(change.parts) == change.after_micro - change.before_micro
        for one in change.drivers:
            assert (
                one.price_micro + one.volume_micro + one.mix_micro
                == one.after_micro - one.before_micro
            )
        for window, micro in (
            (change.before, change.before_micro),
            (change.after, change.after_micro),
        ):
            rows = furnished.rows(
                "SELECT sum(cost_micro) FROM charge c JOIN owner o ON o.id = owner_id WHERE team ="
                " 'vision' AND state = 'held' AND currency = %s AND day_ms >= %s AND day_ms < %s",
                currency,
                window.start_ms,
                window.end_ms,
            )
            assert rows == [(micro,)]
    usd = made.changes["USD"]
    assert usd.parts[0] < 0, "the price fell in October"


@pytest.mark.parametrize("viewer", [None, {"team": "vision"}], ids=["finance", "viewer"])
def test_a_rate_that_changed_within_the_month_is_named(furnished, run, ledger, viewer):
    """With its day and its amount: of a viewer, too, who reads no price book. Its rows add up to
    what the price did.
    """
    run("chargeback", *MONTH)
    run("chargeback", "--from", "2025-09-01", "--to", "2025-10-01")
    with ledger.transaction(read_only=True) as connection:
        made = read_statement(connection, "team", "vision", "2025-10", NOW_MS, viewer)
    change = made.changes["USD"]
    (fall,) = change.rate_changes
    assert (fall.before, fall.after) == (Decimal("2.333333333"), Decimal("2.1"))
    assert fall.at_ms == OCTOBER + 2 * DAY
    assert fall.micro < 0
    assert change.other_price_micro == change.parts[0] - fall.micro
    table = Page(as_html(made)).table("rate")
    assert table.rows[1][:2] == [
        "any model, on demand 2.333333333 to 2.10 USD an hour",
        "3 Oct 2025, 00:00",
    ]
    (within,) = made.rates["USD"]
    assert (within.at_ms, within.gpu_ns) == (fall.at_ms, fall.gpu_ns)
    assert within.micro < 0
    price = f"by price {sum(number(row[-1]) for row in table.rows[1:]):,.2f}"
    assert price in Page(as_html(made)).text


def test_its_head_names_the_largest_cause_in_the_amounts_below(furnished, run, ledger):
    """By how much it cost more, for what, and by which job: each amount stands in the section of
    the change, too. The job leads to its receipt where the collector serves the page.
    """
    run("chargeback", *MONTH)
    run("chargeback", "--from", "2025-09-01", "--to", "2025-10-01")
    made = made_of(ledger, "vision")
    change = made.changes["USD"]
    assert change.change_micro > 0
    volume = change.parts[1]
    job = max(change.drivers, key=lambda row: row.volume_micro)
    site = Site(path="/statements/team/vision/2025-10", sees_fleet=True)
    for text, is_served in ((as_html(made), False), (as_html(made, site), True)):
        page = Page(text)
        assert page.faults == []
        head, _, below = page.text.partition("What you held, used and wasted")
        assert (
            f"from 2025-10-01 to 2025-10-31 cost {change.change_micro / 10**6:,.2f} USD more than"
            " from 2025-09-01 to 2025-09-30" in head
        )
        assert (
            f", mostly for more GPU-hours: +{volume / 10**6:,.2f} USD, of it"
            f" +{job.volume_micro / 10**6:,.2f} USD by job {job.label[0]}" in head
        )
        # Assistants are told the same sentence.
        assert say_changes(made)["USD"].removesuffix(".") in head.replace(" ,", ",")
        assert f"Change +{change.change_micro / 10**6:,.2f} USD" in below
        assert f"by volume (GPU-hours) +{volume / 10**6:,.2f}" in below
        receipt = f"/jobs/{job.label[0]}?period=2025-10&team=vision"
        # At its head and in what made the difference; the dearest jobs lead to all of a name.
        assert page.links.count(receipt) == (2 if is_served else 0)


def test_dearest_jobs_lead_to_their_runs(furnished, run, ledger, reads):
    """A row is all runs of a name and user on a model: it says how many, and leads to a list of just
    these, whose hours and cost are its own; also where the id stands for a name, and in brackets.
    """
    named = {4: ("", "ann"), 5: ("(mine)", "ann"), 7: ("(mine)", "ann"), 8: ("(mine)", "bob")}
    furnished.workload(7, team="vision", project="segments")
    furnished.workload(8, team="vision", project="segments")
    furnished.evidence([Held(gpu, job, 2 * DAY, 2 * DAY + HOUR) for gpu, job in ((1, 7), (2, 8))])
    for job, (name, user) in named.items():
        furnished.connection.execute(
            "UPDATE workload SET name = %s, user_name = %s WHERE key = %s",
            (name, user, f"slurm::{job}"),
        )
    run("chargeback", *MONTH)
    made = made_of(ledger, "vision")
    site = Site(path="/statements/team/vision/2025-10", sees_fleet=True)
    page = Page(as_html(made, site))
    assert page.faults == []
    assert "Dearest jobs, by name and user" in page.text
    lines = [(section.currency, line) for section in made.sections for line in section.jobs]
    asked = [dict(parse_qsl(urlsplit(path).query)) for path in page.links if "/jobs?name=" in path]
    assert sorted(
        (*(one[name] for name in ("name", "username", "model", "project")), one["period"])
        for one in asked
    ) == sorted(
        (unescape_name(name), user, model, project, "2025-10")
        for _, line in lines
        for name, user, project, model in [line.label]
    )
    for one, (currency, line) in zip(asked, lines, strict=True):
        view = View.narrow(ANYBODY, {name: one[name] for name in ("period", "team", "project")})
        narrowing = Narrowing(model=one["model"], username=one["username"])
        charged = jobs_page(reads, view, narrowing, one["name"], "cost", "none").body.decode()
        rows = [row for row in Page(charged).tables[0].rows[1:] if row[-1].split()[1] == currency]
        assert len(rows) == line.runs
        assert f" · {plural(line.runs, 'run')}" in page.text
        assert sum(number(row[4]) for row in rows) == number(hours(line.gpu_ns))
    assert {line.runs for _, line in lines} == {1, 2}


@pytest.mark.parametrize(
    ("searched", "sentence"),
    [
        (False, "Spending of this month was not searched for what is unusual."),
        (True, "No alarm was raised on spending, although it is +"),
    ],
)
def test_no_alarm_does_not_contradict_a_rise(furnished, run, ledger, searched, sentence):
    """A bill that rose, and of which no hour stood out: the page says why that is no contradiction;
    where nobody has searched, it says that.
    """
    run("chargeback", *MONTH)
    run("chargeback", "--from", "2025-09-01", "--to", "2025-10-01")
    if searched:
        with ledger.transaction() as connection:
            findings.set_progress(connection, "anomaly", NOW_MS)
            findings.set_progress(connection, "idle", NOW_MS)
    text = Page(as_html(made_of(ledger, "vision"))).text
    assert sentence in text
    assert ("an alarm is about hours that stand out" in text) == searched
    assert ("No idle GPU was found in this month" in text) == searched
    assert "Unusual spending is searched for by team" in as_html(
        made_of(ledger, "detector", "project")
    )


def test_compared_periods_name_the_same_change(furnished, run, ledger):
    """The tools of assistants say what the statement says."""
    run("chargeback", *MONTH)
    run("chargeback", "--from", "2025-09-01", "--to", "2025-10-01")
    change = made_of(ledger, "vision").changes["USD"]
    by = ("team", "workload")
    with ledger.transaction(read_only=True) as connection:
        compared = compare_periods(
            connection,
            (change.before, change.after),
            by,
            lambda keys, _by: keys[0] == "vision",
            WholeFleet(),
        )
    (fall,) = compared.rate_changes["USD"]
    assert (fall.at_ms, fall.before, fall.after) == (
        OCTOBER + 2 * DAY,
        Decimal("2.333333333"),
        Decimal("2.1"),
    )
    assert fall.gpu_ns == change.rate_changes[0].gpu_ns
    assert compared.total("USD").change == change.after_micro - change.before_micro


def test_a_hostile_name_is_only_a_name(furnished, run, tmp_path):
    """In every statement and in the index, on disk too: no tag, no attribute, no path comes from
    it.
    """
    folder = tmp_path / "all"
    code, said, _ = run("statement", "--all", "--dir", folder, "--period", "2025-10")
    assert (code, said) == (0, f"3 statements of 2025-10 and index.html in {folder}\n")
    files = sorted(folder.iterdir())
    assert len(files) == 4
    index = Page((folder / "index.html").read_text())
    assert index.faults == []
    assert {one.name for one in files} == {
        "index.html",
        *(link for link in index.links if link.endswith(".html")),
    }
    assert {row[0] for row in index.table("team").rows[1:]} >= set(TEAMS)
    hostile = Page(next(one for one in files if "script" in one.name).read_text())
    assert hostile.faults == []
    assert hostile.text.count(HOSTILE) >= 3
    assert "49" not in hostile.text.partition("2025-10")[0]


def test_unknown_is_not_idle_and_not_used(furnished, run, ledger):
    """The third team's GPU gave no reading: its idle time and cost are not known, and its hours
    stand as such.
    """
    run("chargeback", *MONTH)
    (section,) = made_of(ledger, HOSTILE).sections
    assert section.row.idle_ns is None
    assert (section.held.unknown_ns, section.held.busy_ns) == (section.row.gpu_ns, 0)
    page = Page(as_html(made_of(ledger, HOSTILE)))
    assert "Held idle not known its cost is not known" in page.text
    assert "Used not known no reading says what these GPUs did" in page.text
    (days,) = [table for table in page.tables if table.rows[0][0].startswith("day")]
    held = [row for row in days.rows[1:] if row[3] != "0.0"]
    assert held
    assert {tuple(row[1:3]) for row in held} == {("not known", "not known")}
    for name in ("job", "project", "model"):
        assert {tuple(row[2:4]) for row in page.table(name).rows[1:]} == {
            ("not known", "not known")
        }, name


def test_spans_of_different_length_are_named(furnished, run, ledger):
    """September has 30 days, October 31: the page says so, and what a day cost in each."""
    run("chargeback", *MONTH)
    run("chargeback", "--from", "2025-09-01", "--to", "2025-10-01")
    change = made_of(ledger, "vision").changes["USD"]
    page = Page(as_html(made_of(ledger, "vision")))
    a_day = [
        f"{micro // days / 1_000_000:.2f}"
        for micro, days in ((change.before_micro, 30), (change.after_micro, 31))
    ]
    assert (
        "The two spans differ in length: 30 days before and 31 after, so a part of the volume is"
        " more" in page.text
    )
    assert f"A day cost {a_day[0]} USD before and {a_day[1]} USD after" in page.text


def test_a_month_that_is_closed_and_corrected(furnished, run, ledger):
    """Closed: the seal stands there and the invoice is what is paid.

    A late spool is a line of the next month.
    """
    for name in ("2025-09", "2025-10"):
        assert run("close", "--period", name, "--by", "amina")[0] == 0
    query = "SELECT currency, minor FROM invoice WHERE owner = 'vision' AND period_start_ms = %s"
    invoices = dict(furnished.rows(query, OCTOBER))
    made = made_of(ledger, "vision")
    assert {one.currency: one.row.cost_minor for one in made.sections} == invoices
    seal = json.loads(run("periods", "--format", "json")[1])[1]["seal"]
    page = Page(as_html(made))
    assert seal in page.text
    assert "Closed" in page.text
    assert "by amina" in page.text
    furnished.evidence([Held(1, 4, 10 * DAY, 10 * DAY + HOUR, busy=HOUR)])
    assert run("chargeback", "--from", "2025-10-01", "--to", "2026-01-01")[0] == 0
    (booked,) = furnished.rows("SELECT DISTINCT booked_day_ms FROM correction")
    later = made_of(ledger, "vision")
    assert later.sections == made.sections, "what is closed stays"
    assert later.amended == {"USD": 2_100_000}
    assert "Corrected later" in as_html(later)
    month = dt.datetime.fromtimestamp(booked[0] / 1000, dt.UTC).strftime("%Y-%m")
    statement = made_of(ledger, "vision", month=month)
    (section,) = statement.sections
    assert "correction of 2025-10" in as_html(statement)
    assert [(one.label, one.cost_minor) for one in section.corrections] == [(("2025-10",), 210)]
    assert section.row.cost_minor == 210
    assert all(day.measures is None or day.measures.cost_micro == 0 for day in section.days), (
        "no day of its own was dearer for it"
    )


def test_late_evidence_is_no_change_of_use(furnished, run, ledger, monkeypatch):
    """An hour of October that was known after its close stands in the bill of November, and is
    compared as an hour of October.
    """
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    for name in ("2025-09", "2025-10"):
        assert run("close", "--period", name)[0] == 0
    furnished.capacity(1, 31 * DAY, 41 * DAY, pool="train")
    furnished.evidence(
        [
            Held(1, 4, 5 * DAY, 5 * DAY + HOUR, idle=HOUR),
            Held(1, 4, 32 * DAY, 32 * DAY + HOUR, busy=HOUR),
        ]
    )
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-11-11")[0] == 0
    statement = made_of(ledger, "vision", month="2025-11")
    change = statement.changes["USD"]
    ((sealed,),) = furnished.rows(
        "SELECT sum(cost_micro) FROM charge c JOIN owner o ON o.id = owner_id WHERE team = 'vision'"
        " AND state = 'held' AND currency = 'USD' AND day_ms >= %s AND day_ms < %s",
        change.before.start_ms,
        change.before.end_ms,
    )
    assert change.corrected_micro == (2_100_000, 0)
    assert (change.before_micro, change.after_micro) == (sealed + 2_100_000, 2_100_000)
    page = Page(as_html(statement))
    assert page.faults == []
    assert "compared with what was corrected since (+2.10 USD before)" in page.text
    assert "of it 2.10 corrections of closed months" in page.text
    assert "cost 2.10 USD" in page.text
    assert page.text.count("of it 2.10 corrections of closed months") == 2, (
        "of cost and of idle cost"
    )
    assert "cost 0.00 USD" not in page.text
    last = UTC_DAYS.date_of(change.after.end_ms - 1).day
    assert f"2025-11-01 to 2025-11-{last:02d} beside 2025-10-01 to 2025-10-{last:02d}" in page.text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((1, 5), (5, 9), "Wednesday to Saturday before, Sunday to Wednesday after."),
        ((1, 2), (2, 3), "Wednesday before, Thursday after."),
        ((1, 8), (8, 15), ""),
        ((1, 5), (8, 12), ""),
        ((1, 11), (11, 21), "2 of 10 days before and 4 of 10 after are Saturdays or Sundays."),
    ],
)
def test_spans_of_other_weekdays_are_named(before, after, said):
    """A weekend in one of two short spans explains much of a change."""
    spans = [
        Period(OCTOBER + (first - 1) * DAY, OCTOBER + (last - 1) * DAY)
        for first, last in (before, after)
    ]
    assert weekdays_unlike(*spans) == (f"Their weekdays differ: {said}" if said else "")


def test_what_cannot_be_stated_is_refused_with_a_sentence(furnished, run, tmp_path):
    """An owner who was billed nothing is a finding (1) that names the others; bad words are bad
    input (2).
    """
    code, _, said = run("statement", "--owner", "visoin", "--period", "2025-10")
    assert (code, "team 'visoin' was billed nothing in 2025-10" in said, "vision" in said) == (
        1,
        True,
        True,
    )
    for arguments, words in (
        (("--owner", "vision", "--period", "October"), "is not a period"),
        (
            ("--owner", "vision", "--period", "2025-Q4"),
            "2025-Q4 has several: --all --dir DIR writes",
        ),
        (
            ("--owner", "vision", "--period", "2025-10", "--zone", "Asia/Tokyo"),
            "days and months of this ledger are",
        ),
        (("--owner", "vision", "--period", "2025-10", "--level", "squad"), "'squad' is no level"),
        (("--period", "2025-10"), "give either --owner NAME"),
        (("--all", "--period", "2025-10"), "give either --owner NAME"),
        (
            ("--owner", "vision", "--period", "2025-10", "-o", tmp_path / "no" / "it.html"),
            "is not an existing folder",
        ),
    ):
        code, _, said = run("statement", *arguments)
        assert (code, words in said) == (2, True), said
        assert "Traceback" not in said


def test_a_quarter_is_a_folder_for_each_month(furnished, run, tmp_path):
    """The pages of each month are those of the month alone."""
    assert (
        run(
            "statement",
            "--all",
            "--dir",
            tmp_path / "quarter",
            "--period",
            "2025-Q4",
            "--zone",
            "UTC",
        )[0]
        == 0
    )
    assert run("statement", "--all", "--dir", tmp_path / "month", "--period", "2025-10")[0] == 0
    assert sorted(path.name for path in (tmp_path / "quarter").iterdir()) == [
        "2025-10",
        "2025-11",
        "2025-12",
    ]
    pages = sorted(path.name for path in (tmp_path / "month").iterdir())
    assert "vision.html" in pages
    assert sorted(path.name for path in (tmp_path / "quarter" / "2025-10").iterdir()) == pages


def test_an_empty_ledger_and_usage_without_a_price(fleet, run, tmp_path):
    """Nobody is billed: one sentence, an empty index.

    Without a price the hours stand alone, never as free.
    """
    assert run("statement", "--owner", "vision", "--period", "2025-10")[0] == 1
    assert run("statement", "--all", "--dir", tmp_path / "all", "--period", "2025-10")[0] == 0
    page = Page((tmp_path / "all" / "index.html").read_text())
    assert page.faults == []
    assert "Nothing is billed in" in page.text
    fleet.capacity(1, 0, DAY)
    fleet.workload(1, team="vision")
    fleet.evidence([Held(1, 1, 0, 2 * HOUR, busy=HOUR)])
    code, text, _ = run("statement", "--owner", "vision", "--period", "2025-10")
    page = Page(text)
    assert (code, page.faults) == (0, [])
    assert "2.0 GPU-hours have no price yet" in page.text
    assert "You pay" not in page.text


@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=30),
    st.sampled_from((1, 10_000, 1000)),
    st.integers(0, 1),
)
def test_minor_units_are_split_without_rest(micros, unit, up):
    """Whichever way the whole was rounded, the parts add up to it and each is within one of its
    own.
    """
    total = sum(micros) // unit + (up if sum(micros) % unit else 0)
    parts = split_minor(micros, unit, total)
    assert sum(parts) == total
    assert all(
        -unit < part * unit - micro <= unit for part, micro in zip(parts, micros, strict=True)
    )


def test_a_total_that_its_parts_do_not_reach_is_split_as_evenly():
    """However far it is away: of days whose charges are gone, say."""
    assert split_minor([3, 5, 7], 2, 14) == [4, 5, 5]
    assert split_minor([3, 5, 7], 2, -2) == [-1, -1, 0]
    parts = split_minor([3, 5, 7], 2, 3 * 10**15 + 7)
    assert parts == [10**15 + 2, 10**15 + 2, 10**15 + 3]


def test_which_days_are_compared():
    """Whole months; as many days of an open one; days around the begin where the ledger is young;
    else nothing.
    """
    october, september = month_of("2025-10"), month_of("2025-09")
    assert month_before(october) == september
    assert month_before(month_of("2025-03")).ms == 28 * DAY
    whole = frozenset(day.start_ms for day in september.days())
    start = october.start_ms
    assert compared_windows(october, october.end_ms, whole) == (september, october)
    assert compared_windows(october, start + 5 * DAY + HOUR, whole) == (
        Period(september.start_ms, september.start_ms + 5 * DAY),
        Period(start, start + 5 * DAY),
    )
    young = frozenset({start - DAY, start - 2 * DAY})
    assert compared_windows(october, start + 5 * DAY, young) == (
        Period(start - 2 * DAY, start),
        Period(start, start + 2 * DAY),
    )
    assert compared_windows(october, start + 5 * DAY, frozenset()) is None
    assert compared_windows(october, start + HOUR, whole) is None


def test_days_that_are_not_compared_are_said():
    """Where the ledger began late in the month before, or that month is shorter; nothing where all
    are compared.
    """
    march, february = month_of("2026-03"), month_of("2026-02")
    every = frozenset(day.start_ms for day in february.days())
    known = march.start_ms + 23 * DAY
    whole = compared_windows(march, known, every)
    assert days_left_out(*whole, march, known) == ""
    late = frozenset(day.start_ms for day in february.days()[-8:])
    assert (
        days_left_out(*compared_windows(march, known, late), march, known)
        == "Of 23 whole days so far, those up to 2026-03-08 are compared: of what was before, "
        "the ledger has only the 8 days right before it."
    )
    almost = march.start_ms + 30 * DAY
    assert (
        days_left_out(*compared_windows(march, almost, every), march, almost)
        == "Of 30 whole days so far, those up to 2026-03-28 are compared: the month before has 28"
        " days."
    )


def test_no_statement_is_a_value_error(ledger):
    """So that whoever asks badly is told so."""
    with pytest.raises(NoStatement):
        made_of(ledger, "vision")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])
def test_it_is_good_to_look_at(furnished, run, pictured, width, dark):
    """At a desk and on a phone, light and dark: nothing hangs over the edge, and it is not an empty
    sheet.
    """
    text = run("statement", "--owner", HOSTILE, "--period", "2025-10")[1]
    picture, wanted = pictured(text, width, dark=dark)
    assert wanted <= width
    assert picture.stat().st_size > 20_000


def test_statements_of_all_are_those_of_each_owner(dsn, furnished, run, ledger, monkeypatch):
    """In an open and an ended month, with forecasts, budgets and disputes; three owners ask no more
    than one.
    """
    run("chargeback", "--from", "2025-09-01", "--to", "2025-11-01")
    _write_big_ledger(dsn)
    asked = []
    execute = psycopg.Connection.execute
    monkeypatch.setattr(
        psycopg.Connection,
        "execute",
        lambda *given, **more: asked.append(1) or execute(*given, **more),
    )
    for now_ms in (OCTOBER + 20 * DAY + 7 * HOUR, NOW_MS):
        with ledger.transaction(read_only=True) as connection:
            bill = monthly_chargeback(connection, "team", "2025-10", now_ms)
            owners = statements.owners(connection, "team", month_of("2025-10"))
            assert {*TEAMS, "big", "t60"} <= set(owners)
            asked.clear()
            together = list(read_statements(connection, "team", owners, "2025-10", now_ms, bill))
            count = len(asked)
            assert [statement.owner for statement in together] == owners
            for statement in together:
                asked.clear()
                (alone,) = read_statements(
                    connection, "team", [statement.owner], "2025-10", now_ms, bill
                )
                assert len(asked) == count
                assert as_html(statement) == as_html(alone)
                name = "" if statement.owner == "(unattributed)" else statement.owner
                for section in statement.sections:
                    budget = Budget(0, "", {"team": name}, MONTHLY, None, 1, section.currency)
                    corrected = sum(line.cost_micro for line in section.corrections)
                    ahead = status_of(connection, budget, statement.period, now_ms).ahead
                    shown = statement.ahead.get(section.currency)
                    assert (shown is None) == (ahead is None)
                    if ahead is not None:
                        assert shown.middle_micro == ahead.middle_micro + corrected
                        assert (shown.days_of_history, shown.likely_micro) == (
                            ahead.days_of_history,
                            ahead.likely_micro,
                        )
            assert any(statement.ahead for statement in together) == (now_ms < NOW_MS)


def test_the_page_of_a_big_team_stays_short(dsn, ledger):
    """122,000 charges of two months and 20,000 jobs are a page of under 100 kB, whose rows add up."""
    _write_big_ledger(dsn)
    made = made_of(ledger, "big")
    page = as_html(made)
    assert sum(one.cost_minor for one in made.sections[0].jobs) == made.sections[0].row.cost_minor
    assert len(page) < 100_000


def _write_big_ledger(dsn):
    """Two months of 2,000 GPUs of 22 teams, charge by charge."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO owner (team, project) SELECT CASE WHEN n < 40 THEN 'big' ELSE 't' || n"
            " END, 'p' || n FROM generate_series(1, 60) n"
        )
        connection.execute(
            "INSERT INTO workload (key, external_id, name, user_name, first_seen_at) SELECT 'w' ||"
            " n, n, 'job-' || n % 400, 'u' || n % 40, now() FROM generate_series(1, 20000) n"
        )
        connection.execute(
            "INSERT INTO charge (day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id,"
            " state, gpu_model, gpu_ns, busy_ns, idle_ns, unknown_ns, currency, cost_micro,"
            " idle_cost_micro) SELECT day, day, day + %(day)s, gpu, (SELECT min(id) FROM workload"
            " WHERE key LIKE 'w%%') + (gpu * 7 + day / %(day)s * 31) %% 20000, (SELECT min(id) FROM"
            " owner WHERE project LIKE 'p%%') + gpu %% 60, 'held', CASE gpu %% 3 WHEN 0 THEN 'H100'"
            " ELSE 'A100' END, 86400000000000, 80000000000000, 6400000000000, 0, 'USD', 12345678 +"
            " gpu, 914494 FROM generate_series(%(first)s, %(end)s - 1, %(day)s) day,"
            " generate_series(1, 2000) gpu",
            {"day": DAY, "first": OCTOBER - 30 * DAY, "end": OCTOBER + 31 * DAY},
        )
        connection.execute(
            "INSERT INTO ledger_day SELECT day_ms, owner_id, state, pool, gpu_model, currency,"
            " sum(gpu_ns), sum(busy_ns), sum(idle_ns), sum(unknown_ns), sum(cost_micro),"
            " sum(idle_cost_micro) FROM charge WHERE pool = '' GROUP BY 1, 2, 3, 4, 5, 6"
        )
        connection.execute(
            "INSERT INTO conservation_check SELECT DISTINCT day_ms, 0, 0, 0, 0, 0, '{}'::jsonb,"
            " '{}'::jsonb, 0, day_ms + %s, true, now() FROM charge ON CONFLICT DO NOTHING",
            (DAY,),
        )
        connection.execute("ANALYZE")
