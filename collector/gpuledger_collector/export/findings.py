"""Idle accelerators and unusual spending, as rows of CSV for commands and pages alike, and as pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.money import MICRO, Money, round_amounts
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant
from gpuledger_collector.export.cells import hours_text, instant_text, minor_amount, names
from gpuledger_collector.export.html import micro, minute
from gpuledger_collector.export.site import anchor
from gpuledger_collector.storage.notifications.finding_rules import RECLAIMABLE_STATES
from gpuledger_common.plurals import plural

Finding = Mapping[str, Any]
"""A finding with its names, as storage reads it."""
IDLE_COLUMNS = names(
    "node gpu accelerator model state team workload user since until hours confidence cost per_day currency"
)
ANOMALY_COLUMNS = names(
    """
    team from to state driver more_than_before by_price by_volume by_mix currency days_before moved_most rates cause
    sentence workloads
    """
)
IDLE_NUMBERS = frozenset(("gpu", "hours", "confidence", "cost", "per_day"))
ANOMALY_NUMBERS = frozenset(("more_than_before", "by_price", "by_volume", "by_mix"))
STATES = {
    "unallocated": "free",
    "zombie": "not released",
    "never_used": "never used",
    "gone_idle": "gone idle",
    "throttled": "slowed",
    "data_starved": "waits for data",
    "hollow": "busy without working",
    "underused": "underused",
    "faulty": "faulty",
}
"""What people call the state of an idle accelerator."""
ADVICE = {
    "unallocated": "Nobody holds it: it is free to use.",
    "zombie": "Its job has ended: end the process that is left, or drain the node.",
    "throttled": "Keep the GPU; look at its temperature and power limit.",
    "data_starved": "Keep the GPU; its job waits for its input.",
    "hollow": "Keep the GPU; its job runs without computing.",
    "underused": "Keep the GPU; a smaller one may do next time.",
    "faulty": "Take it out of service: gpuledger remediation list",
}
"""What to do about an accelerator that no command gives back."""
SHOWN_UUID = 12
"""Characters of a UUID that tell one GPU from another to people."""
PRICE_CAUSES = {"price": "a rate changed", "usage": "more use", "both": "more use and a rate that changed"}


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
    currency, evidence = finding["currency"], finding["evidence"]
    price, volume, mix = round_amounts([evidence[f"{name}_micro"] for name in ("price", "volume", "mix")], currency)
    driver = next(iter(evidence["drivers"]), None)
    return {
        "team": finding["subject"],
        "from": format_instant(finding["since_ms"]),
        "to": format_instant(finding["until_ms"]),
        "state": "ended" if finding["resolved_ms"] is not None else "ongoing",
        "driver": finding["state"],
        "more_than_before": Money(finding["cost_micro"], currency).plain(),
        "by_price": price.plain(),
        "by_volume": volume.plain(),
        "by_mix": mix.plain(),
        "currency": finding["currency"],
        "days_before": str(evidence["days_before"]),
        "moved_most": "" if driver is None else str(driver["workload"]),
        "rates": "; ".join(f"{rate['model']} {rate['before']} -> {rate['now']}" for rate in evidence["rates"]),
        "cause": evidence.get("cause", ""),
        "sentence": evidence.get("sentence", ""),
        "workloads": "; ".join(evidence.get("workloads", [])),
        "evidence": evidence,
    }


def lasting(ms: int) -> str:
    """A length of time in its largest unit, as people say it."""
    for size, unit in ((DAY_MS, "day"), (HOUR_MS, "hour"), (60_000, "minute")):
        if ms >= size:
            return plural(ms // size, unit)
    return "less than a minute"


def idle_facts(finding: Finding, now_ms: int, command: str, is_partly_busy: bool) -> dict[str, Any]:
    """An idle accelerator as a page shows it. `command` gives it back; '': none does."""
    currency, ongoing = finding["currency"], finding["resolved_ms"] is None
    state = str(finding["state"])
    advice = ADVICE.get(state, "")
    if not ongoing:
        command, advice = "", f"Ended {minute(finding['resolved_ms'])}"
    elif state not in RECLAIMABLE_STATES:
        command = ""
    elif is_partly_busy:
        advice = "The other GPUs of its job are busy: ask for fewer next time."
    elif not command:
        advice = "End its job, or ask its user."
    per_day = finding["per_day_micro"]
    return {
        "node": finding["evidence"].get("node", "") or "no node",
        "gpu": "" if finding["gpu_index"] is None else str(finding["gpu_index"]),
        "uuid": str(finding["subject"])[:SHOWN_UUID],
        "model": finding["model"] or "",
        "is_slice": finding["gpu_micro"] is not None and finding["gpu_micro"] < MICRO,
        "state": STATES.get(state, state.replace("_", " ")),
        "open": ongoing,
        "team": finding["team"],
        "job": finding["workload_name"] or finding["workload"] or "",
        "job_key": finding["workload_key"],
        "user": finding["user_name"] or "",
        "since": minute(finding["since_ms"]),
        "lasting": lasting((now_ms if ongoing else finding["until_ms"]) - finding["since_ms"]),
        "confidence": f"{round(100 * finding['confidence'])} %",
        "currency": currency or "",
        "cost": None if currency is None else micro(finding["cost_micro"], currency),
        "per_hour": None if currency is None or per_day is None else micro(round(per_day / 24), currency),
        "command": command,
        "advice": advice,
    }


def counted(findings: Sequence[Finding]) -> str:
    """How many GPUs are idle: `5 GPUs, 1 MIG slice`."""
    slices = sum(finding["gpu_micro"] is not None and finding["gpu_micro"] < MICRO for finding in findings)
    parts = [plural(len(findings) - slices, "GPU")] if len(findings) > slices or not slices else []
    return ", ".join([*parts, *([plural(slices, "MIG slice")] if slices else [])])


def anomaly_facts(finding: Finding) -> dict[str, Any]:
    """Unusual spending as a page shows it."""
    row = anomaly_row(finding)
    evidence = finding["evidence"]
    return {
        **row,
        "anchor": anchor(finding["key"]),
        "team_name": finding["team"],
        "open": finding["resolved_ms"] is None,
        "since": minute(finding["since_ms"]),
        "until": minute(finding["until_ms"]),
        "lasting": lasting(finding["until_ms"] - finding["since_ms"]),
        "title": evidence.get("cause") or PRICE_CAUSES.get(str(finding["state"]), str(finding["state"])),
        "more_micro": finding["cost_micro"],
        "parts": [(name, evidence.get(f"{name}_micro")) for name in ("price", "volume", "mix")],
        "before": f"the same hours {plural(evidence['days_before'], 'day')} before",
        "drivers": evidence["drivers"],
        "rate_changes": evidence["rates"],
    }
