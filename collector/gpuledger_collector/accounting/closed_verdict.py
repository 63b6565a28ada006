"""Whether the bill of a closed month may be trusted, and what changed after its close, in sentences:
the one wording of every page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.closing import ClosedPeriod, LaterChange
from gpuledger_collector.accounting.money import Money, group_digits, round_amounts
from gpuledger_collector.accounting.month_proof import SealComparison
from gpuledger_collector.accounting.period import Calendar, format_instant
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div
from gpuledger_collector.accounting.usage import UNOBSERVED
from gpuledger_common.plurals import plural

SHOWN_OWNERS = 6
NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedVerdict:
    """A closed month, what became of its seal, and what corrections changed since.

    `changes` are those that the reader may see; `is_part`: they are one owner's. `rated_days`: the
    days of it that the ledger has, of `day_count`.
    """

    month: ClosedPeriod
    seal: SealComparison | None
    changes: Sequence[LaterChange]
    is_part: bool
    calendar: Calendar
    rated_days: Sequence[int]

    @property
    def closed(self) -> str:
        """When it was closed, and by whom."""
        return f"Closed {_instant(self.month.closed_ms)} by {self.month.closed_by}."

    @property
    def sealed(self) -> str:
        """What became of its seal when it was compared last."""
        command = f"`gpuledger periods --verify {self.month.name}`"
        if self.seal is None:
            return f"Its seal was not compared with the ledger since: {command} does."
        compared = f"Its seal was compared with the ledger at {_instant(self.seal.asked_ms)}"
        return (
            f"{compared} and holds."
            if self.seal.holds
            else f"{compared} and DIFFERS: {command} says where."
        )

    @property
    def is_broken(self) -> bool:
        """Whether its lines were not those that were sealed."""
        return self.seal is not None and not self.seal.holds

    @property
    def changed(self) -> str:
        """What was corrected since its close, by owner, and where it is billed."""
        whose = " of what you see" if self.is_part else ""
        if not self.changes:
            return f"Since then nothing{whose} was corrected."
        amounts = self._amounts()
        moved = ", ".join(amounts) or "no amount changed"
        months = sorted({self.calendar.month_of(change.booked_ms) for change in self.changes})
        said = f"Since then {self._hours()}: {moved}, billed in {' and '.join(months)}."
        return said if amounts else said.replace(", billed in", ", booked in")

    @property
    def days(self) -> str:
        """Which days of it the ledger has, where it has only a part; empty: it has all."""
        count = len(self.calendar.days(self.month.period))
        if not self.rated_days or len(self.rated_days) == count:
            return ""
        dates = [str(self.calendar.date_of(day_ms)) for day_ms in sorted(self.rated_days)]
        return (
            f"The ledger has {len(dates)} of its {count} days alone, {dates[0]} to {dates[-1]}:"
            " the bill is of those."
        )

    @property
    def observed_later(self) -> str:
        """Why its bill has unobserved time that its days do not; empty: no evidence came later."""
        late_ns = -sum(change.gpu_ns for change in self.changes if change.state == UNOBSERVED)
        if late_ns <= 0:
            return ""
        return (
            f"The bill of {self.month.name} has {_tenths(late_ns)} GPU-hours more as unobserved:"
            " their evidence came after the close."
        )

    @property
    def sentences(self) -> Sequence[str]:
        """The whole verdict."""
        return [said for said in (self.closed, self.sealed, self.changed, self.days) if said]

    def _hours(self) -> str:
        """How many GPU-hours went from one to another, or came and went."""
        sums: dict[str, int] = defaultdict(int)
        for change in self.changes:
            sums[payer_of(change)] += change.gpu_ns
        added = sum(ns for ns in sums.values() if ns > 0)
        taken = -sum(ns for ns in sums.values() if ns < 0)
        if added == taken:
            if added:
                return f"{_tenths(added)} GPU-hours moved"
            return f"{plural(sum(change.lines for change in self.changes), 'line')} changed"
        parts = [
            f"{_tenths(ns)} GPU-hours {word}"
            for ns, word in ((added, "came to it"), (taken, "were taken away"))
            if ns
        ]
        return " and ".join(parts)

    def _amounts(self) -> list[str]:
        """The change of each payer, those with more first, and nobody last; each currency once."""
        sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for change in self.changes:
            if change.currency is not None:
                sums[change.currency][payer_of(change)] += change.micro
        said = []
        for currency, by_payer in sorted(sums.items()):
            names = sorted(
                (name for name in by_payer if by_payer[name]),
                key=lambda name: (name == NOBODY, -abs(by_payer[name]), name),
            )
            rounded = dict(
                zip(names, round_amounts([by_payer[name] for name in names], currency), strict=True)
            )
            shown = names
            if len(names) > SHOWN_OWNERS + 1:
                shown = [name for name in names if name != NOBODY][:SHOWN_OWNERS]
            texts = [f"{name} {rounded[name].signed()}" for name in shown]
            rest = [rounded[name] for name in names if name not in {*shown, NOBODY}]
            if rest:
                whole = Money.from_minor(sum(amount.minor for amount in rest), currency)
                texts.append(f"{plural(len(rest), 'other')} {whole.signed()}")
            if NOBODY in rounded and NOBODY not in shown:
                texts.append(f"{NOBODY} {rounded[NOBODY].signed()}")
            if texts:
                texts[-1] += f" {currency}"
            said += texts
        return said


def payer_of(change: LaterChange) -> str:
    """Who pays a correction: its owner; or nobody, of time that no owner holds."""
    return (change.owner or UNATTRIBUTED) if change.state in PAID_BY_OWNERS else NOBODY


def _tenths(gpu_ns: int) -> str:
    tenths = round_half_even_div(gpu_ns * 10, GPU_NS_PER_HOUR)
    if not tenths:
        return "less than 0.1"
    return group_digits(f"{tenths // 10}.{tenths % 10}")


def _instant(at_ms: int) -> str:
    return format_instant(at_ms - at_ms % 1000)
