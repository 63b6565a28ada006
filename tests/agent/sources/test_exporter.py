"""The source exporter: pages of any exporter, by their profile, for one node."""

import json
import subprocess

import pytest

from fakes.agents import AGENT
from fakes.exporters import synthetic
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.sources.exporter import ExporterSource
from gpuledger_common.meter import Meter
from gpuledger_common.readings import SourceUnavailable

OTHER = """
id = "mine"
title = "An exporter of mine"
energy = "unknown"
evidence = { repository = "me/mine", status = "synthetic" }
match = { families = ["my_busy"] }
device = { keys = [["card"]] }

[[metrics]]
metric = "gpu_utilization_ratio"
families = ["my_busy"]
"""


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.prom"


def agent(*arguments):
    return subprocess.run(
        [AGENT, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_profile_is_found_by_the_page(page):
    """Parts, holders and readings of an AMD node, without a word about AMD."""
    page.write_text(synthetic("amd-device-metrics-exporter"))
    source = ExporterSource(str(page))
    assert [entry.uuid for entry in source.open().accelerators] == [
        "AMD-692400000001",
        "AMD-692400000002/0",
        "AMD-692400000002/1",
    ]
    samples = {sample.uuid: sample for sample in source.read(())}
    assert samples["AMD-692400000001"].values["gpu_power_watts"] == 600
    held = source.holders((), ())
    assert held["AMD-692400000002/0"][0].workload.id == "71"
    assert "AMD-692400000002/1" not in held


def test_a_page_of_several_hosts_needs_the_name_of_one(page):
    """HAMi's scheduler shows the whole cluster: an agent reports its own node."""
    page.write_text(
        synthetic("hami")
        + synthetic("hami").replace("share-01", "share-02").replace("GPU-aaaa", "GPU-bbbb")
    )
    with pytest.raises(
        SourceUnavailable, match="the page shows the hosts share-01, share-02: --node names one"
    ):
        ExporterSource(str(page), node="elsewhere").open()
    uuids = [
        entry.device_uuid
        for entry in ExporterSource(str(page), node="share-02").open().accelerators
    ]
    assert set(uuids) == {"GPU-bbbb"}


def test_parts_that_come_and_go_are_metered_while_they_are_there(page):
    """A pod that gets a share of a device is metered from its first page on, without opening the
    source again.
    """
    full = synthetic("hami")
    page.write_text(
        "\n".join(line for line in full.splitlines() if "notebook-1" not in line) + "\n"
    )
    at = [0]
    source = ExporterSource(str(page), node="share-01", monotonic_ns=lambda: at[0] * 1_000_000)
    sampler = Sampler("share-01", "", source, [source], Meter(60_000))
    sampler.attach(source.open())
    for at[0] in range(0, 60_001, 10_000):
        if at[0] == 30_000:
            page.write_text(full)
        sampler.tick(lambda monotonic_ns: monotonic_ns // 1_000_000, ())
    held = {interval.uuid: interval.end_ms - interval.start_ms for interval in sampler.meter.take()}
    assert held == {"GPU-aaaa/dev/notebook-0/0": 60_000, "GPU-aaaa/dev/notebook-1/0": 30_000}
    assert len(sampler.latest.accelerators) == 2


def test_a_counter_that_falls_is_no_energy(page):
    """A process that begins its counter anew, at any value, bills no rebound."""
    at, joules = [0], [5000.0, 5100.0, 3000.0, 3050.0]
    source = ExporterSource(
        "page",
        monotonic_ns=lambda: at[0] * 1_000_000,
        fetch=lambda _: synthetic("intel-xpumanager-1", joules[at[0] // 10_000]).replace(
            "xpum_power_watts", "no_power"
        ),
    )
    sampler = Sampler("pvc-01", "", source, [source], Meter(60_000))
    sampler.attach(source.open())
    for at[0] in range(0, 40_000, 10_000):
        sampler.tick(lambda monotonic_ns: monotonic_ns // 1_000_000, ())
    assert sum(interval.energy_mj for interval in sampler.meter.take()) == 150_000


def test_a_refused_value_is_absent_with_its_reason(page):
    """What a profile refuses reaches neither the meter nor a column; the heartbeat says so."""
    page.write_text(synthetic("intel-gaudi").replace(" 420000\n", " 42000000000\n", 1))
    source = ExporterSource(str(page))
    assert (
        "1 value refused: gpu_power_watts 4.2e+07 is not from 0 to 3000" in source.open().problems
    )
    (sample,) = source.read(())
    assert "gpu_power_watts" not in sample.values
    assert sample.absent["gpu_power_watts"] == "4.2e+07 is not from 0 to 3000"


def test_a_sentinel_is_absent_with_its_reason(tmp_path, page):
    """`once` says which value means a failed read; `check` gives the metric before the reason; a
    value ends it.
    """
    profile = tmp_path / "mine.toml"
    profile.write_text(OTHER + "absent = -1\n")
    page.write_text('my_busy{card="c1"} -1\nmy_busy{card="c2"} 87.5\n')
    asked = ("--source", "exporter", "--target", page, "--profile", profile, "--node", "n")
    failed, refused = json.loads(agent("once", "--json", *asked).stdout)["accelerators"]
    assert failed["absent"] == {
        "gpu_utilization_ratio": "the exporter gives -1, which means no value"
    }
    assert refused["absent"] == {"gpu_utilization_ratio": "87.5 is not from 0 to 1.05"}
    checked = agent("check", *asked)
    assert "   gpu_utilization_ratio: 87.5 is not from 0 to 1.05" in checked.stdout
    assert "   gpu_utilization_ratio: the exporter gives -1, which means no value" in checked.stdout
    assert "reason: the other metrics have no line on the page" in checked.stdout

    at = [0]
    source = ExporterSource(str(page), str(profile), monotonic_ns=lambda: at[0] * 1_000_000)
    sampler = Sampler("n", "", source, [source], Meter(60_000))
    sampler.attach(source.open())
    for at[0], value in ((0, "-1"), (10_000, "0.5")):
        page.write_text(f'my_busy{{card="c1"}} {value}\n')
        sampler.tick(lambda monotonic_ns: monotonic_ns // 1_000_000, ())
    latest = sampler.latest.samples["c1"]
    assert (dict(latest.values), dict(latest.absent)) == ({"gpu_utilization_ratio": 0.5}, {})


def test_a_page_of_several_exporters_is_not_guessed(page):
    """Two profiles that match one page are an error that names both."""
    page.write_text(synthetic("hami") + synthetic("intel-gaudi"))
    with pytest.raises(
        SourceUnavailable, match="the profiles hami and intel-gaudi both match this page"
    ):
        ExporterSource(str(page)).open()
    assert ExporterSource(str(page), "hami", "share-01").open().accelerators


def test_an_unknown_page_names_what_it_has(page):
    """No profile is tried at random."""
    page.write_text("my_busy 1\n")
    with pytest.raises(
        SourceUnavailable, match="no profile knows a family of this page: it has my_busy"
    ):
        ExporterSource(str(page)).open()


def test_a_profile_of_ones_own_by_the_command_line(tmp_path, page):
    """--profile FILE reads an exporter that nobody has packaged; a bad file is one sentence."""
    profile = tmp_path / "mine.toml"
    profile.write_text(OTHER)
    page.write_text('my_busy{card="c1"} 0.5\n')
    asked = (
        "once",
        "--json",
        "--source",
        "exporter",
        "--target",
        page,
        "--profile",
        profile,
        "--node",
        "n",
    )
    report = json.loads(agent(*asked).stdout)
    assert "c1" in json.dumps(report)
    profile.write_text(OTHER.replace("my_busy", "", 1).replace("[[metrics]]", "[[metric]]"))
    failed = agent(*asked)
    assert failed.returncode == 2
    assert "mine.toml: metric: is not known; the nearest key is metrics" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_a_recording_of_a_page_replays(tmp_path, page):
    """What an exporter showed is recorded and replayed as any source's."""
    page.write_text(synthetic("aws-neuron"))
    file = tmp_path / "neuron.jsonl"
    recorded = agent(
        "record",
        file,
        "--seconds",
        "0.3",
        "--interval",
        "0.1",
        "--source",
        "exporter",
        "--target",
        page,
    )
    assert recorded.returncode == 0, recorded.stderr
    shown = agent("once", "--json", "--source", "replay", "--target", file)
    assert shown.returncode == 0, shown.stderr
    assert "i-0001/1/1" in shown.stdout
