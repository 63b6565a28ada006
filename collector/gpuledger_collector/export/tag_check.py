"""What `tags check` found, as a page of text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.ledger_rows import HeldUsage
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.cells import lines_text
from gpuledger_common.plurals import plural

COLUMNS = ("what", "name", "workloads", "gpu_hours", "cost", "currency")
SHOWN = 20
"""Lines of unattributed usage that are listed."""


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


def as_text(check: TagCheck, level: str) -> str:
    """Rules, tags and the unattributed with workloads, hours and cost; hints last."""
    sentences = [
        "rules" if check.rules else "no rules: tags named like a level attribute by themselves"
    ]
    sentences += [
        f"  {name}: {_amounts(matched) if matched.workloads else 'matches nothing'}"
        for name, matched in check.rules.items()
    ]
    sentences.append("tags" if check.tags else "no workload has a tag")
    sentences += [f"  {name}: {_amounts(matched)}" for name, matched in check.tags.items()]
    if check.unattributed:
        sentences.append(f"without a {level}")
        sentences += [
            f"  {name}: {_amounts(matched)}" for name, matched in check.unattributed[:SHOWN]
        ]
        if len(check.unattributed) > SHOWN:
            sentences.append(f"  and {len(check.unattributed) - SHOWN} more")
    else:
        sentences.append(f"every held GPU-second has a {level}")
    sentences += [
        f"the tag {name!r} is no level: is it {near!r}?" for name, near in check.hints.items()
    ]
    return lines_text(sentences)


def as_rows(check: TagCheck) -> Iterator[tuple[str, str, int, str, str, str]]:
    """What matched, by COLUMNS: a row for each currency; cost and currency are empty where no rate
    covers it.
    """
    for what, matched in (
        ("rule", check.rules.items()),
        ("tag", check.tags.items()),
        ("unattributed", check.unattributed),
    ):
        for name, usage in matched:
            hours = f"{hours_decimal([usage.gpu_ns])[0]:.6f}"
            for currency, micro in sorted(usage.cost.items()):
                yield (
                    what,
                    name,
                    len(usage.workloads),
                    hours,
                    Money(micro, currency).plain(),
                    currency,
                )
            if not usage.cost:
                yield what, name, len(usage.workloads), hours, "", ""


def _amounts(matched: Matched) -> str:
    texts = [
        plural(len(matched.workloads), "workload"),
        f"{hours_decimal([matched.gpu_ns], 3)[0]:.3f} GPU-hours",
    ]
    texts += [
        f"{Money(micro, currency).plain()} {currency}"
        for currency, micro in sorted(matched.cost.items())
    ]
    return ", ".join(texts)
