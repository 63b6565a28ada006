"""Codes of owners as an export shows them: of a closed month those that were declared when it was
closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.cost_centers import Codes, CostCenters, join_codes
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing import declarations, periods
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS, OWNER_LEVELS
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_value

_BILLED = f"""
    SELECT DISTINCT {OWNER_LEVELS} FROM owner o WHERE o.id IN (
        SELECT owner_id FROM ledger_day WHERE day_ms >= %(start)s AND day_ms < %(end)s
        UNION SELECT owner_id FROM correction WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s)
"""


class BilledCodes:
    """The codes under which an owner is billed on a day."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._calendar = zones.calendar(connection)
        self._closed = [
            (closed.period, closed.closed_ms) for closed in periods.list_closed(connection)
        ]
        self._versions: dict[int | None, CostCenters] = {}
        self.are_declared = bool(
            select_value(connection, "SELECT EXISTS (SELECT FROM cost_center)")
        )
        """Whether any cost center was ever declared; nothing else is read where none was."""

    def codes_on(self, owner: OwnerPath, billed_ms: int) -> Codes:
        """The codes of an owner on the day that bills an instant."""
        if not self.are_declared:
            return Codes()
        day = self._calendar.day_of(billed_ms)
        closed_ms = next((at for period, at in self._closed if period.clip(day)), None)
        if closed_ms not in self._versions:
            self._versions[closed_ms] = CostCenters(
                declarations.COST_CENTERS.in_force(self._connection, closed_ms)
            )
        return self._versions[closed_ms].codes(owner, self._calendar.date_of(day.start_ms))

    def spans(self, period: Period) -> list[Period]:
        """A period, cut where a declaration begins or ends to hold: each part has one code for an
        owner.
        """
        if not self.are_declared:
            return [period]
        rows = self._connection.execute(
            "SELECT from_on FROM cost_center UNION SELECT to_on FROM cost_center ORDER BY 1"
        ).fetchall()
        inside = (self._calendar.start_of(on) for (on,) in rows if on is not None)
        edges = sorted(
            {
                period.start_ms,
                *(at for at in inside if period.start_ms < at < period.end_ms),
                period.end_ms,
            }
        )
        return [Period(start_ms, end_ms) for start_ms, end_ms in pairwise(edges)]

    def tag_charges(self, charges: Iterable[ExportedCharge]) -> Iterator[ExportedCharge]:
        """Charges with the codes of their owners among their tags, as FOCUS shows them."""
        for exported in charges:
            charge = exported.charge
            if charge.owner is None or not self.are_declared:
                yield exported
                continue
            booked_ms = charge.day_ms if exported.booked_day_ms is None else exported.booked_day_ms
            codes = self.codes_on(charge.owner, booked_ms)
            own = {name: code for name, code in asdict(codes).items() if code}
            yield replace(exported, tags={**exported.tags, **own}) if own else exported

    def of_owners(self, period: Period, level: str) -> Mapping[str, Codes]:
        """The codes of the owners of a level that a period bills, as the chargeback names them."""
        return {
            names[0] or UNATTRIBUTED: codes
            for names, codes in self.of_rows(period, (level,)).items()
        }

    def of_rows(
        self, period: Period, by: Sequence[str], below: Mapping[str, str] | None = None
    ) -> Mapping[tuple[str, ...], Codes]:
        """The codes of all that a period bills, by the owner levels among some dimensions; several
        are joined.

        `below` (level -> value): of what lies below that owner alone.
        """
        levels = [name for name in by if name in LEVELS]
        if not self.are_declared or not levels:
            return {}
        found: dict[tuple[str, ...], set[Codes]] = defaultdict(set)
        days = [day.start_ms for day in self._calendar.days(period)]
        own = "".join(f" AND {LEVEL_COLUMNS[level]} = %({level})s" for level in below or {})
        bounds = {"start": period.start_ms, "end": period.end_ms}
        for owner in select_as(
            self._connection, OwnerPath, _BILLED + own, {**bounds, **(below or {})}
        ):
            found[tuple(owner.level(level) for level in levels)].update(
                self.codes_on(owner, day_ms) for day_ms in days
            )
        return {names: join_codes(sorted(codes)) for names, codes in found.items()}
