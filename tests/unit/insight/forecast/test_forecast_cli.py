"""gpuledger forecast --series as a planner would call it."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuledger_collector.cli import main


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["gpuledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


def write(path, rows, header="ts,series,value"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def week(write_at, name="a", hours=24 * 9):
    start = datetime(2026, 3, 1, tzinfo=UTC)
    return [f"{write_at(start + timedelta(hours=i))},{name},{20 + i % 24}" for i in range(hours)]


@pytest.mark.parametrize(
    ("write_at", "first"),
    [
        (lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"), "2026-03-10T00:00:00Z"),
        (lambda at: at.strftime("%Y-%m-%d %H:%M:%S"), "2026-03-10 00:00:00"),
        (lambda at: str(int(at.timestamp())), "1773100800"),
        (
            lambda at: (at + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S") + "+02:00",
            "2026-03-10T02:00:00+02:00",
        ),
    ],
    ids=["zulu", "plain", "unix", "offset"],
)
def test_the_contract_of_the_csv(call, tmp_path, write_at, first):
    """The output has the agreed columns, starts one step after the end, and writes instants as the
    input does.
    """
    code, out, _ = call(
        "forecast",
        "--series",
        write(tmp_path / "s.csv", week(write_at)),
        "--horizon",
        "24h",
        "--format",
        "csv",
    )
    rows = list(csv.reader(io.StringIO(out)))
    assert code == 0
    assert rows[0] == ["ts", "series", "mean", "q0.1", "q0.5", "q0.9", "q0.95"]
    assert len(rows) == 25
    assert rows[1][:2] == [first, "a"]
    numbers = [[float(cell) for cell in row[3:]] for row in rows[1:]]
    assert all(row == sorted(row) and row[0] >= 0 for row in numbers)


def test_standard_input_is_read_as_a_file_is(call, tmp_path, monkeypatch):
    """`-` is standard input; a byte order mark at its beginning is no part of the header."""
    path = write(tmp_path / "s.csv", week(lambda at: at.isoformat()))
    options = ("--horizon", "3h", "--format", "csv")
    piped = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + Path(path).read_bytes()))
    monkeypatch.setattr("sys.stdin", piped)
    assert call("forecast", "--series", "-", *options) == call(
        "forecast", "--series", path, *options
    )


def test_each_series_goes_on_from_its_own_end(call, tmp_path):
    """Two series with other ends and other steps each get the horizon after their own last instant."""
    rows = [f"{3600 * i},hourly,{i % 7}" for i in range(200)] + [
        f"{1800 * i},half,{i % 5}" for i in range(100)
    ]
    code, out, _ = call(
        "forecast",
        "--series",
        write(tmp_path / "s.csv", rows),
        "--horizon",
        "6h",
        "--format",
        "csv",
    )
    found = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [int(row["ts"]) for row in found if row["series"] == "hourly"] == [
        3600 * (199 + k) for k in range(1, 7)
    ]
    assert [int(row["ts"]) for row in found if row["series"] == "half"] == [
        1800 * (99 + k) for k in range(1, 13)
    ]


def test_json_tells_the_skill_and_the_naive_twin(call, tmp_path):
    """JSON has per series the skill, the models that count, and the naive forecast beside ours."""
    code, out, _ = call(
        "forecast",
        "--series",
        write(tmp_path / "s.csv", week(lambda at: at.isoformat())),
        "--format",
        "json",
    )
    entry = json.loads(out)[0]
    assert code == 0
    assert entry["skill"] > 0.5
    assert sum(entry["models"].values()) == pytest.approx(1, abs=0.001)
    assert set(entry["points"][0]["naive"]) == {"q0.1", "q0.5", "q0.9", "q0.95"}


def test_short_series_are_named_on_stderr(call, tmp_path):
    """A series with three values is forecast, and standard error says what the band is worth."""
    code, out, err = call(
        "forecast", "--series", write(tmp_path / "s.csv", ["0,new,1", "3600,new,2", "7200,new,2"])
    )
    assert code == 0
    assert "new" in out
    assert "series 'new' has only 3 known values" in err


def test_a_series_without_values_is_a_finding(call, tmp_path):
    """A series whose values are all empty gets no rows, a sentence, and exit code 1 when asked for."""
    code, out, err = call(
        "forecast",
        "--series",
        write(tmp_path / "s.csv", ["0,a,1", "3600,a,2", "0,b,"]),
        "--format",
        "csv",
        "--exit-code",
    )
    assert code == 1
    assert ",b," not in out
    assert "series 'b' has no known value" in err


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        (["0,a,1", "3600,a,-2"], "ts,series,value", "s.csv:3:value: '-2' is not a number"),
        (["0,a,1", "3600,a,many"], "ts,series,value", "s.csv:3:value: 'many' is not a number"),
        (["yesterday,a,1"], "ts,series,value", "s.csv:2:ts: 'yesterday' is not an instant"),
        (["0,a"], "ts,series", "s.csv:1: the column 'value' is missing"),
        ([], "ts,series,value", "s.csv:2: there are no rows"),
        (
            ["0,a,1", "3600,a,1", "3600,a,2"],
            "ts,series,value",
            "s.csv:4:ts: series 'a' has this instant twice",
        ),
        (
            ["0,a,1", "3600,a,1", "7200,a,2", "9000,a,2"],
            "ts,series,value",
            "s.csv:5:ts: series 'a' is not evenly spaced",
        ),
        (["0,a,1", "3600,a,1,9"], "ts,series,value", "s.csv:3: 4 fields where the header names 3"),
        (["0,a,1,9"], "ts,series,value", "s.csv:2: more fields"),
    ],
)
def test_bad_rows_are_refused_with_their_line(call, tmp_path, rows, header, said):
    """Bad input ends with 2 and one sentence that names file, line and column; nothing goes to
    standard output.
    """
    code, out, err = call("forecast", "--series", write(tmp_path / "s.csv", rows, header))
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("horizon", ["soon", "0h", "1m", "900d"])
def test_a_horizon_that_is_none_is_refused(call, tmp_path, horizon):
    """A horizon that is not a length, shorter than a step or beyond reason ends with 2 and names
    the option.
    """
    path = write(tmp_path / "s.csv", ["0,a,1", "3600,a,2"])
    code, _, err = call("forecast", "--series", path, "--horizon", horizon)
    assert code == 2
    assert "--horizon" in err


def test_a_missing_file_is_one_sentence(call, tmp_path):
    """A file that is not there ends with 2 and its name."""
    code, _, err = call("forecast", "--series", tmp_path / "none.csv")
    assert code == 2
    assert "none.csv: No such file" in err
