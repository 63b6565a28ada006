"""Runs as tables, CSV, JSON, and a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting import readable
from gpuledger_collector.accounting.carbon import MJ_PER_KWH
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.charged_runs import ListedRun, RunGroup
from gpuledger_collector.accounting.measures import total
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, hours_decimal
from gpuledger_collector.accounting.unit_cost import PER, UnitCost
from gpuledger_collector.export import html, plots
from gpuledger_collector.export.cells import (
    json_text,
    lines_text,
)
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.site import Site
from gpuledger_collector.insight.bottlenecks import Bottleneck, GpuReadings, mean_by_minute
from gpuledger_collector.insight.run_report import (
    RunReport,
    ScalingPoint,
    leading_counter,
)
from gpuledger_collector.insight.waste_receipt import ReceiptLine
from gpuledger_common.plurals import plural

UNITS = {
    "inferences": "1,000 inferences",
    "requests": "1,000 requests",
    "prompt_tokens": "million prompt tokens",
    "generated_tokens": "million generated tokens",
    "total_tokens": "million tokens (prompt and generated)",
    "tokens": "million tokens",
    "samples": "1,000 samples",
    "steps": "step",
    "epochs": "epoch",
}
READINGS = {
    "utilization_ratio": "utilization",
    "sm_active_ratio": "SM activity",
    "dram_active_ratio": "DRAM activity",
    "memory_used_bytes": "memory used, bytes",
    "nvlink_bytes_per_second": "NVLink, bytes a second",
    "sm_clock_hertz": "SM clock, hertz",
    "temperature_celsius": "temperature, degrees Celsius",
    "power_watts": "power, watts",
}
GPU_TIME_ONLY = "cost is that of GPU-time, without node costs"
"""What the lists of runs and jobs say of their amounts: a receipt and the chargeback by workload
add node costs.
"""
MAX_POINTS = 240


UNIT_COSTS = Report[UnitCost](
    "unit_costs",
    (
        Column("counter", lambda item: item.counter),
        Column("from", lambda item: format_instant(item.bucket_ms) if item.bucket_ms else None),
        Column("currency", lambda item: item.currency),
        Column("per", lambda item: item.per, Kind.COUNT),
        Column("cost", lambda item: html.unit_price(item.cost), Kind.DECIMAL),
        Column("used_cost", lambda item: html.unit_price(item.used_cost), Kind.DECIMAL),
        Column("units", lambda item: item.units, Kind.COUNT),
        Column("coverage", lambda item: f"{item.coverage:.4f}", Kind.DECIMAL),
        Column("covered_cost", lambda item: Money(item.cost_micro, item.currency), Kind.MONEY),
        Column("charged_cost", lambda item: Money(item.charged_micro, item.currency), Kind.MONEY),
        Column("restarts", lambda item: item.restarts, Kind.COUNT),
    ),
)


def _hours(item: ListedRun) -> tuple[Decimal, Decimal]:
    """Hours held, and of them idle: rounded together."""
    held, idle = hours_decimal([item.run.gpu_ns, item.run.idle_ns], 2)
    return held, idle


def _kwh(item: ListedRun) -> str | None:
    return None if item.run.energy_mj is None else f"{item.run.energy_mj / MJ_PER_KWH:.3f}"


RUNS = Report[ListedRun](
    "runs",
    (
        Column("run", lambda item: item.run.key),
        Column("name", lambda item: item.run.display_name, is_optional=True),
        Column("user", lambda item: item.run.user, in_table=False),
        Column("team", lambda item: item.run.team),
        Column("model", lambda item: item.run.gpu_model, in_table=False),
        # A record of a scheduler counts GPUs and names none.
        Column("gpus", lambda item: item.run.accelerators or None, Kind.COUNT, is_optional=True),
        Column("from", lambda item: item.run.start_ms, Kind.INSTANT, is_optional=True),
        Column("to", lambda item: item.run.end_ms, Kind.INSTANT, in_table=False),
        Column("gpu_hours", lambda item: _hours(item)[0], Kind.HOURS),
        Column(
            "gpu_hours_held_idle",
            lambda item: _hours(item)[1] if item.run.has_known_activity else None,
            Kind.HOURS,
            is_optional=True,
        ),
        Column(
            "cost", lambda item: item.run.cost, Kind.MONEY, about="Of GPU-time, without node costs."
        ),
        Column("cost_held_idle", lambda item: item.run.idle_cost, Kind.MONEY),
        Column("currency", lambda item: item.run.currency),
        Column(
            "cost_per_gpu_hour",
            lambda item: html.unit_price(item.run.cost_per_gpu_hour) or None,
            Kind.DECIMAL,
            is_optional=True,
        ),
        Column("kwh", _kwh, Kind.SIZE, in_table=False),
        Column(
            "unit_cost",
            lambda item: item.unit and html.unit_price(item.unit.cost),
            Kind.DECIMAL,
            is_optional=True,
        ),
        Column("unit", lambda item: item.unit and UNITS[item.unit.counter], is_optional=True),
        Column("units", lambda item: item.unit and item.unit.units, Kind.COUNT, in_table=False),
        Column(
            "coverage",
            lambda item: item.unit and f"{item.unit.coverage:.1%}",
            Kind.PERCENT,
            is_optional=True,
        ),
        Column("notice", lambda _: GPU_TIME_ONLY, in_table=False),
    ),
)


def run_json(item: ListedRun) -> dict[str, Any]:
    """A run by the columns of its report, and by the names that it had before: those win where both
    have one.
    """
    run = item.run
    named = {
        "key": run.key,
        "kind": run.kind,
        "id": run.external_id,
        "name": run.name,
        "user": run.user,
        "team": run.team,
        "gpu_model": run.gpu_model,
        "accelerators": run.accelerators or None,
        "from": format_instant(run.start_ms),
        "to": format_instant(run.end_ms),
        "gpu_ns": run.gpu_ns,
        "busy_ns": run.busy_ns,
        "idle_ns": run.idle_ns,
        "unknown_ns": run.unknown_ns,
        "currency": run.currency,
        "cost_micro": run.cost_micro,
        "held_idle_cost_micro": run.idle_cost_micro,
        "energy_mj": run.energy_mj,
        "unit_cost": None if item.unit is None else unit_json(item.unit),
        "notice": GPU_TIME_ONLY,
    }
    return {
        **named,
        **{name: value for name, value in RUNS.exact(item).items() if name not in named},
    }


def unit_json(unit: UnitCost) -> dict[str, Any]:
    """A unit cost: the decimal that people read, and the integers that it is made of."""
    return {
        "counter": unit.counter,
        "from": format_instant(unit.bucket_ms) if unit.bucket_ms else None,
        "currency": unit.currency,
        "per": unit.per,
        "cost": None if unit.cost is None else str(unit.cost),
        "used_cost": None if unit.used_cost is None else str(unit.used_cost),
        "units": unit.units,
        "cost_micro": unit.cost_micro,
        "used_micro": unit.used_micro,
        "charged_micro": unit.charged_micro,
        "held_ms": unit.held_ms,
        "covered_ms": unit.covered_ms,
        "coverage": f"{unit.coverage:.6f}",
        "restarts": unit.restarts,
    }


def as_csv(units: Sequence[UnitCost]) -> str:
    """Unit costs as CSV: LF, UTF-8."""
    return "".join(csv_pieces(UNIT_COSTS.csv_rows(units)))


def as_json(report: RunReport) -> str:
    """Everything of a report: integers of micro-units, instants in RFC 3339."""
    content = {
        "key": report.key,
        "name": report.name,
        "user": report.user,
        "team": report.team,
        "kind": report.kind,
        "from": _instant(report.start_ms),
        "to": _instant(report.end_ms),
        "outcome": report.outcome or None,
        "held": [asdict(line) for line in report.receipt.held],
        "waste": [asdict(entry) for entry in report.receipt.items],
        "energy_mj": report.energy_mj,
        "unit_costs": [unit_json(unit) for unit in report.units],
        "by": [unit_json(unit) for unit in report.by],
        "parts": [
            {
                **{name: value for name, value in asdict(part).items() if name != "gpu_ns"},
                "start_ms": _instant(part.start_ms),
                "end_ms": _instant(part.end_ms),
                # A record of a scheduler counts GPUs and names none.
                "accelerators": part.accelerators or None,
                "held_ms": part.held_ms or None,
            }
            for part in report.parts
        ],
        "restarts": report.restarts,
        "bottlenecks": {
            "minutes": report.judgment.minutes,
            "found": [asdict(bottleneck) for bottleneck in report.judgment.verdicts],
            "fine": list(report.judgment.fine),
            "cannot_say": [asdict(gap) for gap in report.judgment.cannot_say],
        },
        "peers": [
            {
                "key": peer.key,
                "from": format_instant(peer.start_ms),
                "to": format_instant(peer.end_ms),
                "accelerators": peer.accelerators or None,
                "gpu_ns": peer.gpu_ns,
                "currency": peer.currency,
                "cost_micro": peer.cost_micro,
                "activity": _text(peer.activity),
                "units_per_gpu_hour": _text(peer.units_per_gpu_hour),
                "unit_cost": None if peer.unit is None else unit_json(peer.unit),
                "outcome": peer.outcome or None,
            }
            for peer in report.peers
        ],
        "scaling": [scaling_json(point) for point in report.scaling],
        "notes": list(report.notes),
    }
    return json_text(content) + "\n"


def scaling_json(point: ScalingPoint) -> dict[str, Any]:
    """Runs on one number of GPUs; null where something is not known."""
    return {
        "accelerators": point.accelerators,
        "runs": point.runs,
        "measure": point.measure,
        "per_gpu": _text(point.per_gpu),
        "per": None if point.counter is None else PER[point.counter],
        "seconds": _text(point.seconds),
        "unit_cost": _text(point.unit_cost),
        "efficiency": _text(point.efficiency),
        "efficiency_lowest": _text(point.lowest),
        "efficiency_highest": _text(point.highest),
    }


def _instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_instant(at_ms)


def _text(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:.6f}"


def as_text(report: RunReport) -> str:
    """The report for a terminal."""
    who = f" of {report.user}" if report.user else ""
    lines = [
        f"RUN  {report.key}  {report.name}{who}{f', team {report.team}' if report.team else ''}"
    ]
    if report.start_ms is not None and report.end_ms is not None:
        ended = f", ended {report.outcome}" if report.outcome else ""
        lines.append(f"{html.minute(report.start_ms)} to {html.minute(report.end_ms)}{ended}")
    lines += ["", "What it held"]
    for line in report.receipt.held:
        cost = (
            "no price"
            if line.currency is None
            else f"{html.micro(line.cost_micro, line.currency)} {line.currency}"
        )
        if line.node_cost:
            lines.append(f"  {line.node_cost} of nodes in {line.pool}; {cost}")
            continue
        if line.is_correction and line.currency:
            at_rate = f" at {line.rate}" if line.rate and not line.commitment else ""
            lines.append(f"  corrections{at_rate} in {line.pool}; {cost}")
            continue
        lines.append(
            f"  {html.hours(line.gpu_ns)} GPU-hours of {line.gpu_model or 'an unknown model'} in"
            f" {line.pool}: used {html.hours(line.known_busy_ns)}, idle"
            f" {html.hours(line.known_idle_ns)}, activity not known {html.hours(line.unknown_ns)};"
            f" {cost}"
        )
    for currency, (paid, idle, waste) in report.receipt.totals().items():
        lines.append(
            f"  charged {html.micro(paid, currency)} {currency}, of it idle"
            f" {html.micro(idle, currency)}, found as waste {html.micro(waste, currency)}"
        )
    lines.append(
        "  energy not measured"
        if report.energy_mj is None
        else f"  energy {html.energy(report.energy_mj)}"
    )
    lines += ["", "What a unit cost (held time; in brackets used time alone)"]
    lines += [f"  {unit_sentence(unit)}" for unit in report.units] or ["  nothing is counted"]
    lines += [f"    {html.minute(unit.bucket_ms)}  {unit_sentence(unit)}" for unit in report.by]
    if len(report.parts) > 1 or report.restarts:
        lines += [
            "",
            (
                f"Parts ({len(report.parts)}; what counts its output began anew {report.restarts}"
                " times)"
            ),
        ]
        lines += [
            f"  {html.minute(part.start_ms)} to {html.minute(part.end_ms)}:"
            f" {_gpus(part.accelerators)}, {_held_text(part.gpu_ns)},"
            f" {html.amounts(part.cost_micro) or 'no price'}"
            for part in report.parts
        ]
    lines += ["", "What holds it back"]
    lines += [
        f"  {bottleneck.kind}: {bottleneck.says}. {html.capitalize_sentence(bottleneck.advice)}."
        for bottleneck in report.judgment.verdicts
    ]
    if report.judgment.fine:
        lines.append(f"  looked at and fine: {', '.join(report.judgment.fine)}")
    lines += [f"  {gap.kind}: cannot be said: {gap.missing}" for gap in report.judgment.cannot_say]
    if len(report.peers) > 1:
        lines += ["", "Beside runs of the same name and team"]
        lines += [f"  {_peer(peer)}" for peer in report.peers]
    if report.scaling:
        lines += ["", f"How it scales ({report.scaling[0].measure})"]
        lines += [
            f"  {plural(point.accelerators, 'GPU')}: {point.per_gpu:,.3f}, "
            f"efficiency {efficiency_text(point)} (runs: {point.runs})"
            for point in report.scaling
        ]
    lines += [""] * bool(report.notes) + [f"note: {note}" for note in report.notes]
    return lines_text(lines)


def efficiency_text(point: ScalingPoint) -> str:
    """The efficiency, with that of the worst and the best run where they differ."""
    spread = (
        ""
        if point.lowest == point.highest
        else f", {readable.percent(point.lowest)} to {readable.percent(point.highest)}"
    )
    return f"{readable.percent(point.efficiency)}{spread}"


def _gpus(count: int) -> str:
    """How many accelerators; a record of a scheduler counts GPUs and names none."""
    return f"{count} GPU{'s' * (count != 1)}" if count else f"which GPUs is {html.UNKNOWN}"


def _held_text(gpu_ns: int) -> str:
    return (
        f"{html.hours(gpu_ns)} GPU-hours" if gpu_ns else f"held time is {html.UNKNOWN} by the hour"
    )


def unit_sentence(unit: UnitCost) -> str:
    """A unit cost in words."""
    if unit.cost is None:
        return f"{UNITS[unit.counter]}: nothing was counted in {readable.percent(unit.coverage)} of the charged time"
    return (
        f"{html.unit_price(unit.cost)} {unit.currency} ({html.unit_price(unit.used_cost)}) "
        f"per {UNITS[unit.counter]}: {unit.units:,} {unit.counter.replace('_', ' ')}, "
        f"{readable.percent(unit.coverage)} of the charged time counted"
    )


def _peer(peer: Any) -> str:
    cost = (
        "no price"
        if peer.currency is None
        else f"{html.micro(peer.cost_micro, peer.currency)} {peer.currency}"
    )
    activity = (
        "activity not known" if peer.activity is None else f"{html.percent(peer.activity)} active"
    )
    unit = (
        f", {html.unit_price(peer.unit.cost)} per {UNITS[peer.unit.counter]}"
        if peer.unit is not None and peer.unit.units
        else ""
    )
    ended = f", {peer.outcome}" if peer.outcome else ""
    return (
        f"{html.minute(peer.start_ms)}  {peer.key}: {_gpus(peer.accelerators)},"
        f" {html.hours(peer.gpu_ns)} GPU-hours, {cost}, {activity}{unit}{ended}"
    )


def _receipt_hours(line: ReceiptLine) -> list[Decimal]:
    """Hours held, and of them used, idle and unknown: rounded together."""
    return hours_decimal([line.gpu_ns, line.busy_ns, line.idle_ns, line.unknown_ns], 6)


def _money(micro: int | None, line: ReceiptLine) -> Money | None:
    return None if micro is None or line.currency is None else Money(micro, line.currency)


def receipt_report(run: str) -> Report[ReceiptLine]:
    """What a run was charged, by kind of accelerator and rate; what is not known is empty."""
    return Report(
        "receipt",
        (
            Column("run", lambda _: run),
            Column("pool", lambda item: item.pool),
            Column("model", lambda item: item.gpu_model),
            Column("rate", lambda item: item.rate),
            Column("commitment", lambda item: item.commitment),
            Column("gpu_hours", lambda item: _receipt_hours(item)[0], Kind.HOURS),
            Column(
                "gpu_hours_used",
                lambda item: _receipt_hours(item)[1] if item.has_known_activity else None,
                Kind.DECIMAL,
            ),
            Column(
                "gpu_hours_held_idle",
                lambda item: _receipt_hours(item)[2] if item.has_known_activity else None,
                Kind.DECIMAL,
            ),
            Column("gpu_hours_unknown", lambda item: _receipt_hours(item)[3], Kind.DECIMAL),
            Column("cost", lambda item: _money(item.cost_micro, item), Kind.MONEY),
            Column(
                "cost_held_idle",
                lambda item: (
                    _money(item.idle_cost_micro, item) if item.has_known_activity else None
                ),
                Kind.MONEY,
            ),
            Column("currency", lambda item: item.currency),
            Column("node_cost", lambda item: item.node_cost),
        ),
    )


def receipt_csv(report: RunReport) -> Iterator[list[str]]:
    """What a run was charged, as a file."""
    return receipt_report(report.key).csv_rows(report.receipt.held)


def price_lines(report: RunReport) -> dict[str, str]:
    """How the amount of each currency is made: `30.00 h x 6.88 + 388.67 h x 5.95`, node costs and
    what commitments cover as amounts.
    """
    held = [line for line in report.receipt.held if line.currency is not None]
    hours = hours_decimal([line.gpu_ns for line in held], 2)
    parts: dict[str, list[str]] = {}
    for line, line_hours in zip(held, hours, strict=True):
        currency = line.currency or ""
        amount = html.micro(line.cost_micro, currency)
        if line.node_cost:
            text = f"{amount} for {line.node_cost}"
        elif line.is_correction:
            text = f"{amount} of corrections"
        elif line.commitment or not line.rate:
            covered = f" of commitment {line.commitment}" if line.commitment else ""
            text = f"{amount} for {line_hours:,} h{covered}"
        else:
            text = f"{line_hours:,} h x {html.unit_price(Decimal(line.rate))}"
        parts.setdefault(currency, []).append(text)
    return {currency: " + ".join(texts) for currency, texts in parts.items()}


def group_facts(group: RunGroup, by: str, site: Site) -> dict[str, Any]:
    """Jobs of a team, user, model, state or day, as one row of a page."""
    unnamed = UNATTRIBUTED if by == "team" else html.UNKNOWN
    return {
        "name": group.name or unnamed,
        # A list cannot be searched for who is not known.
        "path": site.group_path(by, group.name) if group.name or by == "team" else "",
        "jobs": f"{group.workloads:,}",
        "gpu_ns": group.gpu_ns,
        "idle_ns": group.idle_ns,
        "cost": None if group.cost is None else f"{group.cost.grouped()} {group.cost.currency}",
    }


def as_html(report: RunReport, site: Site | None = None) -> str:
    """The page; with `site` as the collector serves it, else as a file by itself."""
    return html.render(
        "run.html",
        site=site,
        run=report,
        efficiency_text=efficiency_text,
        held=total(report.receipt.held),
        prices=price_lines(report),
        rate_text=_rate_text,
        namesake_range=_range_of_namesakes(report),
        leading=leading_counter(report.units),
        unit_names=UNITS,
        bars=_bars(report),
        unit_plot=_unit_plot(report),
        bottlenecks=[
            (bottleneck, _readings(report.gpus, bottleneck), _evidence(bottleneck))
            for bottleneck in report.judgment.verdicts
        ],
        made_ms=report.made_ms,
        calendar=report.calendar,
    )


def _rate_text(line: ReceiptLine) -> str:
    """The price of an hour with its currency; empty where a line has none of its own."""
    if not (line.rate and line.currency) or line.node_cost or line.commitment:
        return ""
    return f"{html.unit_price(Decimal(line.rate))} {line.currency}"


def _range_of_namesakes(report: RunReport) -> dict[str, str]:
    """The days of the runs of its name, as an address of a list names them."""
    if not report.namesakes:
        return {}
    calendar = report.calendar
    first = calendar.date_of(min(run.start_ms for run in report.namesakes))
    last = calendar.day_of(max(run.end_ms for run in report.namesakes) - 1).end_ms
    return {
        "from": first.isoformat(),
        "to": calendar.date_of(last).isoformat(),
        "name": report.namesakes[0].name or "",
    }


def _bars(report: RunReport) -> Any:
    stacks = [
        plots.Stack(
            f"{day.date.day} {day.date:%b}",
            tuple(ns / GPU_NS_PER_HOUR for ns in (day.busy_ns, day.idle_ns, day.unknown_ns)),
        )
        for day in report.days
    ]
    most = max((sum(stack.layers) for stack in stacks if stack.layers is not None), default=0.0)
    return plots.stacked_bars(
        stacks,
        ("busy", "idle", "unknown"),
        "GPU-hours held, day by day",
        f"{plural(len(stacks), 'day')}, at most {most:,.1f} GPU-hours a day",
        "h",
    )


def _unit_plot(report: RunReport) -> Any:
    """The cost of the chief unit by bucket; a bucket in which nothing is covered is a gap."""
    chief = leading_counter(report.by)
    if chief is None:
        return None
    chief_units = [
        unit
        for unit in report.by
        if (unit.counter, unit.currency) == (chief.counter, chief.currency)
    ]
    if len(chief_units) < 2:
        return None
    values = [None if unit.cost is None else float(unit.cost) for unit in chief_units]
    known = [value for value in values if value is not None]
    unit_name = f"{chief.currency} per {UNITS[chief.counter]}"
    return plots.spark(
        values,
        f"Cost of a unit: {unit_name}",
        f"from {min(known):,.4f} to {max(known):,.4f}",
        width=720,
        height=160,
        axis=True,
    )


def _readings(gpus: Sequence[GpuReadings], verdict: Bottleneck) -> list[Any]:
    """The readings behind a verdict, drawn over the minutes that were judged; of imbalance a line
    for each GPU.
    """
    drawn = []
    groups = [[gpu] for gpu in gpus[:8]] if verdict.kind == "imbalance" else [list(gpus)]
    for name in verdict.drawn:
        for group in groups:
            values = thin_out(mean_by_minute(group, name))
            known = [value for value in values if value is not None]
            if known:
                whose = f" of {group[0].uuid}" if verdict.kind == "imbalance" else ""
                title = f"{READINGS.get(name, name)}{whose}"
                about = (
                    f"mean {plots.short(sum(known) / len(known))}, from {plots.short(min(known))}"
                    f" to {plots.short(max(known))}"
                )
                drawn.append(
                    (
                        title,
                        plots.spark(values, title, about, width=720, height=120, axis=True),
                        about,
                    )
                )
    return drawn


def thin_out(values: Sequence[float | None]) -> list[float | None]:
    """At most MAX_POINTS means of neighboring values; where none of them is known, a gap."""
    step = -(-len(values) // MAX_POINTS) or 1
    means: list[float | None] = []
    for at in range(0, len(values), step):
        known = [value for value in values[at : at + step] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def _evidence(bottleneck: Bottleneck) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.3g}" for name, value in bottleneck.evidence.items()
    )
