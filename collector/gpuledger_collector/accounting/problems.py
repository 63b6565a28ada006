"""Problems of user input: values that are collected and reported together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in an input.

    `source` names the place (`prices.csv:12:rate_per_gpu_hour`), `message` the reason.
    """

    code: str
    source: str
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.message}"


class DeclarationRefused(ValueError):
    """What is in force does not allow a declaration; `problems` name file and line of each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Problems by their line in the file."""

    def line(source: str) -> int:
        return next((int(part) for part in source.split(":")[1:] if part.isdigit()), 0)

    return sorted(problems, key=lambda problem: (line(problem.source), problem.source))


SHOWN = 100


def shorten_problems(problems: Iterable[Problem]) -> list[str]:
    """The sentences of the first `SHOWN` problems by their line, the others as one count."""
    ordered = in_order(problems)
    left = len(ordered) - SHOWN
    more = [f"and {left} more of the kind"] if left > 0 else []
    return [*map(str, ordered[:SHOWN]), *more]


class CurrencyChanged(DeclarationRefused):
    """A price would change its currency; `problems` name file and line of each."""
