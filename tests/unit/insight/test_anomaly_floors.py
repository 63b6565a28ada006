"""What unusual spending must come to: shares of what is usual, exact at the limit, in any currency."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.insight.notifications.anomaly_floors import (
    MIN_USUAL_DAYS,
    AnomalyFloors,
    UsualCosts,
)

AMOUNTS = st.integers(-(10**15), 10**15)


@dataclass
class Episode:
    """What is read of a finding."""

    per_day_micro: int | None
    cost_micro: int | None = 0
    team: str = "vision"
    currency: str | None = "USD"


def usual(all_micro: int = 280_000, team_micro: int = 280_000, days: int = 28) -> UsualCosts:
    """Of 28 days: USD 0.01 a day of all and of the team, unless said otherwise."""
    return UsualCosts(days, {"USD": all_micro}, {("vision", "USD"): team_micro})


@pytest.mark.parametrize(
    ("costs", "limit"),
    [(usual(), 100), (usual(team_micro=2_800), 50), (usual(all_micro=281_400), 101)],
)
def test_the_smaller_share_decides_to_the_micro_unit(costs, limit):
    """1 % of all, or half of the team's own; what is at the limit is not small."""
    assert costs.is_small(Episode(limit - 1))
    assert not costs.is_small(Episode(limit))


def test_what_is_unknown_is_not_small():
    """An amount, the days, the currency or the team."""
    assert not usual().is_small(Episode(None))
    assert usual(days=MIN_USUAL_DAYS).is_small(Episode(1))
    assert not usual(days=MIN_USUAL_DAYS - 1).is_small(Episode(1))
    assert not usual().is_small(Episode(1, currency="EUR"))
    assert not usual().is_small(Episode(1, team="new"))
    assert not usual().is_small(Episode(1, currency=None))


def test_a_declared_floor_is_of_its_currency_and_of_the_cost_so_far():
    floors = AnomalyFloors({"USD": 50}, usual())
    assert floors.is_reached(Episode(0, 50))
    assert not floors.is_reached(Episode(10**9, 49))
    assert not floors.is_by_usual(Episode(0))
    others = AnomalyFloors({"EUR": 50}, usual())
    assert others.is_by_usual(Episode(0))
    assert not others.is_reached(Episode(99, 10**9))
    assert others.is_reached(Episode(100, 1))


@given(st.integers(0, 10**15), st.integers(0, 10**15), AMOUNTS, st.integers(1, 10**6))
def test_it_is_the_same_in_any_currency(all_micro, team_micro, per_day, factor):
    """All amounts times a factor, as of another currency or a larger fleet."""
    here = usual(all_micro, team_micro).is_small(Episode(per_day))
    there = usual(all_micro * factor, team_micro * factor).is_small(Episode(per_day * factor))
    assert here == there


@given(st.integers(0, 10**15), st.integers(0, 10**15), AMOUNTS, st.integers(0, 10**15))
def test_what_is_more_is_never_smaller(all_micro, team_micro, per_day, more):
    costs = usual(all_micro, team_micro)
    assert costs.is_small(Episode(per_day)) or not costs.is_small(Episode(per_day + more))
