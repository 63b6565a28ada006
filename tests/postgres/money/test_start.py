"""gpuledger start, and the tables of jobs that it and `import usage` read."""

import datetime as dt
import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.ingest.files.job_table import TableOptions
from gpuledger_collector.ingest.files.usage import UsageOptions, read_usage
from postgres.money.test_import_usage import stored

EXAMPLES = Path(__file__).parents[3] / "examples"
BERLIN = ZoneInfo("Europe/Berlin")


def ms(*parts: int, zone: dt.tzinfo = dt.UTC) -> int:
    return round(dt.datetime(*parts, tzinfo=zone).timestamp() * 1000)


def read(path: Path, **options: object):
    return read_usage(path, UsageOptions(table=TableOptions(**options)))


def test_an_own_bill_in_one_command(run, fleet) -> None:
    """The example in the README: understood, imported, rated and charged to teams; a second time nothing changes."""
    code, out, err = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes")
    assert code == 0, err
    assert "columns separated by commas, 6 rows" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["job_id", "workload_id", "101", "102", "103"] in lines
    assert ["team", "tag:team", "vision", "nlp", "vision"] in lines
    assert "1 row without a GPU: left out" in err
    assert "gpuledger chargeback --from 2026-10-01 --to 2026-10-07 --by team" in out
    amounts = {line[0]: line[1::2][:2] for line in lines if line and line[0] in {"vision", "nlp", "speech", "total"}}
    # 8 x 36 + 0.5 x 8.5 hours, 4 x 72, and 2 x 84 + 12.
    assert {name: hours for name, (hours, *_) in amounts.items()} == {
        "vision": "292.250000",
        "nlp": "288.000000",
        "speech": "180.000000",
        "total": "760.250000",
    }
    assert ["total", "760.250000", "1900.62", "USD"] in lines
    code, out, _ = run("start", EXAMPLES / "jobs.csv", "--rate", "2.50", "--yes")
    assert code == 0
    assert "0 added, 0 updated, 5 unchanged; no bill changes" in out
    assert "1900.62" in out


def test_another_rate_replaces_the_one_before(run, fleet) -> None:
    """The rate of the last start counts; another currency for the same usage is refused."""
    for rate in ("2.50", "5"):
        code, out, _ = run("start", EXAMPLES / "jobs.csv", "--rate", rate, "--yes")
        assert code == 0
    assert "3801.25" in out
    assert re.search(r"rate: 5 USD a GPU-hour instead of the rate in force; \d+ days to rate again", out)
    code, _, err = run("start", EXAMPLES / "jobs.csv", "--rate", "5", "--currency", "EUR", "--yes")
    assert (code, "--currency: " in err) == (2, True)


def test_a_spreadsheet_of_another_country(run, fleet) -> None:
    """Semicolons, a byte order mark, dates with the day first, decimal commas, a row twice, a column of no meaning."""
    path = EXAMPLES / "spreadsheet.csv"
    code, out, err = run("start", path, "--yes")
    assert (code, out) == (2, "")
    assert "times such as '01.10.2026 08:00' have no zone; --zone Europe/Berlin or --zone UTC says which it is" in err
    code, out, err = run("start", path, "--zone", "Europe/Berlin", "--rate", "2.50", "--yes")
    assert code == 0, err
    assert "separated by semicolons, 6 rows, the day stands first in dates, times without a zone are those of" in out
    assert ["Cost", "Center", "(ignored)", "4711", "4712", "4711"] in [line.split() for line in out.splitlines()]
    assert "1 row without a GPU: left out" in err
    assert "1 row without an end of workloads that have ended on another row: left out" in err
    assert "1870.62" in out  # 748.25 GPU-hours
    assert stored(fleet)[0][:4] == ("A-17", ms(2026, 10, 1, 6), ms(2026, 10, 2, 18), 8_000_000)


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
        "8|chen|vision|cpu|COMPLETED|2026-10-01T08:00:00|2026-10-01T10:00:00|billing=8,cpu=8\n",
    )
    code, out, err = run("start", path, "--zone", "UTC", "--yes")
    assert code == 0, err
    assert "1 row without a GPU: left out" in err
    assert stored(fleet) == [("7", ms(2026, 10, 1, 8), ms(2026, 10, 1, 10), 2_000_000, "gpu", None)]
    assert "some usage has no rate" in err
    assert "--by user" in out


@pytest.mark.parametrize(
    ("dates", "day_first", "outcome"),
    [
        (("03/04/2026", "13/04/2026"), None, "2026-04-03"),
        (("03/04/2026", "04/13/2026"), None, "2026-03-04"),
        (("03/04/2026", "05/04/2026"), None, "--dates day-first or --dates month-first settles it"),
        (("03/04/2026", "05/04/2026"), True, "2026-04-03"),
        (("03/04/2026", "05/04/2026"), False, "2026-03-04"),
        (("13/04/2026", "04/14/2026"), None, "'13/04/2026' has its day first and '04/14/2026' its month"),
        (("03.04.2026", "05.04.2026"), None, "2026-04-03"),
        (("04/04/2026", "05/05/2026"), None, "2026-04-04"),
    ],
)
def test_dates_are_decided_over_the_whole_file(written, dates, day_first, outcome) -> None:
    """One date that fits one reading alone decides for all; what fits both is refused with the option."""
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
@given(at=st.datetimes(dt.datetime(2001, 1, 1), dt.datetime(2026, 1, 1)).map(lambda at: at.replace(microsecond=0)))
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
    unix = read(written("b.csv", "job,gpus,start,end\na,1,1759276800,1759284000.5\n"), zone="Europe/Berlin")
    assert [(row.start_ms, row.end_ms) for row in unix.rows] == [(1_759_276_800_000, 1_759_284_000_500)]


@pytest.mark.parametrize(
    ("cells", "gpus"),
    [
        (("0,5", "1.024"), [0.5, 1024.0]),
        (("1.039,5", "8"), [1039.5, 8.0]),
        (("0.5", "8"), [0.5, 8.0]),
        (("1.024", "8"), "'1.024' GPUs can be read as 1024 or as 1.024"),
        (("0,5", "1.5"), "2:gpus"),
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
    parsed = read(written("a.csv", "job;gpus;start;end\na;1;25.10.2026 02:30;\n"), zone="Europe/Berlin")
    assert parsed.rows[0].start_ms == ms(2026, 10, 25, 0, 30)
    assert parsed.notes == ["1 instant in an hour that Europe/Berlin has twice: read as the first of the two"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_delimiters_and_encodings(tmp_path, delimiter, encoding) -> None:
    """Found by the header, whatever the cells hold."""
    rows = [["Job ID", "Num GPUs", "Begin", "Finished", "Team"], ["a,;b", "1", "1759276800", "1759284000", "vision"]]
    path = tmp_path / "u.csv"
    text = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows) + "\n"
    path.write_bytes(text.encode(encoding))
    (row,) = read(path).rows
    assert (row.workload_id, row.tags, row.end_ms) == ("a,;b", {"team": "vision"}, 1_759_284_000_000)


def test_two_columns_of_one_meaning(written) -> None:
    """The column with the name itself counts; of two other names neither is guessed."""
    exact = read(written("a.csv", "workload_id,id,gpus,start,end\na,b,1,1759276800,\n"))
    assert [row.workload_id for row in exact.rows] == ["a"]
    unclear = read(written("b.csv", "job,pod,gpus,start,end\na,b,1,1759276800,\n"))
    assert "columns 'job', 'pod' all mean workload_id; --column workload_id=job takes the first" in str(
        unclear.problems[0]
    )
    settled = read(written("c.csv", "job,pod,gpus,start,end\na,b,1,1759276800,\n"), columns={"workload_id": "pod"})
    assert [row.workload_id for row in settled.rows] == ["b"]


def test_a_problem_names_the_column_as_the_file_does(written) -> None:
    """The person who mends the file finds the cell."""
    path = written("a.csv", "job,Anzahl,Begin,end\na,many,yesterday,\n")
    parsed = read(path, columns={"gpus": "Anzahl"})
    assert sorted(problem.source for problem in parsed.problems) == [f"{path}:2:Anzahl", f"{path}:2:Begin"]
