"""Check which tags and rules attribute the usage of a period, and what is unattributed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from gpuledger_collector.accounting.attribution import Attribution, WorkloadFacts
from gpuledger_collector.accounting.ledger_rows import HeldUsage
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.export.tag_check import Matched, TagCheck
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection


def check_tags(connection: Connection, usage: Iterable[HeldUsage], level: str) -> TagCheck:
    """Match each workload's usage; rules are applied as of the start of the day on which it was
    held.
    """
    held = list(usage)
    attribution = Attribution(rules.current(connection))
    known = workloads.facts(connection, sorted({held_usage.workload_id for held_usage in held}))
    matched_rules = {_rule_name(rule.name, rule.position): Matched() for rule in attribution.rules}
    tags: dict[str, Matched] = defaultdict(Matched)
    nobody: dict[str, Matched] = defaultdict(Matched)
    for held_usage in held:
        facts = replace(known[held_usage.workload_id], pool=held_usage.pool, node=held_usage.node)
        for rule in attribution.matching(facts, held_usage.day_ms):
            matched_rules[_rule_name(rule.name, rule.position)].add(held_usage)
        for tag in facts.tags:
            tags[tag].add(held_usage)
        if not attribution.owner_of(facts, held_usage.day_ms).level(level):
            nobody[_said(facts)].add(held_usage)
    ordered = sorted(nobody.items(), key=lambda item: (-item[1].gpu_ns, item[0]))
    hints = {tag: near[0] for tag in sorted(tags) if (near := _near(tag))}
    return TagCheck(matched_rules, dict(sorted(tags.items())), ordered, hints)


def _near(tag: str) -> list[str]:
    return [] if tag in LEVELS else get_close_matches(tag.lower(), LEVELS, 1, 0.7)


def _rule_name(name: str, position: int) -> str:
    return f"{position} {name}".strip()


def _said(facts: WorkloadFacts) -> str:
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
