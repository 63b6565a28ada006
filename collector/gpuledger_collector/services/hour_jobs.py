"""The jobs of one hour: what each held in it, and what that cost, as spend over time spreads the days
of the bill over their hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.charged_runs import ChargedRun
from gpuledger_collector.accounting.money import Money, total_by_currency
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.spend_over_time import SpendOverTime
from gpuledger_collector.accounting.spend_series import HOUR
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.storage.billing import runs, spend
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

Owner = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class HourJob:
    """What a job held in the hour, and the part of its day's cost."""

    run: ChargedRun
    gpu_ns: int
    cost: Money


@dataclass(frozen=True, slots=True)
class HourJobs:
    """The dearest jobs of an hour, and what the others held and cost together."""

    hour: Period
    items: Sequence[HourJob]
    others: int
    others_gpu_ns: int
    others_cost: Sequence[Money]


def find_hour(found: SpendOverTime, at_ms: int | None) -> int | None:
    """The bucket of a range by hours that holds an instant; None: there is none."""
    if at_ms is None or found.step != HOUR:
        return None
    return next(
        (at for at, hour in enumerate(found.buckets) if hour.start_ms <= at_ms < hour.end_ms), None
    )


def list_hour_jobs(
    connection: Connection, found: SpendOverTime, at: int, owner: Owner, viewer: Owner, top: int
) -> HourJobs:
    """List the jobs of an hour (by the number of its bucket) that an owner pays for, dearest first.

    Their names are read with the rights of a viewer.
    """
    hour = found.buckets[at]
    day = found.calendar.day_of(hour.start_ms)
    hours = [bucket for bucket in found.buckets if day.start_ms <= bucket.start_ms < day.end_ms]
    number = hours.index(hour)
    rated_ms = day.start_ms if found.rated_ms is None else found.rated_ms
    asked = (connection, spend.WORKLOAD, [day], hours, owner, rated_ms)
    # Hours of usage are nobody's to read but the collector's: only what belongs to the owner is
    # added up.
    cost, time = (
        {
            (cell.key, cell.currency): cell.cost_micro
            for cell in spend.spend_by_hour(*asked, amount)
            if cell.bucket == number and cell.state == HELD and cell.key and not cell.correction_of
        }
        for amount in ("cost_micro", "gpu_ns")
    )
    held = sorted(
        (key for key, gpu_ns in time.items() if gpu_ns),
        key=lambda key: (-cost.get(key, 0), -time[key], key),
    )
    with as_viewer(connection, viewer):
        ids = sorted({int(name or 0) for name, _ in held[:top]})
        named = {
            (str(run.workload_id), run.currency): run
            for run in runs.list_charged(connection, day, owner or {}, ids=ids)
        }
    shown = [key for key in held[:top] if key in named]
    rest = [key for key in held if key not in set(shown)]
    return HourJobs(
        hour,
        [HourJob(named[key], time[key], Money(cost.get(key, 0), key[1])) for key in shown],
        len(rest),
        sum(time[key] for key in rest),
        total_by_currency(Money(cost.get(key, 0), key[1]) for key in rest),
    )
