"""Reclaim GPUs that have been idle for long, where a team opted in: first shown by a dry run, then
done, each once.

A run has up to three transactions: it records what a dry run may show, with the instant since when
it is shown without a break; it records, also in the audit log, that an action is about to be done;
and it records the outcome. A process that ends between the last two leaves the action `doing`: the
next run asks the backend whether it is done already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.notifications.finding_rules import (
    IDLE,
    NOT_NOTIFIED,
    IdleWorkload,
)
from gpuledger_collector.insight.notifications.listed import ReclaimCandidate
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.insight.notifications.reclaim_rules import (
    ReclaimAction,
    is_due,
    reason_to_spare,
    reclaim_target,
)
from gpuledger_collector.notifications.reclaim import NotReclaimed, ReclaimBackend
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings.idle_workloads import idle_workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications import (
    finding_notifications,
    notification_rules,
    outbox,
)

WHO = "gpuledger: actions on idle GPUs"
KIND = "action"
HISTORY_MS = 90 * DAY_MS
MAX_LISTED = 200
WriteMail = Callable[[ReclaimAction, IdleWorkload | None], Content]


@dataclass
class ReclaimReport:
    """What a run did."""

    shown: int = 0
    done: int = 0
    failed: int = 0
    spared: int = 0
    waiting: int = 0

    def __str__(self) -> str:
        """One line for the record of job runs."""
        return (
            f"{self.shown} shown, {self.done} done, {self.failed} failed, {self.spared} spared, "
            f"{self.waiting} over the hourly limit"
        )


def _list_reached(connection: Connection, at_ms: int) -> list[ReclaimCandidate]:
    """Every idle workload that a rule reaches, with the reason if it is spared."""
    rules = notification_rules.actions(connection)
    if not rules:
        return []
    notifications = {
        notification.subject: notification
        for notification in finding_notifications.recent(connection, IDLE, at_ms - HISTORY_MS)
        if notification.closed_ms is None or notification.is_acknowledged(at_ms)
    }
    reached = []
    for workload in idle_workloads(connection, at_ms):
        notification = notifications.get(str(workload.workload_id))
        for rule in rules:
            target = reclaim_target(rule, workload) if rule.team == workload.team else None
            if target is None:
                continue
            if notification is None:
                reached.append(ReclaimCandidate(rule, workload, None, NOT_NOTIFIED))
                continue
            sent_ms = finding_notifications.sent_ms(connection, notification)
            spared = reason_to_spare(rule, workload, notification, sent_ms, at_ms)
            reached.append(
                ReclaimCandidate(
                    rule, workload, notification, spared, f"{notification.key}/{rule.do}", target
                )
            )
    return reached


def list_candidates(database: Database, at_ms: int) -> list[ReclaimCandidate]:
    """Every idle workload that a rule reaches, as a dry run shows it; changes nothing."""
    with database.connect() as connection:
        reached = _list_reached(connection, at_ms)
        open_actions = finding_notifications.open_actions(connection)
    shown_since = {action.key: action.first_shown_ms for action in open_actions}
    return [
        candidate
        if candidate.spared
        else replace(candidate, shown_ms=shown_since.get(candidate.key, at_ms))
        for candidate in reached
    ]


def list_actions(database: Database) -> list[ReclaimAction]:
    """The last actions, newest first."""
    with database.connect() as connection:
        return finding_notifications.actions(connection, MAX_LISTED)


def reclaim_idle(
    database: Database,
    at_ms: int,
    backends: Mapping[str, ReclaimBackend],
    write: WriteMail,
    *,
    enabled: bool,
    on_step: Callable[[str], None] = lambda _: None,
) -> ReclaimReport:
    """Show candidates, and when `enabled` reclaim those shown for long enough.

    `backends` are named as rules name them: scancel, evict, webhook:NAME. `on_step` is called with
    the name of each step as it is reached; tests end the process there.
    """
    return _Run(database, at_ms, backends, write, on_step).run(enabled=enabled)


@dataclass
class _Run:
    database: Database
    at_ms: int
    backends: Mapping[str, ReclaimBackend]
    write: WriteMail
    on_step: Callable[[str], None]
    report: ReclaimReport = field(default_factory=ReclaimReport)

    def run(self, *, enabled: bool) -> ReclaimReport:
        with finding_notifications.writing(self.database) as connection:
            reached = {
                candidate.key: candidate
                for candidate in _list_reached(connection, self.at_ms)
                if candidate.notification is not None
            }
            self._show(connection, reached)
            actions = [
                action
                for action in finding_notifications.open_actions(connection)
                # Begun actions are finished even when reclaiming has been switched off: nobody
                # knows yet whether they were done.
                if action.state == "doing" or enabled
            ]
        self.on_step("shown")
        for action in actions:
            candidate = reached.get(action.key)
            due = (
                candidate is not None
                and not candidate.spared
                and is_due(candidate.rule, action, self.at_ms)
            )
            if (due or action.state == "doing") and action.what in self.backends:
                self._reclaim(action, candidate)
        return self.report

    def _show(self, connection: Connection, reached: Mapping[str, ReclaimCandidate]) -> None:
        for action in finding_notifications.open_actions(connection):
            candidate = reached.get(action.key)
            if action.state == "shown" and (candidate is None or candidate.spared):
                why = "it is no longer idle" if candidate is None else candidate.spared
                finding_notifications.spare(connection, action, why)
                self.report.spared += 1
        for candidate in reached.values():
            if candidate.notification is not None and not candidate.spared:
                self.report.shown += finding_notifications.show(
                    connection,
                    candidate.key,
                    candidate.notification,
                    candidate.rule,
                    candidate.target,
                    self.at_ms,
                )

    def _reclaim(self, action: ReclaimAction, candidate: ReclaimCandidate | None) -> None:
        # Held for as long as the backend is asked: two collectors must not end one workload at the
        # same time.
        with finding_notifications.reclaiming(self.database, action) as is_ours:
            if not is_ours:
                return
            if action.state == "shown":
                assert candidate is not None
                with finding_notifications.writing(self.database) as connection:
                    # Counted in the transaction that begins: two runs cannot both take the last
                    # place of the hour.
                    begun = finding_notifications.count_begun(
                        connection, action.team, self.at_ms - HOUR_MS
                    )
                    if begun >= candidate.rule.max_per_hour:
                        self.report.waiting += 1
                        return
                    if not finding_notifications.begin(connection, action, self.at_ms, WHO):
                        return
                self.on_step("begun")
            outcome = self._ask_backend(action, candidate)
            if outcome is not None:
                self._record(action, candidate, *outcome)

    def _ask_backend(
        self, action: ReclaimAction, candidate: ReclaimCandidate | None
    ) -> tuple[str, str] | None:
        """State (`done`, `failed`) and detail of the outcome; None for up to an hour after a backend
        did not answer: the next run tries again.

        A workload that is gone is done. What was begun for one that is a candidate no more, or is
        spared, has failed, and the workload is left alone.
        """
        backend = self.backends[action.what]
        try:
            # Asked first: a workload that has ended is not ended again, and its id may belong to
            # another by now.
            if backend.is_gone(action):
                outcome = "done", "it was gone already"
            elif action.state == "doing" and (candidate is None or candidate.spared):
                # Begun by a process that ended; the workload may be busy again, so it is not ended.
                outcome = "failed", "begun, and then no longer idle: left alone"
            else:
                self.on_step("asked")
                outcome = "done", backend.reclaim(action)
        except NotReclaimed as error:
            if not error.permanent and (
                action.acted_ms is None or self.at_ms < action.acted_ms + HOUR_MS
            ):
                return None  # it stays `doing`: later runs ask and try again for an hour
            return "failed", str(error)
        self.on_step("acted")
        return outcome

    def _record(
        self, action: ReclaimAction, candidate: ReclaimCandidate | None, state: str, detail: str
    ) -> None:
        with finding_notifications.writing(self.database) as connection:
            if not finding_notifications.end(connection, action, state, detail, self.at_ms, WHO):
                return
            notification = finding_notifications.by_id(connection, action.notification_id)
            if state == "done" and notification is not None:
                content = self.write(action, None if candidate is None else candidate.workload)
                thread = f"{IDLE}/{action.notification_id}"
                for recipient in notification.recipients:
                    key = f"{KIND}/{action.id}"
                    message = Message(
                        key, KIND, recipient, content, self.at_ms, self.at_ms, thread, urgent=True
                    )
                    outbox.insert(connection, message)
        self.on_step("recorded")
        self.report.done += state == "done"
        self.report.failed += state == "failed"
