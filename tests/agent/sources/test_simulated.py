"""The simulated fleet: a pure function of seed and time, believable, and honest about its own
truth.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent.cli import main
from gpuledger_agent.sources.fleet import (
    BLOCK_MS,
    CYCLE_MS,
    DAY_MS,
    ECC_GPU,
    FAILED_GPU,
    HOUR_MS,
    REMAP_GPU,
    SILENT_NODE,
    Fleet,
    activity,
)
from gpuledger_agent.sources.simulated import SimulatedSource
from gpuledger_common.readings import WHOLE_GPU

START = 1_790_812_800_000 // BLOCK_MS * BLOCK_MS
"""A block that begins in October 2026."""
FLEET = Fleet(7)
LANES = [lane for node in FLEET.nodes for lane in node.lanes]
instants = st.integers(START, START + 90 * DAY_MS)


def look(fleet, node, at_ms):
    source = SimulatedSource(fleet, node, lambda: at_ms)
    samples = source.read(("fast",))
    return samples, source.holders(source.open().accelerators, samples)


@given(
    st.lists(instants, min_size=2, max_size=6, unique=True),
    st.sampled_from([node.name for node in FLEET.nodes]),
)
def test_the_state_depends_on_seed_and_time_alone(whens, node):
    """Two fleets of a seed agree at every instant, in whatever order they are asked."""
    one, other = Fleet(11), Fleet(11)
    forwards = {at: look(one, node, at) for at in whens}
    backwards = {at: look(other, node, at) for at in reversed(whens)}
    assert forwards == backwards


def test_another_seed_is_another_fleet():
    """Accelerators and workloads of two seeds have nothing in common."""
    uuids = [
        {entry.uuid for node in Fleet(seed).nodes for entry in node.accelerators} for seed in (1, 2)
    ]
    assert not uuids[0] & uuids[1]


@given(st.sampled_from(LANES), instants)
def test_the_workloads_of_a_lane_never_overlap(lane, at_ms):
    """Holds of a block are ascending, disjoint and inside their block; `holding` finds just those."""
    block = at_ms // BLOCK_MS * BLOCK_MS
    before = block
    for hold in FLEET.holds(lane, at_ms):
        assert before <= hold.start_ms < hold.end_ms <= block + BLOCK_MS
        before = hold.end_ms
        assert FLEET.holding(lane, hold.start_ms) == hold == FLEET.holding(lane, hold.end_ms - 1)
        assert FLEET.holding(lane, hold.end_ms) != hold
    held = FLEET.holding(lane, at_ms)
    assert held is None or held.start_ms <= at_ms < held.end_ms


@given(st.sampled_from([lane for lane in LANES if lane.shape == "reserved"]), instants)
def test_a_reservation_is_held_and_does_nothing(lane, at_ms):
    """The waste that no process shows: somebody holds it, nothing ever runs on it."""
    hold = FLEET.holding(lane, at_ms)
    assert hold is not None
    assert activity(hold, 1, at_ms) == 0.0
    node = lane.name.split("/")[0]
    samples, holders = look(FLEET, node, at_ms)
    for slot in lane.slots:
        assert samples[slot].processes == ()
        assert samples[slot].uuid in holders


@pytest.mark.parametrize("node", [node.name for node in FLEET.nodes])
def test_readings_are_possible(node):
    """Ratios lie in 0..1, memory adds up to the card's, a reading is a value or absent, never both."""
    chance = random.Random(5)
    for _ in range(60):
        samples, _ = look(FLEET, node, START + chance.randrange(60 * DAY_MS))
        for sample, entry in zip(samples, FLEET.node(node).accelerators, strict=bool(samples)):
            ratios = [value for name, value in sample.values.items() if name.endswith("_ratio")]
            assert all(0.0 <= value <= 1.0 for value in ratios)
            assert not sample.values.keys() & sample.absent.keys()
            if sample.health.status == "ok":
                used, free = (
                    sample.values["gpu_memory_used_bytes"],
                    sample.values["gpu_memory_free_bytes"],
                )
                assert used + free == entry.memory_bytes


def test_slices_of_an_a100_have_no_utilization_and_share_one_board():
    """MIG instances are accelerators without utilization or power, as NVML on an A100; together at
    most one device.
    """
    slices = [entry for entry in FLEET.node("a100-01").accelerators if entry.gpu_micro != WHOLE_GPU]
    assert len({entry.device_uuid for entry in slices}) == 1
    assert sum(entry.gpu_micro for entry in slices) <= WHOLE_GPU
    samples, _ = look(FLEET, "a100-01", START)
    for sample in samples:
        if sample.uuid.startswith("MIG-"):
            assert {"gpu_utilization_ratio", "gpu_power_watts"} <= sample.absent.keys()


def test_the_shared_gpu_has_two_holders_of_different_teams():
    """One GPU is time-sliced: two workloads hold it at equal weight."""
    _, holders = look(FLEET, "l4-01", START + HOUR_MS)
    (shared,) = [found for found in holders.values() if len(found) == 2]
    assert len({holder.workload.id for holder in shared}) == 2
    assert {holder.weight for holder in shared} == {1}


@given(instants)
def test_a_card_is_held_and_unused_whenever_one_looks(at_ms):
    """By a job of Slurm, so that a command gives it back; it has been so for hours but at the start
    of one.
    """
    lane = next(lane for lane in LANES if lane.name.startswith("l4-01/") and lane.slots == (2,))
    hold = FLEET.holding(lane, at_ms)
    assert (hold.workload.kind, hold.workload.tags["team"]) == ("slurm", "robotics")
    assert activity(hold, 1, at_ms) == 0.0
    assert hold.begun_ms <= at_ms < hold.begun_ms + 8 * DAY_MS


def test_faults_come_and_go():
    """In every four weeks one GPU is off the bus for half a day, and one node says nothing for six
    hours.
    """
    node, slot = FAILED_GPU
    lost = sum(
        FLEET.is_failed(node, slot, START + hour * HOUR_MS) for hour in range(CYCLE_MS // HOUR_MS)
    )
    silent = [
        START + hour * HOUR_MS
        for hour in range(CYCLE_MS // HOUR_MS)
        if FLEET.silent(SILENT_NODE, START + hour * HOUR_MS)
    ]
    assert lost == 12
    assert len(silent) == 6
    assert look(FLEET, SILENT_NODE, silent[0])[0] == ()
    failed_at = next(
        at for at in range(START, START + CYCLE_MS, HOUR_MS) if FLEET.is_failed(node, slot, at)
    )
    sample = look(FLEET, node, failed_at)[0][slot]
    assert (sample.health.status, sample.values) == ("failed", {})


def test_sick_gpus_are_degraded_and_their_counters_never_fall():
    """A pending remap and uncorrected ECC errors are verdicts on health; slow metrics come only
    when they are due.
    """
    for node, slot in (REMAP_GPU, ECC_GPU):
        assert look(FLEET, node, START)[0][slot].health.status == "degraded"
    totals = {}
    for at_ms in range(START, START + 40 * DAY_MS, 7 * HOUR_MS):
        for node in {REMAP_GPU[0], ECC_GPU[0], FAILED_GPU[0]}:
            for sample in SimulatedSource(FLEET, node, lambda at_ms=at_ms: at_ms).read(
                ("fast", "slow")
            ):
                for name, value in sample.values.items():
                    if name.endswith("_total"):
                        assert value >= totals.get((sample.uuid, name), 0)
                        totals[sample.uuid, name] = value
    assert {name for _, name in totals} >= {
        "gpu_xid_errors_total",
        "gpu_throttle_thermal_seconds_total",
    }
    assert not any(
        name.endswith("_total")
        for sample in look(FLEET, "h100-01", START)[0]
        for name in sample.values
    )


def test_a_week_looks_like_a_week():
    """Fewer research GPUs are held on Saturdays and Sundays; some time is held by nobody; some jobs
    have no tags.
    """
    research = [lane for lane in LANES if lane.shape == "research"]
    held = {True: 0, False: 0}
    hours = {True: 0, False: 0}
    tagless = 0
    for hour in range(28 * 24):
        at = START + hour * HOUR_MS
        weekend = (at // DAY_MS + 4) % 7 in {0, 6}
        for lane in research:
            hold = FLEET.holding(lane, at)
            hours[weekend] += 1
            held[weekend] += hold is not None
            tagless += hold is not None and not hold.workload.tags
    assert held[True] / hours[True] < 0.6 * held[False] / hours[False]
    assert 0.2 < held[False] / hours[False] < 0.95
    assert tagless


def test_a_node_of_another_name_is_a_node_too():
    """An agent on any machine can try the simulated source: it gets GPUs of its own."""
    samples, _ = look(FLEET, "my-laptop", START)
    assert len(samples) == 8
    assert not {sample.uuid for sample in samples} & {
        entry.uuid for node in FLEET.nodes for entry in node.accelerators
    }


def test_the_incidents_are_what_the_fleet_does():
    """Every line is so: who it names holds then and there, the failed has failed, the silent is
    silent.
    """
    fleet = Fleet(7, START + 20 * DAY_MS)
    told = fleet.incidents(START, START + 30 * DAY_MS)
    assert len(told) >= 8
    names = {
        said.partition(": ")[2].split()[0]: (begin, end)
        for begin, end, said in told
        if ": " in said
    }
    lanes = [lane for node in fleet.nodes for lane in node.lanes]
    for name in ("reindex-all-retry", "retrieval-notebook", "weekend-hold", "asr-eval"):
        begin, end = names[name]
        for at_ms in (begin, (begin + end) // 2, end - 1):
            holding = {
                hold.workload.name
                for lane in lanes
                if (hold := fleet.holding(lane, at_ms)) is not None
            }
            assert name in holding, (name, at_ms)
    (failed,) = [begin for begin, _, said in told if "falls off" in said]
    assert fleet.is_failed(*FAILED_GPU, failed)
    assert not fleet.is_failed(*FAILED_GPU, failed - 1)
    (silent,) = [end for _, end, said in told if "is down" in said]
    assert fleet.silent(SILENT_NODE, silent - 1)
    assert not fleet.silent(SILENT_NODE, silent)
    assert any("is released" in said for _, _, said in told)


def test_every_job_ends_with_its_block_and_the_help_says_so(capsys):
    """Every fourth midnight cuts all jobs: who sees demand fall then finds the reason in the help
    of --story.
    """
    cut = 5000 * BLOCK_MS
    before = [hold for lane in LANES if (hold := FLEET.holding(lane, cut - 1)) is not None]
    assert before
    assert {hold.end_ms for hold in before} == {cut}
    assert (BLOCK_MS, cut % DAY_MS) == (4 * DAY_MS, 0)
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    assert "every fourth midnight (UTC)" in " ".join(capsys.readouterr().out.split())
