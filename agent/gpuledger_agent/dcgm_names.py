"""dcgm-exporter's names on our /metrics, so that NVIDIA's dashboard 12239 and alert rules on DCGM_FI_* work unchanged.

Names, units (MHz, MiB, percent, millijoules), labels and their order are those of dcgm-exporter up to 4.8.2 (`old`,
with the label `Hostname`), or those after it with DCGM 4.6's field names (`new`, with `hostname`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from prometheus_client.core import GaugeMetricFamily, Metric

from gpuledger_agent.catalogue import METRICS
from gpuledger_agent.metrics import Metric as CatalogueMetric
from gpuledger_agent.readings import Accelerator, Holder, Sample

Vintage = Literal["old", "new", "off"]
EXPORTED: tuple[CatalogueMetric, ...] = tuple(
    metric
    for metric in METRICS
    if metric.dcgm_field and metric.scopes[0] in {"GPU", "MIG"} and metric.tier in {"fast", "gpm", "slow", "event"}
)


def families(
    node: str,
    driver: str | None,
    seen: Iterable[tuple[Accelerator, Sample, Sequence[Holder]]],
    vintage: Vintage,
) -> list[Metric]:
    """The DCGM families of all accelerators that have a reading, each once, in the catalogue's order."""
    entries = [
        (sample, labels_of(node, driver, accelerator, holders, vintage)) for accelerator, sample, holders in seen
    ]
    made: list[Metric] = []
    for metric in EXPORTED:
        name = metric.dcgm_field_46 if vintage == "new" and metric.dcgm_field_46 else metric.dcgm_field
        family: Metric = GaugeMetricFamily(name, f"{metric.name}, as dcgm-exporter names it.")
        renamed = name != metric.dcgm_field
        for sample, labels in entries:
            value = sample.values.get(metric.name)
            if value is not None:
                family.add_sample(name, labels, value if renamed else round(value / metric.dcgm_scale, 6))
        if family.samples:
            made.append(family)
    return made


def labels_of(
    node: str, driver: str | None, accelerator: Accelerator, holders: Sequence[Holder], vintage: Vintage
) -> dict[str, str]:
    """dcgm-exporter's labels in its order; a MIG instance is named by its device with profile and instance id."""
    labels = {"gpu": str(accelerator.index), "UUID": accelerator.device_uuid}
    if accelerator.pci_bus_id:
        labels["pci_bus_id"] = accelerator.pci_bus_id
    labels |= {"device": f"nvidia{accelerator.index}", "modelName": accelerator.model}
    if accelerator.mig_instance is not None:
        profile, _, instance = accelerator.mig_instance.partition("/")
        labels |= {"GPU_I_PROFILE": profile, "GPU_I_ID": instance}
    labels["hostname" if vintage == "new" else "Hostname"] = node
    if driver:
        labels["DCGM_FI_DRIVER_VERSION"] = driver
    return labels | _holder_labels(holders)


def _holder_labels(holders: Sequence[Holder]) -> dict[str, str]:
    """The pod, or the Slurm job, of the first holder: one line a reading, so that nothing is summed twice."""
    for holder in holders:
        workload = holder.workload
        if workload.kind == "kubernetes":
            tags = workload.tags
            return {"container": tags.get("container", ""), "namespace": tags.get("namespace", workload.account or ""),
                    "pod": tags.get("pod", workload.name or workload.id)}  # fmt: skip
        if workload.kind == "slurm":
            return {"hpc_job": workload.id}
    return {}
