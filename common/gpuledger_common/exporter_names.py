"""dcgm-exporter's names on our /metrics, so that NVIDIA's dashboard 12239 and alert rules on
DCGM_FI_* work unchanged.

Names, units (MHz, MiB, percent, millijoules), labels and their order are those of dcgm-exporter up
to 4.8.2 (`old`, with the label `Hostname`), or those after it with DCGM 4.6's field names (`new`,
with `hostname`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from gpuledger_common.catalog import DCGM_COUNTERS, DCGM_NOT_NUMERIC, DCGM_ORDER, METRICS
from gpuledger_common.exposition_text import Family, label_text
from gpuledger_common.metrics import Metric
from gpuledger_common.readings import Accelerator, Holder, Sample

Vintage = Literal["old", "new", "off"]


def _default_position(metric: Metric) -> int:
    short = metric.dcgm_field.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
    return DCGM_ORDER.index(short) if short in DCGM_ORDER else len(DCGM_ORDER)


EXPORTED: tuple[Metric, ...] = tuple(
    sorted(
        (
            metric
            for metric in METRICS
            if metric.dcgm_field.startswith("DCGM_FI_")
            and metric.dcgm_field != DCGM_NOT_NUMERIC
            and metric.scopes[0] in {"GPU", "MIG"}
            and metric.tier in {"fast", "gpm", "slow", "event"}
        ),
        key=_default_position,
    )
)


def families(
    node: str,
    driver: str | None,
    latest: Iterable[tuple[Accelerator, Sample, Sequence[Holder]]],
    vintage: Vintage,
) -> list[Family]:
    """The DCGM families of all accelerators that have a reading, each once, in dcgm-exporter's
    order.
    """
    entries = [
        (sample, label_text(labels_of(node, driver, accelerator, holders, vintage)))
        for accelerator, sample, holders in latest
    ]
    result: list[Family] = []
    for metric in EXPORTED:
        name = (
            metric.dcgm_field_46 if vintage == "new" and metric.dcgm_field_46 else metric.dcgm_field
        )
        counts = metric.kind == "counter" or metric.dcgm_field in DCGM_COUNTERS
        family = Family(
            name, f"{metric.name}, as dcgm-exporter names it.", "counter" if counts else "gauge"
        )
        # DCGM 4.6's names carry base units; the old ones carry DCGM's units (MHz, MiB, percent).
        renamed = name != metric.dcgm_field
        for sample, labels in entries:
            value = sample.values.get(metric.name)
            if value is not None:
                shown = value if renamed else round(value / metric.dcgm_scale, 6)
                family.add(_number(name, shown), labels)
        if family.lines:
            result.append(family)
    return result


def _number(name: str, value: float) -> str:
    """Integers as %d; DCGM's doubles (power, profiling ratios) and fractions with six decimals."""
    doubles = "POWER" in name or (name.startswith("DCGM_FI_PROF_") and not name.endswith("_BYTES"))
    return str(int(value)) if not doubles and float(value).is_integer() else f"{value:.6f}"


def labels_of(
    node: str,
    driver: str | None,
    accelerator: Accelerator,
    holders: Sequence[Holder],
    vintage: Vintage,
) -> dict[str, str]:
    """dcgm-exporter's labels in its order; a MIG instance is named by its device with profile and
    instance id.
    """
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
    return labels | holder_labels(holders)


def holder_labels(holders: Sequence[Holder]) -> dict[str, str]:
    """The pod or Slurm job of the first holder: one line per reading, so that no sum counts it
    twice.
    """
    for holder in holders:
        workload = holder.workload
        if workload.kind == "kubernetes":
            tags = workload.tags
            return {
                "container": tags.get("container", ""),
                "namespace": tags.get("namespace", workload.account or ""),
                "pod": tags.get("pod", workload.name or workload.id),
            }
        if workload.kind == "slurm":
            return {"hpc_job": workload.id}
    return {}
