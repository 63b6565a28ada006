"""Static rules: accelerators that are given to somebody for good, by a file.

[[hold]]
node = "gpu-07"            # every key narrows; * is a wildcard; no key matches everything
model = "*H100*"
index = 3
workload = "reserved-vision"
user = "amina"             # optional, as are account and name
tags = { team = "vision", project = "segmentation" }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpuledger_common.readings import Accelerator, AgentError, Holder, Sample, Workload

_MATCH = ("node", "model", "uuid", "index")
_KNOWN = {*_MATCH, "workload", "user", "account", "name", "tags"}


class BadRules(AgentError):
    """The rules file cannot be used; the message names file and place."""

    permanent = True


@dataclass(frozen=True, slots=True)
class HoldRule:
    """One rule: patterns by field, and the workload that holds what they match."""

    patterns: Mapping[str, str]
    workload: Workload

    def matches(self, accelerator: Accelerator, node: str) -> bool:
        """Whether every pattern fits."""
        actual = {"node": node, "model": accelerator.model, "uuid": accelerator.uuid, "index": str(accelerator.index)}
        return all(fnmatchcase(actual[name], pattern) for name, pattern in self.patterns.items())


@dataclass
class StaticOwners:
    """The rules of a file, first match wins."""

    node: str
    rules: Sequence[HoldRule]
    name: str = field(default="static", init=False)

    @classmethod
    def from_file(cls, path: Path, node: str) -> StaticOwners:
        """Reads the file. Raises BadRules with every fault."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadRules(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
        except tomllib.TOMLDecodeError as error:
            raise BadRules(f"{path}: is not TOML: {error}") from error
        faults = [f"{path}: {key} is not known; rules are [[hold]] tables" for key in content if key != "hold"]
        entries = content.get("hold", [])
        rules = [_rule(f"{path}: hold {number}", entry, faults) for number, entry in enumerate(entries, start=1)]
        if faults:
            raise BadRules("; ".join(faults))
        return cls(node, [rule for rule in rules if rule is not None])

    def holders(
        self,
        accelerators: Sequence[Accelerator],
        samples: Sequence[Sample],  # noqa: ARG002
    ) -> Mapping[str, Sequence[Holder]]:
        """The holder of each accelerator that a rule matches."""
        found: dict[str, Sequence[Holder]] = {}
        for accelerator in accelerators:
            rule = next((rule for rule in self.rules if rule.matches(accelerator, self.node)), None)
            if rule is not None:
                found[accelerator.uuid] = (Holder(rule.workload),)
        return found


def _rule(where: str, entry: Any, faults: list[str]) -> HoldRule | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("workload"), str) or not entry["workload"]:
        faults.append(f"{where}: workload, a name for what holds, is required")
        return None
    faults += [f"{where}: {key} is not a key; known are {', '.join(sorted(_KNOWN))}" for key in set(entry) - _KNOWN]
    tags = entry.get("tags", {})
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        faults.append(f"{where}: tags must be texts by name")
        return None
    patterns = {key: str(entry[key]) for key in _MATCH if key in entry}
    workload = Workload(entry["workload"], "static", entry.get("user"), entry.get("account"), entry.get("name"), tags)
    return HoldRule(patterns, workload)
