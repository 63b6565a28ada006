"""Reconciliation: owners + unallocated + unavailable + unobserved + stranded = capacity x rate, shown for a period.

Three sums are made apart from each other and must agree to the micro-unit: what the days' proofs recorded when they
were rated, what the charges say now, and capacity x rate computed again from inventory and price book. Months that
were added up must be the sum of their days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.adjustments import KINDS as ADJUSTMENTS
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.node_costs import NodeCost, node_hours
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import CapacityCost, ImportedUsage, adjustment_charges, capacity_cost
from gpuledger_collector.accounting.reconciliation import PARTS, ChargedState, DayCheck, Reconciliation, Sums
from gpuledger_collector.accounting.usage import HELD, STATES
from gpuledger_collector.services.commitment_coverage import book_of, cover_day, is_counted, node_places, placed
from gpuledger_collector.services.placements import placements_of, with_stranded
from gpuledger_collector.services.rating import adjusting_on, imported_without_seen
from gpuledger_collector.storage.billing import adjustments, commitments, node_costs
from gpuledger_collector.storage.ledger import claims, inventory, months, reports, zones
from gpuledger_collector.storage.locks import Connection


def reconcile(connection: Connection, period: Period, *, anew: bool = True) -> Reconciliation:
    """Check the rated days of a period; call `refresh` before it.

    `anew` computes capacity x rate again; without it the charges are compared with what was recorded at rating, which
    takes four statements whatever the size of the fleet.
    """
    again_of = _Again(connection, period) if anew else _Recorded()
    charged: dict[int, list[ChargedState]] = defaultdict(list)
    for state in reports.charged_states(connection, period):
        charged[state.day_ms].append(state)
    parts, capacity, imported, unused = {name: Sums() for name in PARTS}, Sums(), Sums(), Sums()
    unpriced_ns = 0
    days = []
    # The checks decide which days are looked at and up to when: an unfinished day is compared up to where it was rated.
    for proof in reports.conservation_checks(connection, period):
        again = again_of.capacity(proof)
        capacity.add(again.gpu_ns, again.cost)
        rows = [row for row in charged.get(proof.day_ms, []) if row.state not in ADJUSTMENTS]
        for row in rows:
            name = "owners" if row.state == HELD else row.state
            cost = {row.currency: row.cost_micro or 0} if row.currency is not None else {}
            # Imported counts and unused commitments have no capacity; they are shown, but are no part of the equation.
            place = imported if row.imported else unused if row.state == COMMITMENT_UNUSED else parts[name]
            place.add(row.gpu_ns, cost)
            unpriced_ns += row.gpu_ns if row.currency is None else 0
        # Capacity outside every MIG slice is known to be there, so it counts as observed.
        observed_ns = proof.capacity_ns - proof.unobserved_ns
        holds = _holds(proof, again, rows)
        days.append(
            DayCheck(
                day_ms=proof.day_ms,
                until_ms=proof.until_ms,
                capacity_ns=proof.capacity_ns,
                observed_ns=observed_ns,
                holds=holds,
            )
        )
    adjusted, misadjusted = _adjustments(connection, period, [day.day_ms for day in days] if anew else [])
    untrue = months.inconsistent(connection, period)
    return Reconciliation(
        period=period,
        parts=parts,
        capacity=capacity,
        imported=imported,
        unpriced_ns=unpriced_ns,
        days=days,
        unused=unused,
        calendar=zones.calendar(connection),
        untrue_months=untrue,
        adjusted=adjusted,
        nodes=reports.node_costs(connection, period),
        misadjusted=misadjusted,
        claims=claims.undecided(connection, period),
    )


class _Recorded:
    """Capacity x rate as recorded when its days were rated."""

    def capacity(self, proof: ConservationCheck) -> Sums:
        """Of one day."""
        sums = Sums()
        sums.add(proof.capacity_ns, proof.capacity_cost)
        return sums


def _adjustments(
    connection: Connection, period: Period, days_ms: Sequence[int]
) -> tuple[dict[str, dict[str, int]], list[int]]:
    """What adjustments charge in a period, and on which of these days that does not follow from what was held."""
    charged = reports.adjusted_costs(connection, period)
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (_, name, currency), micro in charged.items():
        sums[name][currency] += micro
    calendar, wrong = zones.calendar(connection), []
    # Nothing is read of days without adjustments: what was held of a large fleet is many lines.
    for day_ms in days_ms if charged or adjustments.current(connection) else ():
        day = calendar.day_of(day_ms)
        adjusting = adjusting_on(connection, day)
        expected: dict[tuple[int, str, str], int] = defaultdict(int)
        if adjusting.policies or adjusting.entries:
            for charge in adjustment_charges(reports.held_costs(connection, day), day, adjusting):
                assert charge.adjustment is not None
                expected[day_ms, charge.adjustment.name, charge.currency or ""] += charge.cost_micro or 0
        found = {key: micro for key, micro in charged.items() if key[0] == day_ms}
        if found != {key: micro for key, micro in expected.items() if micro}:
            wrong.append(day_ms)
    return sums, wrong


class _Again:
    """Capacity x rate, what commitments pay for and what nodes cost, computed again from inventory and declarations.

    Capacity in places of no rate counts in time and not in money.
    """

    def __init__(self, connection: Connection, period: Period) -> None:
        self._connection = connection
        self._book = book_of(connection)
        self._calendar = zones.calendar(connection)
        self._commitments = commitments.current(connection)
        self._node_costs = node_costs.current(connection)
        rows = inventory.capacity(connection, period)
        self._held = placements_of(rows)
        # `_held` stays without the stranded parts, which replace no imported GPU.
        self._placements = with_stranded(self._held, rows, period)

    def capacity(self, proof: ConservationCheck) -> Sums:
        """Of one day, up to where its proof goes."""
        day, until_ms = self._calendar.day_of(proof.day_ms), proof.until_ms
        coverage = cover_day(
            self._commitments, day, until_ms, self._placements, self._imported(day, until_ms), self._book
        )
        sums = Sums()
        costs: dict[object, CapacityCost] = {}
        for key, placement, present in placed(self._placements, day):
            place, covered = placement.accelerator, coverage.of(key)
            # As in rating, accelerators that cost the same are computed once.
            alike = (place.gpu_micro, place.pool, place.gpu_model, place.node, *present)
            cost = costs.get(alike) if covered is None else None
            if cost is None:
                cost = capacity_cost(place, day, present, self._book, until_ms, covered)
            if covered is None:
                costs[alike] = cost
            sums.add(cost.capacity_ns, cost.cost)
        for hour in node_hours(node_places(self._placements, day), self._node_costs_on(day), day, until_ms):
            sums.add(0, {hour.cost.currency: hour.micro})
        # `capacity_cost` leaves out what is covered, so the commitments' cost is added, less what they pay for imported
        # counts.
        for paid in coverage.costs:
            sums.add(0, {paid.commitment.currency: paid.cost_micro})
        for key, shares in coverage.shares.items():
            if is_counted(key):
                for share in (share for interval_shares in shares.values() for share in interval_shares):
                    sums.add(0, {share.commitment.currency: -share.cost_micro})
        return sums

    def _node_costs_on(self, day: Period) -> list[NodeCost]:
        day_on = self._calendar.date_of(day.start_ms)
        return [cost for cost in self._node_costs if cost.holds_on(day_on)]

    def _imported(self, day: Period, until_ms: int) -> list[ImportedUsage]:
        """Imported usage, which commitments may cover as well; not read where there are no commitments."""
        if not any(commitment.term.clip(day) for commitment in self._commitments):
            return []
        return imported_without_seen(self._connection, day, self._held, until_ms)


def _known(costs: Mapping[str, int]) -> dict[str, int]:
    return {currency: micro for currency, micro in costs.items() if micro}


def _holds(proof: ConservationCheck, again: Sums, rows: Sequence[ChargedState]) -> bool:
    charged = Sums()
    # In the order of STATES, to be compared with the recorded sums below.
    by_state = dict.fromkeys(STATES, 0)
    for row in rows:
        if not row.imported:
            unused = row.state == COMMITMENT_UNUSED
            charged.add(
                0 if unused else row.gpu_ns, {row.currency: row.cost_micro or 0} if row.currency is not None else {}
            )
            if not unused:
                by_state[row.state] += row.gpu_ns
    recorded = (proof.held_ns, proof.unallocated_ns, proof.unavailable_ns, proof.unobserved_ns, proof.stranded_ns)
    return (
        proof.holds
        and tuple(by_state[state] for state in STATES) == recorded
        and charged.gpu_ns == again.gpu_ns == proof.capacity_ns
        and _known(charged.cost) == _known(again.cost) == _known(proof.capacity_cost)
    )
