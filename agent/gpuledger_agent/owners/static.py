"""Static rules: accelerators that a file assigns to a workload permanently.

[[hold]] node = "gpu-07" # every key narrows the match; * is a wildcard; a rule without these keys
matches everything model = "*H100*" index = 3 workload = "reserved-vision" user = "amina" #
optional, as are account and name tags = { team = "vision", project = "segmentation" }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpuledger_common.readings import Accelerator, Holder, Holders, Sample, Workload
from gpuledger_common.settings import SettingsError, read_toml

_PATTERN_KEYS = ("node", "model", "uuid", "index")
_KNOWN_KEYS = {*_PATTERN_KEYS, "workload", "user", "account", "name", "tags"}


@dataclass(frozen=True, slots=True)
class HoldRule:
    """One rule: patterns by field, and the workload that holds the accelerators that they match."""

    patterns: Mapping[str, str]
    workload: Workload

    def matches(self, accelerator: Accelerator, node: str) -> bool:
        """Whether every pattern fits."""
        actual = {
            "node": node,
            "model": accelerator.model,
            "uuid": accelerator.uuid,
            "index": str(accelerator.index),
        }
        return all(fnmatchcase(actual[name], pattern) for name, pattern in self.patterns.items())


@dataclass
class StaticOwners:
    """The rules of a file; the first match wins."""

    node: str
    rules: Sequence[HoldRule]
    name: str = field(default="static", init=False)

    @classmethod
    def from_file(cls, path: Path, node: str) -> StaticOwners:
        """Read the file. Raises SettingsError with every fault."""
        content = read_toml(path)
        faults = [
            f"{path}: {key} is not known; rules are [[hold]] tables"
            for key in content
            if key != "hold"
        ]
        entries = content.get("hold", [])
        rules = [
            _rule(f"{path}: hold {number}", entry, faults)
            for number, entry in enumerate(entries, start=1)
        ]
        if faults:
            raise SettingsError("; ".join(faults))
        return cls(node, [rule for rule in rules if rule is not None])

    def holders(self, accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The holder of each accelerator that a rule matches."""
        holders: dict[str, Sequence[Holder]] = {}
        for accelerator in accelerators:
            rule = next((rule for rule in self.rules if rule.matches(accelerator, self.node)), None)
            if rule is not None:
                holders[accelerator.uuid] = (Holder(rule.workload),)
        return holders


def _rule(where: str, entry: Any, faults: list[str]) -> HoldRule | None:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("workload"), str)
        or not entry["workload"]
    ):
        faults.append(f"{where}: workload, the name of the holder, is required")
        return None
    known = ", ".join(sorted(_KNOWN_KEYS))
    faults += [
        f"{where}: {key} is not a key; known are {known}" for key in set(entry) - _KNOWN_KEYS
    ]
    tags = entry.get("tags", {})
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        faults.append(f"{where}: tags must be texts by name")
        return None
    patterns = {key: str(entry[key]) for key in _PATTERN_KEYS if key in entry}
    workload = Workload(
        entry["workload"],
        "static",
        entry.get("user"),
        entry.get("account"),
        entry.get("name"),
        tags,
    )
    return HoldRule(patterns, workload)
