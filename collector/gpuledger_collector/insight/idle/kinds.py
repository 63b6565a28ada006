"""Kinds of workloads and GPUs as far as idleness depends on them: by tags, then by the words of
their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SERVING = frozenset(
    {"serving", "inference", "endpoint", "deployment", "inferenceservice", "vllm", "triton", "tgi"}
)
INTERACTIVE = frozenset(
    {"interactive", "notebook", "jupyter", "jupyterlab", "jupyterhub", "shell", "vscode"}
)
TAGS = ("class", "kind", "workload_class", "app.kubernetes.io/component")
"""Tags whose value is a kind; a tag named `serving` or `interactive` decides by itself."""
FALSE = frozenset({"", "0", "false", "no"})

WATTS: dict[str, tuple[float, float]] = {
    "H200": (75.0, 700.0),
    "H100": (70.0, 700.0),
    "A100": (55.0, 400.0),
    "L40S": (35.0, 350.0),
    "L4": (16.0, 72.0),
    "A10": (20.0, 150.0),
    "T4": (10.0, 70.0),
    "V100": (40.0, 300.0),
}
"""Idle and full power by a word of the model's name (full: data sheets; idle: as commonly read)."""
FLOOR_BYTES = 640 * 2.0**20
"""Memory that a GPU and its driver use without any process."""


def is_serving(kind: str, name: str, tags: Mapping[str, str]) -> bool:
    """Whether it is a warm replica, idle by design."""
    return _is(SERVING, "serving", kind, name, tags)


def is_interactive(kind: str, name: str, tags: Mapping[str, str]) -> bool:
    """Whether a person works in it."""
    return _is(INTERACTIVE, "interactive", kind, name, tags)


def _is(family: frozenset[str], flag: str, kind: str, name: str, tags: Mapping[str, str]) -> bool:
    if flag in tags:
        return tags[flag].lower() not in FALSE
    text = " ".join([kind, name, *(tags[tag] for tag in TAGS if tag in tags)])
    return bool(family & set(re.findall(r"[a-z0-9]+", text.lower())))


def watts(model: str) -> tuple[float, float]:
    """Return idle and full power of a model; NaN where it is unknown."""
    words = model.upper().replace("-", " ").split()
    return next(
        (power for word, power in WATTS.items() if word in words), (float("nan"), float("nan"))
    )
