"""What is refused at the door, with a sentence that names the place: instants, currencies, dates,
doubles.
"""

import datetime as dt

import pytest

from gpuledger_collector.cli import imports
from gpuledger_collector.cli.imports import BILLED_UP_TO_NOW

USAGE = "workload_id,start,end,gpus\n"
BOOK = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to\n"
STAYS = "node,uuid,gpu_model,pool,in_at,out_at\n"
JOB = "{id}|main|vision|amina|gpu|normal|COMPLETED|{start}|{start}|{start}|{end}|60|00:00:00|gres/gpu=1|n1|||job"
MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")


def stored(fleet) -> list[tuple]:
    return fleet.rows(
        "SELECT external_id, start_ms, end_ms FROM imported_usage u JOIN workload w ON w.id ="
        " u.workload_id ORDER BY 1"
    )


def ahead(days: int) -> str:
    return f"{dt.datetime.now(dt.UTC) + dt.timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize(
    ("kind", "text", "place"),
    [
        ("usage", USAGE + "a,0,2025-10-01T00:00:00Z,1\n", "2:start: '0'"),
        (
            "usage",
            USAGE + "a,1970-01-01T00:00:00Z,2025-10-01T00:00:00Z,1\n",
            "2:start: '1970-01-01T00:00:00Z'",
        ),
        ("usage", USAGE + "a,1999-12-31T23:59:59Z,,1\n", "2:start: '1999-12-31T23:59:59Z'"),
        (
            "usage",
            USAGE + "a,2025-10-01T00:00:00Z,2099-10-01T00:00:00Z,1\n",
            "2:end: '2099-10-01T00:00:00Z'",
        ),
        ("usage", USAGE + "a,2025-10-01T00:00:00Z,AHEAD,1\n", "2:end: "),
        ("sacct", JOB.format(id=1, start=0, end=1_759_300_000), "1:start: '0'"),
        ("inventory", STAYS + "n1,G,,,1970-01-01,\n", "2:in_at: '1970-01-01'"),
        ("inventory", STAYS + "n1,G,,,2025-10-01,AHEAD\n", "2:out_at: "),
        ("samples", "ts,uuid,gpu_utilization_ratio\n0,G,1\n", "2:ts: '0'"),
        ("queue", "at,workload_id,gpus\nAHEAD,a,1\n", "2:at: "),
    ],
)
def test_evidence_lies_between_2000_and_tomorrow(run, written, fleet, kind, text, place) -> None:
    """Nothing happened in 1970 or will have in 2099: file, line, column and a sentence; a flag
    allows it.
    """
    path = written("x.csv", text.replace("AHEAD", ahead(2)))
    code, _, err = run("import", kind, path)
    tomorrow = f"{dt.datetime.now(dt.UTC) + dt.timedelta(days=1):%Y-%m-%d}"
    first = err.splitlines()[0]
    assert code == 2
    assert first.startswith(f"{path}:{place}"), err
    assert f"lies outside 2000 to tomorrow, {tomorrow} ({imports.ANY_INSTANT} allows it)" in first
    code, _, err = run("import", kind, path, imports.ANY_INSTANT)
    assert code == 0, err


@pytest.mark.parametrize("end", ["tomorrow", "now"])
def test_clocks_may_be_a_little_ahead(run, written, fleet, end) -> None:
    """What ends within a day from now is believed: clocks and zones are not always right."""
    path = written("u.csv", USAGE + f"a,2025-10-01T00:00:00Z,{ahead(end == 'tomorrow')},1\n")
    assert run("import", "usage", path)[0] == 0


def test_prices_may_lie_ahead_but_not_before_2000(run, written, fleet) -> None:
    """A rate of 2099 is declared early; one of 1970 is a slip."""
    assert (
        run("import", "prices", written("p.csv", BOOK + ",H100,spot,1,USD,2099-01-01,\n"))[0] == 0
    )
    path = written("q.csv", BOOK + ",A100,spot,1,USD,1970-01-01,\n")
    code, _, err = run("import", "prices", path)
    assert code == 2
    assert err.startswith(f"{path}:2:effective_from: '1970-01-01' lies outside 2000 to 2100; ")
    assert fleet.rows("SELECT gpu_model FROM price") == [("H100",)]


def test_a_job_without_an_end_is_told(run, written, fleet) -> None:
    """One forgotten end bills until somebody sees it: on standard error by line, in the summary by
    number.
    """
    path = written(
        "u.csv",
        USAGE + f"old,2025-10-01T00:00:00Z,,1\nnew,{ahead(-1)},,1\n"
        "long,2025-01-01T00:00:00Z,2025-05-01T00:00:00Z,1\n"
        "short,2025-01-01T00:00:00Z,2025-01-09T00:00:00Z,1\n",
    )
    code, out, err = run("import", "usage", path)
    assert code == 0
    days, rest = divmod(
        dt.datetime.now(dt.UTC) - dt.datetime(2025, 10, 1, tzinfo=dt.UTC), dt.timedelta(days=1)
    )
    hours = days * 24 + rest // dt.timedelta(hours=1)
    assert err.splitlines() == [
        (
            f"{path}:2:end: 'old' has no end and runs since 2025-10-01T00:00:00Z, {days} days:"
            f" billed up to now, {hours} GPU-hours, until an end is imported"
        ),
        (
            f"{path}:4:end: 'long' ended after 120 days, from 2025-01-01T00:00:00Z to"
            " 2025-05-01T00:00:00Z"
        ),
    ]
    assert out.strip().endswith(f"; 2 workloads without an end, {BILLED_UP_TO_NOW}")
    assert out.count("without an end") == 1


def test_many_jobs_without_an_end_are_counted(run, written, fleet) -> None:
    """Ten are named, and the others counted."""
    path = written(
        "u.csv", USAGE + "".join(f"j{number},2025-10-01T00:00:00Z,,1\n" for number in range(25))
    )
    _, out, err = run("import", "usage", path)
    assert len(err.splitlines()) == 11
    assert err.splitlines()[-1] == f"{path}: 15 more rows of more than 90 days"
    assert "; 25 workloads without an end" in out


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["usage", "sacct"])
def test_of_two_rows_of_a_job_the_one_that_has_ended_counts(
    run, written, fleet, kind, turned
) -> None:
    """Whichever stands first, and it is no mistake: exports of a running cluster have both."""
    if kind == "usage":
        rows = ["a,2025-10-01T00:00:00Z,,1", "a,2025-10-01T00:00:00Z,2025-10-01T02:00:00Z,1"]
    else:
        rows = [
            JOB.format(id=7, start=1_759_276_800, end=end) for end in ("Unknown", 1_759_284_000)
        ]
    rows = rows[::-1] if turned else rows
    path = written("u.csv", (USAGE if kind == "usage" else "") + "\n".join(rows) + "\n")
    code, _, err = run("import", kind, path)
    assert code == 0
    assert "1 row without an end of workloads that have ended on another row: left out" in err
    assert [row[1:] for row in stored(fleet)] == [(1_759_276_800_000, 1_759_284_000_000)]


def test_of_two_rows_that_have_ended_the_later_one_is_bad(run, written, fleet) -> None:
    """The first end counts, and the row that contradicts it is named."""
    path = written(
        "u.csv",
        USAGE + "a,2025-10-01T00:00:00Z,,1\na,2025-10-01T00:00:00Z,2025-10-01T02:00:00Z,1\n"
        "a,2025-10-01T00:00:00Z,2025-10-01T03:00:00Z,1\n",
    )
    _, _, err = run("import", "usage", path)
    cure = "leave out one of them, or --skip-bad takes the first"
    assert (
        err.splitlines()[0]
        == f"{path}:4:workload_id: 'a' stands with other values on line 3; {cure}"
    )
    run("import", "usage", path, "--skip-bad")
    assert stored(fleet)[0][2] == 1_759_284_000_000


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ZZZ", "'ZZZ' is not an ISO 4217 code such as USD"),
        ("XXX", "'XXX' is not an ISO 4217 code such as USD"),
        ("XTS", "'XTS' is not"),
        ("XAU", "'XAU' is not"),
        ("usd", "'usd' is not an ISO 4217 code; is it 'USD'?"),
        ("UDS", "'UDS' is not an ISO 4217 code; is it 'USD'?"),
        ("EURO", "'EURO' is not an ISO 4217 code; is it 'EUR'?"),
        ("HRK", "'HRK' is not an ISO 4217 code; is it 'EUR'?"),
    ],
)
def test_a_currency_is_one_of_iso_4217(run, written, fleet, code, said) -> None:
    """In every file that holds one: prices, declared money, bills; with the code that was meant."""
    header = (
        "BilledCost,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargeCategory,ChargePeriodStart,"
        "ChargePeriodEnd"
    )
    when = "2025-10-01T00:00:00Z,2025-11-01T00:00:00Z"
    declared = (
        f'[[commitment]]\nname = "c"\ngpus = 1\nupfront = 1\ncurrency = "{code}"\nstarts ='
        ' 2025-01-01\nends = 2026-01-01\n[[owned]]\nname = "o"\ncapex = 1\nmonths = 12\ncurrency ='
        f' "{code}"\nstarts = 2025-01-01\n[[budget]]\nname = "b"\nperiod = "month"\namount ='
        f' 1\ncurrency = "{code}"\n[[shared_cost]]\nname = "s"\namount_per_month = 1\ncurrency ='
        f' "{code}"\nkey = "cost"\n[[exchange]]\nfrom = "{code}"\nto = "{code}"\nrate ='
        ' 1\neffective_from = 2025-01-01\n[[pool]]\nname = "p"\nmoney_per_hour = 1\ncurrency ='
        f' "{code}"\n[[price]]\npool = ""\ngpu_model = ""\npurchase = "spot"\nrate_per_gpu_hour ='
        f' 1\ncurrency = "{code}"\neffective_from = 2025-01-01\n'
    )
    doors = [
        (("import", "prices"), "p.csv", BOOK + f",H100,spot,1,{code},2025-10-01,\n", 1),
        (
            ("import", "bill", "--provider", "aws"),
            "b.csv",
            f"{header}\n1,{code},{when},Usage,{when}\n",
            1,
        ),
        (("apply",), "d.toml", declared, 8),
    ]
    for command, name, text, times in doors:
        path = written(name, text)
        status, _, err = run(*command, path)
        assert status == 2
        assert (
            sum(said in line and line.startswith(f"{path}:") for line in err.splitlines()) == times
        ), err
    status, _, err = run("prices", "set", "--rate", "1", "--currency", code, "--from", "2025-01-01")
    assert (status, said in err) == (2, True)


def test_a_price_keeps_its_currency(run, written, fleet) -> None:
    """The same place and instant in another currency is refused by every way in, with the way to
    change it.
    """
    run("import", "prices", written("p.csv", BOOK + "a,H100,spot,2,USD,2025-10-01,\n"))
    said = (
        "a H100 spot from 2025-10-01T00:00:00Z is priced in USD and cannot become EUR: end that"
        " rate by its effective_to, and start the other currency at a later instant"
    )
    path = written("q.csv", BOOK + ",A100,spot,2,EUR,2025-10-01,\na,H100,spot,2,EUR,2025-10-01,\n")
    code, _, err = run("import", "prices", path)
    assert (code, err.splitlines()[0]) == (2, f"{path}:3:currency: {said}")
    table = (
        '[[price]]\npool = "a"\ngpu_model = "H100"\npurchase = "spot"\nrate_per_gpu_hour ='
        ' 2\ncurrency = "EUR"\neffective_from = 2025-10-01\n'
    )
    declared = written("d.toml", "# a price\n" + table)
    code, _, err = run("apply", declared)
    assert (code, err.splitlines()[0]) == (2, f"{declared}:2:currency: {said}")
    asked = ("--pool", "a", "--model", "H100", "--purchase", "spot", "--from", "2025-10-01")
    assert run("prices", "set", "--rate", "2", "--currency", "EUR", *asked)[::2] == (
        2,
        f"--currency: {said}",
    )
    assert fleet.rows("SELECT currency, superseded_at FROM price") == [("USD", None)]
    assert run("import", "prices", path, "--skip-bad")[0] == 0
    assert fleet.rows("SELECT gpu_model, currency FROM price ORDER BY 1") == [
        ("A100", "EUR"),
        ("H100", "USD"),
    ]
    ended = written(
        "e.csv", BOOK + "a,H100,spot,2,USD,2025-10-01,2025-11-01\na,H100,spot,2,EUR,2025-11-01,\n"
    )
    assert run("import", "prices", ended)[0] == 0


def test_hardware_keeps_its_currency_too(run, written, fleet) -> None:
    """Owned hardware becomes prices; those keep their currency as well."""
    text = (
        '[[owned]]\nname = "o"\ncapex = 1000\nmonths = 12\ncurrency = "USD"\nstarts = 2025-01-01\n'
    )
    assert run("apply", written("o.toml", text))[0] == 0
    path = written("o.toml", text.replace("USD", "EUR"))
    code, _, err = run("apply", path)
    assert code == 2
    assert err.startswith(
        f"{path}:1:currency: owned from 2025-01-01T00:00:00Z is priced in USD and cannot become EUR"
    )
    assert fleet.rows("SELECT DISTINCT currency FROM price WHERE superseded_at IS NULL") == [
        ("USD",)
    ]


def test_two_tables_of_one_price_are_told(run, written, fleet) -> None:
    """Two [[price]] tables of the same place and instant cannot both hold."""
    table = (
        '[[price]]\npool = ""\ngpu_model = "H100"\npurchase = "spot"\nrate_per_gpu_hour ='
        ' {}\ncurrency = "USD"\neffective_from = 2025-10-01\n'
    )
    path = written("d.toml", table.format(1) + table.format(2))
    code, _, err = run("apply", path)
    assert (code, err.splitlines()[0]) == (
        2,
        f"{path}:8:rate_per_gpu_hour: line 1 gives the same price other values",
    )


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("account", "accounts are teams here: --by team"),
        ("Partitions", "partitions are pools here: --by pool"),
        ("job_id", "job_ids are workloads here: --by workload"),
        ("jobs", "is it 'job'?"),
        ("tema", "is it 'team'?"),
    ],
)
def test_names_of_other_tools_are_translated(run, name, cure) -> None:
    """The sentence has the levels that exist, and the one that is meant."""
    code, out, err = run("chargeback", "--by", name)
    assert (code, out) == (2, "")
    assert err.endswith(
        "is none of org, team, project, experiment, run, user, workload, job, queue, pool, model, node,"
        f" region; {cure}"
    )


def test_a_table_says_its_range(run, written) -> None:
    """The first line has the days, and whose days they are; CSV has no such line."""
    run(
        "import",
        "usage",
        written("u.csv", USAGE + "a,2025-10-01T00:00:00Z,2025-10-01T02:00:00Z,1\n"),
    )
    _, out, _ = run("chargeback", "--period", "2025-10")
    assert out.splitlines()[0] == "2025-10-01 to 2025-11-01 (not included), days of UTC"
    _, out, _ = run("chargeback", "--period", "2025-10", "--format", "csv")
    assert out.splitlines()[0].startswith("team,gpu_hours")
