"""Which tags and rules attribute the usage of a period, and which usage has no owner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from gpuledger_collector.accounting.attribution import Attribution, Rule, WorkloadFacts
from gpuledger_collector.accounting.ledger_rows import HeldUsage
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.owner_tree import LEVELS


@dataclass
class Matched:
    """Usage that a rule or tag matches: workloads, GPU-nanoseconds, micro-units by currency."""

    workloads: set[int] = field(default_factory=set)
    gpu_ns: int = 0
    cost: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, held: HeldUsage) -> None:
        """Count one workload's usage in."""
        self.workloads.add(held.workload_id)
        self.gpu_ns += held.gpu_ns
        if held.currency is not None:
            self.cost[held.currency] += held.cost_micro or 0

    @property
    def amounts(self) -> list[Money]:
        """Its cost, by currency; empty where no rate covers it."""
        return [Money(micro, currency) for currency, micro in sorted(self.cost.items())]


@dataclass(frozen=True, slots=True)
class MatchedLine:
    """What a rule or a tag matches, or nobody pays for, in one currency; of all of its time."""

    what: str
    name: str
    usage: Matched
    cost: Money | None


@dataclass(frozen=True)
class TagCheck:
    """What was found: by rule (name), by tag (name), and the workloads without an owner, dearest
    first.
    """

    rules: Mapping[str, Matched]
    tags: Mapping[str, Matched]
    unattributed: Sequence[tuple[str, Matched]]
    hints: Mapping[str, str]
    """Tag names that look like a misspelt level -> that level."""

    @property
    def lines(self) -> Iterator[MatchedLine]:
        """A line for each currency; one without a cost where no rate covers it."""
        for what, matched in (
            ("rule", self.rules.items()),
            ("tag", self.tags.items()),
            ("unattributed", self.unattributed),
        ):
            for name, usage in matched:
                for cost in usage.amounts or (None,):
                    yield MatchedLine(what, name, usage, cost)


def match_usage(
    held: Iterable[HeldUsage],
    known: Mapping[int, WorkloadFacts],
    attribution: Attribution,
    level: str,
) -> TagCheck:
    """Match each workload's usage; rules are applied as of the start of the day on which it was
    held.
    """
    rules = {_rule_name(rule): Matched() for rule in attribution.rules}
    tags: dict[str, Matched] = defaultdict(Matched)
    nobody: dict[str, Matched] = defaultdict(Matched)
    for usage in held:
        facts = replace(known[usage.workload_id], pool=usage.pool, node=usage.node)
        for rule in attribution.matching(facts, usage.day_ms):
            rules[_rule_name(rule)].add(usage)
        for tag in facts.tags:
            tags[tag].add(usage)
        if not attribution.owner_of(facts, usage.day_ms).level(level):
            nobody[_describe(facts)].add(usage)
    unattributed = sorted(nobody.items(), key=lambda item: (-item[1].gpu_ns, item[0]))
    hints = {tag: near[0] for tag in sorted(tags) if (near := _near_levels(tag))}
    return TagCheck(rules, dict(sorted(tags.items())), unattributed, hints)


def _near_levels(tag: str) -> list[str]:
    return [] if tag in LEVELS else get_close_matches(tag.lower(), LEVELS, 1)


def _rule_name(rule: Rule) -> str:
    return f"{rule.position} {rule.name}".strip()


def _describe(facts: WorkloadFacts) -> str:
    """What is known of a workload that nobody pays for: the most telling facts, so that a rule can
    be written.
    """
    known = [
        f"{name}={value}" for name in ("user", "account", "pool") if (value := facts.value(name))
    ]
    tags = [
        f"{name}={value}"
        for name, value in sorted(facts.tags.items())
        if name not in ("user", "account")
    ]
    return " ".join([facts.kind, *known, *tags[:3]])
