"""The parts of a profile, as `read.py` builds them from a file; docs/guides/exporters.md explains
every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from gpuledger_common.metrics import Metric

Energy = Literal["measured", "exporter", "integrated", "unknown"]
ENERGY = {
    "measured": "a counter of the hardware",
    "exporter": "integrated from power by the exporter",
    "integrated": "integrated from power by GPU Ledger",
    "unknown": "unknown",
}
"""Where the energy of an accelerator comes from."""
Combine = Literal["max", "sum", "pods"]
PART_SHARES = ("mig", "count", "label", "value")
EXPORTED = "exported_"
"""What Prometheus puts before a label of the exporter that clashes with one of its own."""
HOST = "@host"
"""Stands for the host in a device's key."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a profile was written from: repository, version, files, and whether a capture shows it."""

    repository: str
    version: str
    sources: tuple[str, ...]
    status: Literal["real", "synthetic"]
    capture: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """Which series of a family count: labels with a value that fits a pattern (`*` in it), and
    labels that are empty.

    The pattern `*` alone fits every value that is not empty.
    """

    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unless: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels counts."""
        for name, patterns in self.where.items():
            value = labels.get(name, "")
            if not any(
                (value and fnmatchcase(value, pattern)) or pattern == value for pattern in patterns
            ):
                return False
        return not any(labels.get(name) for name in self.unless)


@dataclass(frozen=True, slots=True)
class ValueRule:
    """How a value of a family becomes one in base units: sentinels first, then the factor, then the
    range.
    """

    scale: float = 1.0
    low: float = float("-inf")
    high: float = float("inf")
    absent: tuple[float, ...] = ()
    """Values that mean a failed read."""
    absent_above: float = float("inf")
    """From this magnitude on, a value means that there is none."""
    is_zero_absent: bool = False
    is_percent_above_one: bool = False
    """Whether the family carries a percentage in some versions and a ratio in others."""

    def to_base_units(self, raw: float) -> float | None:
        """The value in base units; None where the exporter has none."""
        # NaN is the only value that differs from itself.
        if (
            raw != raw
            or abs(raw) >= self.absent_above
            or raw in self.absent
            or (raw == 0 and self.is_zero_absent)
        ):
            return None
        value = raw * self.scale
        return value / 100 if self.is_percent_above_one and value > 1 else value

    def is_possible(self, value: float) -> bool:
        """Whether a value in base units lies in the declared range."""
        return self.low <= value <= self.high

    def refusal(self, value: float) -> str:
        """Why a value in base units is refused."""
        return f"{value:g} is not from {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Family:
    """A family that gives a metric.

    `rank` orders the candidates of one metric: the first that is present counts.
    """

    name: str
    metric: Metric
    rule: ValueRule
    condition: Condition
    rank: int
    combine: Combine
    on_parts: bool
    """Whether the value belongs to a part of a device; else it is the entire device's, and no part
    gets it.
    """
    is_repeated: bool = False
    """Whether the profile declares how several series of one device are combined."""


@dataclass(frozen=True, slots=True)
class HealthRule:
    """A family whose value says that an accelerator is not well."""

    name: str
    values: tuple[float, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class Derived:
    """Labels made from the groups of a pattern that another label fits."""

    label: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Join:
    """Labels that only one family has, and that all series with the same values of `on` get.

    Where a join is `required`, a series without it is not understood.
    """

    families: tuple[str, ...]
    on: tuple[str, ...]
    labels: tuple[str, ...]
    required: Condition | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """How many parts (or units) a device of these models, or in this mode, has."""

    kind: str
    model: str
    parts: int


@dataclass(frozen=True, slots=True)
class PartValue:
    """A family whose value says the share of a part, by itself or divided by the device's value of
    another one.
    """

    name: str
    rule: ValueRule
    of: str


@dataclass(frozen=True, slots=True)
class PartRule:
    """How a device is divided: the labels that number its parts, and the share of each."""

    labels: tuple[str, ...]
    kind: str
    whole: tuple[str, ...]
    share: Literal["mig", "count", "label", "value"]
    counts: tuple[Count, ...]
    is_global: bool
    """Whether parts are numbered through all devices of a host."""
    amount: str
    """The label with the units of a part, for the share `label`."""
    values: tuple[PartValue, ...]
    """What the share `value` is the greatest of."""

    def parts(self, kind: str, model: str) -> int | None:
        """Parts of a device; None where the profile does not know."""
        for count in self.counts:
            if fnmatchcase(kind, count.kind) and fnmatchcase(model.lower(), count.model.lower()):
                return count.parts
        return None


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Which labels identify a device and describe it."""

    keys: tuple[tuple[str, ...], ...]
    prefix: str
    same: str
    """A label that stands for the device on lines without a key."""
    index: str
    model: tuple[str, ...]
    models: tuple[tuple[str, str], ...]
    """Patterns of model labels and the names that the price book knows."""
    hosts: tuple[str, ...]
    pci: str
    drivers: tuple[str, ...]

    def model_of(self, labels: Mapping[str, str]) -> str:
        """The model by the labels, under the name that the price book knows."""
        found = first(labels, self.model)
        for pattern, name in self.models:
            if fnmatchcase(found.lower(), pattern.lower()):
                return name
        return found


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """Which labels name the holder.

    Each is also found with the prefix `exported_`, which Prometheus adds.
    """

    pod: tuple[str, ...] = ()
    namespace: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    placeholders: tuple[str, ...] = ()
    own_pods: tuple[str, ...] = ()
    """Parts of the names of the exporter's own pods, which hold nothing."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that name a holder."""
        return (*self.pod, *self.namespace, *self.container, *self.job, *self.user)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Families that are known and must not be mapped, with the reason."""

    pattern: str
    reason: str


@dataclass(frozen=True, slots=True)
class Profile:
    """An exporter: which pages are its own, and what they mean."""

    id: str
    title: str
    energy: Energy
    evidence: Evidence
    match: tuple[str, ...]
    match_condition: Condition
    prefixes: tuple[str, ...]
    """Prefixes that people may set before all families; the empty one is always allowed."""
    device: DeviceRule
    part: PartRule | None
    owner: OwnerRule
    families: Mapping[str, tuple[Family, ...]]
    """By name; one family may give different metrics under different conditions."""
    health: Mapping[str, HealthRule]
    joins: tuple[Join, ...]
    derived: tuple[Derived, ...]
    ignored: tuple[Ignored, ...]
    devices_family: str
    """The family with the number of devices that the page should show."""
    limits: tuple[str, ...]
    names: frozenset[str] = field(default_factory=frozenset)
    """Every family that means something."""
    repeated: tuple[str, ...] = ()
    """Patterns of labels in which several lines of one family for one device may differ."""

    def plain_name(self, name: str) -> str | None:
        """The family of a series: without a prefix, and without the suffix that OpenMetrics adds;
        None: not known.
        """
        for prefix in ("", *self.prefixes):
            if name.startswith(prefix):
                short = name[len(prefix) :]
                if short in self.names:
                    return short
                if short.endswith("_total") and short[:-6] in self.names:
                    return short[:-6]
                if self.is_matched_by(short):
                    return short
        return None

    def may_differ(self, label: str) -> bool:
        """Whether the lines of one family for one device may differ in a label: one of holders,
        parts or repetition.
        """
        part = () if self.part is None else (*self.part.labels, self.part.kind, self.part.amount)
        known = (*self.owner.labels, *part)
        return label.removeprefix(EXPORTED) in known or any(
            fnmatchcase(label, entry) for entry in self.repeated
        )

    def is_matched_by(self, name: str) -> bool:
        """Whether a family shows that a page is this exporter's."""
        return any(fnmatchcase(name, pattern) for pattern in self.match)

    def why_ignored(self, name: str) -> str | None:
        """Why a family is not mapped on purpose; None where the profile does not mention it."""
        return next(
            (entry.reason for entry in self.ignored if fnmatchcase(name, entry.pattern)), None
        )


def first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of these labels that is not empty: exporters renamed theirs over the years."""
    for name in names:
        if value := labels.get(name):
            return value
    return ""
