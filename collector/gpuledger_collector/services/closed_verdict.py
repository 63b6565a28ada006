"""Whether the bill of a closed month may be trusted, and what changed since: one answer for every
page that shows the month.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.closed_verdict import ClosedVerdict
from gpuledger_collector.accounting.closing import ClosedPeriod, LaterChange
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.month_proof import PeriodProof
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.rated_period import RatedPeriod
from gpuledger_collector.services.rated_period import read_rated_period
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer


def verdict_of(
    connection: Connection,
    rated: RatedPeriod,
    viewer: Mapping[str, str] | None,
    owner: Mapping[str, str] | None,
) -> ClosedVerdict | None:
    """Read the verdict of a period that is a closed month, as a viewer may see it, by team; `owner`
    narrows it further. None: it is no closed month.

    Nothing is compared here: what the seal's comparison said is kept (decision 0038).
    """
    month = next((month for month in rated.closed_months if month.period == rated.period), None)
    if month is None:
        return None
    shown = {**(viewer or {}), **(owner or {})}
    with as_viewer(connection, viewer):
        changes = overview.changes_since_close(connection, month.period, "team", shown)
    read = (month, rated.checks, rated.proof, rated.calendar)
    return make_verdict(*read, changes, is_part=bool(shown))


def read_closed_verdict(
    connection: Connection, period: Period, calendar: Calendar, viewer: Mapping[str, str] | None
) -> ClosedVerdict | None:
    """Read the verdict of a period for a page that reads nothing else of it."""
    return verdict_of(connection, read_rated_period(connection, period, calendar), viewer, None)


def make_verdict(
    month: ClosedPeriod,
    checks: Sequence[ConservationCheck],
    proof: PeriodProof,
    calendar: Calendar,
    changes: Sequence[LaterChange],
    *,
    is_part: bool,
) -> ClosedVerdict:
    """The verdict from what was read; `is_part`: the changes are those of one owner."""
    proofs = [each for each in proof.months if each is not None and each.month == month.period]
    return ClosedVerdict(
        month=month,
        seal=proofs[0].seal if proofs else None,
        changes=changes,
        is_part=is_part,
        calendar=calendar,
        rated_days=[check.day_ms for check in checks],
    )
