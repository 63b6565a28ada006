"""Real traces through the real command line: imported, priced, charged, and compared with sums made
another way.

The comparison uses pandas and numpy on the files themselves: interval arithmetic over whole
columns, one hour at a time, and shares no code with the product.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fakes.postgres import dsn, postgres

__all__ = ["dsn", "postgres"]

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"
TRACES = SHARED / "data" / "traces"
VALIDATOR = SHARED / "judges" / "run_focus_validator.sh"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the traces of ../shared/data are not here"),
]

START, END = pd.Timestamp("2025-10-01T00:00:00Z"), pd.Timestamp("2025-11-01T00:00:00Z")
CUT = pd.Timestamp("2025-10-17T12:30:00Z")
PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from
dlrm,,on_demand,2.49,USD,2025-01-01
dlrm,,on_demand,1.999,USD,2025-10-17T12:30:00Z
openb,,on_demand,1.237,EUR,2025-01-01
"""
DLRM = ("--pool", "dlrm", "--empty-start", "2025-10-01T00:00:00Z")
OPENB = ("--pool", "openb", "--empty-start", "skip")
Command = Callable[..., str]


@pytest.fixture
def gpuledger(dsn: str, tmp_path: Path) -> Command:
    """Runs the installed command on a database of the test's own; what it printed."""
    program = Path(sys.executable).with_name("gpuledger")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GPULEDGER_")
    }

    def command(*arguments: str | Path) -> str:
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            env=environment | {"GPULEDGER_DSN": dsn},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    book = tmp_path / "prices.csv"
    book.write_text(PRICES)
    command("import", "prices", book)
    return command


@pytest.fixture
def dlrm_usage(tmp_path: Path) -> Path:
    """The DLRM trace as a usage file: its times count seconds from the start of October."""
    trace = pd.read_csv(TRACES / "alibaba_dlrm_2025_jobs.csv.gz", dtype=str)
    times = {"start": trace.start_s, "end": trace.end_s, "submitted": trace.submit_s}
    columns = {"workload_id": trace.job_id, "gpus": trace.gpus, "tag:team": trace.team}
    return usage_file(tmp_path / "dlrm.csv", columns, times, START)


@pytest.fixture
def openb_usage(tmp_path: Path) -> Path:
    """The openb trace as a usage file: thousandths of GPUs, and seconds since the start of June."""
    trace = pd.read_csv(TRACES / "alibaba_openb_2023_pods.csv.gz", dtype=str)
    times = {"start": trace.scheduled_time, "end": trace.deletion_time}
    gpus = [
        str(Decimal(milli) * int(count) / 1000)
        for milli, count in zip(trace.gpu_milli, trace.num_gpu, strict=True)
    ]
    columns = {
        "workload_id": trace.name,
        "gpus": gpus,
        "tag:team": "qos-" + trace.qos,
        "state": trace.pod_phase,
    }
    return usage_file(tmp_path / "openb.csv", columns, times, pd.Timestamp("2025-06-01T00:00:00Z"))


def usage_file(path: Path, columns: dict, times: dict, origin: pd.Timestamp) -> Path:
    """A usage file of these columns; `times` are seconds from the origin on, exact as written."""
    begin = milliseconds(origin) // 1000
    for name, seconds in times.items():
        columns[name] = ["" if pd.isna(text) else str(begin + Decimal(text)) for text in seconds]
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def milliseconds(at: pd.Timestamp) -> int:
    return at.value // 1_000_000


def expected(
    starts: np.ndarray, ends: np.ndarray, milli: np.ndarray, teams: pd.Series, rates: dict
) -> pd.DataFrame:
    """GPU-nanoseconds and micro-units of each team in October, an hour at a time, cut where a rate
    changes.

    `rates` maps the instant from which a rate holds to thousandths of the currency per GPU-hour.
    """
    hours = range(milliseconds(START), milliseconds(END), 3_600_000)
    edges = sorted({*hours, milliseconds(CUT), milliseconds(END)})
    quantity, micros = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    for left, right in pairwise(edges):
        inside = np.clip(np.minimum(ends, right) - np.maximum(starts, left), 0, None)
        rate = rates[max(at for at in rates if at <= left)]
        quotient, rest = np.divmod(inside * milli * rate, 3_600_000)
        micros += quotient + (
            (2 * rest > 3_600_000) | ((2 * rest == 3_600_000) & (quotient % 2 == 1))
        )
        quantity += inside * milli * 1000
    return pd.DataFrame({"team": teams, "gpu_ns": quantity, "micro": micros}).groupby("team").sum()


def compare(report: dict, wanted: pd.DataFrame, currency: str) -> None:
    """Quantities to the millisecond, money to the micro-unit, printed cents within one and exact in
    their sum.
    """
    rows = {row["team"]: row for row in report["rows"] if row["currency"] == currency}
    wanted = wanted[wanted.gpu_ns > 0]
    assert {name: row["gpu_ns"] for name, row in rows.items()} == wanted.gpu_ns.to_dict()
    assert {name: row["cost_micro"] for name, row in rows.items()} == wanted.micro.to_dict()
    cents = {name: Decimal(row["cost"]) for name, row in rows.items()}
    assert all(
        abs(cents[name] - Decimal(int(micro)) / 10**6) < Decimal("0.01")
        for name, micro in wanted.micro.items()
    )
    total = next(total for total in report["totals"] if total["currency"] == currency)
    assert (
        sum(cents.values())
        == Decimal(total["cost"])
        == round(Decimal(int(wanted.micro.sum())) / 10**6, 2)
    )
    assert sum(Decimal(row["gpu_hours"]) for row in rows.values()) == Decimal(total["gpu_hours"])


def test_a_month_of_two_traces_by_team(
    gpuledger: Command, dlrm_usage: Path, openb_usage: Path
) -> None:
    """Both traces charged together equal the independent sums to the millisecond and to the cent."""
    dlrm_file, openb_file = (
        TRACES / "alibaba_dlrm_2025_jobs.csv.gz",
        TRACES / "alibaba_openb_2023_pods.csv.gz",
    )
    assert "4460 added" in gpuledger("import", "usage", dlrm_usage, *DLRM)
    assert "3092 added" in gpuledger("import", "usage", openb_usage, *OPENB)
    assert "0 added, 0 updated, 3092 unchanged" in gpuledger("import", "usage", openb_usage, *OPENB)
    asked = ("chargeback", "--from", "2025-10-01", "--to", "2025-11-01", "--format", "json", "--by")
    report = json.loads(gpuledger(*asked, "team"))

    dlrm = pd.read_csv(dlrm_file)
    begin = milliseconds(START)
    starts = begin + (dlrm.start_s.fillna(0) * 1000).astype("int64").to_numpy()
    ends = begin + (dlrm.end_s.fillna(31 * 86_400) * 1000).astype("int64").to_numpy()
    milli = (dlrm.gpus * 1000).to_numpy()
    compare(
        report,
        expected(starts, ends, milli, dlrm.team, {begin: 2490, milliseconds(CUT): 1999}),
        "USD",
    )

    openb = pd.read_csv(openb_file)
    openb = openb[openb.scheduled_time.notna()]
    origin = milliseconds(pd.Timestamp("2025-06-01T00:00:00Z"))
    starts = origin + (openb.scheduled_time * 1000).astype("int64").to_numpy()
    ends = origin + (openb.deletion_time * 1000).astype("int64").to_numpy()
    milli = (openb.gpu_milli * openb.num_gpu).to_numpy()
    wanted = expected(starts, ends, milli, "qos-" + openb.qos, {begin: 1237})
    assert (milli % 1000 != 0).sum() > 1000
    compare(report, wanted, "EUR")

    by_pod = json.loads(gpuledger(*asked, "pool,workload"))
    pods = {row["workload"]: row["gpu_ns"] for row in by_pod["rows"] if row["pool"] == "openb"}
    assert sum(pods.values()) == wanted.gpu_ns.sum()
    clipped = np.clip(np.minimum(ends, milliseconds(END)) - np.maximum(starts, begin), 0, None)
    each = dict(zip(openb.name, clipped * milli * 1000, strict=True))
    assert pods == {name: ns for name, ns in each.items() if ns > 0}


@pytest.mark.long
@pytest.mark.skipif(
    not VALIDATOR.is_file(), reason="the FOCUS validator's script of ../shared/judges is not here"
)
def test_focus_file_passes_the_foundations_validator(
    gpuledger: Command, tmp_path: Path, dlrm_usage: Path, openb_usage: Path
) -> None:
    """A FOCUS 1.2 file of a traced day, with every way of buying, passes the FinOps Foundation's
    validator.
    """
    gpuledger("import", "usage", openb_usage, *OPENB)
    gpuledger("import", "usage", dlrm_usage, *DLRM)
    (tmp_path / "more.csv").write_text(
        "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to,region,list_rate\n"
        "openb,,on_demand,1.237,EUR,2025-01-01,2025-10-01T06:00:00Z,,\n"
        "openb,,spot,0.5,EUR,2025-10-01T06:00:00Z,2025-10-01T12:00:00Z,,1.237\n"
        "openb,,reserved,0.9,EUR,2025-10-01T12:00:00Z,2025-10-01T18:00:00Z,,1.237\n"
        "openb,,owned,0.4,EUR,2025-10-01T18:00:00Z,,,\n"
    )
    gpuledger("import", "prices", tmp_path / "more.csv")
    gpuledger(
        "chargeback",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-02",
        "--format",
        "focus",
        "-o",
        "focus.csv",
    )
    categories = set(pd.read_csv(tmp_path / "focus.csv").PricingCategory.dropna())
    assert categories == {"Standard", "Dynamic", "Committed", "Other"}
    done = subprocess.run(
        ["sh", str(VALIDATOR), str(tmp_path / "focus.csv")],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert "FOCUS 1.2: OK" in done.stdout, done.stdout + done.stderr
