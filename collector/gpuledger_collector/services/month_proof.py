"""Ask the proof of months, and keep what it said for pages, statements and assistants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.closed_verdict import ClosedVerdict
from gpuledger_collector.accounting.closing import ClosedPeriod, CorrectionSum
from gpuledger_collector.accounting.identities import CAPACITY, Depth
from gpuledger_collector.accounting.month_proof import DEPTHS, MonthProof, SealComparison
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.reconciliation import Reconciliation
from gpuledger_collector.services.close import Verification, is_sealed, keep_seal, verify_month
from gpuledger_collector.services.closed_verdict import verdict_of
from gpuledger_collector.services.rated_period import read_rated_period
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.billing import month_proofs, periods
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection, Lock

ASK_AGAIN_MS = DAY_MS
"""An open month is asked again after this time also where nothing was told: a row may have been
changed by SQL.
"""

COMPARE_AGAIN_MS = 30 * DAY_MS
"""A closed month is compared with its seal again after this time: reading its lines takes a minute
for a million.
"""


@dataclass(frozen=True, slots=True)
class Trust:
    """The proof of a period from derived tables, what it says of the months (`keep_results`), every
    closed month, and the corrections that the period bills.
    """

    sheet: Reconciliation
    results: Sequence[MonthProof]
    closed_months: Sequence[ClosedPeriod]
    corrections: Sequence[CorrectionSum]
    verdict: ClosedVerdict | None
    """Where the period is a closed month."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A month to ask, and how deep."""

    month: Period
    anew: bool


def prove_months(
    database: Database, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Ask the proof of each month that was rated since it was asked, the latest first; return how
    many were asked.

    Derived tables are compared, as on the trust page. Where a deeper question found declarations
    wrong, they are compared as well; what `reconcile --evidence` found wrong stays until that is
    asked again.
    """
    with database.transaction(read_only=True) as connection:
        due = _due(connection, now_ms)
    count = 0
    for each in due:
        if stopping():
            break
        with database.transaction(read_only=True) as connection:
            sheet = reconcile(connection, each.month, anew=each.anew)
            results = results_of(connection, sheet, now_ms)
        keep_results(database, results)
        count += 1
    return count


def compare_seals(
    database: Database, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Compare the lines of closed months with their seals, those first that never were; return how
    many were compared.

    Of months that were compared before, the oldest comparison alone is made again.
    """
    with database.transaction(read_only=True) as connection:
        closed = periods.list_closed(connection)
        compared = month_proofs.seals_compared(connection)
    asked = [(compared[month.period], month) for month in closed if month.period in compared]
    due = [month for compared_ms, month in asked if compared_ms is None]
    old = [
        (compared_ms, month.name, month)
        for compared_ms, month in asked
        if compared_ms is not None and compared_ms <= now_ms - COMPARE_AGAIN_MS
    ]
    count = 0
    for month in [*reversed(due), *(month for *_, month in sorted(old)[:1])]:
        if stopping():
            break
        with database.transaction(read_only=True) as connection:
            seal = SealComparison(now_ms, is_sealed(connection, month))
        keep_seal(database, month, seal)
        count += 1
    return count


def verify_and_keep(
    database: Database, name: str, now_ms: int
) -> tuple[ClosedPeriod, Verification]:
    """Check a closed month while nobody rates, and keep what became of its seal, beside its proof:
    that is asked where it never was. Raises StillOpen.
    """
    closed, verification = verify_month(database, name)
    with database.transaction(read_only=True) as connection:
        kept = month_proofs.read(connection, [closed.period])[closed.period]
    if kept is None:
        prove_period(database, closed.period, now_ms)
    keep_seal(database, closed, SealComparison(now_ms, verification.sealed))
    return closed, verification


def prove_period(
    database: Database, period: Period, now_ms: int, *, evidence: bool = False
) -> Reconciliation:
    """Ask the proof of a period while nobody rates, and keep what it says of its months.

    With `evidence` each day is folded and rated again as well; nothing of that stays.
    """
    with database.transaction(Lock.LEDGER) as connection:
        sheet = reconcile(connection, period, evidence=evidence)
        results = results_of(connection, sheet, now_ms)
    keep_results(database, results)
    return sheet


def read_trust(connection: Connection, period: Period, now_ms: int) -> Trust:
    """Read why the numbers of a period can be trusted."""
    sheet = reconcile(connection, period, anew=False)
    return Trust(
        sheet,
        results_of(connection, sheet, now_ms),
        periods.list_closed(connection),
        overview.corrections(connection, period),
        verdict_of(connection, read_rated_period(connection, period), None, None),
    )


def results_of(connection: Connection, sheet: Reconciliation, now_ms: int) -> list[MonthProof]:
    """What a reconciliation says of each month that it is about, in the snapshot in which it was
    made.

    That some days hold says nothing of their month; that they do not, does. Of several months it is
    not told of which.
    """
    calendar = sheet.calendar
    months = [calendar.month(name) for name in calendar.months_of(sheet.period)]
    if sheet.holds:
        months = [month for month in months if month.clip(sheet.period) == month]
    elif len(months) > 1:
        return []
    results = [
        MonthProof(
            month=month,
            asked_ms=now_ms,
            holds=sheet.holds,
            wrong_days=_wrong_days(sheet),
            depth=_depth(sheet),
            ledger_state=month_proofs.state(connection, month),
        )
        for month in months
    ]
    return [result for result in results if result.ledger_state]


def keep_results(database: Database, results: Sequence[MonthProof]) -> None:
    """Store results, in a transaction of its own: what asked them may hold a snapshot of before."""
    if results and not database.standby:
        with database.transaction() as connection:
            for result in results:
                month_proofs.upsert(connection, result)


def _due(connection: Connection, now_ms: int) -> list[_Due]:
    calendar = zones.calendar(connection)
    closed = {month.period for month in periods.list_closed(connection)}
    kept = month_proofs.read(connection, month_proofs.rated_months(connection, calendar))
    due = []
    for month, proof in sorted(kept.items(), key=lambda item: -item[0].start_ms):
        if proof is None:
            due.append(_Due(month, anew=False))
        elif not proof.holds and proof.depth is Depth.evidence:
            continue
        elif not proof.is_current or (
            month not in closed and proof.asked_ms <= now_ms - ASK_AGAIN_MS
        ):
            due.append(_Due(month, anew=not proof.holds and proof.depth is Depth.declarations))
    return due


def _depth(sheet: Reconciliation) -> Depth:
    """The deepest of what was compared.

    Charges are compared with the capacity at each depth, which tells nothing.
    """
    asked = {identity.depth for identity in sheet.compared if identity is not CAPACITY}
    return next(depth for depth in reversed(DEPTHS) if depth in asked)


def _wrong_days(sheet: Reconciliation) -> list[str]:
    """Dates on which it does not hold; no name of an owner, since viewers read them."""
    days = {sheet.calendar.date_of(day.day_ms).isoformat() for day in sheet.days if not day.holds}
    return sorted(
        days | {mismatch.place["day"] for mismatch in sheet.mismatches if "day" in mismatch.place}
    )
