"""Minute rollup: made again from the samples of whole hours.

Folding rolls the hours that new evidence marked; this job makes a whole period again, after an import or a repair.
"""

from __future__ import annotations

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.ports import Store


def roll_up_minutes(store: Store, period: Period) -> int:
    """Make the minute rollup of a period again, a day in a transaction; how many accelerator-hours were rolled."""
    rolled = 0
    for day in period.days():
        with store.unit() as unit:
            hours = unit.sampled_hours(day)
            unit.roll_up_minutes(hours)
            rolled += len(hours)
    return rolled
