"""Close a month: after it its charges do not change.

What is found later is booked as a correction in an open month.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting import seal
from gpuledger_collector.accounting.chargeback import Report, report
from gpuledger_collector.accounting.closing import (
    ClosedPeriod,
    billed_directly,
    invoices,
    receipt,
    receipt_amounts,
    receipt_direct,
)
from gpuledger_collector.accounting.identities import (
    INVOICES,
    RECEIPT,
    SEALED_TABLES,
    Mismatch,
    differences,
)
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.month_proof import SealComparison
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export import proof
from gpuledger_collector.services.chargeback import standing_notices
from gpuledger_collector.services.inference_costs import keep_at_close
from gpuledger_collector.services.reconciliation import declaration_mismatches, reconcile
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.access import audited
from gpuledger_collector.storage.billing import (
    allocation,
    identities,
    month_proofs,
    periods,
    rated_days,
    reports,
    sealed_tables,
)
from gpuledger_collector.storage.billing.cost_centers import BilledCodes
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection, Lock


class CannotClose(Exception):
    """The month cannot be closed yet; the message says why and what to do."""


class StillOpen(LookupError):
    """The month is not closed."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What a close writes, or would write."""

    period: ClosedPeriod
    receipt: Mapping[str, object]


def close_period(
    connection: Connection,
    name: str,
    period: Period,
    level: str,
    by: str,
    now_ms: int,
    *,
    unpriced: bool = False,
    dry: bool = False,
) -> Closing:
    """Closes the month in this unit of work; `dry` only says what would be written.

    Call `refresh` before it.

    `level` is the level of the owner tree that is invoiced. Raises CannotClose: not over, closed
    already, a day that is not rated to its end, a proof that does not hold, usage without a price
    (unless `unpriced` accepts that).
    """
    calendar = zones.calendar(connection)
    # Cheap questions first: the proof reads the entire month.
    if now_ms < period.end_ms:
        raise CannotClose(
            f"{name} is not over: it can be closed from {calendar.date_of(period.end_ms)} on"
        )
    known = next((month for month in periods.list_closed(connection) if month.name == name), None)
    if known is not None:
        raise CannotClose(
            f"{name} is closed already (by {known.closed_by}); its seal is {known.seal}"
        )
    # Late evidence that arrived but is not rated yet would otherwise become a correction minutes
    # after the close.
    waiting = rated_days.days_to_rate(connection, period, now_ms)
    if waiting:
        raise CannotClose(f"{calendar.date_of(waiting[0])} is not rated to its end yet")
    # The proof is computed again for the close; the recorded checks alone would trust what rating
    # wrote.
    reconciliation = reconcile(connection, period)
    if not reconciliation.holds:
        wrong = " ".join(proof.failures(reconciliation))
        raise CannotClose(
            f"the proof does not hold; see gpuledger reconcile --period {name}: {wrong}"
        )
    if reconciliation.unpriced_ns and not unpriced:
        (hours,) = hours_decimal([reconciliation.unpriced_ns])
        raise CannotClose(
            f"{hours} GPU-hours have no price; add one (gpuledger prices set), or accept "
            "with --allow-unpriced that they are billed to nobody"
        )
    # The seal covers what is billed in the period: its days' charges and the corrections booked in
    # it.
    lines = list(reports.charges(connection, period))
    if not lines:
        raise CannotClose(f"nothing was charged in {name}: there is nothing to close")
    done = ClosedPeriod(
        name=name,
        period=period,
        closed_ms=now_ms,
        closed_by=by,
        lines=len(lines),
        seal=seal_of(lines),
    )
    # As declared at the instant of the close: later declarations must not change a closed month
    # (decision 0013).
    shares = allocation.shares(connection, period, level, now_ms, now_ms)
    billed = invoices(lines, level, shares)
    codes = BilledCodes(connection).of_owners(period, level)
    standing = standing_notices(connection, period)
    notices = {"whole": list(standing.whole), "of_pool": dict(standing.of_pool)}
    content = {
        **receipt(done, level, billed, lines, reconciliation, shares, codes),
        "notices": notices,
    }
    # Before the seal, which covers what is kept here; a dry run fails where the close would.
    keep_at_close(connection, period, dry=dry)
    if not dry:
        periods.close(connection, done, billed, level, content)
    return Closing(done, content)


def close_month(
    database: Database,
    name: str,
    period: Period,
    level: str,
    by: str,
    now_ms: int,
    *,
    unpriced: bool = False,
    dry: bool = False,
) -> Closing:
    """Close a month in a transaction of its own; see `close_period`. Raises CannotClose."""
    # The ledger's lock keeps rating out between the checks and the seal. The audit log's is taken
    # last, as everywhere.
    with database.transaction(Lock.LEDGER, Lock.AUDIT) as connection:
        return close_period(connection, name, period, level, by, now_ms, unpriced=unpriced, dry=dry)


def list_closed(database: Database) -> list[ClosedPeriod]:
    """List the closed months, by time."""
    with database.transaction(Lock.LEDGER) as connection:
        return periods.list_closed(connection)


def verify_month(database: Database, name: str) -> tuple[ClosedPeriod, Verification]:
    """Check a closed month while nobody rates. Raises StillOpen."""
    with database.transaction(Lock.LEDGER) as connection:
        closed = _closed_month(connection, name)
        return closed, verify(connection, closed)


def keep_seal(database: Database, month: ClosedPeriod, seal: SealComparison) -> None:
    """Store what became of a seal, in a transaction of its own."""
    if not database.standby:
        with database.transaction() as connection:
            month_proofs.update_seal(connection, month.period, seal)


def bill_corrections(
    database: Database, name: str, period: Period, level: str, now_ms: int
) -> Report:
    """What was found about a closed month after its close, by owner, once all of it is rated.

    Raises StillOpen.
    """
    with database.transaction() as connection:
        _closed_month(connection, name)
    refresh(database, period, now_ms)
    with database.transaction() as connection:
        return report(reports.corrections_of(connection, period, level), (level,))


def _closed_month(connection: Connection, name: str) -> ClosedPeriod:
    for month in periods.list_closed(connection):
        if month.name == name:
            return month
    raise StillOpen(name)


def seal_of(lines: Iterable[ExportedCharge]) -> str:
    """The seal over lines in their order."""
    return seal.root([seal.leaf(seal.line_of(line)) for line in lines]).hex()


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of a closed month since its close: its lines against their seal, and all that
    reports of it read.
    """

    sealed: bool
    """Whether the lines are those that were sealed."""
    failures: Sequence[str] = ()
    """What else does not agree with the sealed lines, in sentences."""
    uncovered: Sequence[str] = ()
    """Tables that reports of the month read, and of which its close, by an earlier version, kept no
    hash.
    """

    @property
    def holds(self) -> bool:
        """Whether every report of the month still states what was sealed."""
        return self.sealed and not self.failures


def verify(connection: Connection, closed: ClosedPeriod) -> Verification:
    """Check the lines of a closed period against their seal, and what reports read in their place
    against them.
    """
    lines = list(reports.charges(connection, closed.period))
    # The order of the lines is part of the seal, so `reports.charges` must return the same order as
    # at the close.
    sealed = _is_seal_of(connection, closed, lines)
    sums = reconcile(connection, closed.period, anew=False)
    content = periods.receipt(connection, closed.name) or {}
    tables = sealed_tables.compare(connection, closed)
    mismatches = [
        *differences(
            RECEIPT,
            billed_directly(lines, str(content.get("level", "team"))),
            receipt_direct(content),
        ),
        *differences(
            INVOICES,
            receipt_amounts(content),
            identities.invoiced_amounts(connection, closed.period),
        ),
        *(_changed_table(table, closed) for table in tables.changed),
        *declaration_mismatches(audited.compare(connection)),
    ]
    return Verification(
        sealed, [*proof.failures(sums), *proof.places(mismatches)], tables.uncovered
    )


def is_sealed(connection: Connection, closed: ClosedPeriod) -> bool:
    """Whether the lines of a closed period are those that were sealed, read one after the other."""
    return _is_seal_of(connection, closed, reports.charges(connection, closed.period))


def _is_seal_of(
    connection: Connection, closed: ClosedPeriod, lines: Iterable[ExportedCharge]
) -> bool:
    leaves = [seal.leaf(seal.line_of(line)) for line in lines]
    return len(leaves) == closed.lines and (
        seal.root(leaves).hex() == closed.seal or _is_sealed_untied(connection, closed)
    )


def _is_sealed_untied(connection: Connection, closed: ClosedPeriod) -> bool:
    """Whether the lines are those that an earlier version sealed, in the order in which it read
    them.
    """
    return seal_of(reports.charges(connection, closed.period, ties=False)) == closed.seal


def _changed_table(table: str, closed: ClosedPeriod) -> Mismatch:
    place = {"table": table, "month": closed.name}
    return Mismatch(identity=SEALED_TABLES, place=place, measure="", expected=None, stored=None)
