"""/metrics in OpenTelemetry's words: what we write, the profile of a Collector's pages understands."""

import re

import pytest

from fakes.exporters import read
from gpuledger_agent.hardware_names import hardware_families
from gpuledger_agent.settings import load
from gpuledger_agent.sources.fleet import Fleet
from gpuledger_agent.sources.simulated import SimulatedSource
from gpuledger_common.exposition_text import render
from gpuledger_common.readings import Accelerator, Health, Holder, Sample, Workload
from gpuledger_common.settings import SettingsError

AT = 1_790_850_000_000
GPU = Accelerator("GPU-1", "GPU-1", 3, "NVIDIA H100 80GB HBM3")


def page(node, entries):
    """The page as a scrape sees it, the labels of each line in the order of their names."""
    text = render(hardware_families(node, entries))
    return re.sub(r"\{(.*)\}", lambda found: f"{{{','.join(sorted(found[1].split(',')))}}}", text)


@pytest.mark.parametrize("node", ["h100-01", "a100-01"])
def test_what_we_write_reads_back_as_it_was(node):
    """Every reading that the profile otel-hw maps comes back in base units, under the same
    identity.
    """
    source = SimulatedSource(Fleet(7), node, lambda: AT)
    inventory = source.open()
    samples = {sample.uuid: sample for sample in source.read(())}
    text = page(node, [(entry, samples[entry.uuid], ()) for entry in inventory.accelerators])
    back = read(text, "otel-hw").accelerators
    devices = [entry for entry in inventory.accelerators if entry.mig_instance is None]
    assert devices
    for entry in devices:
        (seen,) = [
            other for uuid, other in back.items() if uuid.removeprefix(f"{node}/") == entry.uuid
        ]
        assert (seen.host, seen.accelerator.model) == (node, entry.model)
        assert {
            "gpu_utilization_ratio",
            "gpu_memory_used_bytes",
            "gpu_power_watts",
        } <= seen.values.keys()
        for name, value in seen.values.items():
            assert value == pytest.approx(samples[entry.uuid].values[name], rel=1e-9), name


def test_names_labels_and_units_are_those_of_the_conventions():
    """Directions, tasks and error types are labels; the pod is an attribute; a used ratio is not
    the controller's.
    """
    values = {
        "gpu_encoder_utilization_ratio": 0.25,
        "gpu_memory_used_ratio": 0.5,
        "gpu_memory_copy_utilization_ratio": 0.75,
        "gpu_pcie_transmit_bytes_total": 7,
        "gpu_ecc_uncorrected_volatile_total": 2,
    }
    pod = Workload(
        "ml/p",
        "kubernetes",
        account="ml",
        name="p",
        tags={"namespace": "ml", "pod": "p", "container": "c"},
    )
    text = page(
        "n", [(GPU, Sample("GPU-1", 1, values, {}, (), Health("degraded", "x")), [Holder(pod)])]
    )
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    common = (
        'host_name="n",hw_id="GPU-1",hw_model="NVIDIA H100 80GB HBM3",hw_name="GPU'
        ' 3",{0}hw_type="gpu",k8s_container_name="c",k8s_namespace_name="ml",k8s_pod_name="p"'
    )
    task = common.format("").replace('host_name="n"', 'host_name="n",hw_gpu_task="encoder"')
    assert f"hw_gpu_utilization_ratio{{{task}}} 0.25" in lines
    assert f"hw_gpu_memory_utilization_ratio{{{common.format('')}}} 0.5" in lines
    direction = ',network_io_direction="transmit"'
    assert f"hw_gpu_io_bytes_total{{{common.format('')}{direction}}} 7.0" in lines
    assert f'hw_errors_total{{error_type="uncorrected",{common.format("")}}} 2.0' in lines
    states = {
        line.partition('hw_state="')[2][:3]: line[-3:]
        for line in lines
        if line.startswith("hw_status")
    }
    assert states == {'ok"': "0.0", "deg": "1.0", "fai": "0.0"}
    assert "0.75" not in text


def test_unknown_health_and_readings_have_no_line():
    """What is not known is not zero, and a MIG instance names its device."""
    part = Accelerator("MIG-1", "GPU-1", 3, "NVIDIA H100 80GB HBM3", "1g.10gb/7", 142_857)
    text = page(
        "n",
        [(part, Sample("MIG-1", 1, {"gpu_power_watts": 9.0}, {}, (), Health("unknown", "")), ())],
    )
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    assert line.startswith("hw_power_watts{")
    assert 'hw_parent="GPU-1"' in line


def test_the_setting_is_off_by_default(tmp_path):
    """The conventions are in development: nobody gets their names without asking."""
    file = tmp_path / "agent.toml"
    file.write_text('hw_names = "on"\n')
    assert load(None, {}).hw_names == "off"
    assert load(file, {}).hw_names == "on"
    with pytest.raises(SettingsError, match="hw_names"):
        load(None, {"GPULEDGER_AGENT_HW_NAMES": "both"})
