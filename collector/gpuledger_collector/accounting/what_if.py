"""A period under two price books, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.chargeback import Report, ReportRow
from gpuledger_collector.accounting.money import Money


@dataclass(frozen=True, slots=True)
class PriceDifference:
    """What an owner is charged, and would be; None where one side has no amount: unpriced is not
    zero.
    """

    keys: tuple[str, ...] | None
    """By the dimensions that were asked for; None: the total of a currency."""
    currency: str | None
    gpu_hours: Decimal
    cost_now: Money | None
    cost_then: Money | None

    @property
    def difference(self) -> Money | None:
        """How much more it would be."""
        if self.cost_now is None or self.cost_then is None:
            return None
        minor = self.cost_then.minor - self.cost_now.minor
        return Money.from_minor(minor, self.cost_now.currency)


def compare_reports(now: Report, then: Report) -> list[PriceDifference]:
    """A row for each owner and currency, the dearest ones of now first, and the total of the
    currency last.
    """
    before, after = _rows_by_key(now), _rows_by_key(then)
    # Of both: an owner may have no row on one side, where the other book prices none of its time.
    rows = before | {key: row for key, row in after.items() if key not in before}
    differences = [
        PriceDifference(
            keys,
            currency,
            row.gpu_hours,
            *(_cost(side.get((currency, keys))) for side in (before, after)),
        )
        for (currency, keys), row in rows.items()
    ]
    return sorted(differences, key=lambda row: (row.currency or "", row.keys is None))


def _rows_by_key(report: Report) -> dict[tuple[str | None, tuple[str, ...] | None], ReportRow]:
    rows: dict[tuple[str | None, tuple[str, ...] | None], ReportRow]
    rows = {(row.currency, row.keys): row for row in report.rows}
    return rows | {(total.currency, None): total for total in report.totals}


def _cost(row: ReportRow | None) -> Money | None:
    if row is None or row.cost_minor is None or row.currency is None:
        return None
    return Money.from_minor(row.cost_minor, row.currency)
