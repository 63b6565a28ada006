"""Prometheus' text format, version 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats), as
far as an agent writes it: counters and gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its series. `text` has no backslash and no line end."""

    name: str
    text: str
    kind: Kind
    lines: list[str] = field(default_factory=list)

    def add(self, value: str, labels: str = "") -> None:
        """Add a series: `value` as `number` writes it, `labels` as `label_text` does."""
        self.lines.append(f"{self.name}{{{labels}}} {value}" if labels else f"{self.name} {value}")


def number(value: float) -> str:
    """A value: digits that give the same float again."""
    return repr(float(value))


def label_text(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Labels in their order, without braces."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def render(families: Iterable[Family]) -> str:
    """The page of these families; one without series has its HELP and TYPE alone."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += family.lines
    return "\n".join([*lines, ""]) if lines else ""
