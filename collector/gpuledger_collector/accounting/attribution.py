"""Attribution: from what people wrote on a workload to the owner who pays its charges.

Without rules, a tag named like a level of the tree is that level; the workload's user, where it is
known, is the level `user`, whatever a tag says. Rules that are in force override levels, in their
order; what no tag and no rule names is unattributed. A level that looks like a reserved row of the
reports, such as `(unallocated)`, is escaped here, whatever its source; levels that are longer than
any name are cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath, path_of
from gpuledger_collector.accounting.reserved_names import escape_name

FACTS = ("kind", "user", "account", "name", "job", "queue", "pool", "node")
"""Names that a rule may match in addition to tags."""
PLACE_FACTS = ("pool", "node")
"""Those that belong to what a workload holds, and differ from one accelerator of it to another."""

MAX_PATH_BYTES = 2_600
"""Of the levels of an owner: one is found by all of them, and an entry of an index holds 2,704."""
MAX_LEVEL_BYTES = MAX_PATH_BYTES // len(LEVELS)
"""Of each level of a longer one."""
SLURM = "slurm"
_SACCT_KEY = re.compile(r"imported:import:.*/([^/@]+)(@[0-9]+){1,2}", re.ASCII | re.DOTALL)
"""Keys of jobs that Slurm's accounting brought: CLUSTER/JOB@SUBMITTED, and of a requeued one its
start as well.
"""
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A dated, ordered rule: where all of `match` (tags or facts, `*` as wildcard) hold, `assign`
    sets levels.

    `assign` may name tags and facts in braces: `{account}`. A level whose placeholder has no value
    is left as it was.
    """

    id: int | None
    name: str
    position: int
    match: Mapping[str, str]
    assign: Mapping[str, str]
    effective_from_ms: int | None = None
    effective_to_ms: int | None = None

    def in_force(self, at_ms: int) -> bool:
        """Whether the rule holds at an instant."""
        started = self.effective_from_ms is None or self.effective_from_ms <= at_ms
        return started and (self.effective_to_ms is None or at_ms < self.effective_to_ms)


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What is known of a workload; a fact wins over a tag of the same name: tags are what users
    like to write.
    """

    id: int
    kind: str
    user: str | None
    account: str | None
    name: str | None
    tags: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    node: str = ""
    key: str = ""
    """Kind, scope and id: what tells workloads apart whatever numbers they got."""
    job: str = ""
    """The work that it is a part of, such as `JobSet vision/train`."""
    queue: str = ""
    """The queue of its scheduler, such as `vision/train`."""

    def has_kind(self, pattern: str) -> bool:
        """Whether a pattern names the kind. A job of Slurm is one by whichever way it came."""
        if fnmatchcase(self.kind, pattern):
            return True
        return fnmatchcase(SLURM, pattern) and _SACCT_KEY.fullmatch(self.key) is not None

    def value(self, name: str) -> str | None:
        """The value of a tag or fact, None when there is none."""
        fact: str | None = getattr(self, name) if name in FACTS else None
        return fact or self.tags.get(name, "").strip() or None


def slurm_job_id(key: str) -> str | None:
    """The number of the job of Slurm whose accounting brought this workload; None for others."""
    job = _SACCT_KEY.fullmatch(key)
    return None if job is None else job[1]


def edges_of(rules: Iterable[Rule]) -> list[int]:
    """The instants at which some rule begins or ends to hold."""
    bounds = {at for rule in rules for at in (rule.effective_from_ms, rule.effective_to_ms)}
    return sorted(at for at in bounds if at is not None)


class Attribution:
    """The rules in force, asked for one workload at one instant."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: (rule.position, rule.id or 0)))

    def owner_of(self, facts: WorkloadFacts, at_ms: int) -> OwnerPath:
        """The owner that tags and rules name; empty levels where nothing does."""
        # Tags, then the user that the system reported, then rules: each overrides what came before
        # it.
        levels = {
            level: facts.tags[level].strip()
            for level in LEVELS
            if facts.tags.get(level, "").strip()
        }
        if facts.user:
            levels["user"] = facts.user
        for rule in self.matching(facts, at_ms):
            levels |= _assign_owner(rule, facts)
        return _path_of_texts(tuple(levels.items()))

    @property
    def depends_on_place(self) -> bool:
        """Whether some rule looks at the pool or the node where a workload runs."""
        names = {
            name
            for rule in self.rules
            for name in (*rule.match, *_PLACEHOLDER.findall("".join(rule.assign.values())))
        }
        return not names.isdisjoint(PLACE_FACTS)

    def matching(self, facts: WorkloadFacts, at_ms: int) -> list[Rule]:
        """The rules that hold for this workload at this instant, in order."""
        return [rule for rule in self.rules if rule.in_force(at_ms) and _matches(rule, facts)]


@lru_cache(maxsize=65536)
def _path_of_texts(levels: tuple[tuple[str, str], ...]) -> OwnerPath:
    """The owner of levels as tags and rules name them; most workloads of a fleet share theirs."""
    # Cut and escaped after the rules, since a rule may put a user's text into a level.
    return path_of({level: escape_name(name) for level, name in _cut_levels(dict(levels)).items()})


def _cut_levels(levels: Mapping[str, str]) -> Mapping[str, str]:
    """The levels, each cut where all of them are too long for an index."""
    if 4 * sum(map(len, levels.values())) <= MAX_PATH_BYTES:  # whatever the characters
        return levels
    encoded = {level: name.encode() for level, name in levels.items()}
    if sum(map(len, encoded.values())) <= MAX_PATH_BYTES:
        return levels
    return {
        level: name[:MAX_LEVEL_BYTES].decode(errors="ignore") for level, name in encoded.items()
    }


def _matches(rule: Rule, facts: WorkloadFacts) -> bool:
    for name, pattern in rule.match.items():
        value = facts.value(name)
        # A pattern of `*` does not match a missing value: the rule asks for the tag to be there.
        if value is None or not (
            facts.has_kind(pattern) if name == "kind" else fnmatchcase(value, pattern)
        ):
            return False
    return True


def _assign_owner(rule: Rule, facts: WorkloadFacts) -> dict[str, str]:
    assigned = {}
    for level, template in rule.assign.items():
        names = _PLACEHOLDER.findall(template)
        values = {name: facts.value(name) for name in names}
        if level in LEVELS and all(values.values()):
            assigned[level] = _fill_template(template, values)
    return assigned


def _fill_template(template: str, values: Mapping[str, str | None]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]] or "", template)
