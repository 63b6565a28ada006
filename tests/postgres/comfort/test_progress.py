"""Progress on long work: on a terminal and on standard error only, and never in the way of what is
printed.
"""

import io

import pytest
from typer.testing import CliRunner

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.accounting import import_progress
from gpuledger_collector.cli import build, progress
from gpuledger_collector.ingest.files.sacct import COLUMNS

ROWS = "workload_id,start,end,gpus,tag:team\n1,2025-10-01T00:00:00Z,2025-10-01T01:00:00Z,2,vision\n"


class Terminal(io.StringIO):
    """Standard error as a terminal has it."""

    def isatty(self):
        return True


@pytest.fixture
def told(monkeypatch):
    """What bars said, each as its words and the steps that it was told of."""
    said = []

    class Spy:
        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            said[-1][1].append("gone")

        def add_task(self, what, total):
            said.append((what, []))
            return len(said) - 1

        def update(self, task, completed, total):
            said[task][1].append((completed, total))

    monkeypatch.setattr("rich.progress.Progress", Spy)
    monkeypatch.setattr(progress, "sys", type("Sys", (), {"stderr": Terminal()}))
    return said


def test_in_a_pipe_nothing_is_written(capsys):
    """Not a byte, on either stream; every item comes, in order."""
    assert list(progress.show_progress("counting", "abc", 3)) == ["a", "b", "c"]
    with progress.bar("a pipe") as step, progress.busy("another"):
        step(1, 2)
    assert capsys.readouterr() == ("", "")


def test_reading_a_file_has_a_share(told, tmp_path, monkeypatch):
    """Of its lines, each of which is read twice; by `start` and `import usage` alike."""
    monkeypatch.setattr(import_progress, "ROWS_A_STEP", 2)
    path = tmp_path / "u.csv"
    head, row = ROWS.splitlines()
    path.write_text(
        "\n".join([head, *(row.replace("1,", f"{number},", 1) for number in range(5))]) + "\n"
    )
    for command in (["import", "usage"], ["start"]):
        said = CliRunner().invoke(build(), [*command, str(path), "--dsn", "dbname=none"])
        assert said.exit_code
        what, steps = told.pop(0)
        assert what == "reading u.csv"
        assert steps == [(0, 12), (2, 12), (4, 12), (6, 12), (8, 12), (10, 12), "gone"]
        told.clear()


FILES = {
    "usage": [ROWS.splitlines()[1].replace("1,", f"{number},", 1) for number in range(4)],
    "sacct": [
        f"{number}|c|nlp|ann|gpu|normal|COMPLETED|1759276800|1759276800|1759276800|1759280400|3600|00:00:00|"
        "gres/gpu=1|n1|||job"
        for number in range(4)
    ],
    "prices": [f"p{number},,on_demand,2,USD,2025-01-01T00:00:00Z" for number in range(4)],
    "inventory": [f"n1,GPU-{number},H100,train,2025-10-01T00:00:00Z," for number in range(4)],
    "samples": [f"2025-10-01T00:0{minute}:00Z,GPU-1,0.5" for minute in range(4)],
    "queue": [f"2025-10-01T00:0{minute}:00Z,{minute},1" for minute in range(4)],
    "shares": [
        "root|root||1|",
        *(f"team{number}|root||1|gres/gpu={number}" for number in range(1, 4)),
    ],
    "bill": (
        [
            "aws,2025-10-01T00:00:00Z,2025-10-02T00:00:00Z,2025-10-01T00:00:00Z,2025-11-01T00:00:00Z,Usage,USD,1"
        ]
        * 4
    ),
}
"""What an import reads, four rows of each kind; the headers are below."""
HEADERS = {
    "usage": ROWS.splitlines()[0],
    "sacct": "|".join(COLUMNS),
    "prices": "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from",
    "inventory": "node,uuid,gpu_model,pool,in_at,out_at",
    "samples": "ts,uuid,gpu_utilization_ratio",
    "queue": "at,workload_id,gpus",
    "shares": "Account|ParentName|User|Share|GrpTRES",
    "bill": (
        "ProviderName,ChargePeriodStart,ChargePeriodEnd,BillingPeriodStart,BillingPeriodEnd,ChargeCategory,"
        "BillingCurrency,BilledCost"
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_import_reads_and_writes_with_a_share(fleet, run, tmp_path, told, monkeypatch, kind):
    """It begins with nothing, only grows, and writing ends with the whole."""
    monkeypatch.setattr(import_progress, "ROWS_A_STEP", 2)
    path = tmp_path / f"{kind}.csv"
    path.write_text("\n".join([HEADERS[kind], *FILES[kind]]) + "\n")
    pool = ["--pool", "train"] if kind == "shares" else []
    code, _, err = run("import", kind, path, *pool)
    assert code == 0, err
    (reading, read), (writing, written) = told
    assert (reading, writing.partition(" ")[0]) == (f"reading {path.name}", "writing")
    for steps in (read, written):
        *shares, gone = steps
        assert (shares[0][0], gone) == (0, "gone")
        assert len(shares) > 2
        assert shares == sorted(shares)
        assert len({total for _, total in shares}) == 1
    last, total = written[-2]
    assert last == total > 0


def test_a_recording_is_read_with_a_share(told, tmp_path, monkeypatch):
    """JSON lines count as they are, also where each holds the samples of many accelerators."""
    monkeypatch.setattr(import_progress, "ROWS_A_STEP", 2)
    path = tmp_path / "recording.jsonl"
    path.write_text('{"ts": 1759276800, "samples": [{"uuid": "GPU-1", "values": {}}]}\n' * 5)
    assert (
        CliRunner()
        .invoke(build(), ["import", "samples", str(path), "--dsn", "dbname=none"])
        .exit_code
    )
    assert told[0] == ("reading recording.jsonl", [(0, 5), (2, 5), (4, 5), "gone"])


def test_writing_has_a_share_of_rows_and_stages(fleet, run, tmp_path, told, monkeypatch):
    """Rows are told of while they are copied, then each stage that all have passed; it only grows,
    up to the end.
    """
    monkeypatch.setattr(import_progress, "ROWS_A_STEP", 2)
    samples = [
        "ts,uuid,gpu_utilization_ratio",
        *(f"2025-10-01T00:0{minute}:00Z,GPU-1,0.5" for minute in range(5)),
    ]
    (tmp_path / "samples.csv").write_text("\n".join(samples) + "\n")
    code, _, err = run("import", "samples", tmp_path / "samples.csv")
    assert code == 0, err
    (steps,) = [steps for what, steps in told if what == "writing samples"]
    assert steps == [(0, 15), (2, 15), (4, 15), (5, 15), (10, 15), (15, 15), "gone"]


def test_over_tells_each_step(told):
    """None of three is done before the first; all three are in the end."""
    assert list(progress.show_progress("counting", "abc", 3)) == ["a", "b", "c"]
    assert told == [("counting", [(0, 3), (1, 3), (2, 3), (3, 3), "gone"])]


def test_long_work_shows_how_far_it_is(fleet, run, tmp_path, told):
    """Import, statements and packing say what they do; what they print stays the same, and so do
    their files.
    """
    (tmp_path / "usage.csv").write_text(ROWS)
    code, out, err = run("import", "usage", tmp_path / "usage.csv")
    assert (code, out.startswith("workloads: 1 added")) == (0, True), err
    assert [what for what, _ in told] == ["reading usage.csv", "writing workloads"]
    assert told[1][1] == [
        (0, 5),
        (1, 5),
        (2, 5),
        (3, 5),
        (4, 5),
        (5, 5),
        "gone",
    ], "one row passes five stages"
    told.clear()
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, DAY)
    fleet.workload(2, team="speech")
    fleet.evidence([Held(1, 2, 0, HOUR, busy=HOUR)])
    code, _, err = run("statement", "--all", "--period", "2025-10", "--dir", tmp_path / "pages")
    assert code == 0, err
    (steps,) = [steps for what, steps in told if what == "writing statements"]
    assert steps == [(0, 2), (1, 2), (2, 2), "gone"]
    told.clear()
    assert run("db", "pack")[0] == 0
    assert [what for what, _ in told] == ["packing"]
