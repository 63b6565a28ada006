"""A job is billed once, by whichever source it came first: another kind of source is refused with
the choice.
"""

import pytest

HOUR = 3600
DAY = 24 * HOUR
START = 1_790_812_800  # 2026-10-01T00:00:00Z
TWO_H100 = "cpu=8,gres/gpu:h100=2,gres/gpu=2"
PRICES = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n,,on_demand,2.50,USD,2025-01-01\n"


def accounting(*jobs, partition="gpu", suspended="00:00:00"):
    """What sacct prints for `import sacct`: (number, hour it starts, hours it runs, or None)."""
    lines = []
    for number, begin, hours in jobs:
        start = START + int(begin * HOUR)
        end = "Unknown" if hours is None else start + int(hours * HOUR)
        lines.append(
            f"{number}|hpc|vision|amina|{partition}|normal|COMPLETED|{start}|{start}|{start}|{end}|0|{suspended}|"
            f"{TWO_H100}|n1|||train"
        )
    return "\n".join(lines) + "\n"


def table(*jobs, partition="gpu", shift=0):
    """The same jobs as a dump with a header."""
    lines = ["JobID,Start,End,AllocTRES,Account" + (",Partition" if partition else "")]
    for number, begin, hours in jobs:
        start = START + int((begin + shift) * HOUR)
        end = "" if hours is None else start + int(hours * HOUR)
        lines.append(
            f'{number},{start},{end},"{TWO_H100}",vision' + (f",{partition}" if partition else "")
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def imported(run, written):
    """Imports what sacct printed, or a table: exit code, standard output, standard error."""
    assert run("import", "prices", written("prices.csv", PRICES))[0] == 0

    def bring(kind, text, *options):
        return run("import", kind, written(f"{kind}.txt", text), *options)

    return bring


@pytest.fixture
def gpu_hours(run):
    """GPU-hours of September to November."""

    def total():
        code, out, err = run(
            "chargeback",
            "--from",
            "2026-09-01",
            "--to",
            "2026-12-01",
            "--by",
            "team",
            "--format",
            "csv",
        )
        assert code == 0, err
        return sum(float(line.split(",")[1]) for line in out.splitlines()[1:])

    return total


TWICE = {
    "an array, by JobID and by JobIDRaw": (accounting((1005, 8, 4)), table(("1004_1", 8, 4))),
    "a job that was suspended": (accounting((7, 8, 4), suspended="00:30:00"), table((7, 8, 4))),
    "a requeued job": (accounting((7, 8, 2), (7, 11, 2)), table((7, 8, 2), (7, 11, 2))),
    "a table read in another zone": (accounting((7, 0, 1)), table((7, 0, 1), shift=-2)),
    "a job that still runs": (accounting((7, 8, None)), table((7, 8, None))),
    "a table without a pool": (accounting((1005, 8, 4)), table(("1004_1", 8, 4), partition="")),
}


@pytest.mark.parametrize("case", TWICE)
@pytest.mark.parametrize("first", ["sacct", "usage"])
def test_a_job_is_refused_that_another_source_brought(imported, case, first):
    """Whatever its number, start and end are there, and in both orders; the choice is stated in one
    sentence.
    """
    texts = dict(zip(("sacct", "usage"), TWICE[case], strict=True))
    second = "usage" if first == "sacct" else "sacct"
    assert imported(first, texts[first])[0] == 0
    code, out, err = imported(second, texts[second])
    assert (code, out) == (2, "")
    assert "would be billed twice" in err
    assert "--replace" in err
    assert "--also" in err
    code, out, _ = imported(first, texts[first])
    assert (code, "unchanged" in out) == (0, True)


def test_also_bills_both_and_an_update_needs_it_no_more(imported, gpu_hours):
    """Different GPUs: both count. A later end of a job that is known is no second source."""
    assert imported("sacct", accounting((1005, 8, 4)))[0] == 0
    assert imported("usage", table(("1004_1", 8, 4)), "--also")[0] == 0
    assert gpu_hours() == 16
    code, out, err = imported("usage", table(("1004_1", 8, 5)))
    assert (code, "1 updated" in out) == (0, True), err
    assert gpu_hours() == 18


def test_replace_takes_the_time_of_the_file_and_nothing_else(imported, gpu_hours, fleet):
    """A dump from the 3rd on replaces the jobs that it knows, also the one that began before;
    earlier ones stay.
    """
    day = 24
    by_table = table(
        ("1_1", 8, 4), ("1_2", day + 8, 4), ("1_3", 2 * day - 2, 6), ("1_4", 2 * day + 8, 4)
    )
    assert imported("usage", by_table)[0] == 0
    assert gpu_hours() == 36
    by_sacct = accounting((2, 2 * day - 2, 6), (3, 2 * day + 8, 4), suspended="00:30:00")
    assert imported("sacct", by_sacct)[0] == 2
    dry = imported("sacct", by_sacct, "--replace", "--dry-run")
    assert (dry[0], "2 workloads of another source removed" in dry[1]) == (0, True)
    assert gpu_hours() == 36
    code, out, err = imported("sacct", by_sacct, "--replace")
    assert (code, "2 workloads of another source removed" in out) == (0, True), err
    assert gpu_hours() == 36 - 2
    removed = fleet.rows(
        "SELECT subject FROM audit WHERE what = 'usage' AND after IS NULL ORDER BY 1"
    )
    assert removed == [("1_3",), ("1_4",)]
    code, out, err = imported("sacct", by_sacct)
    assert (code, "2 unchanged" in out) == (0, True), err


def test_other_days_and_other_pools_are_no_second_source(imported):
    """A table of October and the accounting of August, or of another pool, are different usage."""
    assert imported("usage", table((1, 8, 4)))[0] == 0
    assert imported("sacct", accounting((1, -40 * 24, 4)))[0] == 0
    other = accounting((2, 8, 4), partition="a100").replace("|n1|", "|n9|")
    assert imported("sacct", other)[0] == 0


def test_usage_of_before_the_column_is_known_by_its_ids(imported, fleet):
    """A ledger that did not record sources tells them by the form of its ids."""
    assert imported("sacct", accounting((1005, 8, 4)))[0] == 0
    fleet.connection.execute("UPDATE imported_usage SET source = NULL")
    assert imported("usage", table(("1004_1", 8, 4)))[0] == 2
    assert imported("sacct", accounting((1005, 8, 4), (1006, 9, 4)))[0] == 0


def test_a_further_run_of_before_is_of_slurm_s_accounting(imported, fleet):
    """Runs of a job that was requeued without a new submission have its id and their start."""
    assert imported("sacct", accounting((1005, 8, 4)))[0] == 0
    fleet.connection.execute("UPDATE imported_usage SET source = NULL")
    fleet.connection.execute("UPDATE workload SET external_id = external_id || '@1790870400'")
    assert imported("sacct", accounting((1006, 9, 4)))[0] == 0
    assert imported("usage", table(("1006_1", 8, 4)))[0] == 2


def test_what_no_id_tells_refuses_nothing_and_is_said_once(imported, fleet):
    """A further run of NAMESPACE/NAME looks like a job of Slurm's accounting; its own file tells
    what it is.
    """
    pod = table(("vision/train", 8, 2), ("vision/train", 11, 2))
    assert imported("usage", pod)[0] == 0
    fleet.connection.execute("UPDATE imported_usage SET source = NULL")
    code, out, err = imported("sacct", accounting((1005, 12, 4)))
    assert (code, "table of jobs" in err) == (2, True), (out, err)
    fleet.connection.execute(
        "DELETE FROM imported_usage WHERE start_ms < %s", ((START + 11 * HOUR) * 1000,)
    )
    for kind, text in (("sacct", accounting((1005, 12, 4))), ("usage", table((7, 8, 4)))):
        code, out, err = imported(kind, text, "--dry-run")
        assert (code, err) == (0, "")
        assert (
            out.count(
                "beside 1 workload of its time that an earlier version imported from an unknown"
                " source"
            )
            == 1
        )
    code, out, err = imported("sacct", accounting((1005, 12, 4)), "--replace", "--dry-run")
    assert (code, "removed" in out, "unknown source" in out) == (0, False, True), err
    code, out, err = imported("usage", table(("vision/train", 11, 2)))
    assert (code, "unknown source" in out) == (0, False), err
    assert fleet.rows("SELECT source FROM imported_usage") == [("table",)]
    assert imported("sacct", accounting((1005, 12, 4)))[0] == 2


def test_replace_and_also_exclude_each_other(imported):
    """One of the two."""
    code, _, err = imported("usage", table((1, 8, 4)), "--replace", "--also")
    assert (code, "either --replace or --also" in err) == (2, True)


def test_usage_without_a_pool_beside_measured_gpus_is_refused(imported, fleet):
    """Nobody says that they are other GPUs; named, their pool lets measured time take the place of
    the file's.
    """
    fleet.capacity(1, 0, pool="default", node="n7")
    code, _, err = imported("usage", table((1, 8, 4), partition=""))
    assert code == 2
    assert "measured in pool default" in err
    assert "--pool default" in err
    assert imported("usage", table((1, 8, 4), partition=""), "--pool", "default")[0] == 0
    assert imported("usage", table((2, 8, 4), partition=""), "--also")[0] == 0
    assert imported("usage", table((3, 8, 4), partition="a100"))[0] == 0
    code, _, err = imported("sacct", accounting((9, 8, 4)).replace("|n1|", "|n7|"), "--replace")
    assert (code, "usage of n7 in pool gpu" in err) == (2, True)
