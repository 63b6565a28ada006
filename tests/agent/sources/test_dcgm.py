"""The dcgm source: pages of dcgm-exporter, ours in their shape, and the real captures where they
are at hand.
"""

import http.server
import threading
from pathlib import Path

import pytest

from fakes.exporters import read as parse
from gpuledger_agent.sources.exporter import ExporterSource
from gpuledger_common.health import page_health
from gpuledger_common.readings import SourceUnavailable

CAPTURES = Path(__file__).resolve().parents[4] / "shared" / "data" / "captures"
OLD = """# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="NVIDIA L4",Hostname="n1",DCGM_FI_DRIVER_VERSION="580.1",container="main",namespace="vision",pod="train-0"} 31.5
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="n1",container="main",namespace="vision",pod="train-0"} 40
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="n1"} 1024
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="n1"} 1410
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="n1"} 5000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="n1"} 0.25
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="n1"} 9223372036854775794
"""
NEW = """DCGM_FI_DEV_BOARD_POWER_WATTS{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",hostname="n1"} 31.5
DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",hostname="n1"} 0.25
"""


BASE = """DCGM_FI_DEV_SM_CLOCK_HERTZ{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",hostname="n1",DCGM_FI_SYSTEM_DRIVER_VERSION="580.1"} 1.41e+09
DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",hostname="n1"} 0.4
DCGM_FI_DEV_FB_USED_BYTES{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",hostname="n1"} 1073741824
DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",hostname="n1"} 5
"""


def dcgm_source(target):
    return ExporterSource(target, "dcgm-exporter", name="dcgm")


def mig_line(name, instance, profile, value):
    return (
        f'{name}{{gpu="0",UUID="GPU-m",device="nvidia0",modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="{profile}",'
        f'GPU_I_ID="{instance}",Hostname="n1"}} {value}\n'
    )


def test_old_names_come_in_base_units():
    """MHz, MiB, percent and millijoules become hertz, bytes, ratios and joules; DCGM's blanks are
    absent.
    """
    (entry,) = parse(OLD).accelerators.values()
    assert entry.values["gpu_power_watts"] == 31.5
    assert entry.values["gpu_utilization_ratio"] == 0.4
    assert entry.values["gpu_memory_used_bytes"] == 1024 * 1024**2
    assert entry.values["gpu_sm_clock_hertz"] == 1.41e9
    assert entry.values["gpu_energy_joules_total"] == 5.0
    assert entry.values["gpu_graphics_engine_active_ratio"] == 0.25
    assert "gpu_memory_temperature_celsius" not in entry.values
    assert (entry.host, entry.driver, entry.accelerator.model) == ("n1", "580.1", "NVIDIA L4")


def test_names_of_dcgm_4_6_mean_the_same():
    """The renamed fields and the lower-case label are the old ones under new names."""
    (entry,) = parse(NEW).accelerators.values()
    assert entry.values == {"gpu_power_watts": 31.5, "gpu_graphics_engine_active_ratio": 0.25}
    assert entry.host == "n1"


def test_base_unit_names_of_dcgm_4_7_are_taken_as_they_are():
    """What dcgm-exporter 4.9 prints by default is the old page's values, already in base units."""
    (old,), (new,) = parse(OLD).accelerators.values(), parse(BASE).accelerators.values()
    assert len(new.values) == 4
    assert {name: old.values[name] for name in new.values} == new.values
    assert (new.host, new.driver) == ("n1", "580.1")


def test_a_percentage_under_the_ratios_name_is_a_percentage():
    """DCGM 4.6 called its whole percentage GPU_UTIL_RATIO: what exceeds 1 is no ratio."""
    (entry,) = parse(BASE.replace("} 0.4", "} 40")).accelerators.values()
    assert entry.values["gpu_utilization_ratio"] == 0.4


def test_mig_instances_share_no_board_reading():
    """Each instance is an accelerator with its share; the board's power, on each line, is counted
    on none.
    """
    page = parse(
        "".join(
            mig_line("DCGM_FI_DEV_POWER_USAGE", instance, profile, 116.0)
            + mig_line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", instance, profile, 0.5)
            for instance, profile in ((7, "1g.5gb"), (9, "1g.5gb"), (5, "2g.10gb"))
        )
    )
    assert [entry.accelerator.gpu_micro for entry in page.accelerators.values()] == [
        142_857,
        142_857,
        285_714,
    ]
    assert all(
        entry.values == {"gpu_graphics_engine_active_ratio": 0.5}
        for entry in page.accelerators.values()
    )
    assert len({entry.accelerator.uuid for entry in page.accelerators.values()}) == 3


def test_pods_on_a_shared_gpu_hold_it_together_and_are_not_counted_twice(tmp_path):
    """A device metric repeated per pod is one reading; both pods are holders at equal weight."""
    path = tmp_path / "page.prom"
    path.write_text(OLD + OLD.replace("train-0", "train-1"))
    source = dcgm_source(str(path))
    assert len(source.open().accelerators) == 1
    (sample,) = source.read(())
    assert sample.values["gpu_power_watts"] == 31.5
    (holders,) = source.holders((), ()).values()
    assert sorted(holder.workload.id for holder in holders) == ["vision/train-0", "vision/train-1"]
    assert {holder.weight for holder in holders} == {1}
    assert holders[0].workload.account == "vision"


@pytest.mark.parametrize(
    ("first", "second", "used"), [(512, 512, 512), (512, 256, 768), (512, 0, 512)]
)
def test_a_shared_gpus_memory_is_repeated_or_split_by_pods(first, second, used):
    """Equal lines repeat the device's value (exporters to 4.5.1); different ones are its pods'
    parts and add up.
    """
    line = 'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",namespace="n",pod="{}"}} {}\n'
    (entry,) = parse(line.format("a", first) + line.format("b", second)).accelerators.values()
    assert entry.values["gpu_memory_used_bytes"] == used * 1024**2


def test_the_exporters_word_on_broken_memory_is_heard(tmp_path):
    """A failed row remap degrades the GPU, in the old name and in that of DCGM 4.6."""
    path = tmp_path / "page.prom"
    for name in ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"):
        path.write_text(OLD + f'{name}{{gpu="0",UUID="GPU-a",modelName="NVIDIA L4"}} 1\n')
        (sample,) = dcgm_source(str(path)).read(())
        assert (sample.health.status, sample.health.cause) == (
            "degraded",
            "a row of memory could not be remapped",
        )


def test_stray_lines_are_passed_over_and_said(tmp_path):
    """A page with a title or elided labels is read, and the inventory says what was odd."""
    path = tmp_path / "page.prom"
    path.write_text(
        "Active 1g.5gb\n\n"
        + OLD
        + 'DCGM_FI_DEV_ENC_UTIL{gpu="0",...,modelName="NVIDIA L4",...} 3\n'
    )
    source = dcgm_source(str(path))
    inventory = source.open()
    assert inventory.problems == ("1 line without a sample: skipped", "1 line with elided labels")
    assert source.read(())[0].values["gpu_encoder_utilization_ratio"] == pytest.approx(0.03)


@pytest.mark.parametrize("text", ["", "hello\n", "node_load1 0.5\n"])
def test_a_page_of_something_else_is_refused_with_a_sentence(tmp_path, text):
    """A page without GPUs is no dcgm-exporter's, and the sentence says so."""
    path = tmp_path / "page.prom"
    path.write_text(text)
    with pytest.raises(SourceUnavailable, match="no line names a device"):
        dcgm_source(str(path)).open()


def test_an_exporter_is_read_over_http_and_may_be_away():
    """The address of an exporter works with and without /metrics; nobody listening is one sentence."""

    class Exporter(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(OLD.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        assert len(dcgm_source(address).open().accelerators) == 1
        assert len(dcgm_source(address + "/metrics").open().accelerators) == 1
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(SourceUnavailable, match="no answer"):
        dcgm_source(address).open()


@pytest.mark.skipif(
    not CAPTURES.is_dir(), reason="the captures of real cards (../shared) are not at hand"
)
@pytest.mark.parametrize("name", sorted(path.name for path in CAPTURES.glob("*.prom")))
def test_every_capture_of_a_real_exporter_goes_through(name):
    """Each real page gives accelerators with readings; MIG instances carry no board power."""
    source = dcgm_source(str(CAPTURES / name))
    inventory = source.open()
    samples = {sample.uuid: sample for sample in source.read(())}
    assert inventory.accelerators
    assert set(samples) == {entry.uuid for entry in inventory.accelerators}
    for entry in inventory.accelerators:
        assert samples[entry.uuid].values
        if entry.mig_instance is not None:
            assert entry.gpu_micro < 1_000_000
            assert "gpu_power_watts" not in samples[entry.uuid].values


@pytest.mark.skipif(
    not CAPTURES.is_dir(), reason="the captures of real cards (../shared) are not at hand"
)
def test_three_instances_of_a_real_a100_do_not_triple_its_power():
    """The capture whose naive sum is 348 W gives three accelerators, and no watt more than once."""
    source = dcgm_source(str(CAPTURES / "fgo_dcgm_mig_Active_2_1g.5gb___2g.10gb.prom"))
    assert sorted(entry.mig_instance for entry in source.open().accelerators) == [
        "1g.5gb/7",
        "1g.5gb/9",
        "2g.10gb/5",
    ]
    assert sum(sample.values.get("gpu_power_watts", 0) for sample in source.read(())) == 0


@pytest.mark.parametrize(
    ("xid", "words"),
    [(0, ""), (13, ""), (31, ""), (79, "fallen off the bus"), (62, "reset the GPU")],
)
def test_the_exporters_last_xid_is_judged_by_the_one_table(xid, words):
    """A program's own fault says nothing of the card; one that asks for an action degrades it, as
    NVML's events do.
    """
    health = page_health({"gpu_last_xid": xid})
    assert (health.status, words in health.cause) == ("degraded" if words else "ok", True)
