"""What changed between two looks: each accelerator once, and nothing that is merely not known."""

from dataclasses import replace

import pytest

from gpuledger_collector.export.fleet_map import MapAddress
from gpuledger_collector.export.live import changes_text
from gpuledger_collector.insight.live_changes import (
    LiveAccelerator,
    LiveChanges,
    LiveFinding,
    LiveNode,
    changes_between,
    live_state,
)
from gpuledger_collector.insight.nodes import SILENT_MS
from gpuledger_collector.services.live import LiveNarrowing, changes_seen

NOW = 1_000_000_000
BUSY = LiveAccelerator(1, "p", "gpu-01", False, "ok", "held", 7, NOW, 0.9)
NODE = LiveNode(1, "gpu-01", "ok", NOW)
FINDING = LiveFinding(1, "idle", "vision", {"team": "vision"}, False)


class Team:
    """A viewer of one team."""

    def __init__(self, team):
        self.owner = None if team is None else {"team": team}

    def sees(self, owner, team=""):
        return self.owner is None or owner.get("team", team) == self.owner["team"]


ALL = Team(None)


def look(accelerators=(BUSY,), nodes=(NODE,), findings=(), now_ms=NOW):
    return live_state(accelerators, nodes, findings, now_ms)


def changed(**changes):
    """What changes when the accelerator does so."""
    return changes_between(look(), look([replace(BUSY, **changes)]))


def test_nothing_changes_by_a_newer_reading():
    """Activity within a state, and the instant of a reading, are no news."""
    assert not changed(activity=0.5, read_ms=NOW + 5000)
    assert not LiveChanges()
    assert changes_text(LiveChanges()) == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"workload_id": 8}, "1 GPU changed hands"),
        ({"state": "unallocated", "workload_id": None}, "1 GPU changed hands"),
        ({"workload_id": None}, "1 GPU changed hands"),
        ({"activity": 0.0}, "1 GPU changed state"),
        ({"activity": 0.0, "workload_id": 8}, "1 GPU changed hands"),
        ({"health": "failed"}, "1 GPU changed state"),
        ({"state": "unavailable", "workload_id": None}, "1 GPU changed state"),
        ({"workload_id": 8, "is_slice": True}, "1 MIG slice changed hands"),
    ],
)
def test_an_accelerator_changes_once(changes, text):
    """Its holder if that is known before and after, else its state."""
    assert changes_text(changed(**changes)) == text


def test_who_is_not_observed_has_not_lost_its_holder():
    """An old reading says nothing of now, and it comes back without having changed hands."""
    old, back = look([replace(BUSY, read_ms=NOW - 3_600_000)]), look([replace(BUSY, workload_id=8)])
    assert changes_text(changes_between(look(), old)) == "1 GPU changed state"
    assert changes_text(changes_between(old, back)) == "1 GPU changed state"


def test_accelerators_come_and_leave():
    other = replace(BUSY, id=2)
    assert changes_text(changes_between(look(), look([BUSY, other]))) == "1 GPU came"
    assert changes_text(changes_between(look(), look([]))) == "1 GPU left"


def test_nodes_fall_silent_and_come_back():
    """By the rule of the list of nodes; one of which nobody expects a sign of life does neither."""
    later = NOW + SILENT_MS + 1
    heard = replace(NODE, seen_ms=later)
    silent = look([], now_ms=later)
    assert changes_text(changes_between(look([]), silent)) == "node gpu-01 fell silent"
    assert (
        changes_text(changes_between(silent, look([], [heard], now_ms=later)))
        == "node gpu-01 reports again"
    )
    retired = look([], [replace(NODE, status="retired")], now_ms=later)
    assert not changes_between(look([], [replace(NODE, status="retired")]), retired)
    nodes = [LiveNode(number, f"gpu-{number}", "ok", NOW) for number in range(2, 5)]
    assert changes_text(changes_between(look([]), look([], [NODE, *nodes]))) == "3 nodes are new"
    two = look([], [NODE, *nodes[:1]])
    both = look([], [NODE, *nodes[:1]], now_ms=later)
    assert changes_text(changes_between(two, both)) == "nodes gpu-01 and gpu-2 fell silent"


def test_findings_appear_and_end():
    odd = replace(FINDING, id=2, kind="anomaly")
    before, after = look(findings=[FINDING]), look(findings=[odd])
    assert changes_text(changes_between(before, after)) == "1 new anomaly, 1 idle GPU ended"
    assert not changes_between(before, before)


def test_names_cannot_forge_a_line():
    """A node may be called anything."""
    changes = LiveChanges(fell_silent=("a\nb\u202e",))
    assert changes_text(changes) == "node a\\nb\\u202e fell silent"


def test_a_viewer_is_told_of_its_own_findings_alone():
    """Nothing of accelerators, nodes, other owners, and of what nobody holds."""
    foreign = replace(FINDING, id=2, team="zebra", owner={"team": "zebra"})
    free = LiveFinding(3, "idle", "", {}, True)
    after = look(
        [replace(BUSY, workload_id=8)], [NODE, replace(NODE, id=2)], [FINDING, foreign, free]
    )
    changes = changes_between(look(), after)
    assert changes_text(changes_seen(changes, after, ALL, LiveNarrowing())) == (
        "3 new idle GPUs, 1 GPU changed hands, node gpu-01 is new"
    )
    own = changes_seen(changes, after, Team("vision"), LiveNarrowing())
    assert own == LiveChanges(appeared=(FINDING,))
    assert not changes_seen(changes, after, Team("nobody"), LiveNarrowing())
    back = changes_between(after, look())
    assert not changes_seen(back, look(), Team("nobody"), LiveNarrowing())


def test_a_narrowed_map_is_told_of_what_it_shows():
    """A pool's and a node's accelerators, and the node itself."""
    elsewhere = replace(BUSY, id=2, pool="q", node="gpu-02")
    nodes = [NODE, replace(NODE, id=2, name="gpu-02")]
    before = look([BUSY, elsewhere], nodes)
    after = look([BUSY, replace(elsewhere, workload_id=8)], nodes, now_ms=NOW + 1)
    changes = replace(changes_between(before, after), fell_silent=("gpu-02",))
    for narrowed in (LiveNarrowing(pool="p", node="gpu-01"), LiveNarrowing(node="gpu-01")):
        assert not changes_seen(changes, after, ALL, narrowed)
    assert changes_seen(changes, after, ALL, LiveNarrowing(node="gpu-02")) == changes
    assert changes_seen(changes, after, ALL, LiveNarrowing(pool="q")) == changes


def test_a_narrowed_map_hears_of_no_finding_elsewhere():
    """Those of its pool and node alone, and none of what an owner spends."""
    here = replace(FINDING, pool="p", node="gpu-01")
    unnamed = replace(FINDING, id=2, pool="", node="gpu-02")
    spending = replace(FINDING, id=3, kind="anomaly")
    after = look(findings=[here, unnamed, spending])
    for changes, part in (
        (changes_between(look(), after), "appeared"),
        (changes_between(after, look()), "ended"),
    ):
        for narrowed, finding in (
            (LiveNarrowing(pool="p"), here),
            (LiveNarrowing(node="gpu-01"), here),
            (LiveNarrowing(pool=""), unnamed),
            (LiveNarrowing(node="gpu-02"), unnamed),
        ):
            seen = changes_seen(changes, after, ALL, narrowed)
            assert seen == LiveChanges(**{part: (finding,)})
            assert changes_seen(changes, after, Team("vision"), narrowed) == seen
        assert not changes_seen(changes, after, ALL, LiveNarrowing(pool="p", node="gpu-02"))


@pytest.mark.parametrize("part", ["fell_silent", "came_back", "new_nodes"])
def test_a_pool_hears_of_its_own_nodes(part):
    """Of those with an accelerator in it, in whichever other pools they have some as well."""
    after = look([BUSY, replace(BUSY, id=2, pool="", node="gpu-02"), replace(BUSY, id=3, pool="")])
    changes = LiveChanges(**{part: ("gpu-01", "gpu-02", "gpu-03")})
    for pool, names in (("p", ("gpu-01",)), ("", ("gpu-01", "gpu-02"))):
        seen = changes_seen(changes, after, ALL, LiveNarrowing(pool=pool))
        assert getattr(seen, part) == names
    assert not changes_seen(changes, after, ALL, LiveNarrowing(pool="q"))


def test_a_map_of_the_unnamed_pool_hears_of_it_alone():
    """Its stream asks for it as the map does."""
    assert MapAddress(pool="").live_path == "/live?pool=%28unnamed%29"
    assert MapAddress(pool="p", node="n").live_path == "/live?pool=p&node=n"
    assert MapAddress().live_path == "/live"
