"""Notifications about what was found: who is written to, what is worth a letter, how it is given back, and what may be
done.

A letter is about an episode: one workload that holds GPUs which do nothing. What decides is here and pure; the guards
of the search (warm replicas, pauses with a rhythm, missing data) are held up a second time, because a wrong letter
costs more trust than ten right ones earn.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.idle.kinds import is_serving
from gpuledger_collector.storage.notifications.messages import is_address

MINUTE_MS = 60_000
IDLE, ANOMALY = "idle", "anomaly"
TOLD_STATES = ("never_used", "gone_idle")
"""States that mean that a holder could give the GPU back."""
LEAST_MINUTES = 20
"""Under it no pause is told, whatever a file declares: it is the usual gap between two pieces of work."""
FRESH_MS = 45 * MINUTE_MS
"""What was last seen longer ago than this is missing data, not idleness."""
LINK_MS = 14 * DAY_MS
"""How long the link of a letter serves."""
MOST_MUTE_DAYS = 90
ANYBODY = "*"
SCANCEL, EVICT, WEBHOOK = "scancel", "evict", "webhook:"


@dataclass(frozen=True, slots=True)
class Contact:
    """Who is written to: of a user (`user`, `address`) or of a team (the rest); `*` is any that has none of its own.

    `address` may hold {user}. `tag`: a tag of workloads that names an address of one of `domains`. `summary`: leads
    get one of each week. Confidence is in percent.
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
class ActionRule:
    """What a team opted in to: what is done (`do`: scancel, evict or webhook:NAME) to which of its workloads, and when.

    It has been idle for `after_minutes`, its people were told `notice_minutes` before, and a dry run has shown it for
    `dry_run_hours` without a break; at most `max_per_hour` workloads of the team an hour.
    """

    name: str
    team: str
    do: str
    states: tuple[str, ...] = TOLD_STATES
    after_minutes: int = 240
    notice_minutes: int = 120
    dry_run_hours: int = 24
    confidence: int = 90
    max_per_hour: int = 5


@dataclass(frozen=True, slots=True)
class Card:
    """One idle accelerator of a workload."""

    finding: Finding
    model: str
    gpu_index: int | None

    @property
    def node(self) -> str:
        """Where it stands."""
        return str(self.finding.evidence.get("node", ""))


@dataclass(frozen=True, slots=True)
class Holding:
    """A workload and those of its accelerators that are found idle; it holds `held` altogether."""

    workload_id: int
    kind: str
    external_id: str
    name: str
    user: str
    tags: Mapping[str, str]
    cards: tuple[Card, ...]
    held: int

    @property
    def team(self) -> str:
        """Whose it is."""
        return self.cards[0].finding.team

    @property
    def since_ms(self) -> int:
        """Since when one of them does nothing."""
        return min(card.finding.since_ms for card in self.cards)

    @property
    def until_ms(self) -> int:
        """Seen up to here."""
        return max(card.finding.until_ms for card in self.cards)

    @property
    def confidence(self) -> float:
        """Of the least sure of them."""
        return min(card.finding.confidence for card in self.cards)

    @property
    def whole(self) -> bool:
        """Whether all that it holds is idle: only then does ending it harm nobody."""
        return len(self.cards) >= self.held

    @property
    def label(self) -> str:
        """As people call it."""
        return self.name or self.external_id

    def money(self) -> list[tuple[str, int, int]]:
        """(currency, cost so far, cost of a further day) in micro-units; what has no price is left out."""
        sums: dict[str, tuple[int, int]] = {}
        for card in self.cards:
            one = card.finding
            if one.currency is not None and one.cost_micro is not None:
                cost, day = sums.get(one.currency, (0, 0))
                sums[one.currency] = (cost + one.cost_micro, day + (one.per_day_micro or 0))
        return [(currency, *sums[currency]) for currency in sorted(sums)]


@dataclass(frozen=True, slots=True)
class Notification:
    """An episode that people were told of. `acked_ms`: it is meant so, until `ack_until_ms`."""

    id: int
    key: str
    kind: str
    subject: str
    team: str
    recipients: tuple[str, ...]
    findings: tuple[str, ...]
    since_ms: int
    until_ms: int
    told_ms: int
    escalated_ms: int | None = None
    acked_ms: int | None = None
    acked_by: str = ""
    ack_until_ms: int | None = None
    why: str = ""
    closed_ms: int | None = None

    @property
    def matter(self) -> str:
        """What it is about (see deduplication_key)."""
        return deduplication_key(self.key, self.subject)

    def acknowledged(self, at_ms: int) -> bool:
        """Whether somebody said that it is meant so, and that still holds."""
        return self.ack_until_ms is not None and at_ms < self.ack_until_ms


@dataclass(frozen=True, slots=True)
class Section:
    """One workload in a letter, with the number that its link is made for."""

    notification_id: int
    holding: Holding


@dataclass(frozen=True, slots=True)
class IdleNews:
    """What a letter tells. `told_ms`: it goes to those above, and the owner was told then."""

    sections: tuple[Section, ...]
    at_ms: int
    escalate_days: int
    told_ms: int | None = None
    told_to: tuple[str, ...] = ()
    to_owner: bool = True


@dataclass(frozen=True, slots=True)
class AnomalyNews:
    """Spending that stands out, of one owner."""

    notification_id: int
    finding: Finding
    at_ms: int


@dataclass(frozen=True, slots=True)
class Wasted:
    """What one workload wasted in a week: GPU-nanoseconds and micro-units (None: no price)."""

    label: str
    user: str
    states: tuple[str, ...]
    gpu_ns: int
    currency: str | None
    cost_micro: int | None
    goes_on: bool
    per_day_micro: int | None = None


@dataclass(frozen=True, slots=True)
class SummaryNews:
    """A team's week: what it wasted, and what came of the letters."""

    team: str
    start_ms: int
    end_ms: int
    zone: str
    wasted: tuple[Wasted, ...]
    told: int
    acknowledged: int
    gave_back: int
    unreachable: tuple[str, ...] = field(default_factory=tuple)


def deduplication_key(key: str, subject: str) -> str:
    """What an episode is about: a workload, an owner's spending in a currency, or one job's storm, which its key names.

    A storm of some cents is another matter than the spending of the same owner: neither hides the other.
    """
    storm = f"{ANOMALY}:storm:{subject}:"
    return f"{subject}:{key.removeprefix(storm).rpartition(':')[0]}" if key.startswith(storm) else subject


def of_team(contacts: Iterable[Contact], team: str) -> Contact:
    """The contact of a team, else that of any team, else one without people."""
    teams = {one.team: one for one in contacts if one.team}
    return teams.get(team) or teams.get(ANYBODY) or Contact("")


def told_cards(holding: Holding, contact: Contact, at_ms: int) -> tuple[str, tuple[Card, ...]]:
    """The idle cards that are worth a letter now; when there are none, why not."""
    if is_serving(holding.kind, holding.name, holding.tags):
        return "a warm replica of a service", ()
    least_ms = max(LEAST_MINUTES, contact.after_minutes) * MINUTE_MS
    reasons, cards = [], []
    for card in holding.cards:
        one = card.finding
        if one.state not in TOLD_STATES:
            reasons.append(f"{one.state} is not idleness of its holder")
        elif at_ms - one.until_ms > FRESH_MS:
            reasons.append("nobody has seen it lately")
        elif one.until_ms - one.since_ms < least_ms:
            reasons.append(f"idle for less than {least_ms // MINUTE_MS} minutes")
        elif one.confidence * 100 < contact.confidence:
            reasons.append(f"less sure than {contact.confidence} %")
        else:
            cards.append(card)
    return (reasons[0] if reasons and not cards else ""), tuple(cards)


def address_of(holding: Holding, contacts: Sequence[Contact]) -> str | None:
    """The owner's address: by a tag, by the user's own contact, by that of any user; None where there is none."""
    users = {one.user: one for one in contacts if one.user}
    anybody = users.get(ANYBODY)
    if anybody is not None and anybody.tag:
        said = holding.tags.get(anybody.tag, "").strip()
        if is_address(said) and said.rpartition("@")[2].lower() in anybody.domains:
            return said
    if not holding.user:
        return None
    own = users.get(holding.user) or anybody
    if own is None or not own.address:
        return None
    made = own.address.replace("{user}", holding.user)
    return made if is_address(made) else None


def recipients_of(holding: Holding, contacts: Sequence[Contact]) -> tuple[str, ...]:
    """Who is told of it: the owner, else the team's recipients; nobody when neither is known."""
    address = address_of(holding, contacts)
    return of_team(contacts, holding.team).recipients if address is None else (address,)


def must_escalate(notification: Notification, contact: Contact, at_ms: int) -> bool:
    """Whether nobody said anything for as long as the team allows, and its leads are to be told, once."""
    return (
        bool(contact.leads)
        and notification.escalated_ms is None
        and notification.closed_ms is None
        and not notification.acknowledged(at_ms)
        and at_ms >= notification.told_ms + contact.escalate_days * DAY_MS
    )


def give_back(holding: Holding) -> str:
    """The command that gives its GPUs back; '' where there is none, or where it would end what still works."""
    if not holding.whole:
        return ""
    kind, external = holding.kind, holding.external_id
    if kind == "slurm":
        return f"scancel {shlex.quote(external)}"
    if kind == "kubernetes" and (place := pod_of(holding)) is not None:
        return f"kubectl delete pod {shlex.quote(place[1])} --namespace {shlex.quote(place[0])}"
    if kind == "container":
        return f"docker stop {shlex.quote(external)}"
    parts = external.split(":")
    if kind == "process" and len(parts) >= 4 and parts[-2].isdigit():
        return f"kill {parts[-2]}"
    return ""


def pod_of(holding: Holding) -> tuple[str, str] | None:
    """Namespace and name of a pod, None when they are not known."""
    space, name = holding.tags.get("namespace", ""), holding.tags.get("pod", "")
    if not (space and name):
        space, _, name = (holding.name if "/" in holding.name else holding.external_id).partition("/")
    return (space, name) if space and name else None


@dataclass(frozen=True, slots=True)
class Action:
    """What is done about a letter, and how far it is: shown, doing, done, failed or spared."""

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


def fits(rule: ActionRule, holding: Holding) -> dict[str, str] | None:
    """The workload as the way of doing it names it; None when that way does not reach it."""
    facts = {"workload": holding.external_id, "name": holding.name, "user": holding.user, "kind": holding.kind}
    if rule.do == SCANCEL:
        return facts if holding.kind == "slurm" and holding.external_id.replace("_", "").isdigit() else None
    if rule.do == EVICT:
        place = pod_of(holding)
        uid = holding.tags.get("pod_uid", "")
        # Without the UID another pod of the same name could be evicted.
        return {**facts, "namespace": place[0], "pod": place[1], "uid": uid} if place and uid else None
    return facts


def may_act(rule: ActionRule, holding: Holding, notification: Notification, sent_ms: int | None, at_ms: int) -> str:
    """Why a workload is spared now; '' when a dry run may show it. `sent_ms`: when its people's letter was taken."""
    if is_serving(holding.kind, holding.name, holding.tags):
        return "a warm replica of a service"
    if not holding.whole:
        return f"only {len(holding.cards)} of its {holding.held} GPUs are idle"
    if any(card.finding.state not in rule.states for card in holding.cards):
        return "in another state than the team named"
    if at_ms - holding.until_ms > FRESH_MS:
        return "nobody has seen it lately"
    if min(one.finding.until_ms - one.finding.since_ms for one in holding.cards) < rule.after_minutes * MINUTE_MS:
        return f"idle for less than {rule.after_minutes} minutes"
    if holding.confidence * 100 < rule.confidence:
        return f"less sure than {rule.confidence} %"
    if notification.acknowledged(at_ms):
        return f"meant so, says {notification.acked_by or 'its owner'}"
    if sent_ms is None:
        return "its people were not told yet"
    if at_ms < sent_ms + rule.notice_minutes * MINUTE_MS:
        return f"told less than {rule.notice_minutes} minutes ago"
    return ""


def is_ripe(rule: ActionRule, action: Action, at_ms: int) -> bool:
    """Whether the dry run has shown it for long enough."""
    return action.state == "shown" and at_ms >= action.first_shown_ms + rule.dry_run_hours * HOUR_MS
