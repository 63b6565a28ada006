"""gpuledger receipt: what a workload was charged, and what of it was wasted, on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from shlex import quote
from typing import Annotated, Any

from typer import Argument

from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.readable import percent
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app, require_folder
from gpuledger_collector.cli.output import write_text
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.workloads import require_one_workload
from gpuledger_collector.export.cells import (
    hours_text,
    instant_text,
    json_text,
    lines_text,
    minor_amount,
    to_minute,
)
from gpuledger_collector.insight.recommendation_record import StoredRecommendation
from gpuledger_collector.insight.waste_receipt import (
    ReceiptItem,
    ReceiptLine,
    WasteReceipt,
)
from gpuledger_collector.services.receipts import WorkloadReceipt, itemize_workload
from gpuledger_common.plurals import plural

app = new_app()
MAX_HELD, MAX_ITEMS, MAX_ADVICE, MAX_RUNS = 10, 20, 5, 3
"""What fits on a page of 66 lines."""
WIDTH = 100
GIB = 2**30
READINGS: Mapping[str, Callable[[float], str]] = {
    "utilization_ratio": lambda value: f"{value:.1%} utilized",
    "sm_active_ratio": lambda value: f"SMs {value:.1%} active",
    "memory_used_bytes": lambda value: f"{value / GIB:.1f} GiB held",
    "power_watts": lambda value: f"{value:.0f} W",
}


@app.command(epilog="Example: gpuledger receipt 4711")
@ledger_command
def receipt(
    session: Session,
    name: Annotated[
        str,
        Argument(
            metavar="WORKLOAD",
            help="Its key, its id at the scheduler, or its name; or that of a job.",
        ),
    ],
    form: options.PageForm = options.PageFormat.table,
    output: options.Output = None,
) -> None:
    """Itemize what a workload was charged and what of it was wasted: when, on which GPU, and what
    was read there.
    """
    require_folder(output)
    with require_one_workload(name, "workload"):
        itemized = itemize_workload(session.database, name, session.now_ms)
    write = as_json if form is options.PageFormat.json else as_page
    write_text(write(itemized), output)


def as_page(itemized: WorkloadReceipt) -> str:
    """The receipt as text, at most one page of 66 lines."""
    workload, charged, other_runs = itemized.workload, itemized.charged, itemized.other_runs
    lines = [
        f"WASTE RECEIPT  {workload.key}",
        "=" * WIDTH,
        f"{workload.name or 'no name'}{f', of {workload.user}' if workload.user else ''}",
        "",
    ]
    if other_runs:
        count = plural(len(other_runs), "other run")
        more = (
            f", and {len(other_runs) - MAX_RUNS} more (--format json)"
            if len(other_runs) > MAX_RUNS
            else ""
        )
        commands = ", ".join(f"gpuledger receipt {quote(run)}" for run in other_runs[:MAX_RUNS])
        lines += [f"This is one run of a requeued job. {count}: {commands}{more}", ""]
    lines += [
        "Charged",
        *([_held_line(held) for held in charged.held[:MAX_HELD]] or ["  nothing yet"]),
    ]
    if len(charged.held) > MAX_HELD:
        lines.append(
            f"  ... and {len(charged.held) - MAX_HELD} more kinds of accelerator and rates"
            " (--format json)"
        )
    lines += ["", "Wasted (part of the above)"]
    lines += [line for item in charged.items[:MAX_ITEMS] for line in _item_lines(item)] or [
        f"  {_no_waste(charged)}"
    ]
    if len(charged.items) > MAX_ITEMS:
        lines.append(f"  ... and {len(charged.items) - MAX_ITEMS} more (--format json)")
    lines += ["", "-" * WIDTH]
    for currency, (cost, idle, wasted) in charged.totals().items():
        share = (
            f", {percent(Decimal(wasted) / cost)} of what was charged"
            if cost and wasted is not None
            else ""
        )
        known_idle = minor_amount(idle, currency) or "not known"
        known_waste = minor_amount(wasted, currency) or "not known"
        lines.append(
            f"charged {minor_amount(cost, currency)} {currency}, idle by the ledger {known_idle}, "
            f"found as waste {known_waste}{share}"
        )
    if charged.advice:
        lines += ["", "Advice", *(_advice_line(advice) for advice in charged.advice[:MAX_ADVICE])]
    return lines_text(lines)


def _no_waste(charged: WasteReceipt) -> str:
    """What is said where no waste was found: unknown activity is not nothing wasted."""
    if not charged.unknown_ns:
        return "nothing"
    if not charged.has_known_activity:
        return "not known: nobody observed what its GPUs did"
    return f"nothing found; the activity of {_hours(charged.unknown_ns)} GPU-hours is not known"


def _hours(gpu_ns: int) -> str:
    (hours,) = hours_decimal([gpu_ns], 2)
    return str(hours)


def _held_line(held: ReceiptLine) -> str:
    if held.node_cost:
        cost = f"{minor_amount(held.cost_micro, held.currency)} {held.currency}"
        return f"  {held.node_cost} of nodes in {held.pool}  {cost}"
    total, busy, idle, unknown = hours_decimal(
        [held.gpu_ns, held.busy_ns, held.idle_ns, held.unknown_ns], 2
    )
    rate = f"at {held.rate} (rate {held.price_id})" if held.price_id is not None else "unpriced"
    if held.commitment:
        rate = f"covered by commitment {held.commitment}"
    cost = (
        f"{minor_amount(held.cost_micro, held.currency)} {held.currency}" if held.currency else ""
    )
    if held.is_correction and held.currency:
        return f"  corrections {rate}  {cost}"
    activity = (
        f"busy {busy}, idle {idle}, unknown {unknown}"
        if held.has_known_activity
        else "activity not known"
    )
    model = held.gpu_model or "an unknown model"
    return f"  {total} GPU-hours of {model} in {held.pool} {rate}: {activity}  {cost}".rstrip()


def _item_lines(item: ReceiptItem) -> list[str]:
    cost = (
        f"{minor_amount(item.cost_micro, item.currency)} {item.currency}"
        if item.currency
        else "unpriced"
    )
    since, until = (to_minute(instant_text(at_ms)) for at_ms in (item.since_ms, item.until_ms))
    hours = hours_text(item.until_ms - item.since_ms, 1)
    readings = readings_text(item.readings)
    return [
        f"  {item.state.replace('_', ' ')}: {since} to {until}, {hours} h, {cost}",
        (
            f"      {item.accelerator} on {item.node or 'no node'}; {readings}confidence"
            f" {item.confidence:.2f}"
        ),
    ]


def readings_text(readings: Mapping[str, float]) -> str:
    """The mean readings meanwhile, each followed by a comma; empty where there are none."""
    return "".join(
        f"{show(readings[name])}, " for name, show in READINGS.items() if name in readings
    )


def _advice_line(advice: StoredRecommendation) -> str:
    cash = advice.money(advice.cash[1])
    worth = f", {cash.plain()} {cash.currency} cash expected" if cash else ""
    return f"  {advice.id} ({advice.state}): {advice.advice}{worth}"


def _advice_json(advice: StoredRecommendation) -> dict[str, Any]:
    return {
        **{name: getattr(advice, name) for name in ("id", "key", "kind", "advice", "state")},
        "currency": advice.currency,
        "cash_expected_micro": advice.cash[1],
        "capacity_expected_micro": advice.capacity[1],
        "realized_micro": advice.realized_micro,
    }


def as_json(itemized: WorkloadReceipt) -> str:
    """Everything, with integers of micro-units."""
    workload, charged = itemized.workload, itemized.charged
    totals = {
        currency: {"cost_micro": cost, "held_idle_cost_micro": idle, "found_micro": wasted}
        for currency, (cost, idle, wasted) in charged.totals().items()
    }
    content: dict[str, Any] = {
        "key": workload.key,
        "name": workload.name,
        "user": workload.user,
        "other_runs": list(itemized.other_runs),
        "totals": totals,
        "held": as_objects(charged.held),
        "items": as_objects(charged.items),
        "advice": [_advice_json(advice) for advice in charged.advice],
    }
    if itemized.pods:
        content["pods"] = list(itemized.pods)
    return json_text(content) + "\n"


def as_objects(entries: Sequence[ReceiptLine] | Sequence[ReceiptItem]) -> list[dict[str, Any]]:
    """The fields of each entry."""
    return [asdict(entry) for entry in entries]
