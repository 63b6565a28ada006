"""Decisions on capacity and what came of them, as a table, CSV or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.money import format_minor, minor_digits, to_minor_units
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.export.cells import lines_text, names, rows_as
from gpuledger_common.plurals import plural

COLUMNS = names(
    """
    decision pool made_at as_of policy mode demand_gpus reactive_gpus wanted_gpus desired_gpus before_gpus quantile
    told told_state from until known_s came_gpu_s wait_gpu_s waste_gpu_s reactive_wait_gpu_s reactive_waste_gpu_s
    waste_cost currency reason inputs_hash
    """
)


def row(facts: Mapping[str, Any]) -> dict[str, object]:
    """A decision as people read it; None where it is not known yet."""

    def at(name: str) -> str | None:
        return None if facts[name] is None else format_instant(facts[name])

    money = None
    if facts["waste_micro"] is not None:
        digits = minor_digits(facts["currency"])
        money = format_minor(to_minor_units([facts["waste_micro"]], digits)[0], digits)
    return {
        "decision": facts["decision_id"],
        "made_at": at("made_ms"),
        "as_of": at("as_of_ms"),
        "from": at("from_ms"),
        "until": at("until_ms"),
        "known_s": None if facts["known_ms"] is None else facts["known_ms"] // 1000,
        "came_gpu_s": facts["demand_gpu_s"],
        "waste_cost": money,
        **{name: facts[name] for name in COLUMNS if name in facts},
    }


def emit_history(decisions: Sequence[Mapping[str, Any]], shape: str) -> str:
    """Decisions, the newest first."""
    rows = [row(facts) for facts in decisions]
    if shape in {"json", "csv"}:
        return rows_as(shape, COLUMNS, [[row_cells[name] for name in COLUMNS] for row_cells in rows])
    lines = [
        f"{'made':<26}{'pool':<16}{'demand':>8}{'reactive':>10}{'desired':>9}{'wait GPU-h':>12}{'waste GPU-h':>13}  why"
    ]
    for row_cells in rows:
        hours = [_hours(row_cells[name]) for name in ("wait_gpu_s", "waste_gpu_s")]
        pushed = f" [{row_cells['told']}: {row_cells['told_state'] or 'put out'}]" if row_cells["told"] else ""
        lines.append(
            f"{row_cells['made_at']!s:<26}{row_cells['pool']!s:<16}{row_cells['demand_gpus']:>8.1f}{row_cells['reactive_gpus']:>10.1f}"
            f"{row_cells['desired_gpus']:>9.1f}{hours[0]:>12}{hours[1]:>13}  {row_cells['reason']}{pushed}"
        )
    count = plural(len(rows), "decision")
    lines.append(f"{count}; wait and waste while a decision served, had it been followed")
    return lines_text(lines)


def _hours(gpu_s: object) -> str:
    return f"{gpu_s / 3600:.2f}" if isinstance(gpu_s, float) else "not yet"
