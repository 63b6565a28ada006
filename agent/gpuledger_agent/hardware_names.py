"""OpenTelemetry's `hw.*` names on /metrics, spelled as an OpenTelemetry Collector writes them for
Prometheus.

Semantic conventions 1.44.0, docs/hardware/gpu.md and common.md. Their status is Development: names
may still change, so the setting `hw_names` is off by default. Only what the conventions define is
written; they know no clocks, no throttling and no tensor activity.
`hw_gpu_memory_utilization_ratio` is the used part, as the conventions say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_common.exporter_names import holder_labels
from gpuledger_common.exposition_text import Family, Kind, label_text, number
from gpuledger_common.readings import Accelerator, Holder, Sample

STATES = ("ok", "degraded", "failed")
"""Values of hw.state; of a device whose health is unknown there is no line."""
KUBERNETES = {
    "namespace": "k8s_namespace_name",
    "pod": "k8s_pod_name",
    "container": "k8s_container_name",
}
"""The conventions' names of dcgm-exporter's labels."""


@dataclass(frozen=True, slots=True)
class Convention:
    """A family of the conventions, and the catalog's metrics that it shows, each with further
    labels.
    """

    name: str
    title: str
    shows: Mapping[str, Mapping[str, str]]
    kind: Kind = "gauge"


CONVENTIONS = (
    Convention(
        "hw_gpu_utilization_ratio",
        "hw.gpu.utilization",
        {
            "gpu_utilization_ratio": {"hw_gpu_task": "general"},
            "gpu_encoder_utilization_ratio": {"hw_gpu_task": "encoder"},
            "gpu_decoder_utilization_ratio": {"hw_gpu_task": "decoder"},
        },
    ),
    Convention("hw_gpu_memory_usage_bytes", "hw.gpu.memory.usage", {"gpu_memory_used_bytes": {}}),
    Convention("hw_gpu_memory_limit_bytes", "hw.gpu.memory.limit", {"gpu_memory_total_bytes": {}}),
    Convention(
        "hw_gpu_memory_utilization_ratio",
        "hw.gpu.memory.utilization",
        {"gpu_memory_used_ratio": {}},
    ),
    Convention(
        "hw_gpu_io_bytes",
        "hw.gpu.io",
        {
            "gpu_pcie_transmit_bytes_total": {"network_io_direction": "transmit"},
            "gpu_pcie_receive_bytes_total": {"network_io_direction": "receive"},
        },
        "counter",
    ),
    Convention(
        "hw_errors",
        "hw.errors",
        {
            "gpu_ecc_corrected_volatile_total": {"error_type": "corrected"},
            "gpu_ecc_uncorrected_volatile_total": {"error_type": "uncorrected"},
        },
        "counter",
    ),
    Convention("hw_energy_joules", "hw.energy", {"gpu_energy_joules_total": {}}, "counter"),
    Convention("hw_power_watts", "hw.power", {"gpu_power_watts": {}}),
    Convention("hw_temperature_celsius", "hw.temperature", {"gpu_temperature_celsius": {}}),
)


def hardware_families(
    node: str, latest: Iterable[tuple[Accelerator, Sample, Sequence[Holder]]]
) -> Iterable[Family]:
    """The families of all accelerators that have a reading, each once; unknown readings have no
    line.
    """
    entries = [
        (sample, labels_of(node, accelerator, holders)) for accelerator, sample, holders in latest
    ]
    for shown in CONVENTIONS:
        name = f"{shown.name}_total" if shown.kind == "counter" else shown.name
        family = Family(name, f"{shown.title} (OpenTelemetry, in development).", shown.kind)
        for sample, labels in entries:
            for metric, further in shown.shows.items():
                if metric in sample.values:
                    text = label_text({**labels, **further})
                    family.add(number(sample.values[metric]), text)
        if family.lines:
            yield family
    status = Family("hw_status", "hw.status (OpenTelemetry, in development).", "gauge")
    for sample, labels in entries:
        if sample.health.status in STATES:
            for state in STATES:
                value = number(state == sample.health.status)
                status.add(value, label_text({**labels, "hw_state": state}))
    if status.lines:
        yield status


def labels_of(node: str, accelerator: Accelerator, holders: Sequence[Holder]) -> dict[str, str]:
    """The conventions' attributes as labels; a MIG instance names its device as hw_parent."""
    labels = {
        "hw_id": accelerator.uuid,
        "hw_type": "gpu",
        "hw_name": f"GPU {accelerator.index}",
        "hw_model": accelerator.model,
        "host_name": node,
    }
    if accelerator.mig_instance is not None:
        labels["hw_parent"] = accelerator.device_uuid
    owner = holder_labels(holders)
    return labels | {name: owner[label] for label, name in KUBERNETES.items() if label in owner}
