"""When idle GPUs may be reclaimed, where a team opted in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger_collector.accounting.period import HOUR_MS, MINUTE_MS
from gpuledger_collector.insight.idle.kinds import is_serving
from gpuledger_collector.insight.notifications.finding_rules import (
    EVICT,
    FRESH_MS,
    NOT_NOTIFIED,
    NOT_SEEN,
    RECLAIMABLE_STATES,
    SCANCEL,
    IdleWorkload,
    Notification,
    pod_name,
)


@dataclass(frozen=True, slots=True)
class ReclaimRule:
    """What a team opted in to: how its idle workloads are reclaimed (`do`: scancel, evict or
    webhook:NAME), and when.

    A workload must be idle for `after_minutes`, its people notified `notice_minutes` before, and a
    dry run must have shown it for `dry_run_hours` without a break; at most `max_per_hour` workloads
    of the team are reclaimed an hour.
    """

    name: str
    team: str
    do: str
    states: tuple[str, ...] = RECLAIMABLE_STATES
    after_minutes: int = 240
    notice_minutes: int = 120
    dry_run_hours: int = 24
    confidence: int = 90
    max_per_hour: int = 5


@dataclass(frozen=True, slots=True)
class ReclaimAction:
    """The reclaiming of a workload and its state: shown, doing, done, failed or spared."""

    id: int
    key: str
    notification_id: int
    what: str
    target: Mapping[str, Any]
    team: str
    state: str
    first_shown_ms: int
    last_shown_ms: int
    acted_ms: int | None = None
    done_ms: int | None = None
    detail: str = ""


def reclaim_target(rule: ReclaimRule, workload: IdleWorkload) -> dict[str, str] | None:
    """The workload as the rule's backend names it; None when that backend cannot reach it."""
    facts = {
        "workload": workload.external_id,
        "name": workload.name,
        "user": workload.user,
        "kind": workload.kind,
    }
    if rule.do == SCANCEL:
        return (
            facts
            if workload.kind == "slurm" and workload.external_id.replace("_", "").isdigit()
            else None
        )
    if rule.do == EVICT:
        pod = pod_name(workload)
        uid = workload.tags.get("pod_uid", "")
        # Without the UID another pod of the same name could be evicted.
        return {**facts, "namespace": pod[0], "pod": pod[1], "uid": uid} if pod and uid else None
    return facts


def reason_to_spare(
    rule: ReclaimRule,
    workload: IdleWorkload,
    notification: Notification,
    sent_ms: int | None,
    at_ms: int,
) -> str:
    """Why a workload is spared now; '' when it may be shown.

    `sent_ms`: when the mail to its people was accepted.
    """
    if is_serving(workload.kind, workload.name, workload.tags):
        return "a warm replica of a service"
    if not workload.is_entirely_idle:
        return f"only {len(workload.accelerators)} of its {workload.held} GPUs are idle"
    findings = [accelerator.finding for accelerator in workload.accelerators]
    if any(finding.state not in rule.states for finding in findings):
        return "in another state than the team named"
    if at_ms - workload.until_ms > FRESH_MS:
        return NOT_SEEN
    if (
        min(finding.until_ms - finding.since_ms for finding in findings)
        < rule.after_minutes * MINUTE_MS
    ):
        return f"idle for less than {rule.after_minutes} minutes"
    if workload.confidence * 100 < rule.confidence:
        return f"confidence below {rule.confidence} %"
    if notification.is_acknowledged(at_ms):
        return f"acknowledged by {notification.acked_by or 'its owner'}"
    if sent_ms is None:
        return NOT_NOTIFIED
    if at_ms < sent_ms + rule.notice_minutes * MINUTE_MS:
        return f"notified less than {rule.notice_minutes} minutes ago"
    return ""


def is_due(rule: ReclaimRule, action: ReclaimAction, at_ms: int) -> bool:
    """Whether the dry run has shown it for long enough."""
    return action.state == "shown" and at_ms >= action.first_shown_ms + rule.dry_run_hours * HOUR_MS
