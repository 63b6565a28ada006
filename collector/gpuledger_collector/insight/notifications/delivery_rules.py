"""When a message is sent, by the rules of its recipient: quiet hours, a digest instead of many
mails, a daily limit.

Quiet hours are wall-clock hours in the recipient's time zone, also when clocks change: an hour that
comes twice is quiet twice. Urgent messages ignore all rules. Nothing is dropped: what is not sent
on its own joins the next digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from gpuledger_collector.accounting.period import MINUTE_MS, Period
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_common.instants import to_datetime, to_ms

DAILY, WEEKLY = "daily", "weekly"
DIGESTS = ("", DAILY, WEEKLY)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERYBODY = "*"
"""Names the rules of mail addresses without rules of their own."""
DIGEST = "digest"
"""The kind of a digest, which waits for the end of quiet hours and for nothing else."""
_MAX_QUIET_MINUTES = 26 * 60
"""Quiet hours are shorter than a day, and clocks change by two hours at most."""


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """Rules of one recipient.

    `quiet` and `digest_at` are minutes of the day in `zone`; `digest_on` 0 is Monday.

    `pass_kinds` are kinds of messages that are urgent to this recipient; `max_per_day` limits
    single messages.
    """

    digest: str = ""
    digest_at: int = 8 * 60
    digest_on: int = 0
    quiet: tuple[int, int] | None = None
    zone: str = "UTC"
    max_per_day: int | None = None
    pass_kinds: tuple[str, ...] = ()


NO_RULES = DeliveryRules()


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """When a message is sent: alone at an instant, or in the digest of that instant."""

    at_ms: int
    joins_digest: bool


@dataclass(frozen=True, slots=True)
class DigestEntry:
    """A message in a digest."""

    kind: str
    made_ms: int
    subject: str
    text: str
    link: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class Digest:
    """Several messages to one recipient, sent as one; `zone` is the recipient's."""

    recipient: str
    due_ms: int
    zone: str
    messages: tuple[DigestEntry, ...]


WriteDigest = Callable[[Digest], Content]


def rules_of(recipient: str, rules: Mapping[str, DeliveryRules]) -> DeliveryRules:
    """The recipient's own rules, else those of everybody, which do not apply to chats and webhooks."""
    own = rules.get(recipient)
    if own is not None:
        return own
    return (
        NO_RULES
        if recipient.startswith(("slack:", "teams:", "webhook:"))
        else rules.get(EVERYBODY, NO_RULES)
    )


def plan(
    rules: DeliveryRules, kind: str, at_ms: int, *, urgent: bool, planned: Callable[[Period], int]
) -> DeliveryPlan:
    """Plan a message that may be sent from `at_ms` on.

    `planned` counts the single messages planned for this recipient on a day (a Period in the
    recipient's zone).
    """
    # In this order: urgent ones at once; digests after quiet hours; then what the daily limit or
    # the rules put into a digest; the rest after quiet hours.
    if urgent or kind in rules.pass_kinds:
        return DeliveryPlan(at_ms, joins_digest=False)
    free_ms = end_of_quiet(rules, at_ms)
    if kind == DIGEST:
        return DeliveryPlan(free_ms, joins_digest=False)
    full = (
        rules.max_per_day is not None
        and planned(local_day(rules.zone, free_ms)) >= rules.max_per_day
    )
    if rules.digest or full:
        return DeliveryPlan(next_digest(rules, at_ms), joins_digest=True)
    return DeliveryPlan(free_ms, joins_digest=False)


def end_of_quiet(rules: DeliveryRules, at_ms: int) -> int:
    """The instant itself outside of quiet hours, else the first whole minute after them."""
    if rules.quiet is None or not _is_quiet(rules.quiet, _minute(rules.zone, at_ms)):
        return at_ms
    return _end_of_quiet(rules.quiet, rules.zone, at_ms // MINUTE_MS) * MINUTE_MS


@lru_cache(maxsize=4096)
def _end_of_quiet(quiet: tuple[int, int], zone: str, minute: int) -> int:
    return next(
        (
            at
            for at in range(minute, minute + _MAX_QUIET_MINUTES)
            if not _is_quiet(quiet, _minute(zone, at * MINUTE_MS))
        ),
        minute + _MAX_QUIET_MINUTES,
    )


def _is_quiet(quiet: tuple[int, int], minute: int) -> bool:
    start, end = quiet
    # Quiet hours may span midnight.
    return start <= minute < end if start < end else minute >= start or minute < end


def _minute(zone: str, at_ms: int) -> int:
    """Minute of the wall-clock day."""
    at = _local(zone, at_ms)
    return at.hour * 60 + at.minute


def _local(zone: str, at_ms: int) -> datetime:
    return to_datetime(at_ms).astimezone(ZoneInfo(zone))


def next_digest(rules: DeliveryRules, at_ms: int) -> int:
    """The first instant after `at_ms` at which a digest is due; an hour that comes twice counts the
    first time.
    """
    clock = time(rules.digest_at // 60, rules.digest_at % 60)
    first = _local(rules.zone, at_ms).date()
    # A week and a day more: today's instant may have passed, and the weekly one be a week ahead.
    for ahead in range(9):
        day = first + timedelta(days=ahead)
        due_ms = to_ms(datetime.combine(day, clock, ZoneInfo(rules.zone)))
        if due_ms > at_ms and (rules.digest != WEEKLY or day.weekday() == rules.digest_on):
            return due_ms
    raise AssertionError("a week has every weekday")


def local_day(zone: str, at_ms: int) -> Period:
    """The wall-clock day that holds an instant: 23, 24 or 25 hours."""
    day = _local(zone, at_ms).date()
    return Period(_midnight_ms(day, zone), _midnight_ms(day + timedelta(days=1), zone))


def local_week(zone: str, at_ms: int) -> Period:
    """The week, from Monday on, that holds an instant, in wall-clock days."""
    day = _local(zone, at_ms).date()
    monday = day - timedelta(days=day.weekday())
    return Period(_midnight_ms(monday, zone), _midnight_ms(monday + timedelta(days=7), zone))


def _midnight_ms(day: date, zone: str) -> int:
    return to_ms(datetime.combine(day, time(), ZoneInfo(zone)))


def count_kinds(messages: Sequence[DigestEntry]) -> list[tuple[str, int]]:
    """How many messages of each kind there are, by falling count."""
    counts = Counter(message.kind for message in messages)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
