"""Reconciliation: owners + unallocated + unavailable + unobserved = capacity x rate, shown for a period.

Three sums are made apart from each other and must agree to the micro-unit: what the days' proofs recorded when they
were rated, what the charges say now, and capacity x rate computed again from inventory and price book.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuledger_collector.accounting.ledger import Proof
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.ports import ChargedState, Unit
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.rating import capacity_cost
from gpuledger_collector.accounting.reconciliation import PARTS, DayCheck, Reconciliation, Sums
from gpuledger_collector.accounting.usage import HELD, STATES
from gpuledger_collector.jobs.stays import Stay, stays_of


def reconcile(unit: Unit, period: Period) -> Reconciliation:
    """Check the rated days of a period; call `bring_up_to_date` before it."""
    book = PriceBook(unit.prices())
    calendar = unit.calendar()
    stays = [stay for mine in stays_of(unit.capacity(period)).values() for stay in mine]
    charged: dict[int, list[ChargedState]] = defaultdict(list)
    for state in unit.charged_states(period):
        charged[state.day_ms].append(state)
    parts, capacity, imported = {name: Sums() for name in PARTS}, Sums(), Sums()
    unpriced_ns = 0
    days = []
    for proof in unit.proofs(period):
        again = _capacity(stays, proof, book, calendar)
        capacity.add(again.gpu_ns, again.cost)
        rows = charged.get(proof.day_ms, [])
        for row in rows:
            name = "owners" if row.state == HELD else row.state
            cost = {row.currency: row.cost_micro or 0} if row.currency is not None else {}
            (imported if row.imported else parts[name]).add(row.gpu_ns, cost)
            unpriced_ns += row.gpu_ns if row.currency is None else 0
        observed_ns = proof.held_ns + proof.unallocated_ns + proof.unavailable_ns
        holds = _holds(proof, again, rows)
        days.append(DayCheck(proof.day_ms, proof.until_ms, proof.capacity_ns, observed_ns, holds))
    return Reconciliation(period, parts, capacity, imported, unpriced_ns, days)


def _capacity(stays: Sequence[Stay], proof: Proof, book: PriceBook, calendar: Calendar) -> Sums:
    """Capacity x rate of a day, computed again; capacity in places of no rate counts in time and not in money."""
    day = calendar.day_of(proof.day_ms)
    together: dict[object, tuple[Stay, list[Period]]] = {}
    for stay in stays:
        if (part := stay.period.clip(day)) is not None:
            together.setdefault(stay.accelerator, (stay, []))[1].append(part)
    sums = Sums()
    for stay, present in together.values():
        cost = capacity_cost(stay.accelerator, day, present, book, proof.until_ms)
        sums.add(cost.capacity_ns, cost.cost)
    return sums


def _holds(proof: Proof, again: Sums, rows: Sequence[ChargedState]) -> bool:
    said = Sums()
    by_state = dict.fromkeys(STATES, 0)
    for row in rows:
        if not row.imported:
            said.add(row.gpu_ns, {row.currency: row.cost_micro or 0} if row.currency is not None else {})
            by_state[row.state] += row.gpu_ns
    recorded = (proof.held_ns, proof.unallocated_ns, proof.unavailable_ns, proof.unobserved_ns)
    return (
        proof.holds
        and tuple(by_state[state] for state in STATES) == recorded
        and said.gpu_ns == again.gpu_ns == proof.capacity_ns
        and dict(said.cost) == dict(again.cost) == dict(proof.capacity_cost)
    )
