"""Node costs: for each node and hour the shares add up to price x time, and each is what was held
of the GPUs.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.evidence import DAY, evidence, usage_interval
from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.ledger import check_conservation, summarize
from gpuledger_collector.accounting.node_charges import NodeUsage
from gpuledger_collector.accounting.node_costs import NODE_COST, NodeCost, costs_of, node_hours
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.rating import CapacityCost, RatedAccelerator, held_costs
from gpuledger_collector.accounting.usage import fold, rating_intervals

TEAMS = {1: OwnerPath(team="vision"), 2: OwnerPath(team="speech"), 3: OwnerPath()}
LATE = 2**60
CPU = NodeCost(7, "cpu", "USD", per_node_hour=Decimal("1.2"))
DISK = NodeCost(8, "disk", "EUR", per_node_hour=Decimal("0.333333333"))
rates = st.decimals("0.000000001", 100, places=9)


def day_of(offset, length):
    """A part of the day."""
    return Period(DAY.start_ms + offset, min(DAY.end_ms, DAY.start_ms + offset + length))


spans = st.builds(day_of, st.integers(0, DAY_MS - 1), st.integers(1, DAY_MS))
gpus = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2"]), st.sampled_from([1_000_000, 142_857]), evidence(), spans
    ),
    min_size=1,
    max_size=4,
)


def folded(facts, there, day):
    """The pieces of an accelerator that was there for a part of the day."""
    inside = [
        replace(
            fact, start_ms=max(fact.start_ms, there.start_ms), end_ms=min(fact.end_ms, there.end_ms)
        )
        for fact in facts
        if fact.start_ms < there.end_ms and fact.end_ms > there.start_ms
    ]
    return fold(inside, rating_intervals(day, ()), [there])


def charged(fleet, costs, *, until=LATE, reverse=False, day=DAY):
    """The charges of a fleet of (node, share, evidence, when it was there), and what its nodes
    cost.
    """
    usage, places = NodeUsage(day, until), []
    for number, (node, gpu_micro, facts, there) in sorted(enumerate(fleet), reverse=reverse):
        accelerator = RatedAccelerator(number, gpu_micro, "train", "H100", node)
        pieces = [piece for piece in folded(facts, there, day) if piece.start_ms < until]
        usage.add(
            accelerator,
            [there],
            pieces,
            lambda workload, *_: TEAMS[workload],
            lambda workload, _: str(workload),
        )
        places.append((node, "train", [there]))
    hours = list(node_hours(places, costs, day, until))
    return usage.charges(hours), hours


@given(gpus, rates, st.integers(1, DAY_MS))
def test_the_shares_of_a_node_add_up_to_price_times_time(fleet, rate, until):
    """Whatever was held, seen late, twice or never: to the micro-unit for each node and hour, and
    in any order.
    """
    costs = [replace(CPU, per_node_hour=rate), DISK]
    for hour in rating_intervals(DAY, ()):
        # An hour on its own is a day of one hour.
        charges, hours = charged(fleet, costs, day=hour)
        for node in ("n1", "n2"):
            there = [place.clip(hour) for of, _, _, place in fleet if of == node]
            seconds = sorted(
                {edge for part in there if part for edge in (part.start_ms, part.end_ms)}
            )
            present = sum(
                end - start
                for start, end in pairwise(seconds)
                if any(part and part.start_ms <= start and end <= part.end_ms for part in there)
            )
            for cost in costs:
                parts = [
                    one.cost_micro for one in charges if (one.node, one.node_cost) == (node, cost)
                ]
                whole = Fraction(cost.rate) * present * 1_000_000 / HOUR_MS
                assert abs(sum(parts) - whole) <= Fraction(1, 2)
                assert sum(parts) == sum(
                    one.micro for one in hours if (one.node, one.cost) == (node, cost)
                )
                assert all(part > 0 for part in parts)
    forward, backward = (
        charged(fleet, costs, until=until),
        charged(fleet, costs, until=until, reverse=True),
    )
    assert sorted(map(repr, forward[0])) == sorted(map(repr, backward[0]))


@given(gpus, rates)
def test_a_share_is_what_was_held_of_the_gpus(fleet, rate):
    """Each holder's part of an hour is within a micro-unit of price x its part of the node's
    GPU-time.
    """
    cost = replace(CPU, per_node_hour=rate)
    hour = Period(DAY.start_ms, DAY.start_ms + HOUR_MS)
    charges, hours = charged(fleet, [cost], day=hour)
    for entry in hours:
        weights = defaultdict(int)
        for node, gpu_micro, facts, there in fleet:
            if node != entry.node or there.clip(hour) is None:
                continue
            part = there.clip(hour)
            pieces = folded(facts, there, hour)
            left = part.ms
            for piece in pieces:
                key = TEAMS.get(piece.workload_id) if piece.state == "held" else piece.state
                weights[key] += gpu_micro * piece.held_ms
                left -= piece.held_ms
            weights["unobserved"] += gpu_micro * left
        for key, weight in weights.items():
            paid = sum(
                charge.cost_micro
                for charge in charges
                if charge.node == entry.node
                and (charge.owner if charge.state == NODE_COST else charge.state) == key
            )
            # An owner may hold by several workloads, each of which is rounded.
            assert abs(paid - Fraction(entry.micro * weight, sum(weights.values()))) < 3


@given(gpus, rates)
def test_they_count_in_the_conservation_check_and_in_no_gpu_hour(fleet, rate):
    """The day's check holds with them, fails by a micro-unit, and time and adjustments know nothing
    of them.
    """
    charges, hours = charged(fleet, [replace(CPU, per_node_hour=rate)])
    capacities = [CapacityCost(0, {hour.cost.currency: hour.micro}) for hour in hours]
    assert check_conservation(DAY, LATE, capacities, charges).holds
    assert all(
        charge.gpu_ns == 0 and charge.list_cost_micro == charge.cost_micro for charge in charges
    )
    assert not held_costs(charges)
    assert sum(line.cost_micro for line in summarize(charges)) == sum(hour.micro for hour in hours)
    if charges:
        off = [replace(charges[0], cost_micro=charges[0].cost_micro + 1), *charges[1:]]
        assert not check_conservation(DAY, LATE, capacities, off).holds


def test_a_price_of_cores_and_memory():
    """128 cores at 0.011 and 2048 GB at 0.0015 are 1.408 + 3.072 an hour; half of the GPUs is half
    of it.
    """
    cost = NodeCost(
        1,
        "cpu",
        "USD",
        per_core_hour=Decimal("0.011"),
        cores=128,
        per_gb_hour=Decimal("0.0015"),
        memory_gb=2048,
    )
    assert cost.rate == Decimal("4.48")
    held = [usage_interval(0, HOUR_MS)]
    hour = Period(DAY.start_ms, DAY.start_ms + HOUR_MS)
    charges, _ = charged(
        [("n1", 1_000_000, held, hour), ("n1", 1_000_000, [], hour)], [cost], day=hour
    )
    assert {(charge.state, charge.cost_micro) for charge in charges} == {
        (NODE_COST, 2_240_000),
        ("unobserved", 2_240_000),
    }


@pytest.mark.parametrize(
    ("node", "pools", "names"),
    [
        ("n1", {"train"}, ["cpu of n*", "disk"]),
        ("n7", {"train"}, ["cpu of n7", "disk"]),
        ("lab1", {"lab"}, ["cpu of any"]),
        ("lab1", {"lab", "train"}, ["cpu of train"]),
        ("n1", set(), []),
    ],
)
def test_of_one_name_the_most_specific_holds(node, pools, names):
    """A node before a pattern before a pool before everybody; other names come on top."""
    costs = [
        NodeCost(None, "disk", "disk", node="n*"),
        NodeCost(None, "cpu", "cpu of any"),
        NodeCost(None, "cpu", "cpu of train", pool="train"),
        NodeCost(None, "cpu", "cpu of n7", node="n7"),
        NodeCost(None, "cpu", "cpu of n*", node="n*"),
    ]
    # The currency stands in for the label here.
    assert [cost.currency for cost in costs_of(costs, node, pools)] == names


def test_days_and_corrections():
    """A cost holds on its days; another price takes the old node-hours back and charges them anew."""
    dated = replace(CPU, from_on=dt.date(2026, 10, 1), to_on=dt.date(2026, 11, 1))
    assert [dated.holds_on(dt.date(2026, month, 1)) for month in (9, 10, 11)] == [
        False,
        True,
        False,
    ]
    fleet = [("n1", 1_000_000, [usage_interval(0, HOUR_MS)], DAY)]
    before, _ = charged(fleet, [dated])
    same, _ = charged(fleet, [replace(dated, id=9, to_on=None)])
    assert difference(before, same) == []
    dearer, _ = charged(fleet, [replace(dated, per_node_hour=Decimal("2.4"))])
    changes = sorted(
        (one.node_cost.rate, one.cost_micro) for one in difference(before, dearer) if one.owner
    )
    assert changes == [(Decimal("1.2"), -1_200_000), (Decimal("2.4"), 2_400_000)]
