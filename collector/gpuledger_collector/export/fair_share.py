"""Shares of pools as a list, for a table, CSV, JSON and pages."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.fair_share import ShareLine, ShareUse
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.report import Column, Kind, Report


def shares_report(digits: int = 6) -> Report[ShareLine]:
    """The list, with hours to so many places; empty where something is not known or does not
    apply.
    """

    def number(
        name: str,
        value: Callable[[ShareUse], str | None],
        about: str = "",
        kind: Kind = Kind.HOURS,
    ) -> Column[ShareLine]:
        return Column(
            name,
            lambda line: value(line.use) if line.has_times else None,
            kind,
            heading=name,
            about=about,
            is_optional=True,
        )

    def hours(at: int) -> Callable[[ShareUse], str]:
        """One of the hours of a line, which are rounded together."""
        return lambda use: str(
            hours_decimal(
                [use.share_ns, use.held_ns, use.lent_ns, use.borrowed_ns, use.waited_ns or 0],
                digits,
            )[at]
        )

    return Report(
        "shares",
        (
            Column("pool", lambda line: line.use.pool),
            Column("team", lambda line: line.use.team),
            number("gpu_hours_share", lambda use: hours(0)(use) if use.share_ns else None),
            number("gpu_hours_held", hours(1)),
            number(
                "used_of_share",
                lambda use: f"{100 * use.within_ns / use.share_ns:.1f}%" if use.share_ns else None,
                "Time held within the share over the share.",
                Kind.PERCENT,
            ),
            number("gpu_hours_lent", hours(2)),
            number("gpu_hours_borrowed", hours(3)),
            number(
                "gpu_hours_waited", lambda use: None if use.waited_ns is None else hours(4)(use)
            ),
            Column(
                "cost_lent",
                lambda line: line.lent,
                Kind.MONEY,
                heading="cost_lent",
                is_optional=True,
            ),
            Column(
                "cost_borrowed",
                lambda line: line.borrowed,
                Kind.MONEY,
                heading="cost_borrowed",
                is_optional=True,
            ),
            Column("currency", lambda line: line.lent and line.lent.currency),
        ),
    )


SHARES = shares_report()
