"""What a table of jobs says of the time that a job held its GPUs is read, or its disagreement
refused with the row.
"""

import re

import pytest

HEADER = "JobID|User|Account|Partition|State|Start|End|{}AllocTRES|NodeList|JobName"
ROW = "{}|amina|vision|gpu|COMPLETED|2026-10-05T08:00:00|2026-10-05T20:00:00|{}gres/gpu=4|n1|train"


def dump(columns, *cells):
    """What sacct prints under its header: a job of 4 GPUs and 12 hours, with more columns, for each
    of these cells.
    """
    names = "".join(f"{name}|" for name in columns)
    rows = [
        ROW.format(at, "".join(f"{cell}|" for cell in row)) for at, row in enumerate(cells, start=1)
    ]
    return "\n".join([HEADER.format(names), *rows]) + "\n"


@pytest.fixture
def start(run, written):
    """Runs `start` with a rate on a file: exit code, standard output, standard error."""

    def command(text, *options, zone="UTC"):
        file = written("jobs.txt", text)
        return run("start", file, "--rate", "2.50", "--yes", "--zone", zone, *options)

    return command


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        (("Elapsed", "Suspended"), ("10:00:00", "02:00:00")),
        (("Suspended",), ("02:00:00",)),
        (("Elapsed",), ("10:00:00",)),
        (("ElapsedRaw",), ("36000",)),
    ],
)
def test_suspended_time_of_a_dump_with_a_header_is_not_billed(start, columns, cells):
    """12 hours of 4 GPUs, suspended for 2: 40 GPU-hours, whichever of the two columns says so."""
    code, out, err = start(dump(columns, cells))
    assert code == 0, err
    assert re.search(r"^total +40\.0 ", out, re.M)
    assert "100.00" in out
    assert "1 job suspended for a time, which is not held: not billed" in err
    assert "(ignored)" not in "".join(
        line for line in out.splitlines() if line.strip().startswith(columns)
    )


@pytest.mark.parametrize(
    ("columns", "cells", "reason"),
    [
        (
            ("Elapsed",),
            ("13:00:00",),
            "jobs.txt:2:End: end - start is 12:00:00, and Elapsed says '13:00:00';",
        ),
        (
            ("Elapsed", "Suspended"),
            ("11:00:00", "02:00:00"),
            (
                "jobs.txt:2:End: end - start less the suspended 2:00:00 is 10:00:00, and Elapsed"
                " says '11:00:00';"
            ),
        ),
        (("Suspended",), ("13:00:00",), "jobs.txt:2:End: Suspended is longer than the job ran"),
        (
            ("Suspended",),
            ("often",),
            "jobs.txt:2:End: 'often' in Suspended is no span such as 1-02:03:04",
        ),
    ],
)
def test_a_disagreement_is_refused_with_the_row(start, columns, cells, reason):
    """Neither of two readings is guessed."""
    code, out, err = start(dump(columns, cells))
    assert code == 2
    assert reason in err
    assert err.count("jobs.txt:2:") == 1
    assert "GPU-hours" not in out


JOBS = "job_id,start,end,gpus,hours,team\na,2026-10-05T08:00:00Z,2026-10-05T20:00:00Z,4,{},vision\n"


@pytest.mark.parametrize("hours", ["12", "12.0", "12.00", "11.5", ""])
def test_a_duration_that_agrees_as_far_as_its_last_digit_is_no_disagreement(start, hours):
    """Rounded or cut off at its last digit; 11.5 differs by more."""
    code, out, err = start(JOBS.format(hours))
    assert code == (2 if hours == "11.5" else 0), err
    assert hours == "11.5" or re.search(r"^total +48\.0 ", out, re.M)


@pytest.mark.parametrize(
    ("column", "gpu_hours"), [("end=end", "48.0"), ("duration_hours=hours", "46.0")]
)
def test_the_person_decides_which_column_counts(start, column, gpu_hours):
    """The refusal names both options, and each does what it says."""
    code, _, err = start(JOBS.format("11.5"))
    assert code == 2
    assert (
        "jobs.txt:2:end: end - start is 12:00:00, and hours says '11.5'; --column end=end bills the"
        " former" in err
    )
    assert "--column duration_hours=hours the latter" in err
    code, out, err = start(JOBS.format("11.5"), "--column", column)
    assert code == 0, err
    assert re.search(rf"^total +{gpu_hours} ", out, re.M)


def test_a_bare_number_without_a_unit_is_not_compared(start):
    """`runtime` may be seconds or anything; the end says it."""
    code, out, err = start(JOBS.replace("hours", "runtime").format("99"))
    assert code == 0, err
    assert re.search(r"^total +48\.0 ", out, re.M)
