"""Xids, the driver's error codes: what each means for the card, what to do, and how the kernel log
reports them.

Classes and actions follow NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) as of October 2025,
in our own words. An Xid at most degrades a card's health: only the driver's answers, never a log
line, make time unavailable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """`severity` is info (a fault of the program), warning (look at it) or critical (the card needs
    an action).
    """

    family: Literal["program", "memory", "link", "hung", "driver", "other"]
    severity: Severity
    action: str
    text: str


# fmt: off
MEANINGS: dict[int, Meaning] = {
    13: Meaning("program", "info", "restart the program", "graphics engine exception"),
    31: Meaning("program", "info", "restart the program", "GPU memory page fault"),
    43: Meaning("program", "info", "none", "GPU stopped processing for a program"),
    44: Meaning("program", "info", "none", "graphics engine fault during a context switch"),
    45: Meaning("program", "info", "look at the Xid before it", "pre-emptive cleanup after an earlier error"),
    46: Meaning("hung", "critical", "reset the GPU", "GPU stopped processing"),
    48: Meaning("memory", "critical", "drain and reset the GPU", "double-bit ECC error"),
    61: Meaning("hung", "critical", "reset the GPU", "internal micro-controller breakpoint"),
    62: Meaning("hung", "critical", "reset the GPU", "internal micro-controller halt"),
    63: Meaning("memory", "warning", "reset at the next occasion", "a row remap or page retirement was recorded"),
    64: Meaning("memory", "critical", "reset the GPU", "a row remap or page retirement failed"),
    68: Meaning("program", "info", "restart the program", "video processor exception"),
    69: Meaning("program", "info", "restart the program", "graphics engine class error"),
    74: Meaning("link", "critical", "drain, reset, check the NVLink path", "NVLink error"),
    79: Meaning("hung", "critical", "restart the machine", "GPU has fallen off the bus"),
    92: Meaning("memory", "warning", "watch it", "high rate of single-bit ECC errors"),
    94: Meaning("memory", "warning", "restart the program", "contained memory error"),
    95: Meaning("memory", "critical", "drain and reset the GPU", "uncontained memory error"),
    109: Meaning("hung", "critical", "reset the GPU", "context switch timeout"),
    110: Meaning("hung", "critical", "reset the GPU", "security fault"),
    119: Meaning("hung", "critical", "reset the GPU", "the GPU's system processor did not answer in time"),
    120: Meaning("hung", "critical", "reset the GPU", "error in the GPU's system processor"),
    121: Meaning("link", "warning", "watch it", "corrected error on the chip-to-chip link"),
    136: Meaning("link", "critical", "reset the GPU", "link training failed"),
    137: Meaning("program", "info", "restart the program", "NVLink fault caused by a program"),
    140: Meaning("memory", "critical", "reset the GPU", "unrecovered ECC error"),
    143: Meaning("driver", "critical", "reset the GPU", "GPU initialization failed"),
    144: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    145: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    146: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    147: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    148: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    149: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    150: Meaning("link", "critical", "reset the GPU", "NVLink 5 error"),
    151: Meaning("driver", "critical", "restart the virtual machine", "key rotation error"),
    154: Meaning("driver", "warning", "see the recovery action", "the recovery action changed"),
    155: Meaning("link", "warning", "watch it", "NVLink link down"),
    156: Meaning("memory", "warning", "reset at the next occasion", "a resource was retired"),
    157: Meaning("memory", "critical", "reset the GPU", "a resource could not be retired"),
    158: Meaning("hung", "critical", "reset the GPU", "fatal timeout"),
    160: Meaning("memory", "warning", "reset at the next occasion", "a memory channel was retired"),
    161: Meaning("memory", "critical", "reset the GPU", "a memory channel could not be retired"),
    167: Meaning("hung", "critical", "reset the GPU", "fatal PCIe timeout"),
    171: Meaning("memory", "warning", "see the Xid 48 logged with it", "further detail of a double-bit error in DRAM"),
    172: Meaning("memory", "warning", "see the Xid 48 logged with it", "further detail of a double-bit error in SRAM"),
}
# fmt: on
UNKNOWN = Meaning("other", "warning", "look it up", "an Xid unknown to this version")

_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,5})(?:, (.{0,2000}))?")


def meaning(xid: int) -> Meaning:
    """The meaning of an Xid; a number that is not in the table is a warning."""
    return MEANINGS.get(xid, UNKNOWN)


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
