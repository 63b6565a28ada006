"""/metrics in dcgm-exporter's words: what we write, our own reader of dcgm-exporter's pages
understands.
"""

import re

import pytest

from fakes.exporters import read as parse
from gpuledger_agent.sources.fleet import Fleet
from gpuledger_agent.sources.simulated import SimulatedSource
from gpuledger_common.exporter_names import families
from gpuledger_common.exposition_text import render
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload

AT = 1_790_850_000_000


def page(node, vintage):
    source = SimulatedSource(Fleet(7), node, lambda: AT)
    inventory = source.open()
    samples = {sample.uuid: sample for sample in source.read(())}
    seen = [(entry, samples[entry.uuid], ()) for entry in inventory.accelerators]
    return inventory, samples, render(families(node, "580.1", seen, vintage))


@pytest.mark.parametrize("vintage", ["old", "new"])
@pytest.mark.parametrize("node", ["h100-01", "a100-01"])
def test_what_we_write_reads_back_as_it_was(node, vintage):
    """Every accelerator, MIG instances too, and every reading that both sides know comes back in
    base units.
    """
    inventory, samples, text = page(node, vintage)
    back = parse(text).accelerators
    assert len(back) == len(inventory.accelerators)
    for entry, (_, seen) in zip(inventory.accelerators, back.items(), strict=True):
        assert seen.accelerator.mig_instance == entry.mig_instance
        assert seen.accelerator.gpu_micro == entry.gpu_micro
        assert (seen.host, seen.driver, seen.accelerator.model) == (node, "580.1", entry.model)
        assert seen.values
        for name, value in seen.values.items():
            assert value == pytest.approx(samples[entry.uuid].values[name], rel=1e-5, abs=1e-6)


def test_nvidias_dashboard_finds_its_six_metrics_and_two_labels():
    """Dashboard 12239 asks for these names; the label order is dcgm-exporter's."""
    _, _, text = page("h100-01", "old")
    for name in (
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    ):
        assert re.search(rf"^{name}\{{", text, re.MULTILINE), name
    line = next(line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_POWER_USAGE{"))
    labels = re.findall(r'(\w+)="', line)
    assert labels == [
        "gpu",
        "UUID",
        "pci_bus_id",
        "device",
        "modelName",
        "Hostname",
        "DCGM_FI_DRIVER_VERSION",
    ]


def test_units_are_dcgms():
    """Watts, MHz, MiB and percent, as its users' alert rules expect."""
    sample = Sample(
        "G",
        0,
        {
            "gpu_power_watts": 312.5,
            "gpu_sm_clock_hertz": 1.41e9,
            "gpu_memory_used_bytes": 2**30,
            "gpu_utilization_ratio": 0.91,
            "gpu_energy_joules_total": 5.0,
        },
    )
    made = families("n", None, [(Accelerator("G", "G", 0, "NVIDIA L4"), sample, ())], "old")
    assert {family.name: float(family.lines[0].split()[-1]) for family in made} == {
        "DCGM_FI_DEV_GPU_UTIL": 91,
        "DCGM_FI_DEV_FB_USED": 1024,
        "DCGM_FI_DEV_SM_CLOCK": 1410,
        "DCGM_FI_DEV_POWER_USAGE": 312.5,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5000,
    }


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (
            Workload(
                "vision/train-0",
                "kubernetes",
                account="vision",
                name="train-0",
                tags={"container": "main"},
            ),
            {"container": "main", "namespace": "vision", "pod": "train-0"},
        ),
        (Workload("4711", "slurm"), {"hpc_job": "4711"}),
        (Workload("x", "process"), {}),
    ],
)
def test_pods_and_jobs_stand_on_the_lines(workload, expected):
    """The holder is named as dcgm-exporter names it in Kubernetes and with job mapping files."""
    sample = Sample("G", 0, {"gpu_power_watts": 1.0})
    (family,) = families(
        "n", None, [(Accelerator("G", "G", 0, "L4"), sample, [Holder(workload)])], "new"
    )
    labels = dict(re.findall(r'(\w+)="([^"]*)"', family.lines[0]))
    assert {name: labels[name] for name in expected} == expected
    assert labels["hostname"] == "n"
    assert ("pod" in labels) == (workload.kind == "kubernetes")
