"""The seal of a closed period: one hash over every line, from which a single line can be proven to
be in it.

A Merkle tree as in RFC 6962 §2.1 (SHA-256; a leaf is hashed after the byte 0, a node after the byte
1): whoever holds the seal can check one line and its path without seeing anybody else's lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.owner_tree import LEVELS


def leaf(line: bytes) -> bytes:
    """The hash of one line."""
    # The prefix byte keeps leaves and nodes apart: without it an inner node could be passed off as
    # a line (RFC 6962 §2.1).
    return hashlib.sha256(b"\x00" + line).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over hashed leaves, in their order; that of nothing is the hash of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    return _levels(leaves)[-1][0]


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """From the leaves up to the root; an odd last node goes up as it is, which is RFC 6962's split
    for every size.
    """
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        above = [_node(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)]
        # `len & ~1` is the largest even number up to the length: the slice holds the odd last node,
        # or nothing.
        levels.append(above + below[len(below) & ~1 :])
    return levels


def path(leaves: Sequence[bytes], at: int) -> list[tuple[str, bytes]]:
    """The hashes to combine with leaf `at`, from the bottom up: ("left" or "right", hash).

    Raises IndexError.
    """
    if not 0 <= at < len(leaves):
        raise IndexError(at)
    steps = []
    for level in _levels(leaves)[:-1]:
        # The sibling's number differs in the last bit. An odd last node has none and goes up
        # unhashed, so it adds no step.
        other = at ^ 1
        if other < len(level):
            steps.append(("left" if other < at else "right", level[other]))
        at //= 2
    return steps


def proves(line: bytes, way: Sequence[tuple[str, bytes]], seal: bytes) -> bool:
    """Whether a line and its path lead to the seal."""
    at = leaf(line)
    for side, other in way:
        at = _node(other, at) if side == "left" else _node(at, other)
    return at == seal


def line_of(exported: ExportedCharge) -> bytes:
    """A charge as one canonical JSON text: names instead of a database's ids, integers, the rate as
    decimal text.
    """
    charge = exported.charge
    price = charge.price
    owner = None if charge.owner is None else {name: charge.owner.level(name) for name in LEVELS}
    content = {
        "day_ms": charge.day_ms,
        "start_ms": charge.start_ms,
        "end_ms": charge.end_ms,
        "booked_day_ms": exported.booked_day_ms,
        "accelerator": exported.accelerator_uuid,
        "workload": exported.workload_key,
        "owner": owner,
        "state": charge.state,
        "pool": charge.pool,
        "gpu_model": charge.gpu_model,
        "node": charge.node,
        "rate": None if price is None else _rate_text(price.rate),
        "purchase": None if price is None else price.purchase,
        "currency": charge.currency,
        "gpu_ns": charge.gpu_ns,
        "busy_ns": charge.busy_ns,
        "idle_ns": charge.idle_ns,
        "unknown_ns": charge.unknown_ns,
        "cost_micro": charge.cost_micro,
        "idle_cost_micro": charge.idle_cost_micro,
        "list_cost_micro": charge.list_cost_micro,
        "energy_mj": charge.energy_mj,
    }
    if charge.commitment is not None:
        # Lines without a commitment keep the form that they had before commitments existed, and so
        # their seal.
        content |= {
            "commitment": charge.commitment.name,
            "contracted_cost_micro": charge.contracted_cost_micro,
        }
    if charge.adjustment is not None:
        content["adjustment"] = charge.adjustment.name
    if charge.node_cost is not None:
        content |= {"node_cost": charge.node_cost.name, "rate": _rate_text(charge.node_cost.rate)}
    if charge.inference is not None:
        content["inference"] = {
            "server": charge.inference.server,
            "gateway": charge.inference.gateway,
            "tenant": charge.inference.tenant,
            "trust": charge.inference.trust,
            "weights": charge.inference.weights,
        }
    # Sorted keys and no spaces: one charge has one text, whoever computes it. Names change after a
    # close and are not part of it (decision 0009).
    return _JSON.encode(content).encode()


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=4096)
def _rate_text(rate: Decimal) -> str:
    # Normalized: 2.50 and 2.5 are one rate and must have one text.
    return format(rate.normalize(), "f")
