"""What the address of a list narrows it to, besides its range and its owner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass

from gpuledger_collector.accounting.charged_runs import RunFilter
from gpuledger_collector.insight.findings import FindingFilter


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What a list is narrowed to besides range and owner, as its address names it."""

    node: str = ""
    pool: str = ""
    model: str = ""
    state: str = ""
    q: str = ""
    username: str = ""
    """Who started a job; `user` is a level of its owner."""

    def parameters(self) -> dict[str, str]:
        """As parameters of the address."""
        return asdict(self)

    @property
    def of_findings(self) -> FindingFilter:
        """For a list of findings."""
        return FindingFilter(self.node, self.pool, self.model, self.state, self.q, self.username)

    @property
    def of_runs(self) -> RunFilter:
        """For a list of jobs."""
        return RunFilter(self.pool, self.model, self.node, self.q, self.state, self.username)


@dataclass(frozen=True, slots=True)
class Search:
    """A list that is searched by words alone."""

    q: str

    def parameters(self) -> dict[str, str]:
        """As parameters of the address."""
        return {"q": self.q}


WHOLE = Narrowing()
"""Narrowed to nothing."""


def read_narrowing(
    node: str = "",
    pool: str = "",
    model: str = "",
    state: str = "",
    q: str = "",
    username: str = "",
) -> Narrowing:
    """Read it from the parameters of a request."""
    return Narrowing(node, pool, model, state, q, username)


def require_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise ValueError with a sentence for a value of the address that is none of these."""
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(choices)}")
