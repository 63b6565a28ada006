"""Parse pages of dcgm-exporter into accelerators, readings and the workloads that labels name.

Old field names, those of DCGM 4.6 and the base-unit fields of 4.7, `Hostname` and `hostname`, and pages with stray
lines are all accepted. A device metric that is repeated (once per pod that shares the device, once per MIG instance) is
counted once: MIG instances are accelerators of their own and get only what is measured per instance; the board's power,
energy, clocks and temperature belong to no instance.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from gpuledger_common.catalog import BY_NAME, METRICS
from gpuledger_common.health import verdict
from gpuledger_common.metrics import Metric
from gpuledger_common.mig import fitted, profile_share
from gpuledger_common.plurals import plural
from gpuledger_common.readings import WHOLE_GPU, Accelerator, Health, Workload
from gpuledger_common.xids import meaning

BLANK = 1e15
"""Above this a value is one of DCGM's blanks (INT64 and FP64 sentinels, 9.2e18 or so); no metric comes near."""
_LINE = re.compile(r"^[A-Za-z_:][\w:]*(\{.*\})?[ \t]+[-+]?(\d[\d.eE+-]*|NaN|nan|\+?Inf)([ \t]+\d+)?\s*$")
_ELISION = re.compile(r",?\s*\.\.\.\s*(?=[,}])")
_BY_FIELD: dict[str, Metric] = {}
for _metric in METRICS:
    if _metric.scopes[0] != "process" and _metric.tier != "compat":
        for _name in (_metric.dcgm_field, _metric.dcgm_field_46):
            if _name:
                _BY_FIELD.setdefault(_name, _metric)

BASE_UNIT_NAMES = {
    "DCGM_FI_DEV_BAR1_CAPACITY_BYTES": "gpu_bar1_total_bytes",
    "DCGM_FI_DEV_BAR1_USED_BYTES": "gpu_bar1_used_bytes",
    "DCGM_FI_DEV_BAR1_FREE_BYTES": "gpu_bar1_free_bytes",
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": "gpu_sm_clock_hertz",
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": "gpu_memory_clock_hertz",
    "DCGM_FI_DEV_VIDEO_CLOCK_HERTZ": "gpu_video_clock_hertz",
    "DCGM_FI_DEV_SM_APP_CLOCK_HERTZ": "gpu_application_sm_clock_hertz",
    "DCGM_FI_DEV_MEMORY_APP_CLOCK_HERTZ": "gpu_application_memory_clock_hertz",
    "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ": "gpu_sm_clock_max_hertz",
    "DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ": "gpu_memory_clock_max_hertz",
    "DCGM_FI_DEV_VIDEO_MAX_CLOCK_HERTZ": "gpu_video_clock_max_hertz",
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": "gpu_energy_joules_total",
    "DCGM_FI_DEV_FAN_SPEED_RATIO": "gpu_fan_speed_ratio",
    "DCGM_FI_DEV_GPU_UTIL_RATIO": "gpu_utilization_ratio",
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": "gpu_memory_copy_utilization_ratio",
    "DCGM_FI_DEV_ENC_UTIL_RATIO": "gpu_encoder_utilization_ratio",
    "DCGM_FI_DEV_DEC_UTIL_RATIO": "gpu_decoder_utilization_ratio",
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": "gpu_memory_total_bytes",
    "DCGM_FI_DEV_FB_FREE_BYTES": "gpu_memory_free_bytes",
    "DCGM_FI_DEV_FB_USED_BYTES": "gpu_memory_used_bytes",
    "DCGM_FI_DEV_FB_RESERVED_BYTES": "gpu_memory_reserved_bytes",
}
"""DCGM 4.7's fields 1600 to 1628, which dcgm-exporter 4.9 prints by default: already in base units."""
PERCENT_UNDER_A_RATIO_NAME = "DCGM_FI_DEV_GPU_UTIL_RATIO"
"""In DCGM 4.6 this was the new name of field 203, a whole percentage; from 4.7 on it is field 1613, a ratio in 0..1."""

BY_POD = {"gpu_utilization_ratio": 1.0, "gpu_memory_used_bytes": 1e15}
"""Metrics that newer exporters print per pod on a shared GPU, with the upper bound of their sum."""


@dataclass
class PageAccelerator:
    """One accelerator of a page: its identity, its values, and the workloads that its lines name."""

    accelerator: Accelerator
    node: str
    driver: str | None = None
    values: dict[str, float | int] = field(default_factory=dict)
    owners: dict[tuple[str, str], Workload] = field(default_factory=dict)
    by_pod: dict[str, dict[str, float | int]] = field(default_factory=dict)
    """Values of the metrics in BY_POD, by pod."""


@dataclass(frozen=True, slots=True)
class DcgmPage:
    """A parsed page: accelerators by uuid, and messages about malformed lines."""

    accelerators: Mapping[str, PageAccelerator]
    problems: tuple[str, ...]


def parse(text: str) -> DcgmPage:
    """The accelerators of a dcgm-exporter's page. Raises ValueError when no line names one."""
    clean, problems = _clean(text)
    accelerators: dict[str, PageAccelerator] = {}
    devices_with_mig: set[str] = set()
    by_index: dict[str, str] = {}  # a line whose UUID was elided still names the GPU by its index on this page
    for family in text_string_to_metric_families(clean):
        for line in family.samples:
            uuid = _first(line.labels, "UUID", "gpu_uuid", "uuid") or by_index.get(line.labels.get("gpu", ""))
            if uuid:
                by_index.setdefault(line.labels.get("gpu", ""), uuid)
                entry = _entry(accelerators, uuid, line.labels)
                if entry.accelerator.mig_instance is not None:
                    devices_with_mig.add(uuid)
                _take(entry, line.name, line.labels, line.value)
    if not accelerators:
        raise ValueError("no line has a GPU's UUID: is this the page of a dcgm-exporter?")
    for uuid in devices_with_mig:
        # With MIG on, the instances are held; the device's own lines would count it a second time.
        accelerators.pop(uuid, None)
    shares = fitted(entry.accelerator for entry in accelerators.values())
    for entry, accelerator in zip(accelerators.values(), shares, strict=True):
        entry.accelerator = accelerator
    return DcgmPage(accelerators, tuple(problems))


def _first(labels: Mapping[str, str], *names: str) -> str:
    """The first of these labels that is not empty: exporters renamed theirs over the years."""
    return next((labels[name] for name in names if labels.get(name)), "")


def _clean(text: str) -> tuple[str, list[str]]:
    """The lines that are samples, with elided labels removed, and messages about the rest."""
    lines, stray, elided = [], 0, 0
    for raw in text.splitlines():
        if not raw.strip() or raw.startswith("#"):
            continue
        line = _ELISION.sub("", raw).replace("{,", "{")
        elided += line != raw
        if _LINE.match(line):
            lines.append(line)
        else:
            stray += 1
    problems = []
    if stray:
        problems.append(f"{plural(stray, 'line')} without a sample: skipped")
    if elided:
        problems.append(f"{plural(elided, 'line')} with elided labels")
    return "\n".join(lines) + "\n", problems


def accelerator_of(device: str, labels: Mapping[str, str]) -> Accelerator:
    """The device, or its MIG instance, that a line with these labels is about."""
    profile, instance = labels.get("GPU_I_PROFILE", ""), labels.get("GPU_I_ID", "")
    model = _first(labels, "modelName", "model_name")
    digits = labels.get("gpu", "")
    return Accelerator(
        f"{device}/{instance}" if instance else device,
        device,
        int(digits) if digits.isdecimal() else 0,
        model,
        f"{profile}/{instance}" if instance else None,
        (profile_share(profile, model) if instance else None) or WHOLE_GPU,
        None,
        labels.get("pci_bus_id") or None,
    )


def _entry(accelerators: dict[str, PageAccelerator], device: str, labels: Mapping[str, str]) -> PageAccelerator:
    instance = labels.get("GPU_I_ID", "")
    uuid = f"{device}/{instance}" if instance else device
    entry = accelerators.get(uuid)
    if entry is None:
        entry = PageAccelerator(accelerator_of(device, labels), _first(labels, "Hostname", "hostname"))
        accelerators[uuid] = entry
    entry.driver = entry.driver or _first(labels, "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION") or None
    return entry


def _take(entry: PageAccelerator, name: str, labels: Mapping[str, str], value: float) -> None:
    workload = owner_of(labels)
    if workload is not None:
        entry.owners.setdefault((workload.kind, workload.id), workload)
    metric = metric_of(name)
    # NaN is the only value that differs from itself.
    if metric is None or value != value or abs(value) >= BLANK:
        return
    # Board readings that an exporter repeats on the lines of its instances belong to none of them.
    if entry.accelerator.mig_instance is not None and "MIG" not in metric.scopes:
        return
    scaled = _scaled(metric, name, value)
    if metric.name in BY_POD:
        pod = f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
        by_pod = entry.by_pod.setdefault(metric.name, {})
        by_pod[pod] = max(scaled, by_pod.get(pod, scaled))
        entry.values[metric.name] = device_value(by_pod.values(), BY_POD[metric.name])
        return
    entry.values.setdefault(metric.name, scaled)


def device_value(values: Collection[float | int], upper_bound: float) -> float | int:
    """A device's value from one line per pod: equal values repeat the device's, different ones are the pods' parts.

    dcgm-exporter repeated the device's value for every pod that shares it until 4.5.1, and gives each pod's own part
    since; a part is 0 for a pod without a process.
    """
    return max(values) if len(set(values)) == 1 else min(sum(values), upper_bound)


def metric_of(name: str) -> Metric | None:
    """The catalog's metric for a name of dcgm-exporter, of any vintage; None for a name that it does not have."""
    if name in BASE_UNIT_NAMES:
        return BY_NAME[BASE_UNIT_NAMES[name]]
    return _BY_FIELD.get(name) or _BY_FIELD.get(name.removesuffix("_total"))


def factor_of(metric: Metric, name: str) -> float:
    """The factor that turns a value under this name into the metric's base unit."""
    return 1.0 if name in BASE_UNIT_NAMES else metric.dcgm_scale


def _scaled(metric: Metric, name: str, value: float) -> float | int:
    if name == PERCENT_UNDER_A_RATIO_NAME:
        scaled = value / 100 if value > 1 else value
    else:
        scaled = value * factor_of(metric, name)
    return int(scaled) if metric.column_kind == "i8" else scaled


def owner_of(labels: Mapping[str, str]) -> Workload | None:
    """The Slurm job or the pod that a line names; None when it names none."""
    job = labels.get("hpc_job", "")
    if job:
        return Workload(job, "slurm", name=f"job {job}")
    pod = _first(labels, "pod", "pod_name", "exported_pod")
    if not pod:
        return None
    namespace = _first(labels, "namespace", "pod_namespace", "exported_namespace")
    container = _first(labels, "container", "container_name", "exported_container")
    tags = {"namespace": namespace, "pod": pod} | ({"container": container} if container else {})
    return Workload(f"{namespace}/{pod}", "kubernetes", account=namespace or None, name=pod, tags=tags)


def page_health(values: Mapping[str, float | int]) -> Health:
    """Health by the counters and the last Xid; dcgm-exporter keeps an Xid until it restarts, so it only degrades."""
    xid = int(values.get("gpu_last_xid", 0))
    if xid and (known := meaning(xid)).severity == "critical":
        return Health("degraded", f"Xid {xid} is the exporter's latest: {known.text}; {known.action}")
    return verdict(values)
