"""Runs: what their output cost per unit, the report of one run, and the progress that a run reports
of itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.charged_runs import ChargedRun
from gpuledger_collector.accounting.counters import LATEST_DAYS, CounterReading
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    UTC_DAYS,
    Calendar,
    Period,
    format_instant,
)
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.unit_cost import HeldHour, UnitCost, hour_costs, unit_costs
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.insight import run_report
from gpuledger_collector.insight.bottlenecks import GpuReadings, find_bottlenecks
from gpuledger_collector.insight.run_report import ComparedRun, RunReport, ScaledRuns
from gpuledger_collector.insight.waste_receipt import make_receipt
from gpuledger_collector.storage.billing import runs
from gpuledger_collector.storage.findings import findings, recommendations
from gpuledger_collector.storage.ledger import evidence_periods, zones

Connection = psycopg.Connection[tuple[Any, ...]]
PEER_DAYS = 365
MAX_PEERS = 10
JUDGED_HOURS = 24
"""Bottlenecks are judged on the last whole hours of a run: a run of weeks has too many minutes to
read for a page.
"""
MAX_FUTURE_MS = 300_000


def chief_unit_costs(
    connection: Connection, rows: Sequence[ChargedRun], period: Period
) -> dict[tuple[int, str | None], UnitCost]:
    """The unit cost by which runs are compared, by workload and currency; runs that counted nothing
    are left out.
    """
    counted = runs.read_counts(connection, [row.workload_id for row in rows], period)
    chief_by_run: dict[tuple[int, str | None], UnitCost] = {}
    for workload_id, counts in counted.items():
        charges = _charges_of_time(_charges(connection, workload_id, period))
        units = unit_costs(
            hour_costs(charges, _held_hours(connection, workload_id, charges, period)), counts
        )
        for currency in {unit.currency for unit in units}:
            chief = run_report.leading_counter(
                [unit for unit in units if unit.currency == currency]
            )
            if chief is not None:
                chief_by_run[workload_id, currency] = chief
    return chief_by_run


def report_run(
    connection: Connection,
    workload_id: int,
    bucket: str | None,
    now_ms: int,
    period: Period | None = None,
) -> RunReport | None:
    """Report a run over all of its charges or those of a period; None where it was charged nothing.

    `bucket` adds unit costs by hour, day or month.
    """
    charged = _charges(connection, workload_id, period)
    charges = _charges_of_time(charged)
    if not charges:
        return None
    calendar = zones.calendar(connection)
    days = [charge.day_ms for charge in charges]
    span = Period(min(days), calendar.day_of(max(days)).end_ms)
    row, *_ = runs.rows_of(connection, [workload_id], span)
    held = _held_hours(connection, workload_id, charges, span)
    hours = hour_costs(charges, held)
    counts = runs.read_counts(connection, [workload_id], span).get(workload_id, [])
    units = unit_costs(hours, counts)
    gpus = _gpus(connection, held)
    namesakes = _namesakes(connection, row, now_ms)
    peers = _peers(connection, calendar, row, namesakes)
    idle_findings = [
        finding
        for finding in findings.of_workload(connection, workload_id)
        if finding.since_ms < span.end_ms and finding.until_ms > span.start_ms
    ]
    return RunReport(
        key=row.key,
        name=row.display_name,
        user=row.user,
        team=row.team,
        kind=row.kind,
        made_ms=now_ms,
        receipt=make_receipt(
            charged, idle_findings, recommendations.advice_for(connection, workload_id)
        ),
        hours=hours,
        days=run_report.run_days(held, hours, calendar),
        parts=run_report.active_periods(held, hours),
        energy_mj=run_report.measured_energy_mj(charges),
        units=units,
        by=() if bucket is None else unit_costs(hours, counts, bucket_start(bucket, calendar)),
        restarts=max((unit.restarts for unit in units), default=0),
        outcome=runs.outcomes(connection, [workload_id]).get(workload_id, ""),
        peers=peers,
        scaling=run_report.scaling_points(
            [peer for peer in peers if peer.gpu_model == row.gpu_model]
        ),
        gpus=gpus,
        judgment=find_bottlenecks(gpus),
        notes=_notes(counts, units),
        calendar=calendar,
        namesakes=namesakes,
        extent=_extent(connection, workload_id, charges),
    )


def _extent(connection: Connection, workload_id: int, charges: Sequence[Charge]) -> Period | None:
    """From when to when evidence says that a run held something, in its first and its last charged
    hour; None: it says nothing of one of them.
    """
    first_ms = min(charge.start_ms for charge in charges)
    last_ms = max(charge.end_ms for charge in charges)
    accelerators = sorted(
        {charge.accelerator_id for charge in charges if charge.accelerator_id is not None}
    )

    def seen(hour: Period) -> Period | None:
        return evidence_periods.extent_of_workload(connection, workload_id, accelerators, hour)

    first, last = (
        seen(Period(first_ms, first_ms + HOUR_MS)),
        seen(Period(last_ms - HOUR_MS, last_ms)),
    )
    return None if first is None or last is None else Period(first.start_ms, last.end_ms)


def compare_sizes(
    connection: Connection, period: Period, owner: Mapping[str, str]
) -> list[ScaledRuns]:
    """Show how the runs of one name, team and model scale with their number of GPUs, costliest
    first.

    Of each number the newest MAX_PEERS runs are read. Names that ran on one number of GPUs alone
    are left out.
    """
    calendar = zones.calendar(connection)
    by_name: defaultdict[tuple[str, str, str, str], list[ChargedRun]] = defaultdict(list)
    for row in runs.list_charged(connection, period, owner):
        if row.name and row.accelerators and row.currency is not None:
            by_name[row.team, row.name, row.gpu_model, row.currency].append(row)
    compared = []
    for (team, name, model, currency), rows in by_name.items():
        sizes = {row.accelerators for row in rows}
        if len(sizes) < 2:
            continue
        newest = sorted(rows, key=lambda row: (-row.start_ms, row.key))
        chosen = [
            row
            for size in sizes
            for row in [row for row in newest if row.accelerators == size][:MAX_PEERS]
        ]
        points = run_report.scaling_points([_peer(connection, calendar, row, "") for row in chosen])
        if points:
            cost_micro = sum(row.cost_micro or 0 for row in rows)
            compared.append(ScaledRuns(team, name, model, currency, cost_micro, points))
    return sorted(
        compared, key=lambda runs: (-runs.cost_micro, runs.team, runs.name, runs.gpu_model)
    )


def record_progress(
    connection: Connection,
    workload_id: int,
    values: Mapping[str, int],
    at_ms: int | None,
    started_ms: int | None,
    now_ms: int,
) -> None:
    """Store the totals that a run reports of itself. Raises ValueError with a sentence."""
    at_ms = now_ms if at_ms is None else at_ms
    if not values:
        raise ValueError("report at least one of steps, tokens, samples and epochs")
    if not now_ms - LATEST_DAYS * DAY_MS <= at_ms <= now_ms + MAX_FUTURE_MS:
        raise ValueError(
            f"{format_instant(at_ms)} is more than {LATEST_DAYS} days ago, or lies ahead"
        )
    with connection.transaction():
        counters.store_readings(
            connection,
            [
                (
                    counters.Series(workload_id, "reported", "run", "", counter, "run"),
                    CounterReading(at_ms, value, started_ms),
                )
                for counter, value in values.items()
            ],
        )


def bucket_start(name: str, calendar: Calendar = UTC_DAYS) -> Callable[[int], int]:
    """Map an instant to the start of its hour, or of its day or month of the bill.

    Raises ValueError.
    """
    if name == "hour":
        return lambda at_ms: at_ms - at_ms % HOUR_MS
    if name == "day":
        return lambda at_ms: calendar.day_of(at_ms).start_ms
    if name == "month":
        return lambda at_ms: calendar.month(calendar.month_of(at_ms)).start_ms
    raise ValueError(f"{name!r} is not one of hour, day, month")


def _charges(connection: Connection, workload_id: int, period: Period | None) -> list[Charge]:
    return [
        charge
        for charge in recommendations.charged_to(connection, workload_id)
        if period is None or period.start_ms <= charge.day_ms < period.end_ms
    ]


def _charges_of_time(charges: Iterable[Charge]) -> list[Charge]:
    """Those of GPU-time: units and hours are compared with them, and not with what nodes cost."""
    return [charge for charge in charges if charge.node_cost is None]


def _held_hours(
    connection: Connection, workload_id: int, charges: Sequence[Charge], period: Period
) -> list[HeldHour]:
    accelerators = sorted(
        {charge.accelerator_id for charge in charges if charge.accelerator_id is not None}
    )
    return runs.held_hours(connection, workload_id, accelerators, period)


def _gpus(connection: Connection, held: list[HeldHour]) -> list[GpuReadings]:
    readings = runs.minutes(connection, runs.whole_hours(held, JUDGED_HOURS))
    names = runs.named_cards(connection, sorted(readings))
    return [
        GpuReadings(*names[accelerator], readings[accelerator]) for accelerator in sorted(readings)
    ]


def _namesakes(connection: Connection, row: ChargedRun, now_ms: int) -> list[ChargedRun]:
    """The runs of the same name and team in the year before its end; none where it has no name."""
    period = Period(row.end_ms - PEER_DAYS * DAY_MS, max(row.end_ms, now_ms))
    owner = {"team": row.team} if row.team else {}
    return [] if row.name is None else runs.list_charged(connection, period, owner, row.name)


def _peers(
    connection: Connection, calendar: Calendar, row: ChargedRun, namesakes: Sequence[ChargedRun]
) -> list[ComparedRun]:
    """This run first, then the newest others with the same name and team."""
    # Newest first: only the latest peers are shown, and reading one takes several queries.
    others = sorted(
        (
            run
            for run in namesakes
            if run.workload_id != row.workload_id and run.currency == row.currency
        ),
        key=lambda run: -run.start_ms,
    )[:MAX_PEERS]
    outcomes = runs.outcomes(connection, [run.workload_id for run in (row, *others)])
    return [
        _peer(connection, calendar, run, outcomes.get(run.workload_id, ""))
        for run in (row, *others)
    ]


def _peer(connection: Connection, calendar: Calendar, run: ChargedRun, outcome: str) -> ComparedRun:
    days = Period(calendar.day_of(run.start_ms).start_ms, run.end_ms)
    unit = chief_unit_costs(connection, [run], days).get((run.workload_id, run.currency))
    units_per_gpu_hour = None
    if unit is not None:
        charges = _charges_of_time(_charges(connection, run.workload_id, None))
        held = _held_hours(connection, run.workload_id, charges, days)
        units_per_gpu_hour = run_report.units_per_gpu_hour(unit, charges, held)
    return ComparedRun(
        key=run.key,
        start_ms=run.start_ms,
        end_ms=run.end_ms,
        gpu_model=run.gpu_model,
        accelerators=run.accelerators,
        gpu_ns=run.gpu_ns,
        busy_ns=run.busy_ns,
        idle_ns=run.idle_ns,
        currency=run.currency,
        cost_micro=run.cost_micro,
        unit=unit,
        units_per_gpu_hour=units_per_gpu_hour,
        outcome=outcome,
    )


def _notes(counts: Sequence[Any], units: Sequence[UnitCost]) -> list[str]:
    notes = []
    if not counts:
        notes.append(
            "its output is not counted, so a unit has no cost: the job can report its progress"
            " itself, or whoever runs the nodes has its endpoint read (docs/guides/unit-cost.md)"
        )
    elif not units:
        notes.append("its output is counted, but its time has no price yet")
    notes += [
        f"{unit.counter}: counted in {unit.coverage:.1%} of the charged time; the rest is left out,"
        " not estimated"
        for unit in units
        if unit.covered_ms < unit.held_ms
    ]
    inferences = any(unit.counter == "inferences" and unit.units for unit in units)
    if inferences and len({count.source for count in counts}) > 1:
        notes.append("several endpoints count its inferences; each is taken as an equal part")
    return notes
