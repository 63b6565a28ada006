"""Scheduled work, one file a job; each is idempotent: stopped after any step and run again, the
same ledger.

Here stand those of the ledger, which reading commands call first; the searches and what needs numpy
are imported from their own modules, so that a chargeback does not wait for them.
"""

from gpuledger_collector.jobs.create_partitions import create_partitions
from gpuledger_collector.jobs.roll_up_minutes import roll_up_minutes
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.services.refresh import refresh

__all__ = [
    "create_partitions",
    "fold_usage",
    "rate_usage",
    "refresh",
    "roll_up_minutes",
]
