"""Idle accelerators and unusual spending, as rows of CSV for commands and pages alike, and as pages
show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.money import Money, round_amounts
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.export.cells import hours_text, names
from gpuledger_collector.export.html import UNKNOWN, micro
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.site import Site, anchor
from gpuledger_collector.insight.durations import lasting
from gpuledger_collector.insight.findings import (
    NO_REMEDY,
    UNALLOCATED,
    WORKLOADS,
    FindingGroup,
    FreeGroup,
    IdleRemedy,
    NamedFinding,
)
from gpuledger_common.plurals import plural

STATES = {
    "unallocated": "unallocated",
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
    "faulty": "Drain its node, and reset or replace the GPU.",
}
"""What to do about an accelerator that no command gives back."""
END_IT = "End its job, or ask its user."
PARTLY_BUSY = "The other GPUs of its job are busy: ask for fewer next time."
TENTH = Decimal("0.1")
SHOWN_UUID = 12
"""Characters of a UUID that tell one GPU from another to people."""
PRICE_CAUSES = {
    "price": "a rate changed",
    "usage": "more use",
    "both": "more use and a rate that changed",
}


def say_whom_to_ask(user: str, *, is_partly_busy: bool) -> str:
    """What to do about a holder that no command ends."""
    if is_partly_busy:
        return PARTLY_BUSY
    return f"No command ends it from here: ask {user or 'its user'} to."


def _hours(ms: int) -> Decimal:
    return (Decimal(ms) / HOUR_MS).quantize(TENTH)


def advice(finding: NamedFinding, remedy: IdleRemedy = NO_REMEDY) -> str:
    """What to do about an idle accelerator that no command gives back; empty for one that is idle
    no more.
    """
    if not finding.is_ongoing:
        return ""
    if remedy.is_partly_busy:
        return PARTLY_BUSY
    if finding.is_free and finding.is_out_of_order:
        because = f": {finding.health_cause}" if finding.health_cause else ""
        return f"Nobody holds it, and it is {finding.health}{because}."
    return ADVICE.get(finding.state, END_IT)


IDLE = Report[NamedFinding](
    "idle",
    (
        Column("node", lambda item: item.node),
        Column("gpu", lambda item: item.gpu_index, Kind.NUMBER, is_optional=True),
        Column("accelerator", lambda item: item.subject, about="UUID.", in_table=False),
        Column("model", lambda item: item.model, in_table=False),
        Column("state", lambda item: item.state),
        Column("team", lambda item: item.team),
        Column("workload", lambda item: item.job, is_optional=True),
        Column("user", lambda item: item.user_name, is_optional=True),
        Column("since", lambda item: item.since_ms, Kind.INSTANT, is_optional=True),
        Column(
            "until",
            lambda item: item.resolved_ms,
            Kind.INSTANT,
            about="null: ongoing.",
            in_table=False,
        ),
        Column("hours", lambda item: _hours(item.until_ms - item.since_ms), Kind.HOURS),
        Column(
            "confidence",
            lambda item: f"{item.confidence:.2f}",
            Kind.DECIMAL,
            about="0 to 1.",
            is_optional=True,
        ),
        Column("cost", lambda item: item.cost, Kind.MONEY, about="So far."),
        Column("per_day", lambda item: item.per_day, Kind.MONEY, about="Of each further day."),
        Column("currency", lambda item: item.currency, in_answers=False),
        Column("key", lambda item: item.key, in_table=False, in_csv=False, in_answers=False),
        Column("advice", advice, about="What to do about it.", in_table=False, in_csv=False),
    ),
)


def report_groups(by: str) -> Report[FindingGroup]:
    """Groups of idle accelerators by `state` or `team`: how often, how long, what it cost, and
    where most of it was.
    """
    return Report(
        f"idle-{by}",
        (
            Column(by, lambda item: item.name),
            Column("findings", lambda item: item.findings, Kind.COUNT),
            Column("hours", lambda item: hours_text(item.total_ms, 1), Kind.HOURS),
            # With its currency: groups of several are in one list.
            Column("cost", lambda item: item.cost, Kind.DECIMAL),
            Column("ongoing", lambda item: item.ongoing, Kind.COUNT),
            Column("mostly", lambda item: ", ".join(item.places)),
        ),
    )


def _parts(finding: NamedFinding) -> dict[str, Money]:
    """The difference by price, volume and mix: rounded together, they add up."""
    names = ("price", "volume", "mix")
    micros = [finding.evidence[f"{name}_micro"] for name in names]
    return dict(zip(names, round_amounts(micros, finding.currency or ""), strict=True))


def _moved_most(finding: NamedFinding) -> str | None:
    return next((str(driver["workload"]) for driver in finding.evidence["drivers"]), None)


def _rates(finding: NamedFinding) -> list[str]:
    return [
        f"{rate['model']} {rate['before']} -> {rate['now']}" for rate in finding.evidence["rates"]
    ]


ANOMALIES = Report[NamedFinding](
    "anomalies",
    (
        Column("team", lambda item: item.subject),
        Column("from", lambda item: item.since_ms, Kind.INSTANT),
        Column("to", lambda item: item.until_ms, Kind.INSTANT, is_optional=True),
        Column("state", lambda item: "ongoing" if item.is_ongoing else "ended"),
        Column("driver", lambda item: item.state, is_optional=True),
        Column(
            "more_than_before",
            lambda item: item.cost,
            Kind.MONEY,
            about="Than in the same hours before.",
        ),
        Column("by_price", lambda item: _parts(item)["price"], Kind.MONEY, is_optional=True),
        Column("by_volume", lambda item: _parts(item)["volume"], Kind.MONEY, is_optional=True),
        Column("by_mix", lambda item: _parts(item)["mix"], Kind.MONEY, is_optional=True),
        Column("currency", lambda item: item.currency),
        Column(
            "days_before", lambda item: item.evidence["days_before"], Kind.COUNT, in_table=False
        ),
        Column("moved_most", _moved_most, in_table=False),
        Column("rates", _rates, Kind.LIST, in_table=False),
        Column("cause", lambda item: item.evidence.get("cause"), in_table=False),
        Column("sentence", lambda item: item.evidence.get("sentence"), heading="what it is"),
        Column(
            "workloads", lambda item: item.evidence.get("workloads", []), Kind.LIST, in_table=False
        ),
        Column(
            "evidence",
            lambda item: item.evidence,
            Kind.FACTS,
            in_table=False,
            in_csv=False,
            in_answers=False,
        ),
    ),
)


ON_CARD = names(
    "node gpu accelerator model state team workload user since until hours confidence cost per_day"
    " currency"
)
"""Columns that a page has a place of its own for."""


def idle_facts(
    finding: NamedFinding, now_ms: int, remedy: IdleRemedy = NO_REMEDY
) -> dict[str, Any]:
    """An idle accelerator as a page shows it, with what gives it back."""
    per_day, currency = finding.per_day_micro, finding.currency
    return {
        "key": anchor(finding.key),
        "node": finding.node or "no node",
        "gpu": "" if finding.gpu_index is None else str(finding.gpu_index),
        "uuid": finding.subject[:SHOWN_UUID],
        "model": finding.model or "",
        "is_slice": finding.is_slice,
        "state": STATES.get(finding.state, finding.state.replace("_", " ")),
        "open": finding.is_ongoing,
        "team": finding.team,
        "job": finding.job,
        "job_key": finding.workload_key,
        "user": finding.user_name or "",
        "since_ms": finding.since_ms,
        "ended_ms": finding.resolved_ms,
        "lasting": lasting((now_ms if finding.is_ongoing else finding.until_ms) - finding.since_ms),
        "confidence": f"{round(100 * finding.confidence)} %",
        "currency": currency or "",
        "cost": None if currency is None else micro(finding.cost_micro, currency),
        "per_hour": (
            None if currency is None or per_day is None else micro(round(per_day / 24), currency)
        ),
        "per_day": None if currency is None or per_day is None else micro(per_day, currency),
        "command": remedy.command,
        "advice": advice(finding, remedy),
        "others": IDLE.others(ON_CARD, finding),
    }


SHOWN_PLACES = 6
"""Nodes or models of a group that are named."""


def free_facts(group: FreeGroup, by: str) -> dict[str, Any]:
    """Accelerators that nobody holds, as one row of a page."""
    places = group.models if by == "node" else group.places
    more = len(places) - SHOWN_PLACES
    return {
        "name": group.name or UNKNOWN,
        "counted": count_free(group),
        "places": ", ".join(places[:SHOWN_PLACES]) + (f" and {more} more" if more > 0 else ""),
        "since_ms": group.since_ms,
        "per_day": None if group.per_day is None else group.per_day.grouped(),
        "currency": "" if group.per_day is None else group.per_day.currency,
        "narrowed": {by: group.name, "state": UNALLOCATED, "by": "none"},
    }


def count_free(group: FreeGroup) -> str:
    """How many GPUs are free: those that somebody could use, and the rest apart."""
    usable, rest = count_gpus(group.usable), group.out_of_order
    return f"{usable}, and {count_gpus(rest)} degraded or failed" if rest else usable


def count_gpus(findings: Sequence[NamedFinding]) -> str:
    """How many GPUs are idle, each once however often it was: `5 GPUs, 1 MIG slice`."""
    is_slice = {finding.subject: finding.is_slice for finding in findings}
    slices = sum(is_slice.values())
    return gpus_and_slices(len(is_slice) - slices, slices)


def gpus_and_slices(gpus: int, slices: int) -> str:
    """Accelerators by their kinds: `5 GPUs, 1 MIG slice`."""
    parts = [plural(gpus, "GPU")] if gpus or not slices else []
    return ", ".join([*parts, *([plural(slices, "MIG slice")] if slices else [])])


def silent_text(silent: int, nodes: int, shows_fleet: bool) -> str:
    """The nodes of which nothing is known now, in a sentence; how many there are only to who sees
    them all.
    """
    if not silent:
        return "" if nodes else "No node reports here: what its GPUs do is not known."
    whose = f"{silent} of {nodes}" if shows_fleet else "Some"
    return f"{whose} nodes are silent: what is idle on them now is not known."


def anomaly_facts(
    finding: NamedFinding, acknowledged: int, *, is_collected: bool = False
) -> dict[str, Any]:
    """Unusual spending as a page shows it; `acknowledged`: how often its kind was. `is_collected`:
    whether the mail of a week tells it, and none of its own.
    """
    evidence = finding.evidence
    return {
        **ANOMALIES.texts(finding),
        "anchor": anchor(finding.key),
        "team_name": finding.team,
        "open": finding.is_ongoing,
        "is_collected": is_collected,
        "since_ms": finding.since_ms,
        "until_ms": finding.until_ms,
        "lasting": lasting(finding.until_ms - finding.since_ms),
        "title": evidence.get("cause") or PRICE_CAUSES.get(finding.state, finding.state),
        "more_micro": finding.cost_micro,
        "parts": [(name, evidence.get(f"{name}_micro")) for name in ("price", "volume", "mix")],
        "before": f"the same hours {plural(evidence['days_before'], 'day')} before",
        "drivers": evidence["drivers"],
        "jobs": evidence.get("workloads", []),
        "rate_changes": evidence["rates"],
        "acknowledged": acknowledged,
    }


def group_facts(group: FindingGroup, by: str, site: Site) -> dict[str, Any]:
    """Unusual spending of a team, a kind or a day, as one row of a page."""
    return {
        "name": PRICE_CAUSES.get(group.name, group.name) if by == "state" else group.name,
        "path": site.group_path(by, group.name),
        "episodes": group.findings,
        "ongoing": group.ongoing,
        "difference": None if group.cost is None else group.cost.signed(),
        "currency": group.currency,
    }


def _evidence(item: NamedFinding) -> dict[str, Any]:
    """What it rests on; of time by owner, the sum. Ids of the database mean nothing elsewhere."""
    evidence = dict(item.evidence)
    evidence.pop(WORKLOADS, None)
    if (wasted := evidence.pop("wasted_gpu_ns", None)) is not None:
        evidence["wasted_gpu_ns"] = sum(wasted.values())
    return evidence


FINDING_FACTS = Report[NamedFinding](
    "finding_facts",
    (
        Column("key", lambda item: item.key),
        Column("state", lambda item: item.state),
        Column("subject", lambda item: item.subject),
        Column("team", lambda item: item.team),
        Column("owner", lambda item: item.owner, Kind.OWNER),
        Column("model", lambda item: item.model),
        Column("gpu_index", lambda item: item.gpu_index),
        Column("workload", lambda item: item.workload),
        Column("workload_name", lambda item: item.workload_name),
        Column("user_name", lambda item: item.user_name),
        Column("confidence", lambda item: item.confidence, Kind.ESTIMATE),
        Column("currency", lambda item: item.currency),
        Column("cost_micro", lambda item: item.cost_micro, Kind.COUNT),
        Column("per_day_micro", lambda item: item.per_day_micro, Kind.COUNT),
        Column("since", lambda item: item.since_ms, Kind.INSTANT),
        Column("opened", lambda item: item.opened_ms, Kind.INSTANT),
        Column("until", lambda item: item.until_ms, Kind.INSTANT),
        Column("resolved", lambda item: item.resolved_ms, Kind.INSTANT),
        Column("evidence", _evidence, Kind.FACTS),
    ),
)
"""Findings as programs read them, by the names that they had before those of the reports."""
