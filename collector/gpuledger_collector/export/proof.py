"""The reconciliation of a period as a page of text and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.identities import (
    DECLARED,
    IDENTITIES,
    IMPORTED,
    SEALED_TABLES,
    TIMES,
    Mismatch,
)
from gpuledger_collector.accounting.money import Money, round_amounts
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.reconciliation import DatedCheck, Reconciliation
from gpuledger_collector.accounting.state_words import word_of
from gpuledger_collector.export.cells import lines_text
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.plurals import plural

SHOWN_PLACES = 3
"""Amounts of each identity that are printed where it does not hold."""
SHOWN_CLAIMS = 10
"""Refused claims that are printed, the oldest."""
DAYS = Report[DatedCheck](
    "days",
    (
        Column("day", lambda item: item.date),
        Column("rated_until", lambda item: item.check.until_ms, Kind.INSTANT),
        Column("capacity_gpu_hours", lambda item: item.hours[0], Kind.HOURS),
        Column("observed_gpu_hours", lambda item: item.hours[1], Kind.HOURS),
        Column("observed_percent", lambda item: item.observed_percent, Kind.DECIMAL),
        Column("holds", lambda item: "yes" if item.check.holds else "no"),
    ),
)


def _minor(sheet: Reconciliation, currency: str) -> tuple[dict[str, str], str]:
    """What was charged in one currency in minor units, and capacity x rate: they add up to it as
    printed.
    """
    # The parts are rounded together and the capacity by itself: where the proof holds, both are the
    # same number.
    parts = round_amounts(
        [sums.cost.get(currency, 0) for sums in sheet.charged_parts.values()], currency
    )
    whole = Money(sheet.capacity.cost.get(currency, 0), currency)
    return {
        name: part.plain() for name, part in zip(sheet.charged_parts, parts, strict=True)
    }, whole.plain()


def as_json(sheet: Reconciliation) -> str:
    """Everything, exact: micro-units and GPU-nanoseconds as integers, amounts as printed as text."""
    money = {}
    for currency in sheet.currencies:
        parts, whole = _minor(sheet, currency)
        micros = {name: sums.cost.get(currency, 0) for name, sums in sheet.charged_parts.items()}
        capacity_micro = sheet.capacity.cost.get(currency, 0)
        money[currency] = {
            **{
                name: {"micro": micros[name], "amount": parts[name]} for name in sheet.charged_parts
            },
            "capacity_x_rate": {"micro": capacity_micro, "amount": whole},
            "difference_micro": sum(micros.values()) - capacity_micro,
        }
    content = {
        "from": format_instant(sheet.period.start_ms),
        "to": format_instant(sheet.period.end_ms),
        "holds": sheet.holds,
        "coverage_percent": None if sheet.coverage is None else str(sheet.coverage),
        "gpu_ns": {
            **{name: sums.gpu_ns for name, sums in sheet.parts.items()},
            "capacity": sheet.capacity.gpu_ns,
        },
        "money": money,
        "commitment_unused_gpu_ns": sheet.unused.gpu_ns,
        "outside": {
            "imported_gpu_ns": sheet.imported.gpu_ns,
            "imported_cost_micro": dict(sheet.imported.cost),
        },
        "node_costs_micro": {name: dict(sums) for name, sums in sorted(sheet.nodes.items())},
        "adjustments_micro": {name: dict(sums) for name, sums in sorted(sheet.adjusted.items())},
        "misadjusted_days": [
            sheet.calendar.date_of(day_ms).isoformat() for day_ms in sheet.misadjusted_days
        ],
        "unpriced_gpu_ns": sheet.unpriced_ns,
        "refused_claims": [
            {
                "accelerator": claim.uuid,
                "node": claim.node,
                "kind": claim.kind,
                "subject": claim.subject,
                "from": format_instant(claim.first_ms),
                "to": format_instant(claim.last_ms),
            }
            for claim in sheet.claims
        ],
        "untrue_months": [sheet.calendar.month_of(month.start_ms) for month in sheet.untrue_months],
        "days": [
            {
                "day": sheet.calendar.date_of(day.day_ms).isoformat(),
                "rated_until": format_instant(day.until_ms),
                "capacity_gpu_ns": day.capacity_ns,
                "observed_gpu_ns": day.observed_ns,
                "holds": day.holds,
            }
            for day in sheet.days
        ],
        "identities": [
            {
                "name": each.name,
                "expected": each.expected,
                "stored": each.stored,
                "holds": sheet.identity_holds(each),
            }
            for each in sheet.compared
        ],
        "mismatches": [
            {
                "identity": mismatch.identity.name,
                "place": dict(mismatch.place),
                "measure": mismatch.measure,
                "expected": mismatch.expected,
                "stored": mismatch.stored,
            }
            for mismatch in sheet.mismatches
        ],
        "uncovered_rows": dict(sorted(sheet.uncovered.items())),
    }
    return json.dumps(content, indent=2) + "\n"


def as_text(sheet: Reconciliation) -> str:
    """One screen: the sums, whether they agree, the days that do not, what was outside."""
    out = io.StringIO()
    names = [*map(word_of, sheet.charged_parts), sheet.equation]
    hours = [
        f"{value:.6f}" for value in hours_decimal([sums.gpu_ns for sums in sheet.parts.values()])
    ]
    hours += [""] * (len(sheet.charged_parts) - len(sheet.parts))
    hours.append(f"{hours_decimal([sheet.capacity.gpu_ns])[0]:.6f}")
    columns = [("", names), ("GPU-hours", hours)]
    for currency in sheet.currencies:
        parts, whole = _minor(sheet, currency)
        columns.append((currency, [*parts.values(), whole]))
    widths = [max(len(cell) for cell in (title, *cells)) for title, cells in columns]
    for at in range(-1, len(names)):
        cells = [title if at < 0 else column[at] for title, column in columns]
        print(
            cells[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)),
            sep="  ",
            file=out,
        )
    return out.getvalue() + lines_text(
        [*([_verdict(sheet)] if is_proved(sheet) else []), *doubts(sheet)]
    )


def table(sheet: Reconciliation) -> list[tuple[str, int | None, list[str]]]:
    """Where the capacity went: name, GPU-nanoseconds and amounts by currency, in the order of
    `currencies`.

    The last row is capacity x rate, which the rows before it add up to, as printed.
    """
    money = [_minor(sheet, currency) for currency in sheet.currencies]
    rows = [
        (
            name,
            sheet.parts[name].gpu_ns if name in sheet.parts else None,
            [parts[name] for parts, _ in money],
        )
        for name in sheet.charged_parts
    ]
    return [*rows, (sheet.equation, sheet.capacity.gpu_ns, [whole for _, whole in money])]


def is_proved(sheet: Reconciliation) -> bool:
    """Whether there is capacity to account for, and every number that the ledger holds of it."""
    return any(day.capacity_ns for day in sheet.days) and sheet.holds


def _verdict(sheet: Reconciliation) -> str:
    days = plural(sum(day.capacity_ns > 0 for day in sheet.days), "day")
    charged = {
        currency: sum(sums.cost.get(currency, 0) for sums in sheet.charged_parts.values())
        for currency in sheet.currencies
    }
    micros = [
        f"{charged[currency]} = {sheet.capacity.cost.get(currency, 0)} micro-{currency}"
        for currency in sheet.currencies
    ]
    return f"It holds on each of {days}: {'; '.join(micros) or 'in time; nothing is priced'}."


def doubts(sheet: Reconciliation) -> list[str]:
    """What stands against the proof, and what is outside of it, in sentences."""
    said = []
    if not any(day.capacity_ns for day in sheet.days):
        said.append("There is no inventory for this period: nothing to reconcile against.")
    said += failures(sheet)
    said += [
        f"Refused from {format_instant(claim.first_ms)} to {format_instant(claim.last_ms)}:"
        f" {claim.sentence()}. Look at the node; gpuledger import inventory says who is right."
        for claim in sheet.claims[:SHOWN_CLAIMS]
    ]
    if more := sheet.claims[SHOWN_CLAIMS:]:
        nodes = plural(len({claim.node for claim in more}), "node")
        said.append(
            f"And {plural(len(more), 'more refused claim')} of {nodes} (--format json lists them)."
        )
    if sheet.coverage is not None:
        last = max(day.until_ms for day in sheet.days)
        said.append(
            f"{sheet.coverage} % of the capacity was observed; rated up to"
            f" {format_instant(last - last % 1000)}."
        )
    if sheet.unused.gpu_ns:
        said.append(
            f"Commitments paid for {hours_decimal([sheet.unused.gpu_ns])[0]:.6f} GPU-hours that"
            " nobody used."
        )
    if sheet.imported.gpu_ns:
        outside = f"{hours_decimal([sheet.imported.gpu_ns])[0]:.6f} GPU-hours"
        said.append(
            "Outside of it, usage imported without inventory:"
            f" {outside}{_amounts(sheet.imported.cost)}."
        )
        if sheet.identity_holds(IMPORTED):
            said.append(
                "Its charges have the hours of the imported rows; that the GPUs were held is not"
                " proven."
            )
    said += [
        f"Of it, node cost {name!r}{_amounts(sums)}." for name, sums in sorted(sheet.nodes.items())
    ]
    said += [
        f"Beside it, adjustment {name!r}{_amounts(sums)}."
        for name, sums in sorted(sheet.adjusted.items())
    ]
    if sheet.unpriced_ns:
        said.append(f"{hours_decimal([sheet.unpriced_ns])[0]:.6f} GPU-hours have no price.")
    if sheet.uncovered:
        rows = ", ".join(f"{count} of {table}" for table, count in sorted(sheet.uncovered.items()))
        said.append(
            f"The audit log is younger than some declared rows, which it does not cover: {rows}."
        )
    return said


def failures(sheet: Reconciliation) -> list[str]:
    """What does not hold, in sentences; empty where the reconciliation holds."""
    said = []
    broken = [str(sheet.calendar.date_of(day.day_ms)) for day in sheet.days if not day.holds]
    if broken:
        said.append(f"It does NOT hold on {', '.join(broken)}.")
    said += [
        f"The month {sheet.calendar.month_of(month.start_ms)} as added up is NOT the sum of its"
        " days: somebody wrote past the triggers. DELETE FROM ledger_month WHERE start_ms ="
        f" {month.start_ms}; has it added up anew."
        for month in sheet.untrue_months
    ]
    if sheet.misadjusted_days:
        days = ", ".join(str(sheet.calendar.date_of(day_ms)) for day_ms in sheet.misadjusted_days)
        said.append(f"Adjustments do NOT follow from what was held on {days}.")
    return said + places(sheet.mismatches)


def places(mismatches: Sequence[Mismatch]) -> list[str]:
    """Where identities do not hold, and both amounts: of each identity the first places, and how
    many more.
    """
    said = []
    for identity in IDENTITIES:
        own = [mismatch for mismatch in mismatches if mismatch.identity == identity]
        said += [_place(mismatch) for mismatch in own[:SHOWN_PLACES]]
        if len(own) > SHOWN_PLACES:
            said.append(
                f"And {len(own) - SHOWN_PLACES} more amounts of {identity.stored} (--format json"
                " lists them)."
            )
    return said


def _place(mismatch: Mismatch) -> str:
    """One amount that two sides of the ledger state differently, or what was changed without an
    entry.
    """
    if mismatch.identity is DECLARED:
        table, row, column = mismatch.place.values()
        what = f"was {column}" if column in ("added", "removed") else f"{column} was changed"
        return f"The {table} {row!r}: {what} without an entry in the audit log."
    if mismatch.identity is SEALED_TABLES:
        table, month = mismatch.place.values()
        return (
            f"The rows of {month} in {table} are NOT those that its close recorded in the audit"
            " log."
        )
    if mismatch.identity is TIMES:
        table, day = mismatch.place.values()
        if mismatch.measure:
            return (
                f"The times of {day} in {table} have NO hash: it was removed, or an earlier version"
                " rated the day."
            )
        return (
            f"The times of {day} in {table} are NOT those that rating recorded (when it was rated,"
            " or a correction)."
        )
    where = ", ".join(value for value in mismatch.place.values() if value)
    expected, stored = (
        "no line" if value is None else value for value in (mismatch.expected, mismatch.stored)
    )
    identity = mismatch.identity
    return (
        f"NOT equal, {mismatch.measure} of {where}: {identity.expected}: {expected};"
        f" {identity.stored}: {stored}."
    )


def _amounts(cost: Mapping[str, int]) -> str:
    """Amounts to the micro-unit: rounded alone, they could be a cent apart from a list that has
    them.
    """
    texts = [
        f"{Money(micro, currency).exact()} {currency}" for currency, micro in sorted(cost.items())
    ]
    return f", {', '.join(texts)}" if texts else ""
