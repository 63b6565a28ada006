"""Reconciliation: owners + unallocated + unavailable + unobserved + stranded = capacity x rate,
shown for a period.

This compares the sides of each identity of `accounting/identities.py`. Three sums of the capacity
are made apart from each other and must agree to the micro-unit: what the days' proofs recorded when
they were rated, what the charges say now, and capacity x rate computed again from inventory and
price book.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.adjustments import BESIDE_CAPACITY
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.identities import (
    ADJUSTMENTS,
    CAPACITY,
    CHECKED,
    DECLARED,
    IDENTITIES,
    IMPORTED,
    INFERENCE,
    MOVED,
    Depth,
    Identity,
    Mismatch,
    differences,
)
from gpuledger_collector.accounting.ledger import ConservationCheck, without_zeros
from gpuledger_collector.accounting.node_costs import NodeCost, node_hours
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.rating import (
    CapacityCost,
    ImportedUsage,
    adjustment_charges,
    capacity_cost,
)
from gpuledger_collector.accounting.reconciliation import (
    PARTS,
    ChargedState,
    DayCheck,
    Reconciliation,
    Sums,
)
from gpuledger_collector.accounting.usage import HELD, STATES
from gpuledger_collector.services.commitment_coverage import (
    book_of,
    cover_day,
    is_counted,
    list_places,
    node_places,
)
from gpuledger_collector.services.evidence_proof import unlike_evidence
from gpuledger_collector.services.placements import placements_of, with_stranded
from gpuledger_collector.services.rating import adjusting_on, imported_without_seen
from gpuledger_collector.services.shared_servers import move_again
from gpuledger_collector.storage.access import audited
from gpuledger_collector.storage.billing import (
    adjustments,
    charge_sums,
    commitments,
    identities,
    months,
    node_costs,
    rated_days,
    rating_times,
    reports,
)
from gpuledger_collector.storage.billing.charge_sums import ChargeSums, ImportedPlace, MovedPlace
from gpuledger_collector.storage.billing.identities import path_text
from gpuledger_collector.storage.ledger import claims, inventory, zones
from gpuledger_collector.storage.locks import Connection


def reconcile(
    connection: Connection, period: Period, *, anew: bool = True, evidence: bool = False
) -> Reconciliation:
    """Check the rated days of a period; call `refresh` before it.

    `anew` also computes what follows from declarations again: capacity x rate, imported usage,
    adjustments. It also compares the declarations with the audit log. Without it derived tables are
    compared with each other and with what was recorded at rating, which takes a few statements
    whatever the size of the fleet. `evidence` folds and rates each day again as well, which takes
    as long as rating.
    """
    calendar = zones.calendar(connection)
    again_of = _Again(connection, period) if anew else _Recorded()
    charged = charge_sums.read(connection, period, calendar)
    sums = _CapacitySums()
    # The checks decide which days are looked at and up to when: an unfinished day is compared up to
    # where it was rated.
    days = [
        sums.add_day(check, again_of.capacity(check), charged.states.get(check.day_ms, ()))
        for check in reports.conservation_checks(connection, period)
    ]
    declared = audited.compare(connection) if anew else audited.Comparison()
    return Reconciliation(
        period=period,
        parts=sums.parts,
        capacity=sums.capacity,
        imported=sums.imported,
        unpriced_ns=sums.unpriced_ns,
        days=days,
        unused=sums.unused,
        calendar=calendar,
        untrue_months=months.inconsistent(connection, period),
        adjusted=_adjusted_by_name(charged),
        nodes=charged.nodes,
        mismatches=[
            *(unlike_evidence(connection, period) if evidence else ()),
            *declaration_mismatches(declared),
            *again_of.imports(charged.imported),
            *(_find_misadjusted_days(connection, charged, calendar, days) if anew else ()),
            *(_find_unlike_shares(connection, charged, calendar, days) if anew else ()),
            *_unlike_tables(connection, charged, calendar, days),
        ],
        compared=_identities_to_compare(anew=anew, evidence=evidence),
        claims=claims.list_undecided(connection, period),
        uncovered=declared.uncovered,
    )


@dataclass
class _CapacitySums:
    """Where the capacity of days went: what was charged for it by state, and what it is worth."""

    parts: dict[str, Sums] = field(default_factory=lambda: {name: Sums() for name in PARTS})
    capacity: Sums = field(default_factory=Sums)
    imported: Sums = field(default_factory=Sums)
    unused: Sums = field(default_factory=Sums)
    unpriced_ns: int = 0

    def add_day(
        self, check: ConservationCheck, again: Sums, states: Sequence[ChargedState]
    ) -> DayCheck:
        """Add a rated day, and compare its three sums."""
        self.capacity.add(again.gpu_ns, again.cost)
        rows = [row for row in states if row.state not in BESIDE_CAPACITY]
        for row in rows:
            cost = {row.currency: row.cost_micro or 0} if row.currency is not None else {}
            self._place_of(row).add(row.gpu_ns, cost)
            self.unpriced_ns += row.gpu_ns if row.currency is None else 0
        return DayCheck(
            day_ms=check.day_ms,
            until_ms=check.until_ms,
            capacity_ns=check.capacity_ns,
            # Capacity outside every MIG slice is known to be there, so it counts as observed.
            observed_ns=check.capacity_ns - check.unobserved_ns,
            imported_ns=check.imported_ns,
            holds=_holds(check, again, rows),
        )

    def _place_of(self, row: ChargedState) -> Sums:
        """Imported counts and unused commitments have no capacity; they are shown, but are no part
        of the equation.
        """
        if row.imported:
            return self.imported
        if row.state == COMMITMENT_UNUSED:
            return self.unused
        return self.parts.get("owners" if row.state == HELD else row.state, Sums())


def declaration_mismatches(declared: audited.Comparison) -> list[Mismatch]:
    """Where declared rows are not as the audit log has them."""
    return [
        Mismatch(
            identity=DECLARED,
            place={"table": deviation.table, "row": deviation.row, "column": deviation.what},
            measure="",
            expected=None,
            stored=None,
        )
        for deviation in declared.deviations
    ]


def _identities_to_compare(*, anew: bool, evidence: bool) -> list[Identity]:
    """The identities of a reconciliation.

    Without `anew` charges must still add up to the capacity as recorded.
    """
    depths = (
        {Depth.tables}
        | ({Depth.declarations} if anew else set())
        | ({Depth.evidence} if evidence else set())
    )
    return [identity for identity in IDENTITIES if identity is CAPACITY or identity.depth in depths]


class _Recorded:
    """Capacity x rate as recorded when its days were rated."""

    def capacity(self, proof: ConservationCheck) -> Sums:
        """Of one day."""
        sums = Sums()
        sums.add(proof.capacity_ns, proof.capacity_cost)
        return sums

    def imports(self, _charged: Mapping[ImportedPlace, int]) -> list[Mismatch]:
        """What imported usage costs is not recorded at rating, so nothing is compared."""
        return []


def _unlike_tables(
    connection: Connection, charged: ChargeSums, calendar: Calendar, days: Sequence[DayCheck]
) -> list[Mismatch]:
    """Where derived tables differ from each other."""
    misbooked = identities.misbooked_corrections(connection, charged.period, calendar)
    misdated = rating_times.find_changed_times(connection, charged.period, calendar)
    return [
        *_find_unchecked_days(charged, calendar, days),
        *_find_unbalanced_servers(charged, calendar),
        *charged.unlike_days,
        *misbooked,
        *misdated,
    ]


def _find_unchecked_days(
    charged: ChargeSums, calendar: Calendar, days: Sequence[DayCheck]
) -> list[Mismatch]:
    """Days that have charges and no check: nothing of them would be compared."""
    expected = {
        (calendar.date_of(day_ms).isoformat(),): (sum(state.gpu_ns for state in states),)
        for day_ms, states in charged.states.items()
        if day_ms not in {day.day_ms for day in days}
    }
    return differences(CHECKED, expected, {})


def _adjusted_by_name(charged: ChargeSums) -> dict[str, dict[str, int]]:
    """What adjustments charge, by name and currency."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (_, name, *_, currency), micro in charged.adjusted.items():
        sums[name][currency] += micro
    return sums


def _find_misadjusted_days(
    connection: Connection, charged: ChargeSums, calendar: Calendar, days: Sequence[DayCheck]
) -> list[Mismatch]:
    """Where on these days the charges of adjustments do not follow from what was held."""
    expected: dict[tuple[str, ...], int] = defaultdict(int)
    # Nothing is read of days without adjustments: what was held of a large fleet is many lines.
    compared = (
        {day.day_ms for day in days}
        if charged.adjusted or adjustments.current(connection)
        else set()
    )
    for day_ms in sorted(compared):
        day = calendar.day_of(day_ms)
        adjusting = adjusting_on(connection, day)
        if adjusting.policies or adjusting.entries:
            for charge in adjustment_charges(reports.held_costs(connection, day), day, adjusting):
                assert charge.adjustment is not None
                place = (
                    charge.adjustment.name,
                    charge.owner or OwnerPath(),
                    charge.pool,
                    charge.gpu_model,
                )
                expected[_adjusted_place(calendar, day_ms, *place, charge.currency or "")] += (
                    charge.cost_micro or 0
                )
    return differences(
        ADJUSTMENTS,
        {place: (micro,) for place, micro in expected.items()},
        {
            _adjusted_place(calendar, *place): (micro,)
            for place, micro in charged.adjusted.items()
            if place[0] in compared
        },
    )


def _find_unbalanced_servers(charged: ChargeSums, calendar: Calendar) -> list[Mismatch]:
    """Servers of which owners of tenants pay something else than the payers get back."""
    given: dict[tuple[str, ...], int] = defaultdict(int)
    taken: dict[tuple[str, ...], int] = defaultdict(int)
    for moved, micro in charged.moved.items():
        day_ms, server, _, _, trust, _, *where = moved
        place = calendar.date_of(day_ms).isoformat(), server, *where
        if trust:
            taken[place] += micro
        else:
            given[place] -= micro
    return differences(
        MOVED,
        {place: (micro,) for place, micro in given.items()},
        {place: (micro,) for place, micro in taken.items()},
    )


def _find_unlike_shares(
    connection: Connection, charged: ChargeSums, calendar: Calendar, days: Sequence[DayCheck]
) -> list[Mismatch]:
    """Where the charges of shared servers do not follow from what the servers cost and what tenants
    asked; of days that have ended and wait for no rating, since tokens come at any time.
    """
    waiting = set(rated_days.list_requested(connection, charged.period, calendar))
    ended = [
        day
        for check in days
        if check.until_ms >= (day := calendar.day_of(check.day_ms)).end_ms
        and day.start_ms not in waiting
    ]
    if not ended:
        return []
    expected: dict[tuple[str, ...], int] = defaultdict(int)
    for day_ms, moved in move_again(connection, calendar.days(charged.period)).items():
        for charge in moved:
            share = charge.inference
            assert share is not None
            place = share.server, share.gateway, share.tenant, share.trust
            key = _moved_place(
                calendar,
                (
                    day_ms,
                    *place,
                    charge.owner or OwnerPath(),
                    charge.pool,
                    charge.gpu_model,
                    charge.currency or "",
                ),
            )
            expected[key] += charge.cost_micro or 0
    compared = {calendar.date_of(day.start_ms).isoformat() for day in ended}
    stored = {_moved_place(calendar, place): micro for place, micro in charged.moved.items()}
    return differences(
        INFERENCE,
        {place: (micro,) for place, micro in expected.items() if place[0] in compared},
        {place: (micro,) for place, micro in stored.items() if place[0] in compared},
    )


def _moved_place(calendar: Calendar, place: MovedPlace) -> tuple[str, ...]:
    day_ms, server, gateway, tenant, trust, owner, *where = place
    date = calendar.date_of(day_ms).isoformat()
    return date, server, gateway, tenant, trust, path_text(owner), *where


def _adjusted_place(
    calendar: Calendar,
    day_ms: int,
    name: str,
    owner: OwnerPath,
    pool: str,
    gpu_model: str,
    currency: str,
) -> tuple[str, ...]:
    return calendar.date_of(day_ms).isoformat(), name, path_text(owner), pool, gpu_model, currency


class _Again:
    """Capacity x rate, what commitments pay for and what nodes cost, computed again from inventory
    and declarations.

    Capacity in places of no rate counts in time and not in money.
    """

    def __init__(self, connection: Connection, period: Period) -> None:
        self._connection = connection
        self._book = book_of(connection, period)
        self._calendar = zones.calendar(connection)
        self._commitments = commitments.COMMITMENTS.in_force(connection)
        self._node_costs = node_costs.NODE_COSTS.in_force(connection)
        rows = inventory.capacity(connection, period)
        self._held = placements_of(rows)
        # `_held` stays without the stranded parts, which replace no imported GPU.
        self._placements = with_stranded(self._held, rows, period)
        self._has_imports = identities.has_imports(connection, period)
        self._imports = _Imports(connection, self._calendar)

    def capacity(self, proof: ConservationCheck) -> Sums:
        """Of one day, up to where its proof goes."""
        day, until_ms = self._calendar.day_of(proof.day_ms), proof.until_ms
        imported = self._imported_usage(day, until_ms)
        coverage = cover_day(
            self._commitments, day, until_ms, self._placements, imported, self._book
        )
        sums = Sums()
        costs: dict[object, CapacityCost] = {}
        for key, placement, present in list_places(self._placements, day):
            place, covered = placement.accelerator, coverage.shares_of(key)
            # As in rating, accelerators that cost the same are computed once.
            node_key = self._book.node_key(place.node)
            alike = (place.gpu_micro, place.pool, place.gpu_model, node_key, *present)
            cost = costs.get(alike) if covered is None else None
            if cost is None:
                cost = capacity_cost(place, day, present, self._book, until_ms, covered)
            if covered is None:
                costs[alike] = cost
            sums.add(cost.capacity_ns, cost.cost)
        for hour in node_hours(
            node_places(self._placements, day), self._node_costs_on(day), day, until_ms
        ):
            sums.add(0, {hour.cost.currency: hour.micro})
        # `capacity_cost` leaves out what is covered, so the commitments' cost is added, less what
        # they pay for imported counts.
        for paid in coverage.costs:
            sums.add(0, {paid.commitment.currency: paid.cost_micro})
        for key, shares in coverage.shares.items():
            if is_counted(key):
                for share in (
                    share for interval_shares in shares.values() for share in interval_shares
                ):
                    sums.add(0, {share.commitment.currency: -share.cost_micro})
        return sums

    def _node_costs_on(self, day: Period) -> list[NodeCost]:
        day_on = self._calendar.date_of(day.start_ms)
        return [cost for cost in self._node_costs if cost.holds_on(day_on)]

    def imports(self, charged: Mapping[ImportedPlace, int]) -> list[Mismatch]:
        """Where the hours of imported usage and of its charges differ, on the days that were looked
        at.
        """
        return self._imports.mismatches(charged)

    def _imported_usage(self, day: Period, until_ms: int) -> list[ImportedUsage]:
        """Imported usage that commitments may cover; not read where there are no commitments."""
        pools = {
            held.accelerator.pool
            for on_board in self._held.values()
            for held in on_board
            if held.period.start_ms < day.end_ms and held.period.end_ms > day.start_ms
        }
        covers = any(commitment.term.clip(day) for commitment in self._commitments)
        imported = []
        if self._has_imports and (covers or pools):
            imported = imported_without_seen(self._connection, day, self._held, until_ms)
        self._imports.add_day(
            day, until_ms, [usage for usage in imported if usage.pool in pools], pools
        )
        return imported


class _Imports:
    """GPU-nanoseconds of imported usage by day, pool, model and node: of its rows, and of its
    charges.

    Counts in pools in which accelerators were seen give way to them, which is computed; the
    database adds up others.
    """

    def __init__(self, connection: Connection, calendar: Calendar) -> None:
        self._connection = connection
        self._calendar = calendar
        self._days: dict[int, tuple[Period, set[str]]] = {}
        self._expected: dict[tuple[str, ...], int] = defaultdict(int)

    def add_day(
        self, day: Period, until_ms: int, beside_seen: Sequence[ImportedUsage], pools: set[str]
    ) -> None:
        """Remember a day up to an instant, and add what its imports should have produced, to be
        compared later.

        In `pools` accelerators were seen, and `beside_seen` is what counts there.
        """
        self._days[day.start_ms] = Period(day.start_ms, min(day.end_ms, until_ms)), pools
        for usage in beside_seen:
            part = Period(usage.start_ms, usage.end_ms or until_ms).clip(
                self._days[day.start_ms][0]
            )
            if part is not None:
                self._expected[
                    self._place(day.start_ms, usage.pool, usage.gpu_model, usage.node)
                ] += gpu_ns(usage.gpu_micro, part.ms)

    def mismatches(self, charged: Mapping[ImportedPlace, int]) -> list[Mismatch]:
        """Where the two sums differ."""
        if not self._days:
            return []
        rows = identities.imported_hours(
            self._connection, [part for part, _ in self._days.values()]
        )
        for (day_ms, *place), ns in rows.items():
            if place[0] not in self._days[day_ms][1]:
                self._expected[self._place(day_ms, *place)] += ns
        # Which counts give way to accelerators that were seen is told by evidence that retention
        # may have removed.
        expired = identities.expired_days(
            self._connection, [part for part, _ in self._days.values()]
        )
        uncompared = {
            self._place(day_ms, pool) for day_ms in expired for pool in self._days[day_ms][1]
        }
        found = differences(
            IMPORTED,
            {place: (ns,) for place, ns in self._expected.items()},
            {self._place(*place): (ns,) for place, ns in charged.items() if place[0] in self._days},
        )
        return [each for each in found if (each.place["day"], each.place["pool"]) not in uncompared]

    def _place(self, day_ms: int, *place: str) -> tuple[str, ...]:
        return self._calendar.date_of(day_ms).isoformat(), *place


def _holds(proof: ConservationCheck, again: Sums, rows: Sequence[ChargedState]) -> bool:
    charged, imported_ns = Sums(), 0
    # In the order of STATES, to be compared with the recorded sums below.
    by_state = dict.fromkeys(STATES, 0)
    for row in rows:
        if row.imported:
            imported_ns += row.gpu_ns
        else:
            unused = row.state == COMMITMENT_UNUSED
            charged.add(
                0 if unused else row.gpu_ns,
                {row.currency: row.cost_micro or 0} if row.currency is not None else {},
            )
            if not unused:
                # A state that rating does not write has no part of the capacity, and so the day
                # does not hold.
                by_state[row.state] = by_state.get(row.state, 0) + row.gpu_ns
    recorded = (
        proof.held_ns,
        proof.unallocated_ns,
        proof.unavailable_ns,
        proof.unobserved_ns,
        proof.stranded_ns,
    )
    return (
        proof.holds
        and by_state == dict(zip(STATES, recorded, strict=True))
        and charged.gpu_ns == again.gpu_ns == proof.capacity_ns
        and imported_ns == proof.imported_ns
        and without_zeros(charged.cost)
        == without_zeros(again.cost)
        == without_zeros(proof.capacity_cost)
        == without_zeros(proof.charged_cost)
    )
