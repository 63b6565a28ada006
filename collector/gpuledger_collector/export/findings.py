"""Idle accelerators and unusual spending as rows of CSV, for the commands and the pages alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger_collector.accounting.money import MICRO, format_minor, minor_digits, to_minor_units
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.export.cells import hours_text, instant_text, minor_amount

Finding = Mapping[str, Any]
"""A finding with its names, as storage reads it."""


def idle_row(finding: Finding) -> dict[str, Any]:
    """An idle accelerator as text, by column; `key` is no column of CSV."""
    currency = finding["currency"]
    ongoing = finding["resolved_ms"] is None
    return {
        "key": finding["key"],
        "node": finding["evidence"].get("node", ""),
        "gpu": "" if finding["gpu_index"] is None else str(finding["gpu_index"]),
        "accelerator": finding["subject"],
        "model": finding["model"] or "",
        "state": finding["state"],
        "team": finding["team"],
        "workload": finding["workload_name"] or finding["workload"] or "",
        "user": finding["user_name"] or "",
        "since": instant_text(finding["since_ms"]),
        "until": instant_text(finding["resolved_ms"]),
        "hours": hours_text(finding["until_ms"] - finding["since_ms"], 1),
        "confidence": f"{finding['confidence']:.2f}",
        "cost": minor_amount(finding["cost_micro"], currency),
        "per_day": minor_amount(finding["per_day_micro"], currency) if ongoing else "",
        "currency": currency or "",
    }


def anomaly_row(finding: Finding) -> dict[str, Any]:
    """Unusual spending as text, by column: the difference to the same hours before; `evidence` is no column of CSV."""
    digits = minor_digits(finding["currency"])
    evidence = finding["evidence"]
    price, volume, mix = to_minor_units([evidence[f"{name}_micro"] for name in ("price", "volume", "mix")], digits)
    driver = next(iter(evidence["drivers"]), None)
    return {
        "team": finding["subject"],
        "from": format_instant(finding["since_ms"]),
        "to": format_instant(finding["until_ms"]),
        "state": "ended" if finding["resolved_ms"] is not None else "ongoing",
        "driver": finding["state"],
        "more_than_before": format_minor(round(finding["cost_micro"] / (MICRO // 10**digits)), digits),
        "by_price": format_minor(price, digits),
        "by_volume": format_minor(volume, digits),
        "by_mix": format_minor(mix, digits),
        "currency": finding["currency"],
        "days_before": str(evidence["days_before"]),
        "moved_most": "" if driver is None else str(driver["workload"]),
        "rates": "; ".join(f"{rate['model']} {rate['before']} -> {rate['now']}" for rate in evidence["rates"]),
        "cause": evidence.get("cause", ""),
        "sentence": evidence.get("sentence", ""),
        "workloads": "; ".join(evidence.get("workloads", [])),
        "evidence": evidence,
    }
