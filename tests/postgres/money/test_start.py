"""gpuledger start, and the tables of jobs that it and `import usage` read."""

import csv
import datetime as dt
import io
import json
import re
import time
from collections import Counter
from pathlib import Path
from zoneinfo import ZoneInfo

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.collector import running
from gpuledger_collector import supervisor
from gpuledger_collector.accounting.ledger_rows import UsageRow
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.cli import start
from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.imports import BILLED_UP_TO_NOW
from gpuledger_collector.ingest.files.headers import SACCT_COLUMNS, SYNONYMS, TableOptions
from gpuledger_collector.ingest.files.sacct import COLUMNS
from gpuledger_collector.ingest.files.usage import UsageOptions, read_usage
from gpuledger_collector.storage.ledger.job_runs import KnownRun, name_runs
from postgres.money.test_import_usage import stored
from postgres.money.test_sacct import job

EXAMPLES = Path(__file__).parents[3] / "examples"
BERLIN = ZoneInfo("Europe/Berlin")


def ms(*parts: int, zone: dt.tzinfo = dt.UTC) -> int:
    return round(dt.datetime(*parts, tzinfo=zone).timestamp() * 1000)


def read(path: Path, **options: object):
    return read_usage(path, UsageOptions(table=TableOptions(**options)))


def test_an_own_bill_in_one_command(run, fleet) -> None:
    """The example in the README: understood, imported, rated and charged to teams; a second time
    nothing changes.
    """
    code, out, err = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes")
    assert code == 0, err
    assert "columns separated by commas, 6 rows" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["job_id", "workload_id", "101", "102", "103"] in lines
    assert ["team", "tag:team", "vision", "nlp", "vision"] in lines
    assert "1 row without a GPU: left out" in err
    assert "gpuledger chargeback --from 2026-10-01 --to 2026-10-07 --by team" in out
    amounts = {
        line[0]: line[1::2][:2]
        for line in lines
        if line and line[0] in {"vision", "nlp", "speech", "total"}
    }
    # 8 x 36 + 0.5 x 8.5 hours, 4 x 72, and 2 x 84 + 12.
    assert {name: hours for name, (hours, *_) in amounts.items()} == {
        "vision": "292.2",
        "nlp": "288.0",
        "speech": "180.0",
        "total": "760.2",
    }
    assert ["total", "760.2", "1,900.62", "USD"] in lines
    code, out, _ = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes")
    assert code == 0
    assert "0 added, 0 updated, 5 unchanged; no bill changes" in out
    assert "1,900.62" in out


def test_another_rate_replaces_the_one_before(run, fleet) -> None:
    """The rate of the last start counts; another currency for the same usage is refused."""
    for rate in ("2.50", "5"):
        code, out, _ = run("start", EXAMPLES / "jobs.csv", "--rate", rate, "--yes")
        assert code == 0
    assert "3,801.25" in out
    assert re.search(
        r"rate: 5 USD a GPU-hour instead of the rate in force; \d+ days to rate again", out
    )
    code, _, err = run(
        "start", EXAMPLES / "jobs.csv", "--rate", "4,50", "--currency", "EUR", "--yes"
    )
    assert code == 2
    cure = "gpuledger prices set --rate 4.5 --currency EUR --from 2000-01-02"
    assert (
        f"--currency: an earlier start set a rate in another currency, which a rate keeps; `{cure}`"
        in err
    )
    assert run(*cure.split()[1:])[0] == 0
    code, out, _ = run("start", EXAMPLES / "jobs.csv", "--yes")
    assert code == 0
    total = next(line.split() for line in out.splitlines() if line.startswith("total"))
    assert total[1:] == ["760.2", "3,421.12", "EUR"]


def test_a_rate_that_changes_the_bill_is_not_called_no_change(run, fleet) -> None:
    """The file changes nothing and the rate does; a closed month among those days is named."""
    start = ("start", EXAMPLES / "jobs.csv", "--yes", "--rate")
    assert run(*start, "2.50")[0] == 0
    _, out, _ = run(*start, "5")
    assert "days to rate again" in out
    assert "workloads: 0 added, 0 updated, 5 unchanged\n" in out
    assert "is closed" not in out
    assert run("close", "--period", "2026-10")[0] == 0
    stays = "2026-10 is closed and stays as billed: what changes there is a correction in an open"
    for command in (
        (*start, "6", "--dry-run"),
        (*start, "6"),
        ("prices", "set", "--rate", "7", "--currency", "USD", "--from", "2000-01-02"),
    ):
        code, out, err = run(*command)
        assert code == 0, err
        assert f"days to rate again; {stays}" in " ".join(out.split())
    _, out, _ = run("prices", "set", "--rate", "8", "--currency", "USD", "--from", "2026-11-01")
    assert "is closed" not in out


def test_a_forecast_of_an_import_that_ended_says_so(run, fleet, tmp_path) -> None:
    """What follows its last job is not what comes next; demand that goes on has no such note."""
    hour = int(time.time()) // 3600
    ago = {days: format_instant((hour - days * 24) * 3_600_000) for days in (9, 5, 2, 0)}
    path = tmp_path / "jobs.csv"
    path.write_text(
        f"job_id,partition,gpus,start,end\n1,old,4,{ago[9]},{ago[5]}\n2,new,4,{ago[2]},{ago[0]}\n"
    )
    assert run("import", "usage", path)[0] == 0
    code, out, err = run("forecast")
    assert (code, "old" in out) == (0, True)
    assert f"gpuledger: series 'old': nothing is known since {ago[5]}: this follows that" in err
    assert "series 'new'" not in err


def test_pages_that_are_kept_up_are_opened_at_the_billed_month(run, fleet, monkeypatch) -> None:
    """Not at the current month, in which a file of the past has nothing."""
    opened = []

    def supervise(_settings, _count, say, command) -> int:
        opened.append(command)
        say("gpuledger listens on http://127.0.0.1:8440")
        return 0

    monkeypatch.setattr(supervisor, "supervise", supervise)
    code, out, err = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes", "--serve")
    assert code == 0, err
    assert "\nthe bill of 2026-10: http://127.0.0.1:8440/?period=2026-10\n" in out
    assert [words[:6] for words in opened] == [
        ["-P", "-m", "gpuledger_collector", "serve", "--opens-at", "2026-10"]
    ]


def test_a_receipt_of_unknown_activity_does_not_say_that_nothing_was_wasted(run, fleet) -> None:
    """A file of jobs says who held GPUs and not what they did: unknown on each form, never zero."""
    assert run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes")[0] == 0
    code, out, err = run("receipt", "101")
    assert code == 0, err
    assert "Wasted (part of the above)\n  not known: nobody observed what its GPUs did\n" in out
    assert out.endswith(
        "charged 720.00 USD, idle by the ledger not known, found as waste not known\n"
    )
    told = json.loads(run("receipt", "101", "--format", "json")[1])
    assert told["totals"]["USD"]["found_micro"] is None
    october = ("--from", "2026-10-01", "--to", "2026-11-01")
    listed = json.loads(run("runs", *october, "--format", "json")[1])
    assert {each["accelerators"] for each in listed} == {None}
    shown = json.loads(run("runs", "show", "101", "--format", "json")[1])
    assert {part["accelerators"] for part in shown["parts"]} == {None}
    assert {part["held_ms"] for part in shown["parts"]} == {None}


def test_days_of_imported_usage_have_no_capacity_of_zero(run, fleet, dsn) -> None:
    """The page of the proof: capacity is not known, and the imported hours stand beside it."""
    assert run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes")[0] == 0
    with running(dsn) as collector:
        _, _, page = collector.request("GET", "/trust?period=2026-10")
        _, _, table = collector.request("GET", "/trust?period=2026-10&format=csv")
    days = page.split('id="days"')[1].split("</table>")[0]
    assert "0.0<" not in days
    # Eight GPUs of vision and four of nlp on the first day: 8 x 16 and 4 x 14.5 hours.
    assert "and 186.0 imported" in days
    (first, *_) = csv.DictReader(io.StringIO(table))
    assert (first["capacity_gpu_hours"], first["observed_gpu_hours"]) == ("", "")


def test_a_spreadsheet_of_another_country(run, fleet) -> None:
    """Semicolons, a byte order mark, dates with the day first, decimal commas, a row twice, a
    column of no meaning.
    """
    path = EXAMPLES / "spreadsheet.csv"
    code, out, err = run("start", path, "--yes")
    assert (code, out) == (2, "")
    assert (
        "times such as '01.10.2026 08:00' have no zone; --zone Europe/Berlin or --zone UTC says"
        " which it is" in err
    )
    code, out, err = run("start", path, "--zone", "Europe/Berlin", "--rate", "2.50", "--yes")
    assert code == 0, err
    assert (
        "separated by semicolons, 6 rows, the day stands first in dates, times without a zone are"
        " those of" in out
    )
    assert ["Cost", "Center", "(ignored)", "4711", "4712", "4711"] in [
        line.split() for line in out.splitlines()
    ]
    assert "1 row without a GPU: left out" in err
    assert "1 row without an end of workloads that have ended on another row: left out" in err
    assert "1,870.62" in out  # 748.25 GPU-hours
    assert stored(fleet)[0][:4] == ("A-17", ms(2026, 10, 1, 6), ms(2026, 10, 2, 18), 8_000_000)


def test_what_sacct_prints_with_a_header(run, fleet) -> None:
    """Steps, jobs without GPUs and one that waits are left out; accounts are teams."""
    code, out, err = run(
        "start", EXAMPLES / "slurm.txt", "--zone", "Europe/Berlin", "--rate", "2.50", "--yes"
    )
    assert code == 0, err
    assert "2 steps of Slurm jobs that have a row of their own: left out" in err
    assert "2 rows without a GPU: left out" in err
    assert stored(fleet)[0][:4] == ("5001", ms(2026, 10, 1, 6), ms(2026, 10, 1, 16), 4_000_000)
    assert [
        line.split()[:3] for line in out.splitlines() if line.startswith(("vision", "nlp", "total"))
    ] == [
        ["vision", "40.0", "100.00"],
        ["nlp", "1.0", "2.50"],
        ["total", "41.0", "102.50"],
    ]


def test_nothing_is_imported_unasked(run, fleet) -> None:
    """Without a terminal --yes is needed; a dry run says what would change."""
    code, out, err = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50")
    assert code == 2
    assert "workload_id" in out
    assert "--yes imports without being asked" in err
    code, out, _ = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--dry-run")
    assert code == 0
    assert "5 added" in out
    assert "chargeback" not in out
    assert stored(fleet) == []
    assert fleet.rows("SELECT * FROM price") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "cheap"), "--rate: 'cheap' is not a decimal number"),
        (("--rate", "1,250"), "--rate: '1,250' can be read as 1250 or as 1.250; write it so"),
        (("--rate", "1", "--currency", "EURO"), "--currency: "),
        (("--zone", "Berlin"), "--zone: 'Berlin' is no zone"),
        (("--column", "start"), "--column: 'start' is not MEANING=NAME"),
        (("--column", "colour=team"), "'colour' is none of workload_id, start"),
        (("--column", "end=Ende"), "Ende: is no column; there are 'job_id'"),
        (("--pool", "(unallocated)"), "--pool: "),
    ],
)
def test_wrong_options_are_one_sentence(run, fleet, options, words) -> None:
    """Each names the option and what was expected; nothing is imported."""
    code, out, err = run("start", EXAMPLES / "jobs.csv", "--yes", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert stored(fleet) == []


def test_slurms_own_columns(run, written, fleet) -> None:
    """What `sacct -P` prints with a header: bars, JobID, Partition, AllocTRES, local times."""
    path = written(
        "jobs.txt",
        "JobID|User|Account|Partition|State|Start|End|AllocTRES\n"
        "7|amina|vision|gpu|COMPLETED|2026-10-01T08:00:00|2026-10-01T10:00:00|billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=2\n"
        "8|chen|vision|cpu|COMPLETED|2026-10-01T08:00:00|2026-10-01T10:00:00|billing=8,cpu=8\n"
        "9|chen|vision|gpu|PENDING|Unknown|Unknown|\n",
    )
    code, out, err = run("start", path, "--zone", "UTC", "--yes")
    assert code == 0, err
    assert "2 rows without a GPU: left out" in err
    assert stored(fleet) == [
        ("7", ms(2026, 10, 1, 8), ms(2026, 10, 1, 10), 2_000_000, "gpu", "vision")
    ]
    assert "nothing has a price yet" in err
    assert "--by team" in out
    assert ["Account", "account", "and", "tag:team", "vision", "vision", "vision"] in [
        line.split() for line in out.splitlines()
    ]
    assert ["vision", "4.0"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize(
    ("dates", "day_first", "outcome"),
    [
        (("03/04/2026", "13/04/2026"), None, "2026-04-03"),
        (("03/04/2026", "04/13/2026"), None, "2026-03-04"),
        (("03/04/2026", "05/04/2026"), None, "--dates day-first or --dates month-first settles it"),
        (("03/04/2026", "05/04/2026"), True, "2026-04-03"),
        (("03/04/2026", "05/04/2026"), False, "2026-03-04"),
        (
            ("13/04/2026", "04/14/2026"),
            None,
            "'13/04/2026' has its day first and '04/14/2026' its month",
        ),
        (("03.04.2026", "05.04.2026"), None, "2026-04-03"),
        (("04/04/2026", "05/05/2026"), None, "2026-04-04"),
    ],
)
def test_dates_are_decided_over_the_whole_file(written, dates, day_first, outcome) -> None:
    """One date that fits one reading alone decides for all; what fits both is refused with the
    option.
    """
    path = written("u.csv", f"job,gpus,start,end\na,1,{dates[0]},\nb,1,{dates[1]},\n")
    parsed = read(path, zone="UTC", day_first=day_first)
    if outcome.startswith("20"):
        assert parsed.problems == []
        assert parsed.rows[0].start_ms == ms(*map(int, outcome.split("-")))
    else:
        assert outcome in str(parsed.problems[0])
        assert parsed.rows == []


FORMS = {
    "%Y-%m-%d %H:%M:%S": "ISO with a blank",
    "%Y-%m-%dT%H:%M:%S": "ISO",
    "%d.%m.%Y %H:%M:%S": "day first, dots",
    "%Y/%m/%d %H:%M:%S": "year first, slashes",
    "%m/%d/%Y %I:%M:%S %p": "month first, a clock of twelve hours",
    "%d-%m-%Y %H:%M:%S": "day first, dashes",
}


@pytest.mark.parametrize("form", FORMS)
@given(
    at=st.datetimes(dt.datetime(2001, 1, 1), dt.datetime(2026, 1, 1)).map(
        lambda at: at.replace(microsecond=0)
    )
)
def test_every_form_of_an_instant_is_the_same_instant(form, at, tmp_path_factory) -> None:
    """Whatever form a local time has, it is read as the instant that its zone makes of it."""
    path = tmp_path_factory.mktemp("forms") / "u.csv"
    path.write_text(f"job;gpus;start;end\na;1;{at.strftime(form)};\n", encoding="utf-8")
    local = at.replace(tzinfo=BERLIN)
    parsed = read(path, zone="Europe/Berlin", day_first=form.startswith("%d"))
    if local.astimezone(dt.UTC).astimezone(BERLIN).replace(tzinfo=None) != at:
        assert "does not exist in Europe/Berlin" in str(parsed.problems[0])
    else:
        assert parsed.problems == []
        assert parsed.rows[0].start_ms == round(local.timestamp() * 1000)


def test_serial_numbers_of_spreadsheets(written) -> None:
    """45931.5 is noon of 1 October 2025, in local time; unix seconds stay unix seconds."""
    serial = read(written("a.csv", "job;gpus;start;end\na;1;45931,5;45932\n"), zone="Europe/Berlin")
    assert [(row.start_ms, row.end_ms) for row in serial.rows] == [
        (ms(2025, 10, 1, 12, zone=BERLIN), ms(2025, 10, 2, zone=BERLIN))
    ]
    unix = read(
        written("b.csv", "job,gpus,start,end\na,1,1759276800,1759284000.5\n"), zone="Europe/Berlin"
    )
    assert [(row.start_ms, row.end_ms) for row in unix.rows] == [
        (1_759_276_800_000, 1_759_284_000_500)
    ]


@pytest.mark.parametrize(
    ("cells", "gpus"),
    [
        (("0,5", "1.024"), [0.5, 1024.0]),
        (("1.039,5", "8"), [1039.5, 8.0]),
        (("0.5", "8"), [0.5, 8.0]),
        (("1.024", "8"), "the number '1.024' can be read as 1024 or as 1.024"),
        (("0,5", "1.5"), "2:gpus"),
        (
            ("1,024", "8"),
            "the number '1,024' can be read as 1024 or as 1.024; write it without the comma",
        ),
        (("1,024", "0.5"), [1024.0, 0.5]),
        (("1,039.5", "8"), [1039.5, 8.0]),
        (("0,125", "8"), [0.125, 8.0]),
        (("0.125", "8"), [0.125, 8.0]),
    ],
)
def test_marks_of_decimals_are_decided_over_the_whole_column(written, cells, gpus) -> None:
    """A point separates thousands where a comma separates decimals; what stays open is refused."""
    rows = "".join(f"{number};{cell};1759276800;1759280400\n" for number, cell in enumerate(cells))
    parsed = read(written("u.csv", "job;gpus;start;end\n" + rows))
    if isinstance(gpus, str):
        assert gpus in str(parsed.problems[0]) or "3:gpus" in parsed.problems[0].source
    else:
        assert [row.gpu_micro / 1_000_000 for row in parsed.rows] == gpus


def test_a_quoted_number_between_commas(written) -> None:
    """A point is that of decimals there; a comma is decided like any other."""
    rows = "job,gpus,start,end\na,{},1759276800,1759280400\nb,{},1759276800,1759280400\n"
    assert [row.gpu_micro for row in read(written("a.csv", rows.format("1.125", 8))).rows] == [
        1_125_000,
        8_000_000,
    ]
    assert [row.gpu_micro for row in read(written("b.csv", rows.format('"0,5"', 8))).rows] == [
        500_000,
        8_000_000,
    ]
    (problem,) = read(written("c.csv", rows.format('"1,024"', 8))).problems
    assert "the number '1,024' can be read as 1024 or as 1.024" in problem.message


def test_what_spreadsheets_and_sacct_add_is_no_row(written) -> None:
    """A first line with the delimiter, blank rows, steps of a job; an unknown end is an open one."""
    path = written(
        "u.csv",
        "sep=;\nJobID;AllocTRES;Start;End\n;;;\n1001;gres/gpu=2;1759276800;1759280400\n"
        "1001.batch;gres/gpu=2;1759276800;1759280400\n1001.0;gres/gpu=2;1759276800;1759280400\n"
        "1002;gres/gpu=1;1759276800;Unknown\n1003;gres/gpu=1;1759276800;1759276800\n1004;gres/gpu=1;1759276800000;\n",
    )
    parsed = read(path)
    assert [(row.workload_id, row.line, row.end_ms is None) for row in parsed.rows] == [
        ("1001", 4, False),
        ("1002", 7, True),
        ("1003", 8, False),
    ]
    assert "2 steps of Slurm jobs that have a row of their own: left out" in parsed.notes
    assert any("1 row of no duration" in note for note in parsed.notes)
    assert [str(problem) for problem in parsed.problems] == [
        f"{path}:9:Start: '1759276800000' looks like milliseconds; unix instants are in seconds"
    ]


def test_an_hour_that_comes_twice_is_said(written) -> None:
    """When clocks are put back, the first of the two is taken and a note says so."""
    parsed = read(
        written("a.csv", "job;gpus;start;end\na;1;25.10.2026 02:30;\n"), zone="Europe/Berlin"
    )
    assert parsed.rows[0].start_ms == ms(2026, 10, 25, 0, 30)
    assert parsed.notes == [
        "1 instant in an hour that Europe/Berlin has twice: read as the first of the two"
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_delimiters_and_encodings(tmp_path, delimiter, encoding) -> None:
    """Found by the header, whatever the cells hold."""
    rows = [
        ["Job ID", "Num GPUs", "Begin", "Finished", "Team"],
        ["a,;b", "1", "1759276800", "1759284000", "vision"],
    ]
    path = tmp_path / "u.csv"
    text = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows) + "\n"
    path.write_bytes(text.encode(encoding))
    (row,) = read(path).rows
    assert (row.workload_id, row.tags, row.end_ms) == (
        "a,;b",
        {"team": "vision"},
        1_759_284_000_000,
    )


def test_two_columns_of_one_meaning(written) -> None:
    """The column with the name itself counts; of two other names neither is guessed."""
    exact = read(written("a.csv", "workload_id,id,gpus,start,end\na,b,1,1759276800,\n"))
    assert [row.workload_id for row in exact.rows] == ["a"]
    unclear = read(written("b.csv", "job,pod,gpus,start,end\na,b,1,1759276800,\n"))
    assert (
        "columns 'job', 'pod' all mean workload_id; --column workload_id=job takes the first"
        in str(unclear.problems[0])
    )
    settled = read(
        written("c.csv", "job,pod,gpus,start,end\na,b,1,1759276800,\n"),
        columns={"workload_id": "pod"},
    )
    assert [row.workload_id for row in settled.rows] == ["b"]


def test_a_problem_names_the_column_as_the_file_does(written) -> None:
    """The person who mends the file finds the cell."""
    path = written("a.csv", "job,Anzahl,Begin,end\na,many,yesterday,\n")
    parsed = read(path, columns={"gpus": "Anzahl"})
    assert sorted(problem.source for problem in parsed.problems) == [
        f"{path}:2:Anzahl",
        f"{path}:2:Begin",
    ]


def spans(parsed) -> dict[str, tuple[int, int | None]]:
    """Start and length in seconds, by workload."""
    return {
        row.workload_id: (
            row.start_ms // 1000,
            None if row.end_ms is None else (row.end_ms - row.start_ms) // 1000,
        )
        for row in parsed.rows
    }


@pytest.mark.parametrize(
    ("column", "cells", "seconds"),
    [
        ("Elapsed", ("1-02:03:04", "00:10:00", "26:00:00"), [93_784, 600, 93_600]),
        ("duration", ("1 day, 2:00:00", "5h12m", "90s"), [93_600, 18_720, 90]),
        ("Hours", ("1.5", "0.25", "3"), [5400, 900, 10_800]),
        ("ElapsedRaw", ("60", "", "0"), [60, None, 0]),
        ("Runtime minutes", ("1", "2.5", "100"), [60, 150, 6000]),
    ],
)
def test_a_duration_stands_for_the_end(written, column, cells, seconds) -> None:
    """The end is the start and the duration; without one the job still runs."""
    rows = "".join(f'{number},1,1759276800,"{cell}"\n' for number, cell in enumerate(cells))
    parsed = read(written("u.csv", f"job_id,gpus,start,{column}\n{rows}"))
    assert parsed.problems == []
    assert spans(parsed) == {
        str(number): (1_759_276_800, length) for number, length in enumerate(seconds)
    }


def test_durations_that_are_not_clear(written) -> None:
    """A number without a unit is refused with the option, a bad cell is named, and beside an end it
    means nothing.
    """
    path = written("a.csv", "job_id,gpus,start,duration\n1,1,1759276800,90\n")
    (problem,) = read(path).problems
    assert (
        str(problem) == f"{path}:1:duration: '90' can be hours, minutes or seconds; --column"
        " duration_hours=duration says which"
    )
    assert spans(read(path, columns={"duration_minutes": "duration"})) == {
        "1": (1_759_276_800, 5400)
    }
    path = written(
        "b.csv", "job_id,gpus,start,Elapsed\n1,1,1759276800,12:30\n2,1,1759276800,01:00:00\n"
    )
    parsed = read(path)
    assert [str(problem) for problem in parsed.problems] == [
        f"{path}:2:Elapsed: '12:30' is no duration; write it as 1-02:03:04, 26:03:04 or 5h12m"
    ]
    assert list(spans(parsed)) == ["2"]
    path = written("c.csv", "job_id,gpus,start,end,Elapsed\n1,1,1759276800,1759276860,09:00:00\n")
    (problem,) = read(path).problems
    assert str(problem).startswith(
        f"{path}:2:end: end - start is 0:01:00, and Elapsed says '09:00:00'; "
    )
    parsed = read(
        written("d.csv", "job_id;gpus;start;hours\n1;0,5;1759276800;1,5\n2;2;1759276800;1.000\n")
    )
    assert spans(parsed) == {"1": (1_759_276_800, 5400), "2": (1_759_276_800, 3_600_000)}


def test_a_namespace_is_the_team_and_part_of_the_id(run, written, fleet) -> None:
    """Two pods of one name in two namespaces are two workloads; a team beside it is the team."""
    text = "pod,namespace,gpus,start,end\ntrain-0,vision,1,1759276800,1759280400\ntrain-0,nlp,2,1759276800,1759280400\n"
    code, out, err = run("start", written("pods.csv", text), "--rate", "1", "--yes")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert ["namespace", "tag:team", "and", "part", "of", "workload_id", "vision", "nlp"] in lines
    assert ["nlp", "2.0", "2.00"] in [line[:3] for line in lines]
    parsed = read(written("pods.csv", text))
    assert [(row.workload_id, row.tags) for row in parsed.rows] == [
        ("vision/train-0", {"team": "vision", "namespace": "vision"}),
        ("nlp/train-0", {"team": "nlp", "namespace": "nlp"}),
    ]
    parsed = read(
        written(
            "uid.csv", "pod_uid,namespace,team,gpus,start,end\nab-1,prod,vision,1,1759276800,\n"
        )
    )
    assert [(row.workload_id, row.tags) for row in parsed.rows] == [
        ("ab-1", {"namespace": "prod", "team": "vision"}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode\n7|a|gpu|x|8|COMPLETED|0:0\n",
            (
                "this is what sacct prints by default, without start, end and GPUs; print it with:"
                " TZ=UTC"
            ),
        ),
        (
            "JobID|JobName|Partition|Account|AllocCPUS|State|Start|End|ExitCode\n7|a|gpu|x|8|COMPLETED|1|2|0:0\n",
            "this is what sacct prints without AllocTRES; print it with: TZ=UTC",
        ),
        (
            (
                "JobID           JobName  Partition    Account  AllocCPUS      State      Start    "
                "    End AllocTRES \n------------ ---------- ---------- ---------- ----------"
                " ---------- ---------- ---------- ---------\n"
            ),
            "this is what sacct prints without -P; print it with: TZ=UTC",
        ),
        (
            (
                "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
                "------------ ---------- ---------- ---------- ---------- ---------- --------\n"
                "7                     a        gpu          x          8  COMPLETED      0:0\n"
            ),
            "sacct -X -a -P -n -D",
        ),
        (
            "101,vision,4,4,2026-10-01T08:00:00Z,2026-10-02T20:00:00Z\n",
            (
                "the first line is a row and names no columns ('101', 'vision', '4', '4',"
                " '2026-10-01T08:00:00Z', "
            ),
        ),
    ],
)
def test_a_header_that_does_not_help_is_one_sentence_with_the_cure(
    run, written, text, words
) -> None:
    """What sacct prints by default, and a first line that is a row already."""
    code, out, err = run("start", written("jobs.txt", text), "--yes")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 2  # the sentence, and that nothing was imported


def test_the_command_that_is_named_is_what_import_sacct_reads() -> None:
    """The columns of the sentence are those of `import sacct`."""
    assert tuple(SACCT_COLUMNS.split(",")) == COLUMNS


def test_a_workbook_and_a_file_of_windows_are_the_bill_of_the_csv(run, tmp_path, fleet) -> None:
    """The first file is imported, and the others change nothing: their rows are the same."""
    rows = list(
        csv.reader((EXAMPLES / "jobs.csv").read_text().replace("vision", "Größe").splitlines())
    )
    made = openpyxl.Workbook()
    for row in rows:
        made.active.append(row)
    made.save(tmp_path / "jobs.xlsx")
    for name, encoding in (("windows.csv", "cp1252"), ("jobs.csv", "utf-8")):
        (tmp_path / name).write_text(
            "".join(",".join(row) + "\n" for row in rows), encoding=encoding
        )
    code, out, err = run("start", tmp_path / "jobs.xlsx", "--rate", "2.50", "--yes")
    assert code == 0, err
    assert "sheet 'Sheet' of a workbook, 6 rows" in out
    assert "1,900.62" in out
    for name in ("windows.csv", "jobs.csv"):
        code, out, err = run("start", tmp_path / name, "--rate", "2.50", "--yes")
        assert code == 0, err
        assert "0 added, 0 updated, 5 unchanged; no bill changes" in out
        assert ("read as Windows-1252, because it is not UTF-8" in out) == (name == "windows.csv")


def test_a_sum_below_the_rows_is_no_job(written) -> None:
    """The last row of a spreadsheet is named and left out; a job called Total counts."""
    path = written(
        "u.csv",
        "job;team;gpus;start;end\nTotal;x;1;1759276800;1759280400\n2;nlp;1;1759276800;1759280400\nSumme:;;2;;\n",
    )
    parsed = read(path)
    assert [row.workload_id for row in parsed.rows] == ["Total", "2"]
    assert parsed.problems == []
    assert "line 4 ('Summe:') is a sum and no job: left out" in parsed.notes


def test_digits_of_other_scripts_are_no_numbers(written) -> None:
    """Arabic digits in a date or a number are refused like any other letter."""
    path = written(
        "u.csv",
        "job;gpus;start;end\na;1;٠١.١٠.٢٠٢٦ ٠٨:٠٠;\nb;٢;01.10.2026 08:00;\nc;1;١٧٥٩٢٧٦٨٠٠;\n",
    )
    parsed = read(path, zone="UTC")
    assert parsed.rows == []
    assert sorted(problem.source for problem in parsed.problems) == [
        f"{path}:2:start",
        f"{path}:3:gpus",
        f"{path}:4:start",
    ]


GERMAN = (
    "\ufeffAuftrag;Beginn;Ende;Anzahl GPUs;Benutzer;GPU-Typ;team;Kostenstelle\r\n"
    "A-1;01.10.2026 08:00;02.10.2026 20:00;8;amina;H100;vision;4711\r\n"
    "A-2;01.10.2026 09:30;04.10.2026 09:30;4;björn;H100;nlp;4712\r\n"
    "A-3;02.10.2026 10:15;02.10.2026 18:45;0,5;chen;A100;vision;4711\r\n"
    "A-3;02.10.2026 10:15;02.10.2026 18:45;0,5;chen;A100;vision;4711\r\n"
    "A-4;03.10.2026 11:00;03.10.2026 11:20;0;björn;A100;nlp;4712\r\n"
)


def test_a_spreadsheet_with_german_headers(run, written, fleet) -> None:
    """Its columns are understood by their names; a repeated row counts once and is said."""
    code, out, err = run(
        "start", written("jobs.csv", GERMAN), "--zone", "Europe/Berlin", "--rate", "2.50", "--yes"
    )
    assert code == 0, err
    assert ["Benutzer", "user", "amina", "björn", "chen"] in [
        line.split() for line in out.splitlines()
    ]
    assert "1 repeated row: counted once" in err
    assert "1 row without a GPU: left out" in err
    assert "1,450.62" in out  # 580.25 GPU-hours
    query = (
        "SELECT user_name, gpu_model FROM workload w JOIN imported_usage u ON u.workload_id = w.id"
        " ORDER BY 1"
    )
    assert fleet.rows(query) == [("amina", "H100"), ("björn", "H100"), ("chen", "A100")]


@pytest.mark.parametrize(
    "header",
    [
        "Auftragsnummer;Startzeit;Endzeit;GPU-Anzahl;Nutzer;GPU-Modell;Knoten;Abteilung",
        "Tâche;Date de début;Date de fin;Nombre de GPU;Utilisateur;Modèle de GPU;Nœud;Équipe",
        "Trabajo;Fecha de inicio;Fecha de fin;Número de GPUs;Usuario;Tipo de GPU;Nodo;Equipo",
        "Lavoro;Data inizio;Data fine;Numero di GPU;Utente;Modello GPU;Nodo;Reparto",
        "Job No.;Begin;End;GPU(s);User Name;GPU Type;Host;Department",
    ],
)
def test_headers_of_other_languages(written, header) -> None:
    """Accents, blanks and brackets in names do not matter."""
    parsed = read(
        written("u.csv", f"{header}\na;01.10.2026 08:00;01.10.2026 09:00;2;amina;H100;n1;vision\n"),
        zone="UTC",
    )
    assert parsed.problems == []
    (row,) = parsed.rows
    assert (row.workload_id, row.user, row.gpu_model, row.node) == ("a", "amina", "H100", "n1")
    assert (row.end_ms - row.start_ms, row.gpu_micro, row.tags) == (
        3_600_000,
        2_000_000,
        {"team": "vision"},
    )


def test_no_name_of_a_column_has_two_meanings() -> None:
    """Each synonym belongs to one meaning."""
    words = [word for meaning, names in SYNONYMS.items() for word in {meaning, *names.split()}]
    assert [word for word, times in Counter(words).items() if times > 1] == []


def test_a_column_that_looks_like_a_known_one_is_said(run, written) -> None:
    """The sentence has the option that gives it the meaning; a column without any likeness is only
    ignored.
    """
    path = written(
        "u.csv", "job,gpus,start,end,Benutzer (LDAP),Usr,color\na,1,1759276800,1759284000,x,y,z\n"
    )
    code, out, err = run("start", path, "--yes")
    assert code == 0
    hint = (
        "column 'Benutzer (LDAP)' is ignored; it looks like user: --column 'user=Benutzer (LDAP)'"
    )
    assert hint in err
    assert "color" not in err
    assert "(ignored)" in out
    code, _, err = run("import", "usage", path)
    assert hint in err
    assert "column 'color' is ignored\n" in err


def test_a_team_goes_before_a_department(written) -> None:
    """Where two columns have names of one meaning, the one with the name itself counts."""
    parsed = read(
        written(
            "u.csv",
            "job,gpus,start,end,Team,Department\na,1,1759276800,1759284000,vision,research\n",
        )
    )
    assert parsed.problems == []
    assert [row.tags for row in parsed.rows] == [{"team": "vision"}]


def test_the_first_message_names_every_missing_option(run, written) -> None:
    """Columns, the zone and the order of dates are asked for at once."""
    path = written(
        "u.csv", "Los;Startpunkt;Schlusszeit;Anzahl\na;03/04/2026 08:00;05/04/2026 08:00;1\n"
    )
    code, out, err = run("start", path, "--yes")
    assert (code, out) == (2, "")
    cure = (
        "--column workload_id=NAME --column gpus=Anzahl --column start=Startpunkt --column"
        " end=Schlusszeit"
    )
    for words in (cure, "--dates day-first or", "--zone Europe/Berlin or --zone UTC"):
        assert words in err, words


SLURM = (
    "JobID|User|Account|Partition|State|Submit|Start|End|AllocTRES\n"
    "7|amina|vision|gpu|NODE_FAIL|2026-10-01T07:59:00|2026-10-01T08:00:00|2026-10-01T10:00:00|cpu=8,gres/gpu:h100=4\n"
    "7|amina|vision|gpu|COMPLETED|2026-10-01T10:00:00|2026-10-01T11:00:00|2026-10-01T18:00:00|cpu=8,gres/gpu:h100=4\n"
    "7|amina|vision|gpu|COMPLETED|2026-10-01T10:00:00|2026-10-01T11:00:00|2026-10-01T18:00:00|cpu=8,gres/gpu:h100=4\n"
)


def runs_of(fleet) -> list[tuple]:
    return [(name, start, end) for name, start, end, *_ in stored(fleet)]


def test_the_job_and_its_raw_id_are_one_column_of_jobs(run, written) -> None:
    """JobIDRaw beside JobID is ignored, and the bar at the end of each line of `sacct -p` is no
    column.
    """
    lines = [
        f"{line}|{raw}|"
        for line, raw in zip(SLURM.splitlines(), ["JobIDRaw", "7", "7", "7"], strict=True)
    ]
    code, out, err = run("start", written("jobs.txt", "\n".join(lines)), "--zone", "UTC", "--yes")
    assert code == 0, err
    shown = [line.split() for line in out.splitlines()]
    assert ["JobIDRaw", "(ignored)", "7", "7", "7"] in shown
    assert ["(ignored)"] not in shown


@pytest.mark.parametrize("end", ["", "|"])
def test_the_name_of_a_job_may_hold_bars_where_it_comes_last(written, end) -> None:
    """As `import sacct` reads it: sacct quotes nothing.

    In another column a bar is a bad row, as is a cell too few.
    """
    header, first, second, _ = SLURM.splitlines()
    lines = [f"{header}|JobName{end}", f"{first}|a|b{end}", f"{second}|train{end}"]
    parsed = read(written("jobs.txt", "\n".join(lines)), zone="UTC")
    assert (parsed.problems, [row.job_name for row in parsed.rows]) == ([], ["a|b", "train"])
    for other in ([f"JobName|{header}", f"a|b|{first}"], [lines[0], second + end]):
        (problem,) = read(written("jobs.txt", "\n".join(other)), zone="UTC").problems
        assert problem.code == "bad_row"


def test_an_english_spreadsheet_with_tabs(written) -> None:
    """Its usual names, months first and a clock of twelve hours."""
    header = "Job Number\tDepartment\t# GPUs\tStart Date/Time\tEnd Date/Time\n"
    parsed = read(
        written("u.tsv", f"{header}1\tVision\t8\t10/14/2026 11:00 PM\t10/15/2026 1:00 AM\n"),
        zone="UTC",
    )
    assert [(row.start_ms, row.end_ms, row.tags) for row in parsed.rows] == [
        (ms(2026, 10, 14, 23), ms(2026, 10, 15, 1), {"team": "Vision"})
    ]


def test_each_run_of_a_requeued_job_is_billed(run, written, fleet) -> None:
    """One id at two times is two allocations; the same row twice, or the file again, doubles
    nothing.
    """
    path = written("jobs.txt", SLURM)
    code, out, err = run("start", path, "--zone", "UTC", "--rate", "1", "--yes")
    assert code == 0, err
    assert "1 job ran again after a requeue: each run is billed" in err
    assert "1 repeated row: counted once" in err
    assert ["vision", "36.0", "36.00"] in [line.split()[:3] for line in out.splitlines()]
    both = [
        ("7", ms(2026, 10, 1, 8), ms(2026, 10, 1, 10)),
        (f"7@{ms(2026, 10, 1, 11) // 1000}", ms(2026, 10, 1, 11), ms(2026, 10, 1, 18)),
    ]
    assert runs_of(fleet) == both
    assert fleet.rows("SELECT DISTINCT gpu_model FROM imported_usage") == [("h100",)]
    _, out, _ = run("start", path, "--zone", "UTC", "--yes")
    assert "0 added, 0 updated, 2 unchanged" in out
    lines = SLURM.splitlines()
    _, out, _ = run(
        "import", "usage", written("later.txt", f"{lines[0]}\n{lines[2]}\n"), "--zone", "UTC"
    )
    assert "0 added, 0 updated, 1 unchanged" in out
    assert runs_of(fleet) == both
    _, out, _ = run("import", "usage", path, "--zone", "Europe/Berlin")
    assert "0 added, 2 updated, 0 unchanged" in out
    assert [end - start for _, start, end in runs_of(fleet)] == [
        end - start for _, start, end in both
    ]


def test_runs_arrive_in_any_order(run, written, fleet) -> None:
    """A dump of a later month does not replace the run of an earlier one."""
    header, first, second, _ = SLURM.splitlines()
    for name, rows in (("b.txt", [second]), ("a.txt", [first]), ("c.txt", [first, second])):
        code, _, err = run(
            "import", "usage", written(name, "\n".join([header, *rows])), "--zone", "UTC"
        )
        assert code == 0, err
    assert sorted(start for _, start, _ in runs_of(fleet)) == [
        ms(2026, 10, 1, 8),
        ms(2026, 10, 1, 11),
    ]


@given(
    data=st.data(), lengths=st.lists(st.integers(61, 10_000), min_size=1, max_size=5, unique=True)
)
def test_dumps_that_overlap_and_come_in_any_order_give_each_run_once(data, lengths) -> None:
    """Whatever part of a job's runs each dump shows, all of them together are known once
    afterwards.
    """
    starts = [1_759_276_800 + 20_000 * number + 7 * number for number in range(len(lengths))]
    runs = [
        (start * 1000, (start + length) * 1000)
        for start, length in zip(starts, lengths, strict=True)
    ]
    dumps = data.draw(st.lists(st.sets(st.sampled_from(runs), min_size=1), min_size=1, max_size=5))
    known: dict[str, KnownRun] = {}
    for dump in dumps:
        rows = [
            UsageRow(1, "7", start, end, 1_000_000)
            for start, end in data.draw(st.permutations(sorted(dump)))
        ]
        named = name_runs(rows, {"7": list(known.values())})
        assert len({row.workload_id for row in named}) == len(rows)
        known |= {
            row.workload_id: KnownRun(row.workload_id, row.start_ms, row.end_ms) for row in named
        }
    seen = set().union(*dumps)
    assert sorted((run.start_ms, run.end_ms) for run in known.values()) == sorted(seen)


def test_overlapping_rows_of_a_job_are_no_runs(written) -> None:
    """A job cannot run twice at once: the message names both lines and what to do."""
    wrong = SLURM.replace(
        "2026-10-01T10:00:00|2026-10-01T11:00:00", "2026-10-01T10:00:00|2026-10-01T09:00:00", 1
    )
    problem, *_ = read(written("jobs.txt", wrong), zone="UTC").problems
    assert str(problem).endswith(
        ":3:JobID: '7' stands with other values on line 2; leave out one of them, or --skip-bad"
        " takes the first"
    )


def test_two_runs_under_one_id_in_a_table_that_is_not_slurms(written) -> None:
    """There an id is one workload; the message says what two runs need."""
    path = written(
        "u.csv", "job,gpus,start,end\na,1,1759276800,1759280400\na,1,1759284000,1759287600\n"
    )
    (problem,) = read(path).problems
    assert (
        "where both are runs, give each an id of its own; else leave out one of them"
        in problem.message
    )


def test_exports_put_one_after_the_other(written) -> None:
    """A header between the rows, even after a byte order mark, is left out and counted."""
    path = written(
        "jobs.txt", SLURM + "\ufeff" + SLURM.splitlines()[0] + "\n" + SLURM.splitlines()[2] + "\n"
    )
    parsed = read(path, zone="UTC")
    assert parsed.problems == []
    assert len(parsed.rows) == 2
    assert "1 repeated header line: left out" in parsed.notes
    assert "2 repeated rows: counted once" in parsed.notes


def test_the_command_that_reads_a_dump_is_named(run, written, fleet) -> None:
    """A dump given to a command that does not read it names the one that does, in one sentence."""
    path = written("jobs.txt", SLURM)
    code, _, err = run("import", "sacct", path)
    assert code == 2
    assert f"`gpuledger start {path}` reads others under their header" in err
    assert len(err.splitlines()) == 2
    path = written("bare.txt", "".join(SLURM.splitlines(keepends=True)[1:]))
    for command in (("import", "sacct"), ("import", "usage"), ("start",)):
        code, _, err = run(*command, path)
        assert code == 2
        assert "print it without -n" in err
        assert f"`gpuledger start {path}` reads" in err
        assert len(err.splitlines()) == 2
    path = written("eighteen.txt", job(1) + "\n")
    code, _, err = run("import", "usage", path)
    assert code == 2
    assert (
        f"this is what sacct prints for `gpuledger import sacct`; `gpuledger start {path}` reads it"
        " as well" in err
    )
    assert run("start", path, "--yes")[0] == 0


def test_a_job_without_an_end_is_said_to_go_on(run, written) -> None:
    """It is billed to now, not to when the file was written."""
    path = written("u.csv", "job,gpus,start,end\na,1,1790812800,\n")
    code, out, _ = run("import", "usage", path)
    assert code == 0
    assert (
        "1 workload without an end, billed up to now and not to the time of the file, until a file"
        " has the end" in out
    )


def test_what_goes_on_is_said_before_the_question(run, written, fleet, monkeypatch) -> None:
    """A forgotten end may be most of the bill: who is asked knows the job, its days and the rate by
    then.
    """
    asked = []

    def ask(question: str) -> None:
        asked.append(question)
        refuse("nothing was imported")

    monkeypatch.setattr(start, "_ask", ask)
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    since, recent = now - dt.timedelta(days=234, minutes=1), now - dt.timedelta(days=3)
    rows = f"1004,4,{since.isoformat()},\n1005,1,{recent.isoformat()},\n1,1,1759276800,1759280400\n"
    path = written("jobs.csv", f"job_id,gpus,start,end\n{rows}")
    code, _, err = run("start", path, "--rate", "2.50", "--currency", "EUR")
    assert code == 2
    assert asked == ["Import 3 workloads at 2.50 EUR a GPU-hour?"]
    goes_on = (
        f"{path}:2:end: '1004' has no end and runs since {since:%Y-%m-%dT%H:%M:%SZ}, 234 days:"
        " billed up to now"
    )
    assert f"{goes_on}, 22464 GPU-hours, until an end is imported" in err
    assert (
        f"1 workload without an end, {BILLED_UP_TO_NOW}; it runs since {recent:%Y-%m-%dT%H:%M:%SZ}"
        in err
    )
    monkeypatch.undo()
    _, out, err = run("start", path, "--rate", "2.50", "--currency", "EUR", "--yes")
    assert "3 added" in out
    assert "without an end" not in out
    assert err.count("1004") == 1
    monkeypatch.setattr(start, "_ask", ask)
    run("start", path, "--rate", "3", "--currency", "EUR")
    assert asked[1].startswith(
        "Import 3 workloads at 3 EUR a GPU-hour instead of the rate in force; "
    )


def test_a_receipt_of_a_requeued_job_names_its_other_runs(run, written, fleet) -> None:
    """The job's id is its first run; the command of each other run stands on the page."""
    other = SLURM.splitlines()[1].replace("7|", "70|", 1)
    assert (
        run(
            "start",
            written("jobs.txt", f"{SLURM}{other}\n"),
            "--zone",
            "UTC",
            "--rate",
            "1",
            "--yes",
        )[0]
        == 0
    )
    later = f"7@{ms(2026, 10, 1, 11) // 1000}"
    _, out, _ = run("receipt", "7")
    assert f"This is one run of a requeued job. 1 other run: gpuledger receipt {later}\n" in out
    _, out, _ = run("receipt", later)
    assert "1 other run: gpuledger receipt 7\n" in out
    _, out, _ = run("receipt", "7", "--format", "json")
    assert json.loads(out)["other_runs"] == [later]
    _, out, _ = run("receipt", "70")
    assert "requeued" not in out


def test_shards_and_several_models_are_said(run, written, fleet) -> None:
    """Parts of GPUs are counted apart from rows without any; two models in one job are an unknown
    one.
    """
    row = "{}|amina|vision|gpu|COMPLETED|2026-10-01T07:59:00|2026-10-01T08:00:00|2026-10-01T10:00:00|{}\n"
    allocated = [
        "cpu=8",
        "cpu=8,gres/shard=4",
        "gres/mps:a100=50",
        "gres/gpu:a100=1,gres/gpu:h100=1,gres/gpu=2",
    ]
    rows = "".join(row.format(number, tres) for number, tres in enumerate(allocated))
    path = written("jobs.txt", SLURM.splitlines()[0] + "\n" + rows)
    code, _, err = run("start", path, "--zone", "UTC", "--rate", "1", "--yes")
    assert code == 0, err
    assert "1 row without a GPU: left out" in err
    assert "2 jobs with shards or MPS only, which are not billed: left out" in err
    assert "1 job with GPUs of several models: billed as an unknown model" in err
    _, out, _ = run("receipt", "3")
    assert "4.00 GPU-hours of an unknown model in gpu at" in out


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("Gruppenteam", "tag:team=Gruppenteam"),
        ("account", "tag:team=account"),
        ("Farbe", "tag:team=NAME"),
    ],
)
def test_a_table_without_a_team_says_so(run, written, fleet, name, option) -> None:
    """The bill is then by user; the option that names the column stands in the sentence."""
    path = written("u.csv", f"job,gpus,start,end,user,{name}\na,1,1759276800,1759284000,amina,x\n")
    code, out, err = run("start", path, "--yes")
    assert code == 0
    assert f"gpuledger: no column is the team: --column {option} names it\n" in err
    assert "--by user" in out
    if "NAME" not in option:
        _, out, err = run("start", path, "--yes", "--column", option)
        assert "no column is the team" not in err
        assert "--by team" in out


@pytest.mark.parametrize(
    "name", ["Institut", "Lehrstuhl", "Fakultät", "Fakultaet", "Faculty", "Research Group"]
)
def test_units_of_universities_are_teams(written, name) -> None:
    """By the names that they have there."""
    parsed = read(
        written("u.csv", f"job;gpus;start;end;{name}\na;1;1759276800;1759284000;Physik\n")
    )
    assert parsed.rows[0].tags == {"team": "Physik"}
