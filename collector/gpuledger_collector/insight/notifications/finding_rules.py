"""Rules of notifications about findings: who is notified, what is worth it, and which idle
workloads may be reclaimed.

A notification is about an episode: one workload that holds idle GPUs. The rules are pure functions.
They apply the guards of the detector (warm replicas, missing data) a second time, because one wrong
notification costs more trust than ten right ones earn.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, MINUTE_MS
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.idle.kinds import is_serving
from gpuledger_collector.insight.notifications.messages import is_address

IDLE, ANOMALY = "idle", "anomaly"
RECLAIMABLE_STATES = ("never_used", "gone_idle")
"""States in which the holder could give the GPU back."""
KEPT_STATES = ("throttled", "data_starved", "hollow", "underused")
"""States in which the holder works with the GPU, and keeps it."""
MIN_IDLE_MINUTES = 20
"""Minimum idle time before notifying, whatever a file declares: shorter pauses are usual between
pieces of work.
"""
FRESH_MS = 45 * MINUTE_MS
"""A finding last seen longer ago than this means missing data, not idleness."""
LINK_MS = 14 * DAY_MS
"""How long the link of a notification is valid."""
MAX_ACK_DAYS = 90
ANYBODY = "*"
COLLECTED = "collected:"
"""Begins the key of a notification of an episode that was told in the mail of a week, with others."""
NOT_SEEN = "not seen for 45 minutes"
NOT_NOTIFIED = "its people were not notified yet"
SCANCEL, EVICT = "scancel", "evict"


@dataclass(frozen=True, slots=True)
class Contact:
    """Whom to notify: for a user (`user`, `address`) or for a team (the rest); `*` is any without a
    contact of its own.

    `address` may contain {user}. `tag` is a workload tag that may name an address in one of
    `domains`. With `summary` the leads get a summary of each week. Confidence is in percent.
    """

    name: str
    user: str = ""
    address: str = ""
    tag: str = ""
    domains: tuple[str, ...] = ()
    team: str = ""
    recipients: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    after_minutes: int = 60
    confidence: int = 60
    escalate_days: int = 3
    summary: bool = True
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class AnomalyFloor:
    """What a spending anomaly must cost beyond the usual, in micro-units, before anybody is
    notified of it.
    """

    currency: str
    amount_micro: int


@dataclass(frozen=True, slots=True)
class IdleAccelerator:
    """One idle accelerator of a workload."""

    finding: Finding
    model: str
    gpu_index: int | None

    @property
    def node(self) -> str:
        """The node it is on."""
        return str(self.finding.evidence.get("node", ""))


@dataclass(frozen=True, slots=True)
class IdleWorkload:
    """A workload and its idle accelerators; `held` counts all accelerators that it holds."""

    workload_id: int
    kind: str
    external_id: str
    name: str
    user: str
    tags: Mapping[str, str]
    accelerators: tuple[IdleAccelerator, ...]
    held: int

    @property
    def team(self) -> str:
        """The team that pays for it."""
        return self.accelerators[0].finding.team

    @property
    def since_ms(self) -> int:
        """Since when the first of them is idle."""
        return min(accelerator.finding.since_ms for accelerator in self.accelerators)

    @property
    def until_ms(self) -> int:
        """Up to when they were seen."""
        return max(accelerator.finding.until_ms for accelerator in self.accelerators)

    @property
    def confidence(self) -> float:
        """The lowest confidence among them."""
        return min(accelerator.finding.confidence for accelerator in self.accelerators)

    @property
    def is_entirely_idle(self) -> bool:
        """Whether everything it holds is idle: only then does ending it harm nobody."""
        return len(self.accelerators) >= self.held

    @property
    def label(self) -> str:
        """The name that people know."""
        return self.name or self.external_id

    def money(self) -> list[tuple[str, int, int]]:
        """(currency, cost so far, cost of a further day) in micro-units; unpriced accelerators are
        left out.
        """
        sums: dict[str, tuple[int, int]] = {}
        for finding in (accelerator.finding for accelerator in self.accelerators):
            if finding.currency is not None and finding.cost_micro is not None:
                cost, day = sums.get(finding.currency, (0, 0))
                sums[finding.currency] = (
                    cost + finding.cost_micro,
                    day + (finding.per_day_micro or 0),
                )
        return [(currency, *sums[currency]) for currency in sorted(sums)]


@dataclass(frozen=True, slots=True)
class Notification:
    """An episode that people were notified of; when acknowledged, until `ack_until_ms`."""

    id: int
    key: str
    kind: str
    subject: str
    team: str
    recipients: tuple[str, ...]
    findings: tuple[str, ...]
    since_ms: int
    until_ms: int
    notified_ms: int
    escalated_ms: int | None = None
    acked_ms: int | None = None
    acked_by: str = ""
    ack_until_ms: int | None = None
    why: str = ""
    closed_ms: int | None = None

    @property
    def is_collected(self) -> bool:
        """Whether it was told in the mail of a week: once it is no longer small, it is mailed by
        itself.
        """
        return self.key.startswith(COLLECTED)

    @property
    def deduplication_key(self) -> str:
        """What it is about (see deduplication_key_of)."""
        return deduplication_key_of(self.key.removeprefix(COLLECTED), self.subject)

    def is_acknowledged(self, at_ms: int) -> bool:
        """Whether somebody acknowledged it, and that is still in force."""
        return self.ack_until_ms is not None and at_ms < self.ack_until_ms


@dataclass(frozen=True, slots=True)
class AnomalyKind:
    """What episodes of spending have in common: whose they are, their cause, and the workload name
    that moved most (empty: none is named).
    """

    team: str
    currency: str
    cause: str
    workload: str

    @classmethod
    def of(cls, finding: Finding) -> AnomalyKind:
        """The kind of an episode."""
        names = finding.evidence.get("workloads") or [""]
        cause = str(finding.evidence.get("cause", ""))
        return cls(finding.subject, finding.currency or "", cause, str(names[0]))


@dataclass(frozen=True, slots=True)
class AnomalyAcknowledgment:
    """A kind of episode that somebody said to be intended: when, and until when it holds."""

    kind: AnomalyKind
    acked_ms: int
    until_ms: int


def is_intended(
    finding: Finding, acknowledgments: Iterable[AnomalyAcknowledgment], at_ms: int
) -> bool:
    """Whether somebody said of an earlier episode of this kind that it is intended, which holds
    now.

    A dearer rate is new each time: of one that somebody knows, nothing follows for the next.
    """
    kind = AnomalyKind.of(finding)
    return kind.cause not in ("", "price") and any(
        each.kind == kind and at_ms < each.until_ms for each in acknowledgments
    )


@dataclass(frozen=True, slots=True)
class Section:
    """One workload in a mail, with the notification that its link acknowledges."""

    notification_id: int
    workload: IdleWorkload


@dataclass(frozen=True, slots=True)
class IdleNotice:
    """Content of a mail about idle GPUs.

    `notified_ms`: it goes to the leads, and the owner was notified then.
    """

    sections: tuple[Section, ...]
    at_ms: int
    escalate_days: int
    notified_ms: int | None = None
    notified: tuple[str, ...] = ()
    to_owner: bool = True


@dataclass(frozen=True, slots=True)
class AnomalyNotice:
    """Content of a mail about anomalous spending; `users` run what it is about, as far as known,
    and `runs` are the ids of its latest runs in their order.

    `collected_ms`: it was told in the mail of a week then, and has grown since.
    """

    notification_id: int
    finding: Finding
    at_ms: int
    users: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    collected_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SpendingWeek:
    """Content of the mail of a week: episodes that were not mailed by themselves, the dearest first.

    `is_small`: all of them are below what is mailed by itself.
    """

    start_ms: int
    end_ms: int
    zone: str
    notices: tuple[AnomalyNotice, ...]
    is_small: bool


@dataclass(frozen=True, slots=True)
class WastedUsage:
    """Idle usage of one workload in a week: GPU-nanoseconds and micro-units (None: no price)."""

    label: str
    user: str
    states: tuple[str, ...]
    gpu_ns: int
    currency: str | None
    cost_micro: int | None
    ongoing: bool
    per_day_micro: int | None = None


@dataclass(frozen=True, slots=True)
class IdleWeek:
    """The idle usage of a week as a whole; `costs`: micro-units by currency, of all of it or of
    what has a price.
    """

    gpu_ns: int
    costs: Mapping[str, int]
    is_priced: bool = True
    """Whether all of it has a price."""


@dataclass(frozen=True, slots=True)
class WeeklySummary:
    """A team's week: its idle usage, and what became of the notifications.

    `before` is the week before; None when the ledger did not cover it.
    """

    team: str
    start_ms: int
    end_ms: int
    zone: str
    wasted: tuple[WastedUsage, ...]
    notified: int
    acknowledged: int
    ended: int
    unreachable: tuple[str, ...] = ()
    before: IdleWeek | None = None


def anomaly_subject(finding: Finding) -> str:
    """The owner and the currency of unusual spending."""
    return f"{finding.subject}:{finding.currency or ''}"


def deduplication_key_of(key: str, subject: str) -> str:
    """What an episode is about: a workload, an owner's spending in a currency, or one job's storm,
    named by its key.

    A storm that costs a few cents and the owner's spending as a whole do not hide each other.
    """
    storm = f"{ANOMALY}:storm:{subject}:"
    return (
        f"{subject}:{key.removeprefix(storm).rpartition(':')[0]}"
        if key.startswith(storm)
        else subject
    )


def team_contact(contacts: Iterable[Contact], team: str) -> Contact:
    """The contact of a team, else the contact of any team, else one without people."""
    teams = {contact.team: contact for contact in contacts if contact.team}
    return teams.get(team) or teams.get(ANYBODY) or Contact("")


def notifiable_accelerators(
    workload: IdleWorkload, contact: Contact, at_ms: int
) -> tuple[str, tuple[IdleAccelerator, ...]]:
    """The idle accelerators that are worth a notification now; when there are none, the reason."""
    if is_serving(workload.kind, workload.name, workload.tags):
        return "a warm replica of a service", ()
    min_minutes = max(MIN_IDLE_MINUTES, contact.after_minutes)
    reasons, accelerators = [], []
    for accelerator in workload.accelerators:
        finding = accelerator.finding
        if finding.state not in RECLAIMABLE_STATES:
            reasons.append(f"{finding.state} is not idleness of its holder")
        elif at_ms - finding.until_ms > FRESH_MS:
            reasons.append(NOT_SEEN)
        elif finding.until_ms - finding.since_ms < min_minutes * MINUTE_MS:
            reasons.append(f"idle for less than {min_minutes} minutes")
        elif finding.confidence * 100 < contact.confidence:
            reasons.append(f"confidence below {contact.confidence} %")
        else:
            accelerators.append(accelerator)
    return (reasons[0] if reasons and not accelerators else ""), tuple(accelerators)


def owner_address(workload: IdleWorkload, contacts: Sequence[Contact]) -> str | None:
    """The owner's address: from a tag, from the user's own contact, or from that of any user; None
    without any.
    """
    users = {contact.user: contact for contact in contacts if contact.user}
    anybody = users.get(ANYBODY)
    if anybody is not None and anybody.tag:
        tagged = workload.tags.get(anybody.tag, "").strip()
        if is_address(tagged) and tagged.rpartition("@")[2].lower() in anybody.domains:
            return tagged
    own = users.get(workload.user) or anybody
    if not workload.user or own is None or not own.address:
        return None
    address = own.address.replace("{user}", workload.user)
    return address if is_address(address) else None


def recipients_of(workload: IdleWorkload, contacts: Sequence[Contact]) -> tuple[str, ...]:
    """Whom to notify: the owner, else the team's recipients; nobody when neither is known."""
    address = owner_address(workload, contacts)
    return team_contact(contacts, workload.team).recipients if address is None else (address,)


def must_escalate(notification: Notification, contact: Contact, at_ms: int) -> bool:
    """Whether nobody responded for as long as the team allows, so that its leads are to be
    notified, once.
    """
    return (
        bool(contact.leads)
        and notification.escalated_ms is None
        and notification.closed_ms is None
        and not notification.is_acknowledged(at_ms)
        and at_ms >= notification.notified_ms + contact.escalate_days * DAY_MS
    )


def reclaim_command(workload: IdleWorkload) -> str:
    """The command that frees its GPUs; '' when there is none, or when it would end work that still
    runs.
    """
    if not workload.is_entirely_idle:
        return ""
    kind, external = workload.kind, workload.external_id
    if kind == "slurm":
        return f"scancel {shlex.quote(external)}"
    if kind == "kubernetes" and (pod := pod_name(workload)) is not None:
        return f"kubectl delete pod {shlex.quote(pod[1])} --namespace {shlex.quote(pod[0])}"
    if kind == "container":
        return f"docker stop {shlex.quote(external)}"
    parts = external.split(":")
    if kind == "process" and len(parts) >= 4 and parts[-2].isdigit():
        return f"kill {parts[-2]}"
    return ""


def pod_name(workload: IdleWorkload) -> tuple[str, str] | None:
    """Namespace and name of a pod; None when they are not known."""
    namespace, name = workload.tags.get("namespace", ""), workload.tags.get("pod", "")
    if not (namespace and name):
        namespace, _, name = (
            workload.name if "/" in workload.name else workload.external_id
        ).partition("/")
    return (namespace, name) if namespace and name else None


def find_same_episode(
    known: Sequence[Notification], finding: Finding, subject: str
) -> Notification | None:
    """The notification of this episode: by its finding, or by an overlap, since a new search may
    move its start.
    """
    # A notified storm that grows until one job makes most of the spending is still that storm.
    jobs = finding.evidence.get("workloads", [])[:1]
    about = {deduplication_key_of(finding.key, subject), *(f"{subject}:{job}" for job in jobs)}
    for notification in known:
        overlaps = (
            notification.until_ms >= finding.since_ms and notification.since_ms < finding.until_ms
        )
        if finding.key in notification.findings or (
            notification.deduplication_key in about and overlaps
        ):
            return notification
    return None
