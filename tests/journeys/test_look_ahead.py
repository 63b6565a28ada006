"""From imported usage to a forecast and to advice, by the commands alone."""

import datetime as dt
import json
import shutil
import subprocess

import pytest

from fakes.postgres import open_folder
from fakes.processes import BIN, environment

pytestmark = pytest.mark.slow


@pytest.fixture
def gpuledger():
    folder = open_folder("gpuledger-ahead-")

    def run(*arguments):
        return subprocess.run(
            [BIN / "gpuledger", *arguments],
            env=environment(GPULEDGER_DATA_DIR=str(folder / "data")),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    run.folder = folder
    yield run
    shutil.rmtree(folder, ignore_errors=True)


def test_usage_in_the_ledger_is_forecast_and_advised_on(gpuledger):
    """A pool that holds 4 GPUs by day and 1 by night is forecast by the hour, and advised never
    below its demand.
    """
    now = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    rows = ["workload_id,start,end,gpus,pool"]
    start = now - dt.timedelta(days=21)
    rows.append(f"base,{start.isoformat()},,1,train")
    for day in range(21):
        morning = start + dt.timedelta(days=day)
        rows.append(
            f"day-{day},{morning.isoformat()},{(morning + dt.timedelta(hours=8)).isoformat()},3,train"
        )
    (gpuledger.folder / "jobs.csv").write_text("\n".join(rows) + "\n")
    assert gpuledger("import", "usage", "jobs.csv").returncode == 0
    answer = gpuledger("forecast", "--pool", "train", "--horizon", "24h", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    (series,) = json.loads(answer.stdout)
    assert series["series"] == "train"
    assert len(series["points"]) == 24
    assert all(0 <= point["q0.1"] <= point["q0.5"] <= point["q0.9"] for point in series["points"])
    day, night = (
        sum(point["mean"] for point in series["points"][at : at + 6]) / 6 for at in (1, 12)
    )
    assert day > night + 1
    advice = gpuledger("scale", "advise", "--pool", "train", "--format", "json")
    assert advice.returncode == 0, advice.stderr
    (entry,) = json.loads(advice.stdout)
    assert entry["desired_gpus"] >= entry["demand_now"] == 1
    assert entry["reason"]
    missing = gpuledger("forecast", "--pool", "trian")
    assert missing.returncode == 2
    assert "there are train" in missing.stderr
