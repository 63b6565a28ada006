"""Foundation models by `gpuledger forecast --method`: their packages' own loading code, on models
with random weights.

An environment of its own gets the packages: 5.5 GB with the CUDA libraries that PyPI's torch needs
even without a GPU.
"""

import json
import os
import shutil
import subprocess
import sysconfig
import venv

import numpy as np
import pytest

from fakes import tiny_models

PACKAGES = (
    "chronos-forecasting==2.3.2",
    "timesfm==3.0.2",
    "tirex-ts==1.4.2",
    "torch==2.15.0",
    "transformers==5.23.0",
)
HOURS = 21 * 24
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder with `venv`, which sees this checkout's packages, `models` and `demand.csv`."""
    folder = tmp_path_factory.mktemp("foundation")
    venv.create(folder / "venv", with_pip=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "checkout.pth").write_text(line)
    python = folder / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *PACKAGES)
    (folder / "models").mkdir()
    run(python, tiny_models.__file__, folder / "models")
    hours = np.datetime64("2026-01-01T00") + np.arange(HOURS)
    values = (
        20 + 8 * np.sin(np.arange(HOURS) * 2 * np.pi / 24) + np.random.default_rng(1).random(HOURS)
    )
    # Every 97th hour is unknown, the last one too.
    gaps = np.arange(HOURS) % 97 == (HOURS - 1) % 97
    cells = ["" if gap else f"{value:.2f}" for value, gap in zip(values, gaps, strict=True)]
    rows = (f"{hour}:00:00Z,train,{cell}" for hour, cell in zip(hours, cells, strict=True))
    (folder / "demand.csv").write_text("\n".join(["ts,series,value", *rows, ""]))
    yield folder
    shutil.rmtree(folder)


def run(*command, **variables):
    answer = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("chronos", "chronos"),
        ("chronos", "chronos2"),
        ("timesfm", "timesfm"),
        ("tirex", "tirex/model.ckpt"),
    ],
)
def test_a_model_forecasts_alone_and_in_the_mix(environment, method, model):
    """Ordered quantiles from the model itself, beyond its own length; random weights get next to no
    weight.
    """

    def forecast(methods, place=environment / "models" / model, horizon="24h"):
        command = (environment / "venv/bin/python", "-m", "gpuledger_collector", "forecast")
        options = ("--series", environment / "demand.csv", "--horizon", horizon, "--format", "json")
        given = {f"GPULEDGER_MODEL_{method.upper()}": str(place), "HF_HUB_OFFLINE": "1"}
        (answer,) = json.loads(run(*command, "--method", methods, *options, **given))
        return answer, np.array(
            [
                [point[name] for name in ("q0.1", "q0.5", "q0.9", "q0.95")]
                for point in answer["points"]
            ]
        )

    alone, levels = forecast(method)
    assert alone["models"] == {method: 1.0}
    assert alone["skill"] is not None
    assert levels.shape == (24, 4)
    assert np.isfinite(levels).all()
    assert (np.diff(levels, axis=1) >= 0).all()
    assert np.ptp(levels) > 0
    if model != "chronos2":  # the only one that has the quantile 0.95
        assert (levels[:, 3] == levels[:, 2]).all()
    mixed, mixture = forecast(f"{method},analog")
    assert mixed["models"][method] < 0.1
    assert not np.array_equal(mixture, forecast("analog")[1])
    _, far = forecast(method, horizon="60h")
    assert far.shape == (60, 4)
    assert np.isfinite(far).all()
