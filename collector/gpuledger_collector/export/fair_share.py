"""Shares of pools as rows of text, for a table, CSV, JSON and pages."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.fair_share import ShareUse
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.cells import minor_amount

COLUMNS = (
    "pool",
    "team",
    "gpu_hours_share",
    "gpu_hours_held",
    "used_of_share",
    "gpu_hours_lent",
    "gpu_hours_borrowed",
    "gpu_hours_waited",
    "cost_lent",
    "cost_borrowed",
    "currency",
)


def share_rows(uses: Sequence[ShareUse], digits: int = 6) -> list[dict[str, str]]:
    """A row for each pool and team, with a further one, of costs alone, for each further currency.

    `used_of_share`: time held within the share over the share. Empty where something is not known
    or does not apply.
    """
    rows = []
    for use in uses:
        hours = hours_decimal(
            [use.share_ns, use.held_ns, use.lent_ns, use.borrowed_ns, use.waited_ns or 0], digits
        )
        share, held, lent, borrowed, waited = map(str, hours)
        times = {
            "gpu_hours_share": share if use.share_ns else "",
            "gpu_hours_held": held,
            "used_of_share": f"{100 * use.within_ns / use.share_ns:.1f}%" if use.share_ns else "",
            "gpu_hours_lent": lent,
            "gpu_hours_borrowed": borrowed,
            "gpu_hours_waited": "" if use.waited_ns is None else waited,
        }
        for currency in sorted(use.lent_micro.keys() | use.borrowed_micro.keys()) or [""]:
            costs = {
                "cost_lent": minor_amount(use.lent_micro.get(currency, 0), currency)
                if currency
                else "",
                "cost_borrowed": minor_amount(use.borrowed_micro.get(currency, 0), currency)
                if currency
                else "",
                "currency": currency,
            }
            rows.append(
                {
                    name: {"pool": use.pool, "team": use.team, **times, **costs}.get(name, "")
                    for name in COLUMNS
                }
            )
            times = {}
    return rows
