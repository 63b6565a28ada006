"""Who gets the odd micro-unit: decided by content, not by who came first or by numbers of arrival."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import RatedAccelerator
from gpuledger_collector.accounting.usage import HELD, HourlyUsage
from gpuledger_collector.services import rating
from gpuledger_collector.services.placements import RatedPlacement

DAY = Period(0, DAY_MS)
SIXTH = HOUR_MS // 6
TRAIN = RatedAccelerator(1, 1_000_000, "train", "H100", "n1")
SERVE = RatedAccelerator(1, 1_000_000, "serve", "H100", "n1")


def piece(workload_id, start_ms):
    """Ten minutes of the first hour, as they are folded."""
    return HourlyUsage(1, start_ms, HOUR_MS, HELD, workload_id, SIXTH, 0, 0, SIXTH, None)


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
@pytest.mark.parametrize("in_time", [("a", "z"), ("z", "a")])
def test_a_gpu_that_comes_back_within_an_hour(numbers, in_time):
    """Two jobs hold it in one pool before and after it was in another: the first by its key has the
    odd micro-unit.
    """
    ids = dict(zip("az", numbers, strict=True))
    facts = {
        ids[name]: WorkloadFacts(ids[name], "slurm", "", None, None, {}, key=name) for name in "az"
    }
    placements = [
        RatedPlacement(TRAIN, Period(0, SIXTH)),
        RatedPlacement(SERVE, Period(SIXTH, 2 * SIXTH)),
        RatedPlacement(TRAIN, Period(2 * SIXTH, 3 * SIXTH)),
    ]
    pieces = [piece(ids[in_time[0]], 0), piece(ids[in_time[1]], 2 * SIXTH)]
    book = PriceBook([Price(1, "", "", "on_demand", Decimal("10.00001"), "USD", 0)])
    owners = rating.Owners([], facts)
    usage = rating.DayUsage(DAY, DAY.end_ms, {1: placements}, {1: pieces}, [], owners)
    charges, *_ = rating.price_usage(usage, book)
    costs = {charge.workload_id: charge.cost_micro for charge in charges if charge.state == HELD}
    assert costs == {ids["a"]: 1_666_669, ids["z"]: 1_666_668}
