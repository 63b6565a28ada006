"""The owner tree: org > team > project > experiment > run, and the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEVELS = ("org", "team", "project", "experiment", "run", "user")
"""Levels of the tree; a tag named like one is that level unless a rule says otherwise."""


@dataclass(frozen=True, slots=True, order=True)
class OwnerPath:
    """Who pays a charge, level by level; an empty level is unattributed."""

    org: str = ""
    team: str = ""
    project: str = ""
    experiment: str = ""
    run: str = ""
    user: str = ""

    def level(self, name: str) -> str:
        """The value of one level of LEVELS."""
        if name not in LEVELS:
            raise KeyError(name)
        value: str = getattr(self, name)
        return value

    def levels(self) -> dict[str, str]:
        """The value of each level that is known, in the order of LEVELS."""
        return {name: value for name in LEVELS if (value := self.level(name))}


def path_of(levels: Mapping[str, str]) -> OwnerPath:
    """The path made of the given levels; other keys are an error of the caller."""
    return OwnerPath(**levels)


UNATTRIBUTED = OwnerPath()
"""The owner of what no tag and no rule attributes: an owner in its own right, never dropped."""
