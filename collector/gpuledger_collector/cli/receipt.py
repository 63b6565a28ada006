"""gpuledger receipt: what a workload was charged, and what of it came to nothing, on one page."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import Config, Dsn, database, refuse
from gpuledger_collector.cli.recommend import money

if TYPE_CHECKING:
    from gpuledger_collector.insight.waste_receipt import ReceiptItem, ReceiptLine, WasteReceipt

MOST_ITEMS = 20
"""A page holds so many findings; the rest is one line with its sum."""
WIDTH = 100
GIB = 2**30


class Shape(enum.StrEnum):
    """Forms of the receipt."""

    text = "text"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger receipt`."""
    root.command(epilog="Example: gpuledger receipt 4711")(receipt)


def receipt(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="Its key, its id at the scheduler, or its name.")],
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.text,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")] = None,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Itemise what a workload was charged and what of it was wasted: when, on which GPU, and what was read there."""
    from gpuledger_collector.insight.waste_receipt import make_receipt
    from gpuledger_collector.jobs.find_idle import find_idle
    from gpuledger_collector.services.hourly_usage import ALWAYS
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.findings import findings, recommendations
    from gpuledger_collector.wiring import now

    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is no folder to write to")
    now_ms = round(now().timestamp() * 1000)
    with database(dsn, config) as opened:
        with opened.transaction() as connection:
            found = recommendations.workloads_called(connection, workload)
        if not found:
            refuse(f"no workload has the key, the id or the name {workload!r}")
        if len(found) > 1:
            refuse(
                f"{workload!r} is not the only one of its name; name one by its key: "
                f"{', '.join(one[1] for one in found[:5])}"
            )
        refresh(opened, ALWAYS, now_ms)
        find_idle(opened, now_ms)
        with opened.transaction() as connection:
            number = found[0][0]
            made = make_receipt(
                recommendations.charged_to(connection, number),
                findings.of_workload(connection, number),
                recommendations.advice_for(connection, number),
            )
    text = as_json(found[0], made) if shape is Shape.json else page(found[0], made)
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


def page(who: Sequence[Any], made: WasteReceipt) -> str:
    """The receipt as text, at most one page of 66 lines."""
    from gpuledger_collector.export.cells import lines_text

    _, key, name, user = who
    head = f"WASTE RECEIPT  {key}"
    lines = [head, "=" * WIDTH, f"{name or 'no name'}{f', of {user}' if user else ''}", "", "Charged"]
    lines += [_held(one) for one in made.held[:10]] or ["  nothing yet"]
    if len(made.held) > 10:
        lines.append(f"  ... and {len(made.held) - 10} more kinds of accelerator and rates (--format json)")
    lines += ["", "Found as waste (part of the above)"]
    lines += [line for one in made.items[:MOST_ITEMS] for line in _item(one)] or ["  nothing"]
    if len(made.items) > MOST_ITEMS:
        lines.append(f"  ... and {len(made.items) - MOST_ITEMS} more (--format json)")
    lines += ["", "-" * WIDTH]
    for currency, (paid, idle, found) in made.totals().items():
        share = f", {100 * found / paid:.0f} % of what was charged" if paid else ""
        lines.append(
            f"charged {money(paid, currency)} {currency}, idle by the ledger {money(idle, currency)}, "
            f"found as waste {money(found, currency)}{share}"
        )
    if made.advice:
        lines += ["", "Advice"]
        lines += [_advice(one) for one in made.advice[:5]]
    return lines_text(lines).rstrip("\n")


def _held(one: ReceiptLine) -> str:
    from gpuledger_collector.accounting.quantity import hours_decimal

    total, busy, idle, unknown = hours_decimal([one.gpu_ns, one.busy_ns, one.idle_ns, one.unknown_ns], 2)
    rate = f"at {one.rate} (rate {one.price_id})" if one.price_id is not None else "unpriced"
    if one.commitment:
        rate = f"covered by commitment {one.commitment}"
    cost = f"{money(one.cost_micro, one.currency)} {one.currency}" if one.currency else ""
    return (
        f"  {total} GPU-hours of {one.gpu_model} in {one.pool} {rate}: busy {busy}, idle {idle}, "
        f"unknown {unknown}  {cost}"
    ).rstrip()


def _item(one: ReceiptItem) -> list[str]:
    from gpuledger_collector.accounting.period import format_instant

    hours = (one.until_ms - one.since_ms) / 3_600_000
    cost = f"{money(one.cost_micro, one.currency)} {one.currency}" if one.currency else "unpriced"
    first = (
        f"  {one.state.replace('_', ' ')}: {format_instant(one.since_ms)[:16]}Z to "
        f"{format_instant(one.until_ms)[:16]}Z, {hours:.1f} h, {cost}"
    )
    return [
        first,
        f"      {one.accelerator} on {one.node or 'no node'}; {read(one.readings)}confidence {one.confidence:.2f}",
    ]


def read(readings: Mapping[str, float]) -> str:
    """What was read meanwhile, on average, as people say it; empty where nothing was."""
    forms: dict[str, Callable[[float], str]] = {
        "utilization_ratio": lambda value: f"{value:.1%} utilised",
        "sm_active_ratio": lambda value: f"SMs {value:.1%} active",
        "memory_used_bytes": lambda value: f"{value / GIB:.1f} GiB held",
        "power_watts": lambda value: f"{value:.0f} W",
    }
    told = [form(readings[name]) for name, form in forms.items() if name in readings]
    return "".join(f"{part}, " for part in told)


def _advice(one: Mapping[str, Any]) -> str:
    cash = money(one["cash_expected_micro"], one["currency"])
    worth = f", {cash} {one['currency']} cash expected" if cash else ""
    return f"  {one['id']} ({one['state']}): {one['advice']}{worth}"


def as_json(who: Sequence[Any], made: WasteReceipt) -> str:
    """Everything, with integers of micro-units."""
    import json
    from dataclasses import asdict

    totals = {
        currency: {"cost_micro": paid, "idle_cost_micro": idle, "found_micro": found}
        for currency, (paid, idle, found) in made.totals().items()
    }
    kept = (
        "id",
        "key",
        "kind",
        "advice",
        "state",
        "currency",
        "cash_expected_micro",
        "capacity_expected_micro",
        "realised_micro",
    )
    advice = [{name: one[name] for name in kept} for one in made.advice]
    told = {
        "key": who[1],
        "name": who[2],
        "user": who[3],
        "totals": totals,
        "held": [asdict(one) for one in made.held],
        "items": [asdict(one) for one in made.items],
        "advice": advice,
    }
    return json.dumps(told, indent=2)
