"""What unusual spending must come to before anybody is mailed of it by itself.

An amount that is declared for a currency is compared with what the episode cost so far. Where none
is declared, what it comes to in a day is compared with what GPUs usually cost a day: all of them,
and the team's own. What is below both is small. Shares fit every currency and size of a fleet, and
the arithmetic is of whole numbers, so that an amount at the limit is never on two sides of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger_collector.insight.findings import Finding

PERCENT_OF_ALL = 1
"""Of what all GPUs cost a day."""
PERCENT_OF_TEAM = 50
"""Of what the team's GPUs cost a day: what is little to the whole may be much to who pays it."""
USUAL_DAYS = 28
"""Rated days that say what is usual: four of each weekday."""
MIN_USUAL_DAYS = 7
"""Of fewer days nothing is said to be small."""


@dataclass(frozen=True, slots=True)
class UsualCosts:
    """What GPUs cost on so many days together, in micro-units: all by currency, and those of teams
    by team and currency.
    """

    days: int
    all_micro: Mapping[str, int]
    team_micro: Mapping[tuple[str, str], int]

    def know(self, team: str, currency: str) -> bool:
        """Whether it is known what is usual for a team in a currency."""
        return (
            self.days >= MIN_USUAL_DAYS
            and currency in self.all_micro
            and (team, currency) in self.team_micro
        )

    def is_small(self, finding: Finding) -> bool:
        """Whether a day of an episode is below both shares; False where what is usual is unknown."""
        team, currency = finding.team, finding.currency or ""
        if finding.per_day_micro is None or not self.know(team, currency):
            return False
        return self._is_below(team, currency, finding.per_day_micro)

    def are_worth_a_mail(self, findings: Iterable[Finding]) -> bool:
        """Whether small episodes, whose teams and currencies are known, come together to as much as
        one day of an episode that is mailed by itself: those of a team, or all in a currency. What
        cost less than before takes nothing from the others.
        """
        of_teams: dict[tuple[str, str], int] = defaultdict(int)
        of_all: dict[str, int] = defaultdict(int)
        for finding in findings:
            currency = finding.currency or ""
            of_teams[finding.team, currency] += max(0, finding.cost_micro or 0)
            of_all[currency] += max(0, finding.cost_micro or 0)
        return any(not self._is_below(*key, micro) for key, micro in of_teams.items()) or any(
            100 * self.days * micro >= PERCENT_OF_ALL * self.all_micro[currency]
            for currency, micro in of_all.items()
        )

    def _is_below(self, team: str, currency: str, micro: int) -> bool:
        """Whether an amount is below both shares of a usual day."""
        limit = min(
            PERCENT_OF_ALL * self.all_micro[currency],
            PERCENT_OF_TEAM * self.team_micro[team, currency],
        )
        return 100 * self.days * micro < limit


@dataclass(frozen=True, slots=True)
class AnomalyFloors:
    """Declared floors by currency in micro-units, and what is usual where none is declared."""

    declared: Mapping[str, int]
    usual: UsualCosts

    def is_reached(self, finding: Finding) -> bool:
        """Whether an episode is mailed by itself."""
        declared = self.declared.get(finding.currency or "")
        if declared is not None:
            return (finding.cost_micro or 0) >= declared
        return not self.usual.is_small(finding)

    def is_collected(self, finding: Finding) -> bool:
        """Whether an episode, as it is now, is not mailed by itself but in the mail of a week."""
        return self.is_by_usual(finding) and not self.is_reached(finding)

    def is_by_usual(self, finding: Finding) -> bool:
        """Whether it goes by what is usual: what was not mailed by itself is then told weekly.

        Whoever declares a floor wants nothing below it in any mail.
        """
        currency = finding.currency or ""
        return currency not in self.declared and self.usual.know(finding.team, currency)
