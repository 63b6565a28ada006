"""Wall time that cannot create or destroy seconds.

Problem: NTP steps, a battery-less clock at boot, an operator's `date -s`. Idea: instants are an anchor plus what the
monotonic clock has counted since; the wall clock is only asked where the anchor lies. Law: instants never run
backwards, and two readings lie as far apart as the monotonic clock says, unless the wall clock was stepped forwards by
more than the tolerance: then the anchor moves, and the stretch between is a gap that nobody is billed for.
A step backwards is not followed until the wall clock has caught up, so that no second is reported twice.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_TOLERANCE_MS = 2_000
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
        """Compares with the wall clock; True when it was stepped forwards and the anchor moved: a gap begins here."""
        self.skew_ms = wall_ms - self.at_ms(monotonic_ns)
        if self.skew_ms <= STEP_TOLERANCE_MS:
            return False
        self.anchor_ms, self.anchor_ns, self.skew_ms = wall_ms, monotonic_ns, 0
        self.jumps += 1
        return True
