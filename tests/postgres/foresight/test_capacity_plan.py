"""`gpuledger plan capacity` from a ledger: demand, growth by team, rates from the book, the
commitments and options.
"""

import csv
import datetime as dt
import io
import json

import pytest
from psycopg.rows import dict_row

from fakes.boards import BOARDS, SPAN, asked, chosen
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER
from gpuledger_collector.accounting.period import Calendar, format_date, format_instant
from gpuledger_collector.services import capacity_plan
from gpuledger_collector.services.capacity_plan import quarter_ahead, store_capacity_plans
from gpuledger_collector.storage.database import Database

DAYS = 49
START = OCTOBER + 50 * DAY - DAYS * DAY
"""Usage ends on the day of NOW_MS, 20 November 2025."""
LINE = ("plan", "capacity", "--pool", "train")


@pytest.fixture(autouse=True)
def november(monkeypatch):
    """It is 20 November 2025."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)


@pytest.fixture
def usage(run, tmp_path):
    """Imports usage of a pool: 16 GPUs of vision always, and 8 of speech in the afternoons of the
    last 28 days.
    """

    def write(pool="train", days=DAYS):
        first = START + (DAYS - days) * DAY
        rows = [f"{pool}-base,{format_instant(first)},,16,{pool},vision"]
        rows += [
            f"{pool}-{day},{format_instant(START + day * DAY + 12 * HOUR)},{format_instant(START + (day + 1) * DAY)},"
            f"8,{pool},speech"
            for day in range(max(DAYS - 28, DAYS - days), DAYS)
        ]
        file = tmp_path / f"{pool}.csv"
        file.write_text("\n".join(["workload_id,start,end,gpus,pool,team", *rows]) + "\n")
        code, _, error = run("import", "usage", file)
        assert code == 0, error

    return write


def price(run, purchase, rate, currency="USD"):
    options = (
        "--purchase",
        purchase,
        "--rate",
        rate,
        "--currency",
        currency,
        "--from",
        "2025-01-01",
    )
    code, _, error = run("prices", "set", "--pool", "train", *options)
    assert code == 0, error


def plan(run, *more):
    code, text, error = run(*LINE, "--format", "json", *more)
    assert code == 0, error
    return json.loads(text)


def test_the_plan_of_a_quarter(run, usage):
    """To the end of this quarter, with the book's rates: what is always wanted is reserved, teams
    grow or do not.
    """
    usage()
    for purchase, rate in (("on_demand", "2"), ("reserved", "1.2"), ("spot", "0.8")):
        price(run, purchase, rate)
    answer = plan(run)
    assert (answer["from"], answer["to"], answer["currency"]) == ("2025-11-20", "2026-01-01", "USD")
    assert answer["sources"] == dict.fromkeys(("on_demand", "reserved", "spot"), "price book")
    assert answer["reservation"]["gpus"] == 16
    assert answer["pool"]["plan"]["gpu_hours"]["likely"] == pytest.approx(42 * 24 * 20, rel=0.1)
    assert answer["pool"]["plan"]["backtest"]["covered"] is None
    assert [ahead["days"] for ahead in answer["pool"]["next"]] == [7, 30, 90]
    assert [ahead["backtest"]["covered"] is None for ahead in answer["pool"]["next"]] == [
        False,
        True,
        True,
    ]
    assert len(answer["days"]) == 42
    vision, speech = answer["teams"]
    assert (vision["name"], vision["gpus"], [ahead["grown"] for ahead in vision["next"]]) == (
        "vision",
        16.0,
        [0, 0, None],
    )
    assert vision["next"][1]["growth"] == {"low": 0.0, "likely": 0.0, "high": 0.0}
    assert (speech["name"], speech["gpus"], speech["next"][1]["grown"]) == ("speech", 4.0, None)
    assert speech["plan"]["gpu_hours"]["likely"] == pytest.approx(42 * 24 * 4)
    first, *_, last = answer["curve"]
    assert first["gpus"] == 16
    assert last["wait"] < first["wait"]


def test_a_short_period_is_judged_and_options_replace_the_book(run, usage):
    """Seven days have a back-test; a rate that is given wins, and its currency leaves the book's
    rates unknown.
    """
    usage()
    price(run, "on_demand", "2")
    answer = plan(
        run,
        "--to",
        "2025-11-27",
        "--reserved-rate",
        "1.1",
        "--spot-rate",
        "0.5",
        "--spot-interruptions",
        6,
    )
    backtest = answer["pool"]["plan"]["backtest"]
    assert (backtest["days"], backtest["periods"]) == (7, 3)
    assert 0 <= backtest["covered"] <= 1
    assert answer["sources"] == {"on_demand": "price book", "reserved": "given", "spot": "given"}
    assert (answer["rates"]["reserved"], answer["rates"]["interruptions"]) == (1.1, 6.0)
    other = plan(run, "--reserved-rate", "1.1", "--currency", "EUR")
    assert (other["rates"]["on_demand"], other["reservation"], other["currency"]) == (
        None,
        None,
        "EUR",
    )
    assert all(point["on_demand"] is None for point in other["curve"])


def test_commitments_give_the_reserved_rate_and_are_counted(run, usage, tmp_path):
    """Upfront and recurring, by the hour; the number to reserve includes them."""
    usage()
    price(run, "on_demand", "2")
    file = tmp_path / "commitments.toml"
    file.write_text(
        '[[commitment]]\nname = "base"\npool = "train"\ngpus = 4\nupfront = 3504\ncurrency ='
        ' "USD"\nrate_per_gpu_hour = "0.5"\nstarts = "2025-11-01"\nends = "2026-11-01"\n'
    )
    code, _, error = run("apply", file)
    assert code == 0, error
    answer = plan(run)
    assert answer["rates"]["reserved"] == pytest.approx(0.6)
    assert (answer["sources"]["reserved"], answer["committed_gpus"]) == ("commitments", 4)
    _, text, _ = run(*LINE)
    assert "committed now" in text


def test_table_and_csv_have_the_same_numbers(run, usage):
    """Unknown is a dash in the table and an empty cell in CSV, never a zero."""
    usage()
    code, text, error = run(*LINE, "--on-demand-rate", "2", "--reserved-rate", "1.2")
    assert code == 0, error
    assert (
        "capacity of pool 'train' from 2025-11-20 to 2025-12-31, 42 days; an estimate, never a bill"
        in text
    )
    assert "on demand 2 (given), reserved 1.2 (given), spot -" in text
    assert "16 GPUs with the rest on demand" in text
    _, table, _ = run(*LINE, "--on-demand-rate", "2", "--reserved-rate", "1.2", "--format", "csv")
    rows = {
        (row["about"], row["name"], row["measure"]): row
        for row in csv.DictReader(io.StringIO(table))
    }
    assert rows["reservation", "train", "GPUs"]["likely"] == "16"
    assert rows["capacity", "16", "cost spot"]["likely"] == ""
    assert "unjudged: the past allows a back-test of 0 periods of 42 days, and 3 are needed" in text
    assert rows["team", "vision", "growth over 30 days"]["likely"] == "0.0"
    assert rows["team", "vision", "growth in 7 days"]["judged"] == "yes"
    assert rows["team", "vision", "growth over 90 days"]["likely"] == ""
    assert rows["pool", "train", "demand of 42 days"]["judged"] == "no"


def test_teams_of_other_pools_do_not_count(run, usage):
    """A pool has its own teams; without a name the pools are listed."""
    usage()
    usage("serve")
    answer = plan(run)
    assert sum(team["gpus"] for team in answer["teams"]) == pytest.approx(20.0)
    code, _, error = run("plan", "capacity")
    assert (code, error.splitlines()[-1]) == (
        2,
        "there are several pools: 'serve', 'train'; name one with --pool",
    )


REFUSED = (
    ((), 1, "'train' has 21 known days of demand: a plan needs 24 at least"),
    (("--pool", "nowhere"), 2, "--pool: no pool 'nowhere' held GPUs"),
    (
        ("--period", "2025-Q3"),
        2,
        "the period ends on 2025-10-01: there is nothing left of it to plan",
    ),
    (("--period", "2027"), 2, "a plan reaches at most 366 days ahead"),
    (("--period", "2025-Q4", "--to", "2025-12-01"), 2, "give one of --period and --to"),
    (("--spot-rate", "cheap"), 2, "--spot-rate: 'cheap' is not money per GPU-hour"),
    (("--currency", "usd"), 2, "--currency: "),
)


def test_what_cannot_be_planned_is_one_sentence(run, usage):
    """Bad options end with 2, too short a past with 1; nothing is printed."""
    usage(days=21)
    for options, code, sentence in REFUSED:
        ended, out, error = run(*LINE, *options)
        assert (ended, out, sentence in error) == (code, "", True), (options, error)


def test_an_empty_ledger_is_one_sentence(run):
    code, _, error = run("plan", "capacity")
    assert (code, "the ledger has no demand yet" in error) == (1, True)


def test_a_pool_that_nobody_reports_any_more_has_no_plan(run, tmp_path):
    """Its demand is unknown, not zero."""
    file = tmp_path / "usage.csv"
    end = format_instant(OCTOBER + 40 * DAY)
    file.write_text(
        f"workload_id,start,end,gpus,pool\nold,{format_instant(OCTOBER)},{end},8,train\n"
    )
    assert run("import", "usage", file)[0] == 0
    code, _, error = run(*LINE)
    assert (
        code,
        "the demand of 'train' is unknown since 2025-11-09: nothing to plan from" in error,
    ) == (1, True)


def shown(connection, title):
    """Rows of a panel of the demand board, every pool chosen."""
    (panel,) = (
        one
        for one in asked("demand", chosen(BOARDS["demand"], {}, "all"), SPAN)
        if one.title == title
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(panel.sql.encode()).fetchall()


def test_the_board_shows_what_the_command_prints(run, usage, dsn):
    """Every number of the four panels is that of the command for each pool; a pool without a plan
    has no rows.
    """
    usage()
    usage("serve")
    usage("young", days=20)
    for purchase, rate in (("on_demand", "2"), ("reserved", "1.2")):
        price(run, purchase, rate)
    store = Database(dsn)
    plans = [
        json.loads(run("plan", "capacity", "--pool", pool, "--format", "json")[1])
        for pool in ("serve", "train")
    ]
    assert store_capacity_plans(store, NOW_MS) == 2
    with store.connect() as connection:
        days = shown(connection, "Demand to the end of the quarter")
        curve = shown(connection, "Cost of capacity against wait")
        reserve = shown(connection, "How many to reserve")
        growth = shown(connection, "Growth by team")
    weeks: dict[str, list[dict[str, float]]] = {}
    for at in range(len(plans[0]["days"])):
        date = dt.date(2025, 11, 20) + dt.timedelta(days=at)
        monday = f"{date - dt.timedelta(days=date.weekday()):%m-%d}"
        summed = {
            key: sum(plan["days"][at][key] for plan in plans) for key in ("low", "likely", "high")
        }
        weeks.setdefault(monday, []).append(summed)
    assert (date.isoformat(), len(weeks)) == ("2025-12-31", 7)
    assert [tuple(row.values()) for row in days] == [
        (
            monday,
            *(
                pytest.approx(sum(day[key] for day in ahead) / len(ahead))
                for key in ("low", "likely", "high")
            ),
        )
        for monday, ahead in weeks.items()
    ]
    points = [(plan["pool"]["name"], point) for plan in plans for point in plan["curve"]]
    amounts = ("on_demand", "reserved", "spot")
    assert [tuple(row.values()) for row in curve] == [
        (pool, None, point["gpus"], pytest.approx(point["wait"]), *map(point.get, amounts), "USD")
        for pool, point in points
    ]
    serve, train = reserve
    assert (serve["reserve"], serve["currency"]) == (None, "USD")
    advice = plans[1]["reservation"]
    keys = {
        "reserve": "gpus",
        "if low": "low",
        "if high": "high",
        "cost": "cost",
        "all on demand": "on_demand_cost",
    }
    keys |= {"lost if low": "regret_low", "lost if high": "regret_high", "break-even": "break_even"}
    assert {name: train[name] for name in keys} == {name: advice[key] for name, key in keys.items()}
    assert [tuple(row.values()) for row in growth] == [
        cells for plan in plans for cells in growth_cells(plan)
    ]


def test_a_pool_is_planned_once_a_day_and_a_new_one_at_the_next_run(usage, dsn):
    """A plan of an earlier day is made again, or goes with its pool."""
    usage()
    store = Database(dsn)
    assert [store_capacity_plans(store, NOW_MS + hours * HOUR) for hours in (0, 1)] == [1, 0]
    usage("serve")
    assert [store_capacity_plans(store, NOW_MS + hours * HOUR) for hours in (2, 3)] == [1, 0]
    with store.connect() as connection:
        made = dict(connection.execute("SELECT pool, made_ms FROM capacity_plan").fetchall())
    assert made == {"train": NOW_MS, "serve": NOW_MS + 2 * HOUR}
    with store.connect() as connection:
        connection.execute("INSERT INTO capacity_plan VALUES ('gone', %s, '{}')", (NOW_MS,))
    assert store_capacity_plans(store, NOW_MS + DAY) == 2
    with store.connect() as connection:
        made = dict(connection.execute("SELECT pool, made_ms FROM capacity_plan").fetchall())
    assert made == {"train": NOW_MS + DAY, "serve": NOW_MS + DAY}


def test_the_command_plans_all_pools_for_the_board(usage, run, dsn):
    """Those that have a plan of today, too, since more may be known; it takes no other question."""
    usage()
    usage("serve")
    store = Database(dsn)
    assert store_capacity_plans(store, NOW_MS) == 2
    with store.connect() as connection:
        connection.execute("UPDATE capacity_plan SET plan = '{}'")
    assert run("plan", "capacity", "--store") == (0, "2 plans stored\n", "")
    with store.connect() as connection:
        made = connection.execute(
            "SELECT pool, plan ->> 'from' FROM capacity_plan ORDER BY pool"
        ).fetchall()
    assert [pool for pool, _ in made] == ["serve", "train"]
    assert all(first for _, first in made)
    code, _, err = run("plan", "capacity", "--store", "--pool", "train")
    assert code == 2
    assert "give it alone" in err


def test_hours_are_not_read_again_where_every_pool_has_its_plan(usage, dsn, monkeypatch):
    """The job runs every hour, and what it plans from is 400 days of the hourly ledger."""
    usage()
    store = Database(dsn)
    assert store_capacity_plans(store, NOW_MS) == 1
    read = []
    monkeypatch.setattr(capacity_plan, "demand", lambda *asked: read.append(asked) or [])
    assert store_capacity_plans(store, NOW_MS + HOUR) == 0
    assert not read
    usage("serve")
    store_capacity_plans(store, NOW_MS + 2 * HOUR)
    assert read


def test_hours_are_not_read_for_pools_that_cannot_have_a_plan(usage, dsn, monkeypatch):
    """One that is too young, and one that ended long ago, beside one that has its plan; once it is
    old enough, a pool is read.
    """
    usage()
    usage("young", days=20)
    store = Database(dsn)
    with store.connect() as connection:
        connection.execute(
            "INSERT INTO imported_usage SELECT (jsonb_populate_record(u, jsonb_build_object("
            "'pool', 'gone', 'end_ms', %s::bigint, 'start_ms', %s::bigint))).* FROM imported_usage"
            " u WHERE pool = 'train' AND end_ms IS NULL",
            (NOW_MS - 30 * DAY, NOW_MS - 200 * DAY),
        )
    assert store_capacity_plans(store, NOW_MS) == 1
    read = []
    true = capacity_plan.demand
    monkeypatch.setattr(capacity_plan, "demand", lambda *asked: read.append(asked) or true(*asked))
    assert store_capacity_plans(store, NOW_MS + HOUR) == 0
    assert not read
    usage("young", days=DAYS)
    assert store_capacity_plans(store, NOW_MS + 2 * HOUR) == 1
    assert read


def test_teams_are_not_read_for_a_pool_of_which_too_few_days_are_known(run, usage, monkeypatch):
    """They are what takes long of 400 days, and it is asked again every hour."""
    usage("young", days=20)
    read = []
    monkeypatch.setattr(capacity_plan, "held_by_teams", lambda *asked: read.append(asked) or [])
    code, _, error = run("plan", "capacity", "--pool", "young")
    assert (code, read) == (1, []), error
    assert "known days of demand: a plan needs 24 at least" in error


def growth_cells(plan):
    """The rows of a plan in the board's table."""
    for team, entry in [("(all)", plan["pool"]), *((team["name"], team) for team in plan["teams"])]:
        for ahead in sorted((*entry["next"], entry["plan"]), key=lambda ahead: ahead["days"]):
            bands = [
                (ahead[name] or {}).get(key)
                for name in ("growth", "gpu_hours")
                for key in ("likely", "low", "high")
            ]
            covered = (ahead["backtest"] or {}).get("covered")
            judged = "unjudged" if covered is None else f"{100 * covered:.0f} %"
            span = f"{'quarter end, ' if ahead is entry['plan'] else ''}{ahead['days']} days"
            yield plan["pool"]["name"], team, entry["gpus"], span, ahead["grown"], *bands, judged


@pytest.mark.parametrize(
    ("begins", "ahead", "first", "last"),
    [
        (None, 0, "2025-10-01", "2026-01-01"),
        (None, 41, "2026-01-01", "2026-04-01"),
        (2, 0, "2025-11-01", "2026-02-01"),
        (12, 0, "2025-09-01", "2025-12-01"),
    ],
)
def test_the_quarter_is_that_of_the_fiscal_year(begins, ahead, first, last):
    """Where one is declared, else that of the calendar; on its last day it is the next one."""
    quarter = quarter_ahead(Calendar(fiscal_month=begins), NOW_MS + ahead * DAY)
    assert (format_date(quarter.start_ms), format_date(quarter.end_ms)) == (first, last)
