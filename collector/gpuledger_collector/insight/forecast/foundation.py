"""Zero-shot foundation models as forecast methods: Chronos-Bolt and Chronos-2, TimesFM 2.5, TiRex.

A model is run on this machine by its own package, and is the one that GPULEDGER_MODEL_CHRONOS,
GPULEDGER_MODEL_TIMESFM or GPULEDGER_MODEL_TIREX names: a path, or OWNER/NAME on the Hugging Face
Hub. Only for the latter does the package download anything. Gaps are given to the model as NaN, and
a horizon beyond the model's own length is the package's to fill. A quantile between two that the
model has is interpolated; one outside is the outermost that it has. docs/forecasting.md says what
was not measured.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np

from gpuledger_collector.extras import install_command
from gpuledger_collector.insight.series import Floats, Ints

Model = Callable[[Floats, int], tuple[Floats, Floats]]
"""From a series' past and a number of steps: values (steps, Q) of what comes, and the Q quantiles
that they are.
"""
LONGEST_SPREAD = 1024
"""Steps for which TimesFM 2.5 has a head for quantiles; beyond them it chains shorter forecasts."""


def _method(
    name: str, load: Callable[[str], Model]
) -> Callable[[Floats, int, Ints, Floats], Floats]:
    """A forecast method of the model that the variable of `name` names; it is loaded once."""
    load_once = cache(load)

    def forecast(values: Floats, _step_ms: int, leads: Ints, quantiles: Floats) -> Floats:
        place = _place(f"GPULEDGER_MODEL_{name.upper()}")
        # Standard output is the command's, and the packages' warnings repeat themselves at every
        # origin.
        with redirect_stdout(sys.stderr), warnings.catch_warnings(action="ignore"):
            try:
                model = load_once(place)
            except ImportError as error:
                raise ImportError(f"{error}; it needs: {install_command(name)}") from error
            levels, own = model(values, int(leads[-1]))
        asked = np.sort(levels, axis=1)[leads - 1]
        return np.stack([np.interp(quantiles, own, row) for row in asked])

    return forecast


def _place(variable: str) -> str:
    """The path or hub name that the variable holds. Raises ValueError when it holds neither."""
    text = os.environ.get(variable, "")
    if not text:
        raise ValueError(
            f"{variable} names no model: set it to a path, or to OWNER/NAME on the Hugging Face Hub"
        )
    path = Path(text).expanduser()
    if not path.exists() and not re.fullmatch(r"\w[\w.-]*/[\w.-]+", text):
        raise ValueError(f"{variable}: there is no model at {text}")
    # Absolute: timesfm asks the hub for anything that could be OWNER/NAME there.
    return str(path.resolve()) if path.exists() else text


def _load_chronos(place: str) -> Model:
    import torch
    from chronos import BaseChronosPipeline

    pipeline = BaseChronosPipeline.from_pretrained(place)
    if not hasattr(pipeline, "quantiles"):
        raise ValueError(
            f"{place} is a Chronos model without quantiles; Chronos-Bolt and Chronos-2 have them"
        )
    own = np.asarray(pipeline.quantiles)

    def predict(values: Floats, steps: int) -> tuple[Floats, Floats]:
        (levels,) = pipeline.predict([torch.tensor(values)], prediction_length=steps)
        return np.asarray(levels, dtype=float).reshape(len(own), steps).T, own

    return predict


def _load_timesfm(place: str) -> Model:
    from timesfm import ForecastConfig, TimesFM_2p5_200M_torch

    # Compilation takes longer than the few forecasts of a command.
    model = TimesFM_2p5_200M_torch.from_pretrained(place, torch_compile=False)
    own = np.asarray(model.model.config.quantiles)

    def predict(values: Floats, steps: int) -> tuple[Floats, Floats]:
        model.compile(
            ForecastConfig(
                max_context=len(values),
                max_horizon=steps,
                normalize_inputs=True,
                use_continuous_quantile_head=steps <= LONGEST_SPREAD,
                fix_quantile_crossing=True,
            )
        )
        _, levels = model.forecast(steps, [values])
        # The first column is the mean.
        return np.asarray(levels[0, :, 1:], dtype=float), own

    return predict


def _load_tirex(place: str) -> Model:
    import torch
    from tirex import TiRexZero

    # Not tirex.load_model: it takes the second part of any path for the kind of the model.
    model = TiRexZero.from_pretrained(place, backend="torch")
    own = np.asarray(model.config.quantiles)

    def predict(values: Floats, steps: int) -> tuple[Floats, Floats]:
        levels, _ = model.forecast(
            torch.tensor(values), output_type="numpy", prediction_length=steps
        )
        return np.asarray(levels[0], dtype=float), own

    return predict


chronos = _method("chronos", _load_chronos)
timesfm = _method("timesfm", _load_timesfm)
tirex = _method("tirex", _load_tirex)
