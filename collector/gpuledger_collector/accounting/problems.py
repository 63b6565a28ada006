"""What is wrong with something that a person gave us: a value, collected and reported together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in given input. `source` names the place (`prices.csv:12:rate_per_gpu_hour`), `message` the reason."""

    code: str
    source: str
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.message}"
