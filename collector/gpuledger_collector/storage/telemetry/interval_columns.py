"""Columns of packed usage intervals (`interval_codec` packs them), for those who only read them in SQL
and need no arrays.
"""

FORMAT = 2
"""How days are packed now."""
PLANES = {
    "context": 3,
    "gap": 4,
    "ticks": 4,
    "jitter": 4,
    "missing": 4,
    "idle_ticks": 4,
    "idle": 4,
    "unknown_ticks": 4,
    "unknown": 4,
    "energy": 6,
    "seq": 4,
    "record": 4,
}
"""Columns with a number for each interval, and how many bytes it takes at most."""
CONTEXT_PLANES = {"source": 2, "workload": 6, "attributes": 6, "power": 4}
"""Columns with a number for each context."""
LEAST = ("gap", "ticks", "jitter", "idle", "unknown", "energy", "record")
"""Columns to whose values the least of the day is added."""
FEW = 16
"""Columns of fewer numbers are whole bytes."""
