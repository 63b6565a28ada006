"""How long a reading of a scheduler's queue says something."""

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS

QUEUE_VALID_MS = HOUR_MS
"""A reading of a queue is valid this long."""
QUEUE_EXPIRED_MS = DAY_MS
"""A queue that was not read for this long is no longer part of demand: its reader was removed."""
