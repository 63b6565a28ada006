"""`gpuledger anomalies --series`: one row an instant, unknown left empty, bad rows refused with
their line.
"""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain


def run(*arguments):
    result = CliRunner().invoke(build(), ["anomalies", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        sentence, code = explain(result.exception)
        return code, result.stdout, result.stderr + sentence
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def spend(tmp_path):
    """Twenty days of two series by the hour: one runs away at hour 400, the other has six hours of
    no data.
    """
    lines = ["ts,series,value"]
    for hour in range(480):
        at = f"2026-10-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z"
        lines.append(f"{at},wild,{10 + hour % 5 / 10 + (20 if hour >= 400 else 0)}")
        lines.append(f"{at},calm,{'' if 420 <= hour < 426 else 7 + hour % 3 / 10}")
    path = tmp_path / "spend.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_csv_has_a_row_for_each_instant_with_the_columns_of_the_contract(spend):
    """Instants as they came; value, band and score empty where unknown; flags only in the series
    that ran away.
    """
    code, out, _ = run("--series", spend, "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["ts", "series", "value", "expected", "lower", "upper", "score", "flag"]
    assert len(rows) == 960
    wild = [row for row in rows if row["series"] == "wild"]
    assert [row["flag"] for row in wild[:400]] == ["0"] * 400
    assert "1" in [row["flag"] for row in wild[400:403]]
    assert wild[400]["ts"] == "2026-10-17T16:00:00Z"
    calm = [row for row in rows if row["series"] == "calm"]
    assert {row["flag"] for row in calm} == {"0"}
    assert {(row["value"], row["score"]) for row in calm[420:426]} == {("", "")}
    assert all(
        float(row["lower"]) <= float(row["expected"]) <= float(row["upper"]) for row in wild[100:]
    )


def test_table_and_json(spend):
    """The table has a row per episode; JSON the rows of the CSV, null where it is empty."""
    code, out, _ = run("--series", spend)
    assert code == 0
    assert "1 episode in 2 series" in out
    code, out, _ = run("--series", spend, "--format", "json")
    rows = json.loads(out)
    assert len(rows) == 960
    assert rows[0]["expected"] is None


def test_usage_beside_the_cost_tells_a_dearer_rate(tmp_path):
    """A rate that rises by a fifth is an episode where the usage is known; in bursts of cost alone
    it is not seen.
    """
    rng = np.random.default_rng(4)
    used = 20 + 15 * rng.pareto(2.5, 30 * 24)
    lines = {False: ["ts,series,value"], True: ["ts,series,value,usage"]}
    for hour, gpus in enumerate(used):
        cost = gpus * (2.0 if hour < 500 else 2.4)
        row = f"{1_790_000_000 + 3600 * hour},team,{cost}"
        lines[False].append(row)
        lines[True].append(f"{row},{gpus}")
    flags = {}
    for has_usage, text in lines.items():
        path = tmp_path / f"{has_usage}.csv"
        path.write_text("\n".join(text) + "\n")
        code, out, _ = run("--series", path, "--format", "json")
        assert code == 0
        flags[has_usage] = [row["flag"] for row in json.loads(out)]
    assert not any(flags[False][500:503])
    assert flags[True][500] == 1
    path = tmp_path / "bad.csv"
    path.write_text("ts,series,value,usage\n2026-10-01T00:00:00Z,a,1,much\n")
    code, _, err = run("--series", path)
    assert code == 2
    assert f"{path}:2:usage" in err


def test_a_bad_row_is_refused_with_its_line(tmp_path):
    """Exit 2 and one sentence with file, line and column."""
    path = tmp_path / "bad.csv"
    path.write_text("ts,series,value\n2026-10-01T00:00:00Z,a,1\n2026-10-01T01:00:00Z,a,much\n")
    code, _, err = run("--series", path)
    assert code == 2
    assert f"{path}:3:value" in err
