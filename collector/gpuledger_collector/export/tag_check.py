"""What `tags check` found, as a page of text and as a list."""

from __future__ import annotations

from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.tag_check import Matched, MatchedLine, TagCheck
from gpuledger_collector.export.cells import lines_text
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.plurals import plural

SHOWN = 20
"""Lines of unattributed usage that are listed."""
TAGS: Report[MatchedLine] = Report(
    "tags",
    (
        Column("what", lambda line: line.what),
        Column("name", lambda line: line.name),
        Column("workloads", lambda line: len(line.usage.workloads), Kind.COUNT),
        Column("gpu_hours", lambda line: _hours(line.usage, 6), Kind.HOURS),
        Column("cost", lambda line: line.cost, Kind.MONEY),
        Column("currency", lambda line: line.cost and line.cost.currency),
    ),
)


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


def _hours(usage: Matched, digits: int) -> str:
    return f"{hours_decimal([usage.gpu_ns], digits)[0]:.{digits}f}"


def _amounts(matched: Matched) -> str:
    texts = [
        plural(len(matched.workloads), "workload"),
        f"{_hours(matched, 3)} GPU-hours",
        *(f"{cost.plain()} {cost.currency}" for cost in matched.amounts),
    ]
    return ", ".join(texts)
