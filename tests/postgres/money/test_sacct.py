"""Slurm's accounting as usage: the traps that its output sets, and a bill that is right."""

import json
import subprocess
import zoneinfo

import pytest

from fakes.processes import BIN, environment
from gpuledger_collector.ingest.files.sacct import (
    COLUMNS,
    gpus_of,
    read_sacct,
    suspended_ms,
    tags_of,
)

START = 1_790_812_800  # 2026-10-01T00:00:00Z


TWO_H100 = "billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=2,mem=64G"


def job(
    number,
    *,
    start=START,
    end=START + 3600,
    tres=TWO_H100,
    name="train",
    account="vision",
    comment="",
    state="COMPLETED",
    suspended="00:00:00",
    submit=START - 60,
):
    cells = [
        number,
        "hpc",
        account,
        "amina",
        "gpu",
        "normal",
        state,
        submit,
        submit,
        start,
        end,
        3600,
        suspended,
        tres,
        "n1",
        comment,
        "",
        name,
    ]
    return "|".join(str(cell) for cell in cells)


def written(tmp_path, *lines):
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        ("cpu=8,gres/gpu:h100=2,gres/gpu=2", (2, "h100")),
        ("gres/gpu=4", (4, "")),
        ("gres/gpu:a100=1,gres/gpu:h100=3", (4, "")),
        ("gres/gpu:a100=1,gres/gpu:h100=3,gres/gpu=4", (4, "")),
        ("cpu=8,mem=1G", (0, "")),
        ("", (0, "")),
    ],
)
def test_gpus_are_counted_once(tres, expected):
    """AllocTRES lists typed and untyped GPUs side by side: adding them up would bill each twice."""
    assert gpus_of(tres) == expected


def test_names_with_bars_states_with_words_and_comments_with_tags(tmp_path):
    """A job's name may hold the separator; `CANCELLED by 0` is CANCELLED; the comment's pairs are
    tags.
    """
    path = written(
        tmp_path, job(7, name="we|ird;name", state="CANCELLED by 0", comment="project=llm;exp=42")
    )
    (row,) = read_sacct(path).rows
    assert (row.job_name, row.state, row.gpu_micro, row.gpu_model) == (
        "we|ird;name",
        "CANCELLED",
        2_000_000,
        "h100",
    )
    assert row.tags == {"project": "llm", "exp": "42", "team": "vision"}
    assert row.pool == "gpu"
    assert tags_of({"comment": "team=speech", "wckey": "*w1", "account": "vision"}) == {
        "team": "speech",
        "wckey": "w1",
    }


def test_waiting_and_cpu_jobs_are_left_out_and_said(tmp_path):
    """Jobs that never started and jobs without GPUs are no usage; running ones have no end."""
    path = written(
        tmp_path,
        "|".join(COLUMNS),
        job(1, start="Unknown", end="Unknown", state="PENDING"),
        job(2, tres="cpu=4"),
        job(3, end="Unknown", state="RUNNING"),
        job(4, tres="cpu=4,gres/shard=2"),
    )
    parsed = read_sacct(path)
    assert [row.end_ms for row in parsed.rows] == [None]
    assert parsed.notes == [
        "1 job not started: left out",
        "1 job without GPUs: left out",
        "1 job with shards or MPS only, which are not billed: left out",
    ]


def test_a_requeued_job_is_two_usages(tmp_path):
    """One id, two submissions: both runs are held time."""
    path = written(
        tmp_path, job(5), job(5, submit=START + 4000, start=START + 4000, end=START + 5000)
    )
    assert len({row.workload_id for row in read_sacct(path).rows}) == 2


def test_suspended_time_is_not_held(tmp_path):
    """An hour with ten minutes of suspension is fifty minutes of GPUs."""
    (row,) = read_sacct(written(tmp_path, job(5, suspended="00:10:00"))).rows
    assert row.end_ms - row.start_ms == 50 * 60_000
    assert [suspended_ms(text) for text in ("1-02:03:04", "05:06", "", "x")] == [
        93_784_000,
        306_000,
        0,
        None,
    ]


def test_line_ends_in_what_users_write_tear_no_row(tmp_path):
    """A comment, or a name, of several lines is one job; a row forged inside a comment is no row."""
    forged = job(666, account="rich", tres="gres/gpu=8")
    path = written(
        tmp_path,
        job(1, comment="team=nlp;\nproject=x"),
        job(2, name="two\nlines\n"),
        job(3, comment=f"x\n{forged}"),
        job(4),
    )
    parsed = read_sacct(path)
    assert parsed.problems == []
    assert [row.workload_id.split("/")[1].split("@")[0] for row in parsed.rows] == [
        "1",
        "2",
        "3",
        "4",
    ]
    assert parsed.rows[0].tags == {"team": "nlp", "project": "x"}
    assert parsed.rows[1].job_name == "two lines"
    assert {row.account for row in parsed.rows} == {"vision"}


def test_a_comment_cannot_say_what_slurm_knows(tmp_path):
    """Account, user, name and place are Slurm's word; tags of these names are dropped."""
    (row,) = read_sacct(written(tmp_path, job(1, comment="account=rich,user=boss,team=nlp"))).rows
    assert row.tags == {"team": "nlp"}


def test_every_bad_row_is_named_with_line_and_reason(tmp_path):
    """Too few columns, instants without zone, an end before the start: all at once."""
    path = written(
        tmp_path,
        "1|2|3",
        job(2, start="2026-10-01T00:00:00"),
        job(3, end=START - 5),
        job(4, suspended="?"),
    )
    said = [str(problem) for problem in read_sacct(path).problems]
    assert len(said) == 4
    assert "jobs.txt:1: has 3 columns" in said[0]
    assert "jobs.txt:2:start" in said[1]
    assert "SLURM_TIME_FORMAT=%s" in said[1]
    assert "jobs.txt:3:end" in said[2]
    assert "jobs.txt:4:suspended" in said[3]


@pytest.mark.slow
def test_local_times_are_read_in_a_zone(tmp_path):
    """The same jobs as with unix seconds; an hour that Berlin has twice is said, one that it has
    not is a bad row.
    """
    local = {
        "submit": "2026-10-01T01:59:00",
        "start": "2026-10-01T02:00:00",
        "end": "2026-10-01T03:00:00",
    }
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    path = written(tmp_path, job(7, **local))
    read = read_sacct(path, zone=berlin)
    assert (read.rows, read.problems) == (read_sacct(written(tmp_path, job(7))).rows, [])
    assert "give --zone, or run sacct with SLURM_TIME_FORMAT=%s" in str(
        read_sacct(written(tmp_path, job(7, **local))).problems[0]
    )
    twice = read_sacct(
        written(tmp_path, job(8, **(local | {"end": "2026-10-25T02:30:00"}))), zone=berlin
    )
    assert twice.rows[0].end_ms == 1_792_888_200_000
    assert (
        "1 instant in an hour that Europe/Berlin has twice: read as the first of the two"
        in twice.notes
    )
    never = read_sacct(
        written(tmp_path, job(9, **(local | {"start": "2026-03-29T02:30:00"}))), zone=berlin
    )
    assert never.rows == []
    assert "jobs.txt:1:start: '2026-03-29T02:30:00' does not exist in Europe/Berlin" in str(
        never.problems[0]
    )


def test_import_and_start_take_the_zone(run, fleet, tmp_path):
    """Both commands, and a zone that is none is refused."""
    path = written(
        tmp_path,
        job(
            7, submit="2025-10-01T01:59:00", start="2025-10-01T02:00:00", end="2025-10-01T03:00:00"
        ),
    )
    for command in (("import", "sacct"), ("start", "--yes")):
        code, out, err = run(*command, path, "--zone", "Europe/Berlin")
        assert code == 0, out + err
    assert fleet.rows("SELECT start_ms, end_ms FROM imported_usage") == [
        (1_759_276_800_000, 1_759_280_400_000)
    ]
    code, _, err = run("import", "sacct", path, "--zone", "Berlin")
    assert (code, "'Berlin' is no zone" in err) == (2, True)


def test_a_months_jobs_become_a_bill(dsn, tmp_path):
    """Two accounts, three jobs: hours and money by team as Slurm counted them; the same file twice
    changes nothing.
    """
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\ngpu,h100,on_demand,3,USD,2025-01-01\n"
    )
    path = written(
        tmp_path, job(1), job(2, end=START + 7200), job(3, account="speech", comment="project=asr")
    )

    def gpuledger(*arguments):
        return subprocess.run(
            [BIN / "gpuledger", *arguments, "--dsn", dsn],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert gpuledger("import", "prices", str(prices)).returncode == 0
    assert "3 added" in gpuledger("import", "sacct", str(path)).stdout
    assert "3 unchanged" in gpuledger("import", "sacct", str(path)).stdout
    answer = gpuledger(
        "chargeback",
        "--from",
        "2026-10-01",
        "--to",
        "2026-10-02",
        "--by",
        "team",
        "--format",
        "json",
    )
    rows = {
        row["team"]: (row["gpu_hours"], row["cost"]) for row in json.loads(answer.stdout)["rows"]
    }
    assert rows == {"vision": ("6.000000", "18.00"), "speech": ("2.000000", "6.00")}
