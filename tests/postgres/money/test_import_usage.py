"""gpuledger import usage."""

import gzip
import json

from fakes.fleet import DAY

HEADER = "gpus,end,workload_id,start,tag:team,pool\n"
GOOD = (
    HEADER + "0.25,2025-10-01T02:00:00Z,a,2025-10-01T00:00:00Z,vision,\n"
    "2,1759284000.5,b,2025-10-01T02:00:00+02:00,speech,fast\n"
    "1,,c,1759276800,,\n"
)


def stored(fleet) -> list[tuple]:
    return fleet.rows(
        "SELECT external_id, start_ms, end_ms, gpu_micro, pool, tags->>'team' FROM imported_usage u"
        " JOIN workload w ON w.id = u.workload_id ORDER BY 1"
    )


def test_rows_arrive_as_written(run, written, fleet) -> None:
    """Columns in any order, zones, unix seconds, fractions and an open end arrive exactly."""
    code, out, err = run("import", "usage", written("u.csv", GOOD))
    assert code == 0
    assert "'c' has no end and runs since 2025-10-01T00:00:00Z" in err
    assert out.startswith("workloads: 3 added, 0 updated, 0 unchanged")
    october = 1_759_276_800_000
    assert stored(fleet) == [
        ("a", october, october + 7_200_000, 250_000, "imported", "vision"),
        ("b", october, october + 7_200_500, 2_000_000, "fast", "speech"),
        ("c", october, None, 1_000_000, "imported", None),
    ]


def test_twice_changes_nothing(run, written, fleet) -> None:
    """The same file again changes nothing and marks no day."""
    path = written("u.csv", GOOD)
    run("import", "usage", path)
    fleet.connection.execute("DELETE FROM day_recompute")
    code, out, _ = run("import", "usage", path)
    assert code == 0
    assert "0 added, 0 updated, 3 unchanged; no bill changes" in out
    assert fleet.rows("SELECT * FROM day_recompute") == []


def test_known_workload_with_other_values_is_updated(run, written, fleet) -> None:
    """Another end or tag updates the known workload, says how many, and marks the days of both
    versions.
    """
    run("import", "usage", written("u.csv", GOOD))
    fleet.connection.execute("DELETE FROM day_recompute")
    later = GOOD.replace("2025-10-01T02:00:00Z,a", "2025-10-03T02:00:00Z,a").replace(
        "speech", "vision"
    )
    code, out, _ = run("import", "usage", written("v.csv", later))
    assert code == 0
    assert "0 added, 2 updated, 1 unchanged; 3 days" in out
    assert stored(fleet)[0][2] == 1_759_276_800_000 + 2 * DAY + 7_200_000
    assert stored(fleet)[1][5] == "vision"


def test_every_bad_cell_is_named_at_once_and_nothing_is_imported(run, written, fleet) -> None:
    """Each bad cell is named with file, line, column and reason; without --skip-bad nothing is
    imported.
    """
    path = written(
        "bad.csv",
        "workload_id,start,end,gpus,submitted\n"
        "ok,2025-10-01T00:00:00Z,,1,\n"
        ",2025-10-01T00:00:00,2025-10-01,-1,soon\n"
        "x,2025-10-02T00:00:00Z,2025-10-01T00:00:00Z,0.0000001,\n"
        "y,1759276800000,,nan,\n"
        "z,2025-10-01T00:00:00Z,,0\n"
        'ok,2025-10-01T00:00:00Z,,"2",\n'
        "w,,,1e2,\n",
    )
    code, out, err = run("import", "usage", path)
    assert (code, out) == (2, "")
    said = [line.removeprefix(f"{path}:").split(": ")[0] for line in err.splitlines()]
    assert said[:-1] == [
        "3:end",
        "3:gpus",
        "3:start",
        "3:submitted",
        "3:workload_id",
        "4:end",
        "4:gpus",
        "5:gpus",
        "5:start",
        "6",
        "7:workload_id",
        "8:start",
    ]
    assert "6 bad rows, nothing was imported" in err
    assert stored(fleet) == []


def test_skip_bad_imports_the_good_rows(run, written, fleet) -> None:
    """--skip-bad leaves out exactly the bad rows and says how many."""
    code, _, err = run(
        "import", "usage", written("u.csv", GOOD + "x,,d,2025-10-01T00:00:00Z,,\n"), "--skip-bad"
    )
    assert code == 0
    assert "1 bad row left out" in err
    assert [row[0] for row in stored(fleet)] == ["a", "b", "c"]


def test_dry_run_changes_nothing(run, written, fleet) -> None:
    """--dry-run says what would be done and does none of it."""
    code, out, _ = run("import", "usage", written("u.csv", GOOD), "--dry-run")
    assert code == 0
    assert "3 added" in out
    assert stored(fleet) == []
    assert fleet.rows("SELECT * FROM workload") == []


def test_missing_columns_and_files_are_one_sentence(run, written, tmp_path) -> None:
    """A missing column names the nearest one; a missing, a truncated and a foreign file get a
    sentence each.
    """
    code, _, err = run("import", "usage", written("u.csv", "workload_id,start,halt,gpuz\n"))
    assert code == 2
    assert err.splitlines()[0].endswith(
        "u.csv:1: no column is known as gpus or end; there are 'workload_id', 'start', 'halt',"
        " 'gpuz'; --column gpus=gpuz --column end=NAME says which it is"
    )
    assert run("import", "usage", tmp_path / "none.csv")[0] == 2
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(GOOD.encode())[:-12])
    code, _, err = run("import", "usage", cut)
    assert code == 2
    assert "not a whole gzip file" in err
    mixed = tmp_path / "mixed.csv"
    mixed.write_bytes(
        HEADER.encode() + "1,,naïve,1,,\n".encode() + "2,,café,1,,\n".encode("latin-1")
    )
    code, _, err = run("import", "usage", mixed)
    assert code == 2
    assert "mixed.csv:3: is UTF-8 text up to here" in err


def test_gzip_and_empty_starts(run, tmp_path, fleet) -> None:
    """A gzipped file is read as it is; --empty-start says what a row without a start means."""
    path = tmp_path / "trace.csv.gz"
    rows = b"p1,0.25,1759276800,1759284000,qos-LS\np2,1,,1759280400,qos-BE\n"
    path.write_bytes(gzip.compress(b"workload_id,gpus,start,end,tag:team\n" + rows))
    code, _, err = run("import", "usage", path)
    assert code == 2
    assert "trace.csv.gz:3:start: is empty" in err
    code, _, err = run("import", "usage", path, "--empty-start", "skip", "--pool", "t")
    assert code == 0
    assert "1 row without a start: left out" in err
    assert stored(fleet) == [("p1", 1_759_276_800_000, 1_759_284_000_000, 250_000, "t", "qos-LS")]
    code, _, _ = run(
        "import", "usage", path, "--empty-start", "2025-09-30T00:00:00Z", "--pool", "t"
    )
    assert code == 0
    assert stored(fleet)[1][1] == 1_759_276_800_000 - DAY


def test_chargeback_of_imported_usage(run, written, fleet) -> None:
    """Two hours of a quarter, two hours and half a second of two, an open end until now: rated to
    the micro-unit.
    """
    run(
        "import",
        "prices",
        written(
            "p.csv",
            "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n"
            "imported,,on_demand,3.6,USD,2025-01-01\n",
        ),
    )
    run("import", "usage", written("u.csv", GOOD))
    code, out, err = run(
        "chargeback",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-03",
        "--by",
        "team",
        "--format",
        "json",
        "--exit-code",
    )
    assert code == 1
    assert "no inventory" in err
    rows = {row["team"]: row for row in json.loads(out)["rows"]}
    assert rows["vision"]["cost_micro"] == 1_800_000
    assert rows["(unattributed)"]["cost"] == "172.80"
    assert rows["(unattributed)"]["gpu_hours_held_idle"] is None
    assert (
        rows["(unpriced)"] | {"cost": None, "gpu_ns": 2_000_000 * 7_200_500} == rows["(unpriced)"]
    )


def test_a_month_is_those_days(run, written) -> None:
    """--period is the days of a month; a month that is none, and half of an answer, are one
    sentence each.
    """
    run(
        "import",
        "prices",
        written(
            "p.csv",
            "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n"
            "imported,,on_demand,3.6,USD,2025-01-01\n",
        ),
    )
    run("import", "usage", written("u.csv", GOOD))
    whole = run("chargeback", "--from", "2025-10-01", "--to", "2025-11-01", "--format", "json")
    assert run("chargeback", "--period", "2025-10", "--format", "json") == whole
    assert "vision" in whole[1]
    assert run("chargeback", "--period", "2025-13")[::2] == (
        2,
        "'2025-13' is not a month; write it as 2026-10",
    )
    for half in (["--period", "2025-10", "--from", "2025-10-01"], ["--to", "2025-11-01"]):
        code, out, err = run("chargeback", *half)
        assert (code, out) == (2, "")
        assert err.startswith("give ")


def facts(fleet) -> list[tuple]:
    return fleet.rows(
        "SELECT external_id, user_name, gpu_model, u.pool, tags FROM imported_usage u JOIN workload"
        " w ON w.id = u.workload_id ORDER BY 1"
    )


def test_a_column_that_a_file_lacks_says_nothing(run, written, fleet) -> None:
    """Known values stay; an empty cell of a column is a value, and so is a pool given by an option."""
    header = "workload_id,start,end,gpus,user,gpu_model,pool,team,tag:exp\n"
    full = header + "a,1759276800,1759284000,1,amina,H100,fast,vision,7\n"
    run("import", "usage", written("full.csv", full))
    fleet.connection.execute("DELETE FROM day_recompute")
    few = written("few.csv", "workload_id,start,end,gpus\na,1759276800,1759284000,1\n")
    for command in (("import", "usage", few), ("start", few, "--yes")):
        code, out, err = run(*command)
        assert code == 0, err
        assert (
            "0 added, 0 updated, 1 unchanged; no bill changes; 1 row kept what their file has no"
            " column for" in out
        )
        assert facts(fleet) == [("a", "amina", "H100", "fast", {"team": "vision", "exp": "7"})]
    longer = written(
        "longer.csv", "workload_id,start,end,gpus,user,team\na,1759276800,1759287600,1,,nlp\n"
    )
    assert "1 updated" in run("import", "usage", longer)[1]
    assert facts(fleet) == [("a", None, "H100", "fast", {"team": "nlp", "exp": "7"})]
    assert "1 updated" in run("import", "usage", few, "--pool", "slow")[1]
    assert facts(fleet)[0][3] == "slow"
    empty = written(
        "empty.csv",
        "workload_id,start,end,gpus,team,pool,gpu_model\na,1759276800,1759284000,1,,,\n",
    )
    assert "1 updated" in run("import", "usage", empty)[1]
    assert facts(fleet) == [("a", None, "", "imported", {"exp": "7"})]
