"""Xids, the driver's error codes: what each means for the card, what to do, and how the kernel log
reports them.

An Xid at most degrades a card's health: only the driver's answers, never a log
line, make time unavailable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuledger_common.catalog import XIDS
from gpuledger_common.metrics import Meaning

UNKNOWN = Meaning("other", "warning", "look it up", "an Xid unknown to this version")

_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,5})(?:, (.{0,2000}))?")


def meaning(xid: int) -> Meaning:
    """The meaning of an Xid; a number that is not in the table is a warning."""
    return XIDS.get(xid, UNKNOWN)


@dataclass(frozen=True, slots=True)
class LoggedXid:
    """An Xid of the kernel log; `bus` is normalized by `bus_key`."""

    bus: str
    xid: int
    detail: str


def parse(line: str) -> LoggedXid | None:
    """The Xid in a line of the kernel log, if there is one. Old drivers leave out pid and name."""
    match = _LINE.search(line)
    return (
        None
        if match is None
        else LoggedXid(bus_key(match[1]), int(match[2]), (match[3] or "").strip())
    )


def bus_key(address: str) -> str:
    """Normalize a PCI address: `0000:3b:00` (kernel) and `00000000:3B:00.0` (NVML) are the same
    device.
    """
    parts = address.lower().partition(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    return ":".join(part.lstrip("0") or "0" for part in parts)
