"""Names that reports use for rows of their own, brought in by every way that a name can come."""

import csv
import io
import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.budgets import MONTH as MONTH_BUDGET
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing.budgets import spend_by_holder
from gpuledger_collector.storage.capacity.demand import queues

MONTH = ("--period", "2025-10")
NAMES = (
    "(unattributed)",
    "(unallocated)",
    "(unavailable)",
    "(unobserved)",
    "(unpriced)",
    "(commitment_unused)",
    "(stranded)",
    "(unshared)",
    "(corrections)",
    "(total)",
    "tag:(unallocated)",
)


@pytest.fixture
def hostile(fleet, run):
    """Each reserved name is a team that holds a GPU for two hours; beside them time that nobody
    held, pays or saw.
    """
    run("prices", "set", "--rate", "10", "--currency", "USD", "--from", "2025-01-01")
    for number, name in enumerate(NAMES, 1):
        fleet.workload(number, team=name, project=name, org=name)
        fleet.capacity(number, 0, DAY)
        fleet.evidence([Held(number, number, 0, 2 * HOUR, busy=HOUR, idle=HOUR)])
    fleet.workload(50, note="x")
    fleet.evidence(
        [
            Held(1, 50, 2 * HOUR, 3 * HOUR),
            Held(1, None, 3 * HOUR, 4 * HOUR, "unallocated"),
            Held(1, None, 4 * HOUR, 5 * HOUR, "unavailable"),
        ]
    )
    fleet.connection.execute("UPDATE workload SET name = tags->>'team', user_name = tags->>'team'")
    return fleet


def hours(rows, column: str) -> dict[str, Decimal]:
    return {row[column]: Decimal(row["gpu_hours"]) for row in rows}


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("level", ["team", "org", "project", "user"])
def test_no_owner_vanishes_into_a_row_of_the_reports(hostile, run, form, level) -> None:
    """Each has its own row in the chargeback, and the rows of the reports hold what is theirs and
    no more.
    """
    _, out, _ = run("chargeback", *MONTH, "--by", level, "--format", form)
    rows = json.loads(out)["rows"] if form == "json" else list(csv.DictReader(io.StringIO(out)))
    found = hours(rows, level)
    assert {name: found.pop(f"tag:{name}") for name in NAMES} == dict.fromkeys(NAMES, Decimal(2))
    assert found == {
        "(unattributed)": 1,
        "(unallocated)": 1,
        "(unavailable)": 1,
        "(unobserved)": Decimal(24 * len(NAMES) - 2 * len(NAMES) - 3),
    }


def test_invoices_focus_and_statements_tell_them_apart(hostile, run, tmp_path) -> None:
    """The sealed invoice, the FOCUS file, the journal and the statement have a line for each."""
    _, out, _ = run("chargeback", *MONTH, "--format", "focus")
    focus: dict[str, Decimal] = {}
    for row in csv.DictReader(io.StringIO(out)):
        focus[row["SubAccountName"]] = focus.get(row["SubAccountName"], Decimal(0)) + Decimal(
            row["BilledCost"]
        )
    assert [focus[f"tag:{name}"] for name in NAMES] == [Decimal(20)] * len(NAMES)
    assert focus["(unallocated)"] == focus["(unavailable)"] == Decimal(10)
    _, out, _ = run("chargeback", *MONTH, "--format", "beancount")
    assert all(f'owner: "tag:{name}"' in out for name in NAMES)
    code, out, err = run("close", *MONTH, "--format", "json")
    assert code == 0, err
    billed = {one["owner"]: one["amount"] for one in json.loads(out)["invoices"]}
    assert [billed[f"tag:{name}"] for name in NAMES] == ["20.00"] * len(NAMES)
    assert billed["(unallocated)"] == "10.00"
    code, page, _ = run("statement", "--owner", "tag:(unallocated)", *MONTH)
    assert (code, "20.00" in page) == (0, True)
    code, page, _ = run("statement", "--owner", "(unattributed)", *MONTH)
    assert (code, "10.00" in page) == (0, True)


@pytest.mark.parametrize(
    ("dimension", "column"), [("pool", "pool"), ("model", "model"), ("node", "n"), ("workload", "")]
)
def test_other_names_are_told_apart_too(fleet, run, dimension, column) -> None:
    """A pool, a model, a node and an imported workload of a reserved name have rows of their own."""
    run("prices", "set", "--rate", "10", "--currency", "USD", "--from", "2025-01-01")
    fleet.accelerator(1, model="(unallocated)" if column == "model" else "H100")
    fleet.capacity(
        1,
        0,
        4 * HOUR,
        pool="(unallocated)" if column == "pool" else "train",
        node="(unallocated)" if column == "n" else "n1",
    )
    fleet.workload(1, team="a")
    fleet.evidence(
        [Held(1, 1, 0, 3 * HOUR), Held(1, None, 3 * HOUR, 4 * HOUR, "unallocated")],
        node="(unallocated)" if column == "n" else "n1",
    )
    fleet.connection.execute("UPDATE workload SET kind = 'imported', external_id = '(unallocated)'")
    _, out, _ = run(
        "chargeback",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-02",
        "--by",
        dimension,
        "--format",
        "json",
    )
    assert hours(json.loads(out)["rows"], dimension) == {"tag:(unallocated)": 3, "(unallocated)": 1}


def test_jobs_and_models_of_a_statement_are_told_apart(fleet, run) -> None:
    """A job called (unknown) is not the time of which no job is known; a model called (not named)
    is a model.
    """
    run("prices", "set", "--rate", "10", "--currency", "USD", "--from", "2025-01-01")
    fleet.accelerator(1, model="(not named)")
    fleet.capacity(1, 0, 4 * HOUR)
    fleet.workload(1, team="a")
    fleet.evidence([Held(1, 1, 0, 3 * HOUR)])
    fleet.connection.execute("UPDATE workload SET name = '(unknown)'")
    _, page, _ = run("statement", "--owner", "a", *MONTH)
    assert "tag:(unknown)" in page
    assert "tag:(not named)" in page


@pytest.mark.parametrize("name", ["(unallocated)", "(anything)", "\uff08unpriced\uff09"])
def test_declared_names_are_refused(run, written, name) -> None:
    """Rules, budgets, shared costs, letters, pools and prices: file, line and a sentence; nothing
    is applied.
    """
    tables = {
        "assign": f'[[rule]]\nname = "r"\nassign = {{ team = "{name}" }}\n',
        "team": (
            f'[[budget]]\nname = "b"\nteam = "{name}"\nperiod = "month"\namount = 1\ncurrency ='
            ' "USD"\n'
        ),
        "weights": (
            '[[shared_cost]]\nname = "s"\namount_per_month = 1\ncurrency = "USD"\nkey ='
            f' "weights"\nweights = {{ "{name}" = 1 }}\n'
        ),
        "scope": (
            '[[shared_cost]]\nname = "s"\namount_per_month = 1\ncurrency = "USD"\nkey = "cost"\n'
            f'scope = {{ org = "{name}" }}\n'
        ),
        "pool": (
            f'[[price]]\npool = "{name}"\ngpu_model = ""\npurchase = "spot"\nrate_per_gpu_hour ='
            ' 1\ncurrency = "USD"\neffective_from = 2025-01-01\n'
        ),
        "name": f'[[pool]]\nname = "{name}"\n',
    }
    tables |= {
        "team ": f'[[contact]]\nteam = "{name}"\nrecipients = ["a@example.com"]\n',
        "team  ": f'[[action]]\nname = "x"\nteam = "{name}"\ndo = "scancel"\n',
        "pool ": f'[[carbon]]\npool = "{name}"\ngrams_per_kwh = 1\n',
    }
    for column, table in tables.items():
        path = written("d.toml", table)
        code, _, err = run("apply", path)
        assert (code, err.splitlines()[0]) == (
            2,
            (
                f"{path}:1:{column.strip()}: {name!r} is reserved: names in parentheses are rows"
                " that reports make themselves"
            ),
        )


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["token", "create", "--role", "viewer", "--owner", "team=(unattributed)"], "--owner"),
        (
            [
                "disputes",
                "lines",
                "--owner",
                "(unallocated)",
                "--from",
                "2025-10-01",
                "--to",
                "2025-10-02",
            ],
            "--owner",
        ),
        (["disputes", "resolve", "1", "--accept", "--to", "(unpriced)", "--note", "x"], "--to"),
        (["import", "usage", "FILE", "--pool", "(unallocated)"], "--pool"),
        (["import", "sacct", "FILE", "--pool", "(unallocated)"], "--pool"),
        (
            [
                "prices",
                "set",
                "--rate",
                "1",
                "--currency",
                "USD",
                "--from",
                "2025-01-01",
                "--node",
                "(total)",
            ],
            "node",
        ),
    ],
)
def test_options_that_name_an_owner_or_a_pool_are_refused(run, written, arguments, option) -> None:
    """The same on the command line."""
    path = written(
        "u.csv", "workload_id,start,end,gpus\na,2025-10-01T00:00:00Z,2025-10-01T01:00:00Z,1\n"
    )
    code, _, err = run(*[path if one == "FILE" else one for one in arguments])
    assert code == 2
    assert err.strip().splitlines()[-1].startswith(f"{option}")
    assert "is reserved: names in parentheses" in err


def test_files_of_evidence_keep_their_time(run, written, fleet) -> None:
    """A tag column is what users wrote and is escaped; pool and model of a file are its author's,
    and are refused.
    """
    run("prices", "set", "--rate", "10", "--currency", "USD", "--from", "2025-01-01")
    head = "workload_id,start,end,gpus,tag:team,pool,gpu_model\n"
    when = "2025-10-01T00:00:00Z,2025-10-01T02:00:00Z,1"
    path = written(
        "u.csv", f"{head}a,{when},(unpriced),,\nb,{when},x,(unallocated),\nc,{when},x,,(total)\n"
    )
    _, _, err = run("import", "usage", path, "--skip-bad")
    assert [line.split(": ")[0] for line in err.splitlines()[:2]] == [
        f"{path}:3:pool",
        f"{path}:4:gpu_model",
    ]
    _, out, _ = run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02", "--format", "json")
    assert hours(json.loads(out)["rows"], "team") == {"tag:(unpriced)": 2}
    placements = written(
        "i.csv", "node,uuid,gpu_model,pool,in_at,out_at\nn1,G,,(unallocated),2025-10-01,\n"
    )
    assert (
        f"{placements}:2:pool: '(unallocated)' is reserved"
        in run("import", "inventory", placements)[2]
    )


def test_a_person_of_a_reserved_name_is_forgotten(hostile, run) -> None:
    """Erasing finds the owner under the name that attribution booked."""
    run("chargeback", *MONTH)
    assert hostile.rows("SELECT count(*) FROM owner WHERE user_name = 'tag:(total)'") == [(1,)]
    code, _, err = run("privacy", "erase", "(total)")
    assert code == 0, err
    run("chargeback", *MONTH)
    assert hostile.rows("SELECT count(*) FROM owner WHERE user_name = 'tag:(total)'") == [(0,)]


def test_drivers_of_a_budget_are_told_apart(fleet, run) -> None:
    """A job called (unallocated) is no time that nobody held, in the mail that says what a budget
    went into.
    """
    run("prices", "set", "--rate", "10", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, 4 * HOUR)
    fleet.workload(1, team="a")
    fleet.evidence([Held(1, 1, 0, 3 * HOUR), Held(1, None, 3 * HOUR, 4 * HOUR, "unallocated")])
    fleet.connection.execute("UPDATE workload SET name = '(unallocated)'")
    run("chargeback", *MONTH)
    day = Period(OCTOBER, OCTOBER + DAY)
    budget = Budget(0, "all", {}, MONTH_BUDGET, None, 1, "USD")
    held = {one.label[0]: one.cost_micro for one in spend_by_holder(fleet.connection, budget, day)}
    assert held == {"tag:(unallocated)": 30_000_000, "(unallocated)": 10_000_000}


def test_a_team_that_waits_is_called_like_the_team_that_holds(run, written, database) -> None:
    """Queues name teams as well; what waits is told under the name that attribution gives."""
    path = written("q.csv", "at,workload_id,gpus,team\n2025-10-01T00:30:00Z,w,2,(unattributed)\n")
    assert run("import", "queue", path)[0] == 0
    with database.connect() as connection:
        (queue,) = queues(connection, OCTOBER, OCTOBER + HOUR, "team")
    assert list(queue.gpus) == ["tag:(unattributed)"]
