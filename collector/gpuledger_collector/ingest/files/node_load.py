"""Nodes on which the jobs of a file hold more GPUs at once than the node has: billed as written,
and said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.ledger_rows import UsageRow
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import format_instant
from gpuledger_common.plurals import plural

USUAL_MICRO = 8 * MICRO
"""What a server has at most, as a rule: of a node whose GPUs nobody named, more at once is worth a
word.
"""
MAX_SENTENCES = 5
_SEVERAL_NODES = re.compile(r"[\s,;\[\]]")


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The instant at which the jobs on a node hold most, and the first two of them."""

    node: str
    gpu_micro: int
    at_ms: int
    jobs: tuple[str, ...]


def node_loads(rows: Sequence[UsageRow]) -> Iterator[NodeLoad]:
    """The highest load of each node that several jobs hold at once; a list of nodes (`gpu[01-04]`)
    is no node.
    """
    by_node: dict[str, list[UsageRow]] = {}
    for row in rows:
        if row.node and not _SEVERAL_NODES.search(row.node):
            by_node.setdefault(row.node, []).append(row)
    for node, jobs in sorted(by_node.items()):
        ends = [(job.end_ms, 0, -job.gpu_micro) for job in jobs if job.end_ms is not None]
        held = most = at_ms = 0
        for instant_ms, _, change in sorted(
            [*ends, *((job.start_ms, 1, job.gpu_micro) for job in jobs)]
        ):
            held += change
            if held > most:
                most, at_ms = held, instant_ms
        there = [
            job
            for job in jobs
            if job.start_ms <= at_ms and (job.end_ms is None or job.end_ms > at_ms)
        ]
        if len(there) > 1:
            yield NodeLoad(node, most, at_ms, tuple(job.workload_id for job in there[:2]))


def overfull(loads: Sequence[NodeLoad], known_micro: Mapping[str, int]) -> list[str]:
    """The sentences about nodes that hold too much.

    `known_micro`: GPUs of the nodes that the ledger knows.
    """
    sentences = []
    for load in loads:
        known = known_micro.get(load.node)
        if load.gpu_micro <= (USUAL_MICRO if known is None else known):
            continue
        has = "more than a server usually has" if known is None else f"and has {_gpus(known)}"
        cure = "; gpuledger import inventory says how many it has" if known is None else ""
        jobs = ", ".join(map(repr, load.jobs))
        sentences.append(
            f"node {load.node}: its jobs hold {_gpus(load.gpu_micro)} at"
            f" {format_instant(load.at_ms)} ({jobs}), {has}: billed as written{cure}"
        )
    left_out = len(sentences) - MAX_SENTENCES
    more = (
        [f"{plural(left_out, 'more node')} whose jobs hold more than it has"]
        if left_out > 0
        else []
    )
    return sentences[:MAX_SENTENCES] + more


def _gpus(micro: int) -> str:
    whole, rest = divmod(micro, MICRO)
    return f"{whole}{f'.{rest:06}'.rstrip('0') if rest else ''} GPU{'' if micro == MICRO else 's'}"
