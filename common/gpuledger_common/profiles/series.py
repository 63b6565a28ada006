"""Understand one series by a profile: which accelerator it is about, which metric it gives, and who
holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger_common.mig import profile_share
from gpuledger_common.profiles.model import (
    EXPORTED,
    HOST,
    Family,
    HealthRule,
    OwnerRule,
    PartRule,
    PartValue,
    Profile,
    first,
)
from gpuledger_common.readings import WHOLE_GPU, Accelerator, Workload

_CONTAINER_ID = re.compile(r"[0-9a-f]{12}(?:[0-9a-f]{52})?")
MAX_PART = 2**31


class Uncounted(Exception):
    """A series of a device that is divided in a way that the profile does not count; the message
    says which.
    """


@dataclass(frozen=True, slots=True)
class Described:
    """What a series is about.

    A part whose share is a value of the page has `gpu_micro` 0 until that is read.
    """

    accelerator: Accelerator
    host: str
    driver: str | None
    families: tuple[Family, ...]
    owner: Workload | None
    share: PartValue | None = None
    """Set where the value of this series says the share of the part."""
    health: HealthRule | None = None


def describe(
    profile: Profile, name: str, labels: Mapping[str, str], host: str = ""
) -> Described | None:
    """What a series means; None where the profile does not know it or nothing says which device it
    is about.

    `name` is one of the profile's own, without prefix. `host` is used where the labels name none.
    Raises Uncounted.
    """
    if not profile.match_condition.holds(labels):
        return None
    for join in profile.joins:
        if (
            join.required is not None
            and join.required.holds(labels)
            and not any(map(labels.get, join.labels))
        ):
            return None
    node = host_of(profile.device.hosts, labels) or host
    device = device_key(profile, labels, node)
    if not device:
        return None
    accelerator = _accelerator(profile, device, labels)
    part = profile.part
    share = (
        None
        if part is None
        else next((value for value in part.values if name in (value.name, value.of)), None)
    )
    is_part = accelerator.mig_instance is not None
    families = tuple(
        family
        for family in profile.families.get(name, ())
        # Readings of the entire device that an exporter repeats on the lines of its parts belong to
        # none of them.
        if family.condition.holds(labels) and (family.on_parts or not is_part)
    )
    owner = owner_of(profile.owner, labels, accelerator.uuid)
    driver = first(labels, profile.device.drivers) or None
    return Described(accelerator, node, driver, families, owner, share, profile.health.get(name))


def derived_labels(profile: Profile, labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels, and those that patterns of the profile make from them."""
    for rule in profile.derived:
        match = rule.pattern.fullmatch(labels.get(rule.label, ""))
        if match:
            labels = {**labels, **match.groupdict("")}
    return labels


def host_of(names: tuple[str, ...], labels: Mapping[str, str]) -> str:
    """The host by the first of these labels that is not a container's id; an exporter in a
    container has no better.
    """
    return next(
        (
            value
            for name in names
            if (value := labels.get(name)) and not _CONTAINER_ID.fullmatch(value)
        ),
        "",
    )


def device_key(profile: Profile, labels: Mapping[str, str], host: str) -> str:
    """The identity of a device, by the first key whose labels are all there; empty where none is."""
    for key in profile.device.keys:
        values = [host if label == HOST else labels.get(label, "") for label in key]
        if all(values):
            return profile.device.prefix + "/".join(values)
    return ""


def _accelerator(profile: Profile, device: str, labels: Mapping[str, str]) -> Accelerator:
    rule, model, part = profile.device, profile.device.model_of(labels), profile.part
    index = _number(labels.get(rule.index, "")) or 0
    pci = labels.get(rule.pci) or None
    numbers = [] if part is None else [labels.get(name, "") for name in part.labels]
    label = "/".join(numbers) if all(numbers) else ""
    kind = "" if part is None else labels.get(part.kind, "")
    if part is None or not label or (part.kind and kind in part.whole):
        return Accelerator(device, device, index, model, pci_bus_id=pci)
    raw_model = first(labels, rule.model)
    parts = part.parts(kind, raw_model)
    if part.is_global:
        number = _number(label)
        if parts is None or number is None:
            raise Uncounted(
                f"{part.labels[0]} {label!r} of model {raw_model!r}: the profile has no count"
                " for it"
            )
        device, label, index = f"{device}/{number // parts}", str(number % parts), number // parts
        if parts == 1:
            return Accelerator(device, device, index, model, pci_bus_id=pci)
    share = _share(part, kind, raw_model, labels, parts)
    return Accelerator(
        f"{device}/{label}", device, index, model, f"{kind or 'part'}/{label}", share, None, pci
    )


def _share(
    part: PartRule, kind: str, model: str, labels: Mapping[str, str], parts: int | None
) -> int:
    """Micro-GPUs of a part; 0 where a value of the page says it."""
    if part.share == "mig":
        return profile_share(kind, model) or WHOLE_GPU
    if part.share == "value":
        return 0
    amount = 1 if part.share == "count" else _number(labels.get(part.amount, ""))
    if parts is None or not amount:
        raise Uncounted(
            f"a part {kind!r} of model {model!r}: the profile does not say how many are one device"
        )
    return max(min(amount, parts) * WHOLE_GPU // parts, 1)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text) < MAX_PART else None


def owner_of(rule: OwnerRule, labels: Mapping[str, str], accelerator: str = "") -> Workload | None:
    """The Slurm job or the pod that labels name; None when they name none.

    A job wins over a pod, and the holder's own names over those of the exporter's pod, which holds
    nothing. A placeholder's pod is the workload `hidden pods of ACCELERATOR`.
    """
    names = rule.pod, rule.namespace, rule.container
    # With honor_labels off, Prometheus keeps the exporter's own pod under the plain names and
    # renames the holder's.
    if any(labels.get(EXPORTED + name) for name in rule.pod):
        names = (
            _exported_names(rule.pod),
            _exported_names(rule.namespace),
            _exported_names(rule.container),
        )
    job = first(labels, (*_exported_names(rule.job), *rule.job))
    if job:
        return Workload(job, "slurm", user=first(labels, rule.user) or None, name=f"job {job}")
    pod, namespace, container = (first(labels, aliases) for aliases in names)
    if not pod or any(own in pod for own in rule.own_pods):
        return None
    # The exporter hides the names: somebody holds the accelerator, and nobody can be billed for it
    # by name.
    if pod in rule.placeholders:
        return Workload(
            f"hidden pods of {accelerator}",
            "kubernetes",
            name="pods that the exporter does not name",
        )
    tags = {"namespace": namespace, "pod": pod} | ({"container": container} if container else {})
    return Workload(
        f"{namespace}/{pod}", "kubernetes", account=namespace or None, name=pod, tags=tags
    )


def _exported_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(EXPORTED + name for name in names)
