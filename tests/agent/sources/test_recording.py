"""Recordings and their replay: what was seen comes back; what is no recording is refused with its
line.
"""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent.owners import open_owners
from gpuledger_agent.settings import Settings
from gpuledger_agent.sources import recording
from gpuledger_agent.sources.replay import ReplaySource
from gpuledger_common.readings import (
    Accelerator,
    Health,
    Holder,
    Inventory,
    Process,
    Sample,
    SeriesValue,
    SourceUnavailable,
    Workload,
)

GPU = Accelerator(
    "GPU-a", "GPU-a", 0, "NVIDIA H100 80GB HBM3", None, 1_000_000, 80 * 1024**3, "00000000:18:00.0"
)
SLICE = Accelerator(
    "MIG-b", "GPU-b", 1, "NVIDIA H100 80GB HBM3", "1g.10gb/7", 142_857, 10 * 1024**3
)
HEAD = recording.header_line("n1", Inventory("580.1", [GPU, SLICE], ["a problem"]))
TEAM = Workload("4711", "slurm", "amina", "vision", "train", {"team": "vision"})


def busy(value):
    return Sample(
        "GPU-a",
        0,
        {"gpu_utilization_ratio": value},
        {"gpu_fan_speed_ratio": "not supported"},
        (),
        Health(),
    )


@pytest.fixture
def written(tmp_path):
    def write(*lines, name="card.jsonl"):
        path = tmp_path / name
        with recording.open_text(path, "w") as file:
            file.write("".join(line + "\n" for line in lines))
        return path

    return write


names = st.text(min_size=1, max_size=20)
numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
processes = st.lists(
    st.builds(Process, st.integers(1, 2**22), st.none() | st.integers(0, 2**40)), max_size=3
)
verdicts = st.builds(
    Health, st.sampled_from(["ok", "degraded", "failed", "unknown"]), st.text(max_size=20)
)
workloads = st.builds(
    Workload,
    names,
    st.sampled_from(["slurm", "container"]),
    st.none() | names,
    st.none() | names,
    st.none() | names,
    st.dictionaries(names, names, max_size=3),
    st.none() | names,
    st.none() | names,
    st.none() | names,
    st.dictionaries(names, names, max_size=3),
)


@given(
    st.dictionaries(names, numbers, max_size=4),
    st.dictionaries(names, names, max_size=3),
    processes,
    verdicts,
    st.lists(st.builds(Holder, workloads, st.integers(1, 9)), max_size=3),
    st.dictionaries(
        st.sampled_from(["gpu_nvlink_link_up", "gpu_xid_errors_total"]),
        st.lists(
            st.builds(SeriesValue, st.tuples(st.tuples(st.just("link"), names)), numbers),
            min_size=1,
            max_size=3,
        ),
    ),
)
def test_what_is_written_is_what_is_read(
    tmp_path_factory, values, absent, running, health, holders, series
):
    """Readings, series, reasons, processes, health and holders survive the file exactly."""
    sample = Sample("GPU-a", 0, values, absent, tuple(running), health, series)
    path = tmp_path_factory.mktemp("r") / "one.jsonl"
    path.write_text(
        HEAD + "\n" + recording.tick_line(0, [sample], {"GPU-a": holders}) + "\n", encoding="utf-8"
    )
    read = recording.read(path)
    assert read.inventory.accelerators == [GPU, SLICE]
    assert (read.node, read.inventory.driver, read.inventory.problems) == (
        "n1",
        "580.1",
        ("a problem",),
    )
    (tick,) = read.ticks
    (back,) = tick.samples
    assert (back.values, back.absent, back.processes, back.health) == (
        values,
        absent,
        tuple(running),
        health,
    )
    assert back.series == series
    assert list(tick.holders.get("GPU-a", ())) == holders


def test_replay_keeps_the_rhythm_and_begins_again(written):
    """Each read gives the tick that was due then; behind the last one the first comes round."""
    path = written(
        HEAD, *[recording.tick_line(at, [busy(at / 10_000)], {}) for at in (0, 1000, 5000)]
    )
    now_ns = 7_000_000_000
    source = ReplaySource(str(path), lambda: now_ns)
    source.open()
    seen = []
    for at_ms in (0, 999, 1000, 4999, 5000, 7499, 7500, 8500):
        now_ns = 7_000_000_000 + at_ms * 1_000_000
        (sample,) = source.read(("fast",))
        assert sample.monotonic_ns == now_ns
        seen.append(sample.values["gpu_utilization_ratio"])
    assert seen == [0.0, 0.0, 0.1, 0.1, 0.5, 0.5, 0.0, 0.1]


def test_replay_knows_the_holders_and_asks_no_process_here(written):
    """Who held what comes with the recording; a recorded pid is not looked up on the machine that
    replays it.
    """
    ran = Sample("GPU-a", 0, {"gpu_processes": 1}, {}, (Process(os.getpid()),), Health())
    held = Sample("MIG-b", 0, {}, {}, (), Health())
    source = ReplaySource(
        str(written(HEAD, recording.tick_line(0, [ran, held], {"MIG-b": [Holder(TEAM, 2)]})))
    )
    inventory = source.open()
    samples = source.read(("fast",))
    (owner,) = open_owners(Settings(owners="static,processes"), source)
    assert owner.holders(inventory.accelerators, samples) == {"MIG-b": (Holder(TEAM, 2),)}


def test_a_compressed_recording_is_the_same(written):
    """A .gz file is read like the plain one."""
    tick = recording.tick_line(0, [busy(0.5)], {})
    assert recording.read(written(HEAD, tick, name="a.jsonl.gz")) == recording.read(
        written(HEAD, tick)
    )


TICK = recording.tick_line(0, [busy(0.5)], {})


def row(**changed):
    return json.dumps({"offset_ms": 0, "samples": [{"uuid": "GPU-a", "values": {}} | changed]})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], ":1: is not a recording"),
        (["{}"], ":1: is not a recording"),
        (["hello"], ":1: is not JSON"),
        (["[]"], ":1: is not a JSON object"),
        ([HEAD.replace('"index": 0', '"index": "0"'), TICK], ":1: the header"),
        ([HEAD.replace('"gpu_micro": 1000000', '"gpu_micro": 0'), TICK], ":1: the header"),
        ([HEAD.replace('"model"', '"modell"'), TICK], ":1: the header"),
        ([HEAD, "{}"], ":2: is not a tick: 'offset_ms' is missing"),
        ([HEAD, TICK, TICK], ":3: its offset_ms 0 is not after"),
        ([HEAD, TICK.replace("GPU-a", "GPU-z")], ":2: GPU-z is not in the header"),
        (
            [HEAD, row(values={"gpu_power_watts": "much"})],
            ":2: is not a tick: gpu_power_watts is 'much'",
        ),
        (
            [HEAD, row(values={"gpu_power_watts": float("nan")})],
            ":2: is not a tick: gpu_power_watts is nan",
        ),
        (
            [HEAD, row(values={"gpu_power_watts": True})],
            ":2: is not a tick: gpu_power_watts is True",
        ),
        ([HEAD, row(health=["sick", ""])], ":2: is not a tick: 'sick' is not one of"),
        ([HEAD, row(processes=[["1", None, "compute"]])], ":2: is not a tick: '1' is not a int"),
        (
            [HEAD, row(holders=[{"id": "1", "kind": "cloud"}])],
            ":2: is not a tick: 'cloud' is not one of",
        ),
        (
            [HEAD, row(holders=[{"id": "1", "kind": "slurm", "weight": 0}])],
            ":2: is not a tick: weight 0",
        ),
        (
            [HEAD, row(holders=[{"id": "1", "kind": "slurm", "job": 7}])],
            ":2: is not a tick: 7 is not a str",
        ),
        (
            [HEAD, row(holders=[{"id": "1", "kind": "slurm", "refused": {"team": None}}])],
            ":2: is not a tick: None is not a str",
        ),
        ([HEAD], "the recording has no ticks"),
    ],
)
def test_what_is_no_recording_is_refused_with_file_and_line(written, lines, words):
    """One sentence with file, line and field, before anything of it is used."""
    path = written(*lines)
    with pytest.raises(SourceUnavailable) as raised:
        ReplaySource(str(path)).open()
    assert str(raised.value).startswith(f"{path}:")
    assert words in str(raised.value)


def test_a_damaged_or_missing_file_is_one_sentence(written, tmp_path):
    """A .gz that was cut off or garbled, and a file that is not there, say that they cannot be
    read.
    """
    path = written(
        HEAD,
        *[recording.tick_line(at, [busy(at / 100)], {}) for at in range(100)],
        name="b.jsonl.gz",
    )
    whole = path.read_bytes()
    for damaged in (whole[:-40], whole[:60] + b"\xff" * 30 + whole[90:]):
        path.write_bytes(damaged)
        with pytest.raises(SourceUnavailable, match="cannot be read"):
            ReplaySource(str(path)).open()
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        ReplaySource(str(tmp_path / "none.jsonl")).open()
