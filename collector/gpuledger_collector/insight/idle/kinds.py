"""What kind of workload one is, as far as idleness depends on it: tags first, then the words of its name."""

from __future__ import annotations

import re
from collections.abc import Mapping

SERVING = frozenset({"serving", "inference", "endpoint", "deployment", "inferenceservice", "vllm", "triton", "tgi"})
INTERACTIVE = frozenset({"interactive", "notebook", "jupyter", "jupyterlab", "jupyterhub", "shell", "vscode"})
TAGS = ("class", "kind", "workload_class", "app.kubernetes.io/component")
"""Tags that say it in so many words; so does a tag that is named `serving` or `interactive`."""
FALSE = frozenset({"", "0", "false", "no"})

CARDS: dict[str, tuple[float, float]] = {
    "H200": (75.0, 700.0),
    "H100": (70.0, 700.0),
    "A100": (55.0, 400.0),
    "L40S": (35.0, 350.0),
    "L4": (16.0, 72.0),
    "A10": (20.0, 150.0),
    "T4": (10.0, 70.0),
    "V100": (40.0, 300.0),
}
"""Watts of rest and of full power (data sheets; rest as commonly read), by a word of the model's name."""
FLOOR_BYTES = 640 * 2.0**20
"""Memory that a card and its driver hold with nobody on it."""


def words(text: str) -> set[str]:
    """Lower-case words of a name."""
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def is_serving(kind: str, name: str, tags: Mapping[str, str]) -> bool:
    """Whether it is a warm replica, idle by design."""
    return _is(SERVING, "serving", kind, name, tags)


def is_interactive(kind: str, name: str, tags: Mapping[str, str]) -> bool:
    """Whether a person sits before it."""
    return _is(INTERACTIVE, "interactive", kind, name, tags)


def _is(family: frozenset[str], flag: str, kind: str, name: str, tags: Mapping[str, str]) -> bool:
    if flag in tags:
        return tags[flag].lower() not in FALSE
    said = [tags[tag] for tag in TAGS if tag in tags]
    return bool(family & words(" ".join([kind, name, *said])))


def watts(model: str) -> tuple[float, float]:
    """Watts of rest and of full power of a model; NaN where it is not known."""
    found = [value for word, value in CARDS.items() if word in model.upper().replace("-", " ").split()]
    return found[0] if found else (float("nan"), float("nan"))
