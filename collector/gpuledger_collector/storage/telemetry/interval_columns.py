"""Columns of packed usage intervals (`interval_codec` packs them), for those who only read them in SQL
and need no arrays.
"""

PLANES = {
    "context": 4,
    "gap": 4,
    "length": 4,
    "missing": 4,
    "idle": 4,
    "unknown": 4,
    "energy": 6,
    "seq": 4,
    "record": 4,
}
"""Columns of a packed day, and how many planes each has at most."""
LEAST = ("gap", "length", "energy")
"""Columns to whose values the least of the day is added."""
