"""The map of the fleet: whatever it is colored by, the parts of an hour are the hour."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.insight.fleet_map import (
    MOST_DEVICES,
    OTHER_TEAMS,
    ColorBy,
    FleetMap,
    Grain,
    Holder,
    MappedAccelerator,
    finest_grain,
    hour_states,
    natural_order,
    state_now,
    use_band,
)

PART = st.integers(0, HOUR_MS // 6)
TEAMS = {f"team-{number}": number for number in range(20)}
HOLDERS = st.lists(st.tuples(st.none() | st.sampled_from(sorted(TEAMS)), PART), max_size=3)
SHARES = st.sampled_from([142_857, 428_571, 1_000_000])


@st.composite
def accelerators(draw):
    """An accelerator's hour; its holders have no more than was held."""
    present, busy, idle, unknown, free, away = (draw(PART) for _ in range(6))
    states = hour_states(present, busy, idle, unknown, free, away)
    holders, left = [], busy + idle + unknown
    for team, held_ms in draw(HOLDERS):
        holders.append(Holder(team, "w", "w", min(held_ms, left)))
        left -= holders[-1].held_ms
    name = str(draw(st.integers(0, 40)))
    return MappedAccelerator(
        node=f"n{name[:1]}",
        pool=f"p{name[-1:]}",
        device=name,
        uuid=name,
        model="H100",
        gpu_index=draw(st.none() | st.integers(0, 7)),
        mig_instance=None,
        gpu_micro=draw(SHARES),
        states=states or {"unobserved": 1},
        use_permille=draw(st.none() | st.integers(0, 1000)) if busy + idle else None,
        health=draw(st.sampled_from(["ok", "failed", "unknown"])),
        holders=tuple(holders),
    )


def map_of(items, color):
    return FleetMap(
        hour=None,
        until_ms=0,
        is_rated=True,
        holds=None,
        color=color,
        grain=Grain.GPU,
        finest=Grain.GPU,
        items=items,
        teams=TEAMS,
    )


@given(PART, PART, PART, PART, PART, PART)
def test_the_states_of_an_hour_are_the_hour(present, busy, idle, unknown, free, away):
    """What no evidence speaks of is unobserved; evidence beyond the capacity counts all the same."""
    states = hour_states(present, busy, idle, unknown, free, away)
    seen = busy + idle + unknown + free + away
    assert sum(states.values()) == max(present, seen)
    assert states.get("unobserved", 0) == max(0, present - seen)
    assert 0 not in states.values()


@given(st.lists(accelerators(), max_size=12), st.sampled_from(ColorBy))
def test_every_coloring_adds_up_to_the_capacity(items, color):
    """The legend, the nodes and the pools each have all accelerators and all of their time."""
    fleet = map_of(items, color)
    capacity = sum(gpu_ns(item.gpu_micro, item.present_ms) for item in items)
    assert fleet.capacity_ns == capacity
    assert fleet.accelerators == len(items)
    for groups in (fleet.nodes, fleet.pools):
        assert sum(group.gpu_ns for group in groups) == capacity
        assert sum(group.accelerators for group in groups) == len(items)
        added = Counter()
        for group in groups:
            added.update({share.name: share.gpu_ns for share in group.shares})
        assert +added == +Counter({share.name: share.gpu_ns for share in fleet.shares})
    for item in items:
        assert sum(fleet.categories(item).values()) == item.present_ms
        assert set(fleet.categories(item)) <= set(fleet.order)


@given(st.lists(accelerators(), max_size=12))
def test_of_teams_that_share_a_color_the_largest_has_it(items):
    """No color stands for two teams, and a team without one is among the others."""
    fleet = map_of(items, ColorBy.OWNER)
    assert len(set(fleet.colored_teams.values())) == len(fleet.colored_teams)
    named = {name for item in items for name in item.categories(ColorBy.OWNER)} & set(TEAMS)
    shown = {name for item in items for name in fleet.categories(item)}
    assert (OTHER_TEAMS in shown) == bool(named - set(fleet.colored_teams))


def test_what_is_not_known_is_no_state_of_its_own_choice():
    """A health of an hour that is over is unknown, an activity without a reading too."""
    assert state_now("unknown", "held", 100, None, 200) == "activity unknown"
    assert state_now("ok", "held", 0, 0.5, 15 * 60_000) == "unobserved"
    assert state_now("ok", None, None, None, 0) == "unobserved"
    assert state_now("failed", None, None, None, 0) == "failed"
    assert state_now("ok", "held", 100, 0.0, 200) == "idle"
    assert state_now("ok", "held", 100, 0.01, 200) == "busy"
    assert state_now("ok", "unallocated", 100, None, 200) == "unallocated"


def test_a_band_has_its_upper_bound():
    """9 of 1000 is unused, 250 is up to a quarter, all of it is more than three quarters."""
    names = [use_band(permille) for permille in (0, 9, 10, 250, 251, 750, 751, 1000)]
    assert names == [
        *["unused"] * 2,
        *["up to 25 %"] * 2,
        "up to 50 %",
        "up to 75 %",
        *["more than 75 %"] * 2,
    ]


def test_a_large_fleet_is_drawn_more_coarsely():
    """Board by board, then node by node, then pool by pool."""

    def fleet(devices, per_node):
        return [
            MappedAccelerator(
                node=f"n{at // per_node}",
                pool="p",
                device=str(at),
                uuid=str(at),
                model="",
                gpu_index=0,
                mig_instance=None,
                gpu_micro=1_000_000,
                states={"busy": 1},
                use_permille=None,
            )
            for at in range(devices)
        ]

    assert finest_grain(fleet(MOST_DEVICES, 8)) is Grain.GPU
    assert finest_grain(fleet(20_000, 8)) is Grain.NODE
    assert finest_grain(fleet(20_000, 1)) is Grain.POOL


def test_node_9_comes_before_node_10():
    """As people count."""
    names = ["n10-b", "n9", "n10-a", "m", ""]
    assert sorted(names, key=natural_order) == ["", "m", "n9", "n10-a", "n10-b"]
