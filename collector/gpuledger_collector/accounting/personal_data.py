"""What the ledger may hold of a person, and where a name was found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

_PSEUDONYM = re.compile(r"erased-[0-9a-f]{8}")


def pseudonym(digits: str) -> str:
    """What stands in place of a name that was erased; of eight random hexadecimal digits."""
    return f"erased-{digits}"


def is_pseudonym(name: str) -> bool:
    """Whether a name stands in place of one that was erased."""
    return _PSEUDONYM.fullmatch(name) is not None


class Person(Enum):
    """How a column may hold the name of a person; `gpuledger privacy` looks there."""

    NAME = auto()
    """It is the name."""
    WORDS = auto()
    """A text for people, or a name of a series, that may contain it as a word."""
    KEYS = auto()
    """JSON that may have it below certain keys, or in an address."""
    MESSAGE = auto()
    """A part of a message, which is emptied once it is sent."""


@dataclass(frozen=True, slots=True)
class Place:
    """A column that contains a name, and in how many rows; `kept` says why it stays, empty: it can
    be erased.
    """

    table: str
    column: str
    rows: int
    kept: str
    person: Person = Person.MESSAGE
