"""Scheduled work, one file a job; each is idempotent: stopped after any step and run again, the same ledger."""

from gpuledger_collector.jobs.bring_up_to_date import bring_up_to_date
from gpuledger_collector.jobs.find_anomalies import find_anomalies
from gpuledger_collector.jobs.find_idle import find_idle
from gpuledger_collector.jobs.fold_usage import fold_usage
from gpuledger_collector.jobs.make_partitions import make_partitions
from gpuledger_collector.jobs.rate_usage import rate_usage
from gpuledger_collector.jobs.roll_minutes import roll_minutes

__all__ = [
    "bring_up_to_date",
    "find_anomalies",
    "find_idle",
    "fold_usage",
    "make_partitions",
    "rate_usage",
    "roll_minutes",
]
