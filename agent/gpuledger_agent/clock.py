"""Instants that neither create nor lose seconds when the wall clock is stepped.

NTP, a battery-less clock at boot and `date -s` step the wall clock. Here an instant is an anchor
plus the monotonic time since; the wall clock only decides where the anchor lies. Two instants are
as far apart as the monotonic clock says, unless the anchor moved between them, which begins a gap
that nobody is billed for. The anchor moves forward when the wall clock is ahead by more than the
tolerance, and back when it is behind by more than MAX_AHEAD_MS. A smaller step back is not
followed: no second is lost, and the instants stay ahead by less than that. After a larger one the
meter counts no instant a second time (decision 0006).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

STEP_TOLERANCE_MS = 2_000
MAX_AHEAD_MS = 300_000
"""How far instants may lie ahead of the wall clock: five minutes, which every collector accepts."""
NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Clock:
    """Turns monotonic nanoseconds into unix milliseconds.

    `skew_ms` is wall clock minus instant at the last check.
    """

    anchor_ms: int
    anchor_ns: int
    skew_ms: int = 0
    jumps: int = 0

    def at_ms(self, monotonic_ns: int) -> int:
        """The instant of a monotonic reading (floored to the millisecond)."""
        return self.anchor_ms + (monotonic_ns - self.anchor_ns) // NS_PER_MS

    def check(self, wall_ms: int, monotonic_ns: int) -> bool:
        """Compare with the wall clock; True when it was stepped and the anchor moved: a gap begins
        here.
        """
        self.skew_ms = wall_ms - self.at_ms(monotonic_ns)
        if -MAX_AHEAD_MS <= self.skew_ms <= STEP_TOLERANCE_MS:
            return False
        self.anchor_ms, self.anchor_ns, self.skew_ms = wall_ms, monotonic_ns, 0
        self.jumps += 1
        return True


def wall_ms() -> int:
    """The wall clock in unix milliseconds."""
    return time.time_ns() // 1_000_000
