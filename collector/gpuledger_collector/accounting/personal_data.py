"""What the ledger may hold of a person, and where a name was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


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
