"""Runs as tables, CSV, JSON, and a page that needs nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.accounting.unit_cost import UnitCost
from gpuledger_collector.export import html, plots
from gpuledger_collector.export.cells import json_text, lines_text, neutral
from gpuledger_collector.insight.bottlenecks import Bottleneck, GpuReadings, mean_by_minute
from gpuledger_collector.insight.run_report import RunReport, leading_counter
from gpuledger_collector.storage.ledger.runs import RunRow
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
}
READINGS = {
    "utilization_ratio": "utilisation",
    "sm_active_ratio": "SM activity",
    "dram_active_ratio": "DRAM activity",
    "memory_used_bytes": "memory used, bytes",
    "nvlink_bytes_per_second": "NVLink, bytes a second",
    "sm_clock_hertz": "SM clock, hertz",
    "temperature_celsius": "temperature, degrees Celsius",
    "power_watts": "power, watts",
}
UNIT_COLUMNS = (
    "counter",
    "from",
    "currency",
    "per",
    "cost",
    "used_cost",
    "units",
    "coverage",
    "covered_cost",
    "charged_cost",
    "restarts",
)
MOST_POINTS = 240


def plain(value: Decimal | None) -> str:
    """A unit cost as people read it: at least two decimal places; empty where nothing was produced."""
    if value is None:
        return ""
    text = f"{value:f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"{whole}.{part.ljust(2, '0')}"


def unit_row(one: UnitCost) -> list[str]:
    """A unit cost by UNIT_COLUMNS."""
    return [
        one.counter,
        format_instant(one.bucket_ms) if one.bucket_ms else "",
        one.currency,
        str(one.per),
        plain(one.cost),
        plain(one.used_cost),
        str(one.units),
        f"{one.coverage:.4f}",
        html.micro(one.cost_micro, one.currency).replace(",", ""),
        html.micro(one.charged_micro, one.currency).replace(",", ""),
        str(one.restarts),
    ]


def run_json(row: RunRow, unit: UnitCost | None) -> dict[str, Any]:
    """A run of a list: integers of micro-units, instants in RFC 3339."""
    return {
        "key": row.key,
        "kind": row.kind,
        "id": row.external_id,
        "name": row.name,
        "user": row.user,
        "team": row.team,
        "gpu_model": row.gpu_model,
        "accelerators": row.accelerators,
        "from": format_instant(row.start_ms),
        "to": format_instant(row.end_ms),
        "gpu_ns": row.gpu_ns,
        "busy_ns": row.busy_ns,
        "idle_ns": row.idle_ns,
        "unknown_ns": row.unknown_ns,
        "currency": row.currency,
        "cost_micro": row.cost_micro,
        "idle_cost_micro": row.idle_cost_micro,
        "energy_mj": row.energy_mj,
        "unit_cost": None if unit is None else unit_json(unit),
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
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(UNIT_COLUMNS)
    writer.writerows([[neutral(cell) for cell in unit_row(one)] for one in units])
    return out.getvalue()


def as_json(made: RunReport) -> str:
    """Everything of a report: integers of micro-units, instants in RFC 3339."""
    told = {
        "key": made.key,
        "name": made.name,
        "user": made.user,
        "team": made.team,
        "kind": made.kind,
        "from": _instant(made.start_ms),
        "to": _instant(made.end_ms),
        "outcome": made.outcome or None,
        "held": [asdict(one) for one in made.receipt.held],
        "waste": [asdict(one) for one in made.receipt.items],
        "energy_mj": made.energy_mj,
        "unit_costs": [unit_json(one) for one in made.units],
        "by": [unit_json(one) for one in made.by],
        "parts": [
            {**asdict(one), "start_ms": _instant(one.start_ms), "end_ms": _instant(one.end_ms)} for one in made.parts
        ],
        "restarts": made.restarts,
        "bottlenecks": {
            "minutes": made.judgement.minutes,
            "found": [asdict(one) for one in made.judgement.verdicts],
            "fine": list(made.judgement.fine),
            "cannot_say": [asdict(one) for one in made.judgement.cannot_say],
        },
        "peers": [
            {
                "key": one.key,
                "from": format_instant(one.start_ms),
                "to": format_instant(one.end_ms),
                "accelerators": one.accelerators,
                "gpu_ns": one.gpu_ns,
                "currency": one.currency,
                "cost_micro": one.cost_micro,
                "activity": _text(one.activity),
                "units_per_gpu_hour": _text(one.units_per_gpu_hour),
                "unit_cost": None if one.unit is None else unit_json(one.unit),
                "outcome": one.outcome or None,
            }
            for one in made.peers
        ],
        "scaling": [
            {
                "accelerators": one.accelerators,
                "runs": one.runs,
                "measure": one.measure,
                "per_gpu": _text(one.per_gpu),
                "efficiency": _text(one.efficiency),
            }
            for one in made.scaling
        ],
        "notes": list(made.notes),
    }
    return json_text(told) + "\n"


def _instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_instant(at_ms)


def _text(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:.6f}"


def amounts(micro: Mapping[str, int]) -> str:
    """Amounts of several currencies, never added."""
    return ", ".join(f"{html.micro(value, currency)} {currency}" for currency, value in sorted(micro.items()))


def as_text(made: RunReport) -> str:
    """The report for a terminal."""
    who = f" of {made.user}" if made.user else ""
    lines = [f"RUN  {made.key}  {made.name}{who}{f', team {made.team}' if made.team else ''}"]
    if made.start_ms is not None and made.end_ms is not None:
        ended = f", ended {made.outcome}" if made.outcome else ""
        lines.append(f"{_minute(made.start_ms)} to {_minute(made.end_ms)}{ended}")
    lines += ["", "What it held"]
    for one in made.receipt.held:
        cost = "no price" if one.currency is None else f"{html.micro(one.cost_micro, one.currency)} {one.currency}"
        lines.append(
            f"  {html.hours(one.gpu_ns)} GPU-hours of {one.gpu_model} in {one.pool}: used "
            f"{html.hours(one.busy_ns)}, idle {html.hours(one.idle_ns)}, not known "
            f"{html.hours(one.unknown_ns)}; {cost}"
        )
    for currency, (paid, idle, found) in made.receipt.totals().items():
        lines.append(
            f"  charged {html.micro(paid, currency)} {currency}, of it idle {html.micro(idle, currency)}, "
            f"found as waste {html.micro(found, currency)}"
        )
    lines.append("  energy not measured" if made.energy_mj is None else f"  energy {made.energy_mj / 3.6e9:,.3f} kWh")
    lines += ["", "What a unit cost (held time; in brackets used time alone)"]
    lines += [f"  {unit_sentence(one)}" for one in made.units] or ["  nothing is counted"]
    lines += [f"    {_minute(one.bucket_ms)}  {unit_sentence(one)}" for one in made.by]
    if len(made.parts) > 1 or made.restarts:
        lines += [
            "",
            f"Parts ({len(made.parts)}; what counts its output began anew {made.restarts} times)",
        ]
        lines += [
            f"  {_minute(one.start_ms)} to {_minute(one.end_ms)}: {_gpus(one.accelerators)}, "
            f"{_held(one.held_ms)}, {amounts(one.cost_micro) or 'no price'}"
            for one in made.parts
        ]
    lines += ["", "What holds it back"]
    lines += [f"  {one.kind}: {one.says}. {begun(one.advice)}." for one in made.judgement.verdicts]
    if made.judgement.fine:
        lines.append(f"  looked at and fine: {', '.join(made.judgement.fine)}")
    lines += [f"  {one.kind}: cannot be said: {one.missing}" for one in made.judgement.cannot_say]
    if len(made.peers) > 1:
        lines += ["", "Beside runs of the same name and team"]
        lines += [f"  {_peer(one)}" for one in made.peers]
    if made.scaling:
        lines += ["", f"How it scales ({made.scaling[0].measure})"]
        lines += [
            f"  {plural(one.accelerators, 'GPU')}: {one.per_gpu:,.3f}, "
            f"efficiency {one.efficiency:.0%} (runs: {one.runs})"
            for one in made.scaling
        ]
    lines += [""] * bool(made.notes) + [f"note: {note}" for note in made.notes]
    return lines_text(lines)


def _minute(at_ms: int) -> str:
    return f"{format_instant(at_ms)[:16]}Z"


def _gpus(count: int) -> str:
    """How many accelerators; a record of a scheduler counts GPUs and names none."""
    return f"{count} GPU{'s' * (count != 1)}" if count else f"which GPUs is {html.UNKNOWN}"


def _held(ms: int) -> str:
    return f"{ms / HOUR_MS:,.1f} accelerator-hours" if ms else f"held time is {html.UNKNOWN} by the hour"


def unit_sentence(one: UnitCost) -> str:
    """A unit cost in words."""
    if one.cost is None:
        return f"{UNITS[one.counter]}: nothing was counted in {one.coverage:.1%} of the charged time"
    return (
        f"{plain(one.cost)} {one.currency} ({plain(one.used_cost)}) per {UNITS[one.counter]}: {one.units:,} "
        f"{one.counter.replace('_', ' ')}, {one.coverage:.1%} of the charged time counted"
    )


def _peer(one: Any) -> str:
    cost = "no price" if one.currency is None else f"{html.micro(one.cost_micro, one.currency)} {one.currency}"
    activity = "activity not known" if one.activity is None else f"{one.activity:.0%} active"
    unit = f", {plain(one.unit.cost)} per {UNITS[one.unit.counter]}" if one.unit is not None and one.unit.units else ""
    ended = f", {one.outcome}" if one.outcome else ""
    return (
        f"{_minute(one.start_ms)}  {one.key}: {_gpus(one.accelerators)}, {html.hours(one.gpu_ns)} GPU-hours, "
        f"{cost}, {activity}{unit}{ended}"
    )


def as_html(made: RunReport) -> str:
    """The page."""
    chief = leading_counter(made.units)
    return html.render(
        "run.html",
        made=made,
        policy=html.policy(),
        start=None if made.start_ms is None else _minute(made.start_ms),
        end=None if made.end_ms is None else _minute(made.end_ms),
        totals=[
            (currency, html.micro(paid, currency), html.micro(idle, currency), html.micro(found, currency))
            for currency, (paid, idle, found) in made.receipt.totals().items()
        ],
        gpu_ns=sum(one.gpu_ns for one in made.receipt.held),
        busy_ns=sum(one.busy_ns for one in made.receipt.held),
        idle_ns=sum(one.idle_ns for one in made.receipt.held),
        unknown_ns=sum(one.unknown_ns for one in made.receipt.held),
        energy="not measured" if made.energy_mj is None else f"{made.energy_mj / 3.6e9:,.3f} kWh",
        chief=None
        if chief is None
        else (plain(chief.cost), chief.currency, UNITS[chief.counter], f"{chief.coverage:.1%}"),
        units=[
            (UNITS[one.counter], one, plain(one.cost), plain(one.used_cost), f"{one.coverage:.1%}")
            for one in made.units
        ],
        by=[
            (
                _minute(one.bucket_ms),
                UNITS[one.counter],
                one.currency,
                plain(one.cost),
                f"{one.units:,}",
                f"{one.coverage:.1%}",
            )
            for one in made.by
        ],
        bars=_bars(made),
        unit_plot=_unit_plot(made),
        parts_of_run=[
            (
                _minute(one.start_ms),
                _minute(one.end_ms),
                one.accelerators or html.UNKNOWN,
                f"{one.held_ms / HOUR_MS:,.1f}" if one.held_ms else html.UNKNOWN,
                amounts(one.cost_micro) or html.UNKNOWN,
            )
            for one in made.parts
        ],
        waste=[
            (
                one.state.replace("_", " "),
                one.accelerator,
                one.node,
                _minute(one.since_ms),
                _minute(one.until_ms),
                "no price" if one.currency is None else f"{html.micro(one.cost_micro, one.currency)} {one.currency}",
            )
            for one in made.receipt.items[:20]
        ],
        verdicts=[
            (one, begun(one.says), begun(one.advice), _readings(made.gpus, one), _shown(one))
            for one in made.judgement.verdicts
        ],
        peers=[
            (
                one,
                _minute(one.start_ms),
                html.UNKNOWN if one.activity is None else f"{one.activity:.0%}",
                ""
                if one.unit is None or not one.unit.units
                else f"{plain(one.unit.cost)} per {UNITS[one.unit.counter]}",
            )
            for one in made.peers
        ],
        scaling=[(one, f"{one.per_gpu:,.3f}", f"{one.efficiency:.0%}") for one in made.scaling],
        made_at=format_instant(made.made_ms - made.made_ms % 1000),
    )


def _bars(made: RunReport) -> Any:
    stacks = [
        plots.Stack(f"{day.date:%m-%d}", (day.busy_ms / HOUR_MS, day.idle_ms / HOUR_MS, day.unknown_ms / HOUR_MS))
        for day in made.days
    ]
    most = max((sum(stack.layers) for stack in stacks if stack.layers is not None), default=0.0)
    return plots.stacked_bars(
        stacks,
        ("busy", "idle", "unknown"),
        "Accelerator-hours held, day by day",
        f"{plural(len(stacks), 'day')}, at most {most:,.1f} accelerator-hours a day",
        "h",
    )


def _unit_plot(made: RunReport) -> Any:
    """The cost of the chief unit by bucket; a bucket in which nothing is covered is a gap."""
    chief = leading_counter(made.by)
    if chief is None:
        return None
    mine = [one for one in made.by if (one.counter, one.currency) == (chief.counter, chief.currency)]
    if len(mine) < 2:
        return None
    values = [None if one.cost is None else float(one.cost) for one in mine]
    known = [value for value in values if value is not None]
    said = f"{chief.currency} per {UNITS[chief.counter]}"
    return plots.spark(
        values,
        f"Cost of a unit: {said}",
        f"from {min(known):,.4f} to {max(known):,.4f}",
        width=720,
        height=160,
        axis=True,
    )


def _readings(gpus: Sequence[GpuReadings], verdict: Bottleneck) -> list[Any]:
    """The readings behind a verdict, drawn over the minutes that were judged; of imbalance a line for each GPU."""
    made = []
    groups = [[gpu] for gpu in gpus[:8]] if verdict.kind == "imbalance" else [list(gpus)]
    for name in verdict.drawn:
        for group in groups:
            values = thinned(mean_by_minute(group, name))
            known = [value for value in values if value is not None]
            if known:
                whose = f" of {group[0].uuid}" if verdict.kind == "imbalance" else ""
                title = f"{READINGS.get(name, name)}{whose}"
                about = (
                    f"mean {plots.short(sum(known) / len(known))}, from {plots.short(min(known))} to "
                    f"{plots.short(max(known))}"
                )
                made.append((title, plots.spark(values, title, about, width=720, height=120, axis=True), about))
    return made


def thinned(values: Sequence[float | None]) -> list[float | None]:
    """At most MOST_POINTS means of neighbouring values; where none of them is known, a gap."""
    step = -(-len(values) // MOST_POINTS) or 1
    found: list[float | None] = []
    for at in range(0, len(values), step):
        known = [value for value in values[at : at + step] if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def begun(sentence: str) -> str:
    """A sentence with a capital at its begin; names in it stay as they are."""
    return sentence[:1].upper() + sentence[1:]


def _shown(verdict: Bottleneck) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in verdict.evidence.items())
