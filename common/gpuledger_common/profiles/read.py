"""Build a profile from its TOML file; every fault is reported with file and key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gpuledger_common.bounded_file import read_toml_text
from gpuledger_common.catalog import BY_NAME
from gpuledger_common.metrics import Metric
from gpuledger_common.profiles.model import (
    ENERGY,
    PART_SHARES,
    Condition,
    Count,
    Derived,
    DeviceRule,
    Evidence,
    Family,
    HealthRule,
    Ignored,
    Join,
    OwnerRule,
    PartRule,
    PartValue,
    Profile,
    ValueRule,
)
from gpuledger_common.profiles.table import Table
from gpuledger_common.settings import SettingsError, nearest_name

_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")
RANGES = {
    "ratio": (0.0, 1.05),
    "watts": (0.0, 3000.0),
    "joules": (0.0, 1e12),
    "celsius": (-50.0, 200.0),
    "bytes": (0.0, 1e13),
    "hertz": (0.0, 1e10),
    "bytes/s": (0.0, 1e14),
    "rpm": (0.0, 1e5),
}
"""Plausible ranges of one device by unit, where a profile declares none; a ratio may exceed 1 by
rounding.

The joules are those of 1 kW for thirty years.
"""
RATIO = ValueRule(low=0.0, high=1.0)
GATEWAY = "gateway"
"""What the key `kind` of a gateway profile says; an exporter's profile has none."""
METERED = ("gpu_sm_active_ratio", "gpu_graphics_engine_active_ratio", "gpu_utilization_ratio")
"""Metrics that say whether an accelerator is busy."""


class ProfileError(SettingsError):
    """A profile that cannot be used; the message names file and key of every fault."""


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises ProfileError."""
    return parse_profile(profile_text(path), str(path))


def profile_text(path: Path) -> str:
    """The text of a profile's file. Raises ProfileError."""
    try:
        return read_toml_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error


def is_gateway_file(path: Path) -> bool:
    """Whether a file declares a gateway and no exporter. Raises ProfileError."""
    return root_table(profile_text(path), str(path), []).text("kind", "") == GATEWAY


def parse_profile(text: str, place: str) -> Profile:
    """Build a profile from the text of a file at `place`. Raises ProfileError."""
    faults: list[str] = []
    profile = _profile(root_table(text, place, faults))
    if faults:
        raise ProfileError("; ".join(faults))
    return profile


def root_table(text: str, place: str, faults: list[str]) -> Table:
    """The tables of a profile's file, which put what is wrong into `faults`. Raises ProfileError."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{place}: is not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(
            f"{place}: nests too deep, or holds a number that is too long"
        ) from error
    return Table(content, f"{place}: ", faults)


def _profile(root: Table) -> Profile:
    identity = root.text("id")
    if identity and not _ID.fullmatch(identity):
        root.fault("id", f"{identity!r} is not lower-case letters, digits, dots and hyphens")
    match = root.table("match")
    families: dict[str, tuple[Family, ...]] = {}
    defaults = root.table("defaults")
    default = _rule(defaults, ValueRule())
    tables = root.tables("metrics")
    for table in tables:
        for family in _families(table, default):
            families[family.name] = (*families.get(family.name, ()), family)
        table.close()
    if not tables:
        root.fault("metrics", "is required: at least one [[metrics]] table")
    health = {rule.name: rule for rule in map(_health, root.tables("health"))}
    joins = tuple(map(_join, root.tables("join")))
    part = _part(root.table("part")) if "part" in root else None
    ignored = tuple(entry for table in root.tables("ignore") for entry in _read_ignored(table))
    checks = root.table("checks")
    profile_match = match.texts("families", is_required=True)
    names = {
        *families,
        *health,
        *profile_match,
        *(name for join in joins for name in join.families),
    }
    names |= {checks.text("devices", "")} - {""}
    names |= (
        {name for value in part.values for name in (value.name, value.of)} - {""}
        if part is not None
        else set()
    )
    profile = Profile(
        id=identity,
        title=root.text("title"),
        energy=cast(Any, root.choice("energy", ENERGY)),
        evidence=read_evidence(root.table("evidence")),
        match=profile_match,
        match_condition=_condition(match),
        prefixes=match.texts("prefixes"),
        device=_device(root.table("device")),
        part=part,
        owner=_owner(root.table("owner")),
        families=families,
        health=health,
        joins=joins,
        derived=tuple(
            rule for table in root.tables("derive") if (rule := _read_derived(table)) is not None
        ),
        ignored=ignored,
        devices_family=checks.text("devices", ""),
        limits=root.texts("limits"),
        names=frozenset(names),
        repeated=checks.texts("repeated"),
    )
    for table in (match, checks, defaults, root):
        table.close()
    return profile


def read_evidence(table: Table) -> Evidence:
    """What a profile was written from, by its table."""
    evidence = Evidence(
        table.text("repository"),
        table.text("version", ""),
        table.texts("sources"),
        cast(Any, table.choice("status", ("real", "synthetic"))),
        table.text("capture", ""),
    )
    table.close()
    return evidence


def _condition(table: Table) -> Condition:
    return Condition(table.mapping("where"), table.texts("unless"))


def _rule(table: Table, default: ValueRule) -> ValueRule:
    """The rule of a family; what its table leaves out is that of its metric."""
    low, high = default.low, default.high
    if "range" in table:
        bounds = table.numbers("range")
        if len(bounds) == 2 and bounds[0] <= bounds[1]:
            low, high = bounds
        else:
            table.fault("range", "is not [LOWEST, HIGHEST] in base units")
    scale = table.number("scale", default.scale)
    if scale <= 0:
        table.fault("scale", "must be above 0")
    is_absent = (
        table.choice("zero", ("real", "absent"), "absent" if default.is_zero_absent else "real")
        == "absent"
    )
    return ValueRule(
        scale,
        low,
        high,
        table.numbers("absent") or default.absent,
        table.number("absent_above", default.absent_above),
        is_absent,
        table.flag("percent_or_ratio") or default.is_percent_above_one,
    )


def _plausible(metric: Metric, default: ValueRule) -> tuple[float, float]:
    """The range of a metric that declares none. Counters of bytes grow without an upper bound."""
    if metric.kind == "counter" and metric.unit != "joules":
        return max(default.low, 0.0), default.high
    return RANGES.get(metric.unit, (default.low, default.high))


def _families(table: Table, default: ValueRule) -> list[Family]:
    name = table.text("metric")
    metric: Metric | None = BY_NAME.get(name)
    if metric is None:
        if name:
            table.fault(
                "metric",
                f"{name!r} is not in the catalog; the nearest name is"
                f" {nearest_name(name, BY_NAME)}",
            )
        table.texts_or_tables("families")
        table.skip_rest()
        return []
    low, high = _plausible(metric, default)
    default = _rule(table, replace(default, low=low, high=high))
    condition = _condition(table)
    is_repeated = "combine" in table
    combine = table.choice("combine", ("max", "sum", "pods"), "max")
    if combine == "sum" and name in METERED:
        table.fault("combine", "busy time is never decided by a sum")
    of_default = "part" if "MIG" in metric.scopes else "device"
    on_parts = table.choice("of", ("part", "device"), of_default) == "part"
    families = []
    for rank, entry in enumerate(table.texts_or_tables("families")):
        own = _condition(entry)
        where = Condition({**condition.where, **own.where}, (*condition.unless, *own.unless))
        rule = _rule(entry, default)
        # All families of a sum count; of others the first that is there.
        order = 0 if combine == "sum" else rank
        own_name = entry.text("name")
        families.append(
            Family(own_name, metric, rule, where, order, cast(Any, combine), on_parts, is_repeated)
        )
        entry.close()
    return families


def _health(table: Table) -> HealthRule:
    rule = HealthRule(table.text("family"), table.numbers("values"), table.text("cause"))
    if not rule.values:
        table.fault("values", "is required: the values that mean a fault")
    table.close()
    return rule


def _join(table: Table) -> Join:
    required = table.table("required")
    join = Join(
        table.texts("families", is_required=True),
        table.texts("on", is_required=True),
        table.texts("labels", is_required=True),
        _condition(required) if "required" in table else None,
    )
    table.close()
    return join


def _read_derived(table: Table) -> Derived | None:
    label, pattern = table.text("label"), table.text("pattern")
    table.close()
    try:
        return Derived(label, re.compile(pattern))
    except re.error as error:
        table.fault("pattern", f"is not a regular expression: {error}")
        return None


def _read_ignored(table: Table) -> list[Ignored]:
    reason = table.text("reason")
    entries = [Ignored(pattern, reason) for pattern in table.texts("families", is_required=True)]
    table.close()
    return entries


def _device(table: Table) -> DeviceRule:
    rule = DeviceRule(
        table.lists("keys"),
        table.text("prefix", ""),
        table.text("same", ""),
        table.text("index", ""),
        table.texts("model"),
        tuple((pattern, name) for pattern, (name, *_) in table.mapping("models").items()),
        table.texts("hosts"),
        table.text("pci", ""),
        table.texts("drivers"),
    )
    table.close()
    return rule


def _part(table: Table) -> PartRule:
    share = table.choice("share", PART_SHARES)
    counts = []
    for entry in table.tables("counts"):
        parts = entry.number("parts", 0)
        if parts < 1 or parts != int(parts):
            entry.fault("parts", "must be a whole number of 1 or more")
        counts.append(Count(entry.text("kind", "*"), entry.text("model", "*"), max(int(parts), 1)))
        entry.close()
    values = []
    for entry in table.tables("values"):
        of = entry.text("of", "")
        values.append(
            PartValue(entry.text("family"), _rule(entry, ValueRule() if of else RATIO), of)
        )
        entry.close()
    needed = {"count": counts, "label": counts, "value": values}.get(share)
    if needed == []:
        table.fault("share", f"{share} needs [[part.{'values' if share == 'value' else 'counts'}]]")
    rule = PartRule(
        table.texts("labels", is_required=True),
        table.text("kind", ""),
        table.texts("whole"),
        cast(Any, share),
        tuple(counts),
        table.choice("numbering", ("device", "host"), "device") == "host",
        table.text("amount", ""),
        tuple(values),
    )
    table.close()
    return rule


def _owner(table: Table) -> OwnerRule:
    rule = OwnerRule(
        table.texts("pod"),
        table.texts("namespace"),
        table.texts("container"),
        table.texts("job"),
        table.texts("user"),
        table.texts("placeholders"),
        table.texts("own_pods"),
    )
    table.close()
    return rule
