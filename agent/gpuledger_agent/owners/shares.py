"""Exact shares of one accelerator, as schedulers and drivers of fractions state them.

A share is a fraction of a whole accelerator: what a pod asked of memory or of compute, whichever is
more, since that much nobody else can have. Shares become integer weights of equal ratio, so that
splitting time by them loses nothing. An accelerator that is held is held entirely
(docs/decisions/0010): where its shares add up to less than one, or to more, its holders pay for it
in proportion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

MEBIBYTE = 1024 * 1024
MAX_CARDS = 256
"""Cards read of one annotation; a node has no more."""
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,12})?$", re.ASCII)
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(m|k|[MGTPE]|[KMGTPE]i)?$", re.ASCII)
_SUFFIXES: Mapping[str, Fraction] = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{name: Fraction(1000**power) for power, name in enumerate("MGTPE", start=2)},
    **{f"{name}i": Fraction(1024**power) for power, name in enumerate("KMGTPE", start=1)},
}


@dataclass(frozen=True, slots=True)
class VirtualCard:
    """A card that HAMi or Volcano gave to a container: its UUID, and what the container may use of
    it.
    """

    uuid: str
    memory_mebibytes: int
    cores_percent: int

    def share(self, memory_bytes: int | None) -> Fraction | None:
        """The share of a card with this memory; None where nothing tells."""
        whole = (memory_bytes or 0) // MEBIBYTE
        of_memory = Fraction(self.memory_mebibytes, whole) if whole else Fraction(0)
        share = max(of_memory, Fraction(self.cores_percent, 100))
        return min(share, Fraction(1)) or None


def read_fraction(text: str) -> Fraction | None:
    """A fraction of a card such as 0.5; None for a text that is none."""
    value = Fraction(text) if _DECIMAL.match(text) else Fraction(0)
    return value if 0 < value <= 1 else None


def read_memory(mebibytes: str, memory_bytes: int | None) -> Fraction | None:
    """The part of a card's memory that a number of MiB is; None where either is not known."""
    whole = (memory_bytes or 0) // MEBIBYTE
    if not whole or not _DECIMAL.match(mebibytes):
        return None
    return min(Fraction(mebibytes) / whole, Fraction(1)) or None


def read_quantity(text: str) -> Fraction | None:
    """A quantity of Kubernetes such as 20Gi; None for a text that is none."""
    match = _QUANTITY.match(text)
    return Fraction(match[1]) * _SUFFIXES[match[2] or ""] if match else None


def read_capacity(consumed: Mapping[str, str], whole: Mapping[str, str]) -> Fraction | None:
    """The dominant share of what a claim consumes of a device's capacities; None where none is
    known.
    """
    shares = []
    for name, text in consumed.items():
        part, total = read_quantity(text), read_quantity(whole.get(name, ""))
        if part is not None and total:
            shares.append(min(part / total, Fraction(1)))
    return max(shares, default=Fraction(0)) or None


def read_virtual_cards(text: str) -> tuple[VirtualCard, ...] | None:
    """The cards of an annotation `UUID,TYPE,MIB,PERCENT:` of each container, which `;` ends.

    None for a text of another form, such as that of MIG instances: what it means is not known.
    """
    cards = []
    for entry in re.split("[:;]", text):
        if not entry.strip():
            continue
        uuid, *fields = entry.strip().split(",")
        numbers = fields[1:3]
        if len(numbers) < 2 or "[" in uuid or not all(_DECIMAL.match(word) for word in numbers):
            return None
        cards.append(VirtualCard(uuid, int(Fraction(numbers[0])), int(Fraction(numbers[1]))))
    return tuple(cards) if 0 < len(cards) <= MAX_CARDS else None


def weights_of(shares: Sequence[Fraction | None]) -> list[int]:
    """Integer weights in the ratio of some shares; one that is not known counts as their mean."""
    known = [share for share in shares if share is not None]
    mean = sum(known, Fraction(0)) / len(known) if known else Fraction(1)
    exact = [mean if share is None else share for share in shares]
    unit = lcm(*(share.denominator for share in exact))
    return [int(share * unit) for share in exact]
