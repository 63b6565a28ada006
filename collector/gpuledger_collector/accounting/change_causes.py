"""The largest cause of a change of spending, out of the parts that are shown of it.

A change is divided twice: by row (a job, node costs, an adjustment), and each row by price, volume
and mix. Out of these come causes that do not overlap: what has no GPU-time of its own (node costs,
adjustments, shares of common costs), each changed rate, what else changed prices, volume, and mix.
Law: the causes add up to the change, so one of them goes its way unless it is zero; the largest of
those is named. Of volume and mix the job that moved most of it is named as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.budgets import Driver
from gpuledger_collector.accounting.rate_changes import RateChange
from gpuledger_collector.accounting.reserved_names import is_reserved
from gpuledger_collector.accounting.state_words import word_of_unpaid
from gpuledger_collector.accounting.usage import HELD

SHARED = "(shared costs)"
"""The row of shares of common costs, where they are compared."""
_APART = {f"({state})" for state in PAID_BY_OWNERS - {HELD}} | {SHARED}


class CauseKind(StrEnum):
    """What moved spending."""

    APART = "apart"
    RATE = "rate"
    PRICE = "price"
    VOLUME = "volume"
    MIX = "mix"


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """A cause with its part of the change, in micro-units.

    `row` is the row without GPU-time that changed, or the job that moved most of volume or mix and
    `row_micro` its part of that; None: no job went that way.
    """

    kind: CauseKind
    micro: int
    rate: RateChange | None = None
    row: Driver | None = None
    row_micro: int = 0


def list_causes(
    drivers: Sequence[Driver], rate_changes: Sequence[RateChange] = ()
) -> list[ChangeCause]:
    """List the causes of a change; they add up to it."""
    apart = [driver for driver in drivers if _has_no_time(driver)]
    timed = [driver for driver in drivers if not _has_no_time(driver)]
    rates_micro = sum(change.micro for change in rate_changes)
    return [
        *(ChangeCause(CauseKind.APART, row.change_micro, row=row) for row in apart),
        *(ChangeCause(CauseKind.RATE, change.micro, rate=change) for change in rate_changes),
        ChangeCause(CauseKind.PRICE, sum(row.price_micro for row in timed) - rates_micro),
        _cause_by_job(CauseKind.VOLUME, [(row, row.volume_micro) for row in timed]),
        _cause_by_job(CauseKind.MIX, [(row, row.mix_micro) for row in timed]),
    ]


def find_main_cause(
    drivers: Sequence[Driver], rate_changes: Sequence[RateChange] = ()
) -> ChangeCause | None:
    """Find the largest cause that goes the way of the change; None: spending did not change."""
    causes = list_causes(drivers, rate_changes)
    change = sum(cause.micro for cause in causes)
    if not change:
        return None
    return max(
        (cause for cause in causes if cause.micro * change > 0),
        key=lambda cause: abs(cause.micro),
    )


def _has_no_time(driver: Driver) -> bool:
    """Whether a row is an amount alone, and no holder of GPUs."""
    return bool(driver.label) and driver.label[0] in _APART


def _is_job(driver: Driver) -> bool:
    """Whether a row is one job: not the sum of the rows that are not shown, nor time of which no
    job is known.
    """
    return len(driver.label) > 1 and not is_reserved(driver.label[0])


def _cause_by_job(kind: CauseKind, parts: Sequence[tuple[Driver, int]]) -> ChangeCause:
    micro = sum(part for _, part in parts)
    same_way = [(row, part) for row, part in parts if part * micro > 0 and _is_job(row)]
    if not same_way:
        return ChangeCause(kind, micro)
    row, part = max(same_way, key=lambda pair: abs(pair[1]))
    return ChangeCause(kind, micro, row=row, row_micro=part)


@dataclass(frozen=True, slots=True)
class SaidCause:
    """A cause in words: `mostly for more GPU-hours: +25.10 USD, of it +12.00 by job train (+14.00 in
    all)`.

    `job` is its name, so that a page can make it a link; empty: no job is named. `end` is what
    follows it: the whole change of the job, which the table has, where it is another amount.
    """

    words: str
    job: str
    end: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.words}{self.job}{self.end}"


def say_cause(
    cause: ChangeCause,
    change_micro: int,
    signed: Callable[[int], str],
    *,
    rate: str = "",
    prices: str = "prices",
) -> SaidCause:
    """Say the largest cause of a change.

    `signed` writes an amount as the tables beside it do; `rate` is the changed rate in words,
    `prices` what else a price hangs on.
    """
    share = "mostly for" if 2 * abs(cause.micro) > abs(change_micro) else "the largest part for"
    words = f"{share} {_name_cause(cause, rate, prices)}: {signed(cause.micro)}"
    if cause.kind in {CauseKind.VOLUME, CauseKind.MIX} and cause.row is not None:
        # Where other jobs went the other way, the job moved more than all of them together.
        part = "of it" if abs(cause.row_micro) <= abs(cause.micro) else "alone"
        whole = cause.row.change_micro
        return SaidCause(
            f"{words}, {part} {signed(cause.row_micro)} by job ",
            cause.row.label[0],
            "" if whole == cause.row_micro else f" ({signed(whole)} in all)",
        )
    return SaidCause(words, "")


def _name_cause(cause: ChangeCause, rate: str, prices: str) -> str:
    is_more = cause.micro > 0
    if cause.kind is CauseKind.VOLUME:
        return f"{'more' if is_more else 'fewer'} GPU-hours"
    if cause.kind is CauseKind.MIX:
        return f"{'dearer' if is_more else 'cheaper'} GPUs"
    if cause.kind is CauseKind.RATE:
        return f"another rate of {rate}"
    if cause.row is not None:
        return word_of_unpaid(cause.row.label[0])
    return f"{'higher' if is_more else 'lower'} {prices}"
