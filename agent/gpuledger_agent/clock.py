"""Wall time that cannot create or destroy seconds.

Problem: NTP steps, a battery-less clock at boot, an operator's `date -s`. Idea: instants are an anchor plus what the
monotonic clock has counted since; the wall clock is only asked where the anchor lies. Law: two readings lie as far
apart as the monotonic clock says, unless the anchor moved between them; then a gap begins that nobody is billed for.
The anchor moves forwards when the wall clock is ahead by more than the tolerance, and backwards when it is behind by
more than MOST_AHEAD_MS. A smaller step back is not followed: no second is lost, the instants stay late by less than
that. After a larger one the meter counts no instant a second time (decision 0006).
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_TOLERANCE_MS = 2_000
MOST_AHEAD_MS = 300_000
"""How far our instants may lie ahead of the wall clock: five minutes, which no collector refuses."""
NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Clock:
    """Turns monotonic nanoseconds into unix milliseconds. `skew_ms` is wall clock minus our instants, last seen."""

    anchor_ms: int
    anchor_ns: int
    skew_ms: int = 0
    jumps: int = 0

    def at_ms(self, monotonic_ns: int) -> int:
        """The instant of a monotonic reading (floored to the millisecond)."""
        return self.anchor_ms + (monotonic_ns - self.anchor_ns) // NS_PER_MS

    def check(self, wall_ms: int, monotonic_ns: int) -> bool:
        """Compares with the wall clock; True when it was stepped and the anchor moved: a gap begins here."""
        self.skew_ms = wall_ms - self.at_ms(monotonic_ns)
        if -MOST_AHEAD_MS <= self.skew_ms <= STEP_TOLERANCE_MS:
            return False
        self.anchor_ms, self.anchor_ns, self.skew_ms = wall_ms, monotonic_ns, 0
        self.jumps += 1
        return True
