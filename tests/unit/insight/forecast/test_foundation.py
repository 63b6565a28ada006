"""Foundation models, with stand-ins of their packages; the packages themselves run in
tests/journeys.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gpuledger_collector.insight.forecast import foundation

VALUES = np.array([1.0, np.nan, 3.0, 4.0])
LEADS, QUANTILES = np.array([1, 3]), np.array([0.1, 0.3, 0.5, 0.95])


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A file that the variables of all methods name."""
    path = tmp_path / "model"
    path.touch()
    for name in ("CHRONOS", "TIMESFM", "TIREX"):
        monkeypatch.setenv(f"GPULEDGER_MODEL_{name}", str(path))
    return path


def put_chronos(monkeypatch, pipeline):
    """Stand-ins of chronos, which loads this pipeline, and of torch."""
    loader = SimpleNamespace(from_pretrained=lambda place: pipeline)
    monkeypatch.setitem(sys.modules, "chronos", SimpleNamespace(BaseChronosPipeline=loader))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=np.asarray))


def test_quantiles_are_interpolated_and_clamped(model, monkeypatch):
    """Gaps reach the model as they are; what it does not have comes from its neighbors or its
    outermost quantile.
    """

    class Pipeline:
        quantiles = (0.1, 0.5, 0.9)

        def predict(self, inputs, prediction_length=None):
            np.testing.assert_array_equal(inputs, [VALUES])
            return np.array(
                [
                    [
                        [10.0 * step + level for step in range(prediction_length)]
                        for level in (0, 4, 8)
                    ]
                ]
            )

    put_chronos(monkeypatch, Pipeline())
    levels = foundation.chronos(VALUES, 3_600_000, LEADS, QUANTILES)
    np.testing.assert_allclose(levels, [[0, 2, 4, 8], [20, 22, 24, 28]])


def test_nothing_is_printed_to_standard_output(model, monkeypatch, capsys):
    """What a package prints goes to standard error: standard output is a CSV."""

    class Pipeline:
        quantiles = (0.5,)

        def predict(self, inputs, prediction_length=None):
            print("a package that prints")
            return np.zeros((1, 1, prediction_length))

    put_chronos(monkeypatch, Pipeline())
    foundation.chronos(VALUES, 3_600_000, LEADS, QUANTILES)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "a package that prints\n"


@pytest.mark.parametrize(
    ("name", "needed"),
    [("chronos", "chronos-forecasting"), ("timesfm", r"timesfm\[torch\]"), ("tirex", "tirex-ts")],
)
def test_a_missing_package_is_named(name, needed, model, monkeypatch):
    """The sentence says what to install."""
    for package in ("torch", "chronos", "timesfm", "tirex"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install '{needed}>="):
        getattr(foundation, name)(VALUES, 3_600_000, LEADS, QUANTILES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no model"),
        ("/nowhere/model", "there is no model at /nowhere/model"),
        ("./model", "there is no model at ./model"),
        ("folder/of/models", "there is no model at folder/of/models"),
    ],
)
def test_a_missing_model_is_named(text, words, monkeypatch):
    """Nothing is asked of the hub for what is no name of a model there."""
    monkeypatch.setenv("GPULEDGER_MODEL_TIREX", text)
    with pytest.raises(ValueError, match=words):
        foundation.tirex(VALUES, 3_600_000, LEADS, QUANTILES)


def test_a_model_of_the_hub_is_left_to_the_package(monkeypatch):
    """OWNER/NAME goes to the package as it is."""
    places = []
    put_chronos(monkeypatch, None)
    loader = SimpleNamespace(from_pretrained=places.append)
    monkeypatch.setitem(sys.modules, "chronos", SimpleNamespace(BaseChronosPipeline=loader))
    monkeypatch.setenv("GPULEDGER_MODEL_CHRONOS", "amazon/chronos-bolt-small")
    with pytest.raises(
        ValueError, match="amazon/chronos-bolt-small is a Chronos model without quantiles"
    ):
        foundation.chronos(VALUES, 3_600_000, LEADS, QUANTILES)
    assert places == ["amazon/chronos-bolt-small"]
