"""Price proposals: the difference between the ledger and one in which the proposal was followed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpuledger_collector.accounting.counterfactual import (
    RENTED,
    Saving,
    UsageChange,
    amount,
    compare,
    merge_changes,
    reserved_saving,
)
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.recommendation_record import Recommendation, SavingRange
from gpuledger_collector.insight.recommendations import Estimate, Proposal
from gpuledger_collector.insight.recommendations.energy import Tariff, energy_micro
from gpuledger_collector.services.rating import places
from gpuledger_collector.services.realized_savings import VALID_MS
from gpuledger_collector.services.recommendation_window import ObservedWindow

UNKNOWN: SavingRange = (None, None, None)


@dataclass
class _Scenario:
    """The low, expected or high estimate of one proposal (or of all at once), and the difference it
    makes.
    """

    changes: Mapping[tuple[int, int | None, int], UsageChange]
    reserved: Sequence[Estimate] = ()
    sums: dict[str, Saving] = field(default_factory=dict)
    """By currency; the empty one is unpriced."""

    def __post_init__(self) -> None:
        self.accelerator_days = {
            (accelerator_id, at_ms // DAY_MS) for accelerator_id, _, at_ms in self.changes
        }
        self.kinds = {
            (estimate.reservation.pool, estimate.reservation.gpu_model)
            for estimate in self.reserved
            if estimate.reservation
        }

    @classmethod
    def combine(cls, estimates: Sequence[Estimate]) -> _Scenario:
        """The scenario in which these estimates come true together."""
        return cls(
            merge_changes(change for estimate in estimates for change in estimate.changes),
            [estimate for estimate in estimates if estimate.reservation is not None],
        )


class PricedProposals:
    """Proposals and their savings, each alone and all together, from one pass over the days of the
    window.
    """

    def __init__(
        self, observed: ObservedWindow, proposals: Sequence[Proposal], tariff: Tariff | None
    ) -> None:
        self._observed, self._proposals, self._tariff = observed, proposals, tariff
        self._alone = [
            [_Scenario.combine([estimate]) for estimate in _estimates(proposal)]
            for proposal in proposals
        ]
        self._together = [
            _Scenario.combine([_estimates(proposal)[rank] for proposal in proposals])
            for rank in range(3)
        ]
        scenarios = [*self._together, *(scenario for three in self._alone for scenario in three)]
        # Days outside, scenarios inside: a day's usage is read once, however many proposals there
        # are.
        for usage in observed.days:
            day_number = usage.day.start_ms // DAY_MS
            for placement, capacity, pieces in places(usage, observed.book):
                accelerator = placement.accelerator
                kind = (accelerator.pool, accelerator.gpu_model)
                owner_of = usage.owners.owners_at(accelerator.pool, accelerator.node)
                for scenario in scenarios:
                    # An accelerator that a scenario does not change costs the same in both ledgers;
                    # a reservation asks for all of its kind.
                    affected = (accelerator.accelerator_id, day_number) in scenario.accelerator_days
                    if affected or kind in scenario.kinds:
                        compare(
                            scenario.sums,
                            accelerator,
                            usage.day,
                            capacity,
                            pieces,
                            scenario.changes,
                            observed.book,
                            owner_of,
                            usage.until_ms,
                        )

    def _saving(self, scenario: _Scenario) -> tuple[str | None, Saving | None]:
        """Currency and saving of a scenario; a reservation saves on what would still be rented on
        demand.
        """
        start_ms, end_ms = self._observed.period.start_ms, self._observed.period.end_ms
        for estimate in scenario.reserved:
            reservation = estimate.reservation
            if reservation is None:
                continue
            saving = scenario.sums.setdefault(reservation.currency, Saving())
            paid = {
                key: gpu_ns for key, gpu_ns in saving.paid_ns.items() if start_ms <= key[3] < end_ms
            }
            saving.cash_micro += reserved_saving(paid, reservation, (end_ms - start_ms) // HOUR_MS)
            saving.price_ids |= set() if reservation.price_id is None else {reservation.price_id}
        return amount(scenario.sums) if scenario.changes or scenario.reserved else (None, Saving())

    def without_losses(self) -> PricedProposals:
        """The same without proposals that are expected to cost more and to save nothing: among all of
        them together their loss would be subtracted from what others save.
        """
        kept = [
            proposal
            for proposal, savings in zip(self._proposals, self._savings, strict=True)
            if not self._is_loss(proposal, savings[1][1])
        ]
        if len(kept) == len(self._proposals):
            return self
        return PricedProposals(self._observed, kept, self._tariff)

    def _is_loss(self, proposal: Proposal, expected: Saving | None) -> bool:
        if expected is None:
            return False
        amounts = (
            expected.cash_micro,
            expected.capacity_micro,
            self._energy(proposal)[1] or 0,
        )
        return max(amounts) <= 0 and min(amounts) < 0

    @cached_property
    def _savings(self) -> list[list[tuple[str | None, Saving | None]]]:
        """Currency and saving of each proposal's three scenarios, each alone."""
        return [[self._saving(scenario) for scenario in scenarios] for scenarios in self._alone]

    def recommendations(self) -> list[Recommendation]:
        """Recommendations that save something, or whose saving no rate can tell."""
        worthwhile = []
        for proposal, scenarios, savings in zip(
            self._proposals, self._alone, self._savings, strict=True
        ):
            # The expected estimate gives the currency, the high one when only that has an amount.
            currency = next((known for known, _ in savings[1:] if known is not None), None)
            cash = _range([None if saving is None else saving.cash_micro for _, saving in savings])
            capacity = _range(
                [None if saving is None else saving.capacity_micro for _, saving in savings]
            )
            energy = self._energy(proposal)
            if currency is None and energy[1] is not None and self._tariff is not None:
                currency = self._tariff.currency
            saves = any(value for amounts in (cash, capacity, energy) for value in amounts)
            if saves or (None in cash and scenarios[2].changes) or proposal.kind == "power_cap":
                expected = savings[1][1]
                worthwhile.append(
                    Recommendation(
                        key=proposal.key,
                        kind=proposal.kind,
                        subject=proposal.subject,
                        team=proposal.owner.get("team", ""),
                        owner=proposal.owner,
                        advice=proposal.text,
                        evidence={
                            **proposal.evidence,
                            "kwh": [estimate.kwh for estimate in _estimates(proposal)],
                        },
                        scope=proposal.scope,
                        start_ms=self._observed.period.start_ms,
                        end_ms=self._observed.period.end_ms,
                        price_ids=sorted(
                            {
                                key
                                for each in scenarios
                                for saving in each.sums.values()
                                for key in saving.price_ids
                            }
                        ),
                        currency=currency,
                        cash=cash,
                        capacity=capacity,
                        energy=energy,
                        freed_gpu_ns=0 if expected is None else expected.freed_gpu_ns,
                        made_ms=self._observed.period.end_ms,
                        expires_ms=self._observed.period.end_ms + VALID_MS,
                    )
                )
        return worthwhile

    def joint(self) -> dict[str, dict[str, SavingRange]]:
        """Savings by currency if all proposals were followed; from one ledger, not added up from
        the single ones.
        """
        sums: dict[str, dict[str, list[int]]] = {}
        for rank, scenario in enumerate(self._together):
            self._saving(scenario)
            for currency, saving in scenario.sums.items():
                if currency:
                    entry = sums.setdefault(currency, {"cash": [0, 0, 0], "capacity": [0, 0, 0]})
                    entry["cash"][rank] = saving.cash_micro
                    entry["capacity"][rank] = saving.capacity_micro
        ranges = {
            currency: {name: _range(values) for name, values in entry.items()}
            for currency, entry in sums.items()
        }
        if self._tariff is not None:
            ranges.setdefault(self._tariff.currency, {})["energy"] = self._joint_energy()
        return ranges

    def _energy(self, proposal: Proposal) -> SavingRange:
        """Energy saved; only owned accelerators have it on the holder's own bill."""
        if not self._is_owned(proposal):
            return UNKNOWN
        return _range(
            [energy_micro(estimate.kwh, self._tariff) for estimate in _estimates(proposal)]
        )

    def _is_owned(self, proposal: Proposal) -> bool:
        window = self._observed.window
        if window is None:
            return False
        workload_ids = _workload_ids(proposal)
        kinds = {
            (each.pool, each.model) for each in window.holdings if each.workload_id in workload_ids
        }
        at_ms = self._observed.period.end_ms - 1
        prices = [self._observed.book.price_at(*kind, "", at_ms) for kind in kinds]
        return bool(prices) and not any(
            price is None or price.purchase in RENTED for price in prices
        )

    def _joint_energy(self) -> SavingRange:
        """Of several proposals for one workload only the largest counts: its watts are saved once."""
        best: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0])
        for proposal in self._proposals:
            largest = best[_workload_ids(proposal)]
            for rank, value in enumerate(self._energy(proposal)):
                largest[rank] = max(largest[rank], value or 0)
        low, expected, high = (sum(values[rank] for values in best.values()) for rank in range(3))
        return low, expected, high


def _estimates(proposal: Proposal) -> tuple[Estimate, Estimate, Estimate]:
    return proposal.low, proposal.expected, proposal.high


def _workload_ids(proposal: Proposal) -> tuple[int, ...]:
    """The workloads that a proposal is about; none when it is about a pool."""
    workload_id = proposal.scope.get("workload_id")
    return tuple(proposal.scope.get("workload_ids", ())) if workload_id is None else (workload_id,)


def _range(values: Sequence[int | None]) -> SavingRange:
    """The values in rising order; all unknown when one is."""
    known = sorted(value for value in values if value is not None)
    return (known[0], known[1], known[2]) if len(known) == len(values) else UNKNOWN
