"""Give back what has been idle for long, where a team opted in: first shown by a dry run, then done, each once.

Three transactions at most: what a dry run may show is noted with the instant from which it is shown without a break;
an action is begun, with its row in the audit log, before anything is done; and what came of it is noted. One who ends
between the two last leaves it `doing`: the next one asks the way whether it is done already before it acts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage.notifications.finding_rules import (
    IDLE,
    Action,
    ActionRule,
    Holding,
    Notification,
    fits,
    is_ripe,
    may_act,
)
from gpuledger_collector.storage.notifications.messages import Content, Message

WHO = "gpuledger: actions on idle GPUs"
KIND = "action"
OnStep = Callable[[str], None]


class Way(Protocol):
    """One way to give back what a workload holds (notify.ways)."""

    def gone(self, action: Action) -> bool:
        """Whether the workload is gone, or is going."""

    def act(self, action: Action) -> str:
        """Give it back; what was done, in a sentence."""


class ActionUnit(Protocol):
    """One transaction, alone among those that write letters and actions."""

    def actions(self) -> Sequence[ActionRule]:
        """What teams opted in to."""

    def holdings(self, at_ms: int) -> Sequence[Holding]:
        """Workloads with accelerators that are found idle now."""

    def notifications(self, kind: str, since_ms: int) -> Sequence[Notification]:
        """Letters of a kind that were told since, go on, or are meant so."""

    def sent_ms(self, notification: Notification) -> int | None:
        """When one of those it was for had the letter; None: nobody yet."""

    def shown(self) -> Sequence[Action]:
        """Actions that were shown or begun and not ended."""

    def show(
        self, key: str, notification: Notification, rule: ActionRule, target: Mapping[str, str], at_ms: int
    ) -> bool:
        """A dry run shows this; False when it was done before."""

    def spare(self, action: Action, why: str) -> None:
        """It is not shown any more."""

    def begun_since(self, team: str, since_ms: int) -> int:
        """How many actions of a team were begun since."""

    def begin(self, action: Action, at_ms: int, who: str) -> bool:
        """It is done from now on; False when another does it."""

    def end(self, action: Action, state: str, detail: str, at_ms: int, who: str) -> bool:
        """What came of it; False when that is known already."""

    def put(self, message: Message) -> bool:
        """A message of this transaction."""


class Actions(Protocol):
    """Where actions are kept."""

    def unit(self) -> AbstractContextManager[ActionUnit]:
        """A transaction, alone in writing letters and actions."""

    def alone(self, action: Action) -> AbstractContextManager[bool]:
        """Whether nobody else does this action while the block runs; it ends with this process."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A workload that a rule reaches, and why it is spared ('': it is shown)."""

    rule: ActionRule
    holding: Holding
    notification: Notification | None
    spared: str
    key: str = ""
    target: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Acted:
    """What a round did."""

    shown: int = 0
    done: int = 0
    failed: int = 0
    spared: int = 0
    waiting: int = 0

    def __str__(self) -> str:
        """For the run's record."""
        return (
            f"{self.shown} shown, {self.done} done, {self.failed} failed, {self.spared} spared, "
            f"{self.waiting} over the limit of an hour"
        )


def candidates(unit: ActionUnit, at_ms: int) -> list[Candidate]:
    """Every idle workload that a rule reaches, with the reason why it is spared where it is."""
    rules = unit.actions()
    if not rules:
        return []
    notifications: dict[str, Notification] = {}
    for notification in unit.notifications(IDLE, at_ms - 90 * DAY_MS):
        if notification.closed_ms is None or notification.acknowledged(at_ms):
            notifications[notification.subject] = notification
    reached = [
        (rule, holding, target)
        for holding in unit.holdings(at_ms)
        for rule in rules
        if rule.team == holding.team and (target := fits(rule, holding)) is not None
    ]
    return [
        _candidate(unit, rule, holding, notifications.get(str(holding.workload_id)), target, at_ms)
        for rule, holding, target in reached
    ]


def _candidate(
    unit: ActionUnit,
    rule: ActionRule,
    holding: Holding,
    notification: Notification | None,
    target: Mapping[str, str],
    at_ms: int,
) -> Candidate:
    if notification is None:
        return Candidate(rule, holding, None, "its people were not told yet")
    why = may_act(rule, holding, notification, unit.sent_ms(notification), at_ms)
    return Candidate(rule, holding, notification, why, f"{notification.key}/{rule.do}", target)


def reclaim_idle(
    store: Actions,
    at_ms: int,
    ways: Mapping[str, Way],
    write: Callable[[Action, Holding | None], Content],
    *,
    enabled: bool,
    on_step: OnStep = lambda _: None,
) -> Acted:
    """One round; without `enabled` it only shows. `ways` by what is done: scancel, evict, webhook:NAME."""
    done = Acted()
    with store.unit() as unit:
        found = {one.key: one for one in candidates(unit, at_ms) if one.notification is not None}
        done.shown = _show(unit, found, at_ms, done)
        waiting = [one for one in unit.shown() if one.state == "doing" or enabled]
    on_step("shown")
    for action in waiting:
        candidate = found.get(action.key)
        if action.state == "shown" and (
            candidate is None or candidate.spared or not is_ripe(candidate.rule, action, at_ms)
        ):
            continue
        way = ways.get(action.what)
        if way is not None:
            _do(store, action, candidate, way, at_ms, write, done, on_step)
    return done


def _show(unit: ActionUnit, found: Mapping[str, Candidate], at_ms: int, done: Acted) -> int:
    for action in unit.shown():
        candidate = found.get(action.key)
        if action.state == "shown" and (candidate is None or candidate.spared):
            unit.spare(action, "it is no longer idle" if candidate is None else candidate.spared)
            done.spared += 1
    return sum(
        unit.show(one.key, one.notification, one.rule, one.target, at_ms)
        for one in found.values()
        if one.notification is not None and not one.spared
    )


def _do(
    store: Actions,
    action: Action,
    candidate: Candidate | None,
    way: Way,
    at_ms: int,
    write: Callable[[Action, Holding | None], Content],
    done: Acted,
    on_step: OnStep,
) -> None:
    with store.alone(action) as mine:
        if not mine:
            return
        if action.state == "shown":
            assert candidate is not None
            with store.unit() as unit:
                if unit.begun_since(action.team, at_ms - HOUR_MS) >= candidate.rule.max_per_hour:
                    done.waiting += 1
                    return
                if not unit.begin(action, at_ms, WHO):
                    return
            on_step("begun")
        _finish(store, action, candidate, way, at_ms, write, done, on_step)


def _finish(
    store: Actions,
    action: Action,
    candidate: Candidate | None,
    way: Way,
    at_ms: int,
    write: Callable[[Action, Holding | None], Content],
    done: Acted,
    on_step: OnStep,
) -> None:
    try:
        if way.gone(action):
            state, detail = "done", "it was gone already"
        elif action.state == "doing" and (candidate is None or candidate.spared):
            # Begun by one who ended, and no longer idle: what works is not ended.
            state, detail = "failed", "begun, and then no longer idle: left alone"
        else:
            on_step("asked")
            state, detail = "done", way.act(action)
        on_step("acted")
    except Exception as error:
        if not hasattr(error, "permanent"):
            raise
        if not error.permanent and (action.acted_ms is None or at_ms < action.acted_ms + HOUR_MS):
            return  # it stays `doing`: the next round asks, and tries again for an hour
        state, detail = "failed", str(error)
    with store.unit() as unit:
        if not unit.end(action, state, detail, at_ms, WHO):
            return
        if state == "done":
            notification = next((one for one in unit.notifications(IDLE, 0) if one.id == action.notification_id), None)
            content = write(action, None if candidate is None else candidate.holding)
            for recipient in () if notification is None else notification.recipients:
                unit.put(
                    Message(
                        f"{KIND}/{action.id}",
                        KIND,
                        recipient,
                        content,
                        at_ms,
                        at_ms,
                        f"{IDLE}/{action.notification_id}",
                        urgent=True,
                    )
                )
    on_step("recorded")
    done.done += state == "done"
    done.failed += state == "failed"
