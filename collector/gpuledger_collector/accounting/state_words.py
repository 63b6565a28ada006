"""The words of people for the states of an accelerator-hour and of what is paid: commands, pages,
mails and boards say these (docs/glossary.md), and no others.

Files and programs have the names: `commitment_unused`, and `(commitment_unused)` where it stands for
an owner.
"""

from __future__ import annotations

from collections.abc import Mapping

STATE_WORDS: Mapping[str, str] = {
    "held": "held",
    "held_idle": "held idle",
    "unallocated": "unallocated",
    "unavailable": "unavailable",
    "unobserved": "unobserved",
    "stranded": "stranded",
    "commitment_unused": "unused commitments",
    "node_cost": "node costs",
    "adjustments": "adjustments",
    "inference": "shared model servers",
    "shared_costs": "shares of common costs",
}
"""State -> word."""
MEANINGS: Mapping[str, str] = {
    "owners": "held, and charged to them",
    "unallocated": "held by nobody",
    "unavailable": "broken, draining or in maintenance",
    "unobserved": "no evidence of either kind",
    "stranded": "outside every MIG slice",
    "commitment_unused": "paid for, and used by nobody",
}
"""What the parts of the capacity are, beside their words."""


def word_of(state: str) -> str:
    """The word for a state; another name, a team for instance, is itself."""
    return STATE_WORDS.get(state, state)


def word_of_unpaid(row: str) -> str:
    """The word for a row that nobody pays, from the name that it has in place of an owner:
    `(commitment_unused)` is `unused commitments`. Another name is itself, without parentheses.
    """
    name = row.removeprefix("(").removesuffix(")")
    return STATE_WORDS.get(name.replace(" ", "_"), name)


def explained(state: str) -> str:
    """The word and what it means: `unallocated: held by nobody`."""
    return f"{word_of(state)}: {MEANINGS[state]}"
