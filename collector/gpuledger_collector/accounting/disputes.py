"""Disputes: an owner contests lines, the evidence is sealed as it stands, finance answers and
decides once.

    open --answer--> answered --(the owner replies)--> open
    open, answered --resolve--> accepted | rejected        and nothing after that

The evidence is kept as one canonical JSON text; its SHA-256 is the seal, so that whoever holds the
file can check it with `sha256sum`. An accepted dispute becomes reattributions
(accounting.reattribution): the ledger of an open month is rated again, a closed month keeps its
charges and gets a correction. Adjustments are amounts and no time: contested alone, an acceptance
takes them back by entries of the opposite amounts (`Reversal`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message

OPEN, ANSWERED, ACCEPTED, REJECTED = "open", "answered", "accepted", "rejected"
STATES = (OPEN, ANSWERED, ACCEPTED, REJECTED)
RESOLVED = (ACCEPTED, REJECTED)
UNDECIDED = (OPEN, ANSWERED)
MAX_WORDS = 4_000
MOST_OPEN = 100
"""Undecided disputes of what an owner belongs to (its organization, else its team, ...)."""
MOST_ENTRIES = 200
"""Messages of a dispute."""


class BadStep(Exception):
    """What was asked of a dispute is not possible; the sentence says why."""


class DisputeRefused(ValueError):
    """What was asked of a dispute is wrong; the sentence begins with its name where it has one."""


class NoDispute(LookupError):
    """There is no dispute of that number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"there is no dispute {number}")


@dataclass(frozen=True, slots=True)
class DisputeEntry:
    """A message of a dispute."""

    at_ms: int
    who: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What an accepted dispute does with the contested time: another owner pays it, or it counts as
    unavailable.

    `owner` (level -> value; empty: unattributed) None means unavailable. Raises ValueError for a
    reserved name.
    """

    owner: Mapping[str, str] | None

    def __post_init__(self) -> None:
        for name in (self.owner or {}).values():
            if is_reserved(name):
                raise DisputeRefused(f"to: {reserved_message(name)}")


@dataclass(frozen=True, slots=True)
class Reversal:
    """What an accepted dispute about adjustments does: each is taken back by an entry of the
    opposite amounts.
    """


@dataclass(frozen=True, slots=True)
class Dispute:
    """A dispute without its evidence.

    Amounts (micro-units by currency) are those billed at the opening.
    """

    id: int
    owner: Mapping[str, str]
    period: Period
    accelerator: str | None
    workload: str | None
    line: str | None
    reason: str
    state: str
    opened_ms: int
    opened_by: str
    gpu_ns: int
    cost: Mapping[str, int]
    seal: str
    resolved_ms: int | None
    entries: Sequence[DisputeEntry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DisputeRecord:
    """A dispute with its evidence as it was sealed, and what the owner pays for the same by now.

    `billed_now` is in micro-units by currency, corrections included; `is_rated`: nothing of it
    waits to be rated again.
    """

    dispute: Dispute
    evidence: str
    content: Mapping[str, Any]
    """The evidence, read."""
    seal_holds: bool
    billed_now: Mapping[str, int]
    is_rated: bool


def canonical(evidence: Mapping[str, object]) -> str:
    """Evidence as one text: the same content gives the same bytes."""
    return json.dumps(evidence, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def seal_of(text: str) -> str:
    """The seal of a canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()


def after_answer(state: str, *, from_owner: bool) -> str:
    """The state after a message. Raises BadStep."""
    if state in RESOLVED:
        raise BadStep(f"the dispute is {state} already: open a new one")
    return OPEN if from_owner else ANSWERED


def after_decision(state: str, remedy: Remedy | Reversal | None) -> str:
    """The state after the decision; `remedy` None rejects. Raises BadStep."""
    if state in RESOLVED:
        raise BadStep(f"the dispute is {state} already: open a new one")
    return REJECTED if remedy is None else ACCEPTED


def words_of(text: str, what: str) -> str:
    """A message without surrounding white space. Raises DisputeRefused with a sentence."""
    words = text.strip()
    if not words:
        raise DisputeRefused(f"{what}: say it in words")
    if len(words) > MAX_WORDS:
        raise DisputeRefused(f"{what}: {len(words)} characters; at most {MAX_WORDS} are kept")
    if "\x00" in words or any("\ud800" <= character <= "\udfff" for character in words):
        raise DisputeRefused(
            f"{what}: holds a character that no text can keep (NUL, or half of a pair)"
        )
    return words
