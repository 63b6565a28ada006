"""Decisions on capacity and what came of them, as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.export.cells import minor_amount, names

COLUMNS = names("""
    decision pool made_at as_of policy mode demand_gpus reactive_gpus wanted_gpus desired_gpus before_gpus quantile
    notified notified_state from until known_s came_gpu_s wait_gpu_s waste_gpu_s reactive_wait_gpu_s
    reactive_waste_gpu_s waste_cost currency reason inputs_hash
    """)


def row(facts: Mapping[str, Any]) -> dict[str, object]:
    """A decision as people read it; None where it is not known yet."""

    def at(name: str) -> str | None:
        return None if facts[name] is None else format_instant(facts[name])

    return {
        "decision": facts["decision_id"],
        "made_at": at("made_ms"),
        "as_of": at("as_of_ms"),
        "from": at("from_ms"),
        "until": at("until_ms"),
        "known_s": None if facts["known_ms"] is None else facts["known_ms"] // 1000,
        "came_gpu_s": facts["demand_gpu_s"],
        "waste_cost": minor_amount(facts["waste_micro"], facts["currency"]) or None,
        **{name: facts[name] for name in COLUMNS if name in facts},
    }
