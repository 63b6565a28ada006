"""When a message goes out, by what its recipient asked for: quiet hours, one digest instead of many, a cap for a day.

Hours are wall-clock hours of the recipient's zone, also on the days when clocks are changed: an hour that comes twice
is quiet twice, one that is left out is quiet never. What is urgent passes all of it. Nothing is dropped: what is not
sent by itself joins the next digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.notifications.messages import Content

MINUTE_MS = 60_000
DAILY, WEEKLY = "daily", "weekly"
DIGESTS = ("", DAILY, WEEKLY)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERYBODY = "*"
"""Names the rules of mail addresses that have none of their own."""
DIGEST = "digest"
"""The kind of a message that tells of others: it waits for the end of quiet hours and for nothing else."""
_MOST_QUIET = 26 * 60
"""Minutes: quiet hours are shorter than a day, and clocks are changed by two hours at most."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a recipient asked for. `quiet` and `digest_at` are minutes of the day in `zone`, `digest_on` 0 is Monday.

    `pass_kinds`: kinds of messages that are urgent to this recipient. `max_per_day`: single messages, None: any.
    """

    digest: str = ""
    digest_at: int = 8 * 60
    digest_on: int = 0
    quiet: tuple[int, int] | None = None
    zone: str = "UTC"
    max_per_day: int | None = None
    pass_kinds: tuple[str, ...] = ()


NO_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a message: sent by itself at an instant, or told in the digest of that instant."""

    at_ms: int
    joins: bool


@dataclass(frozen=True, slots=True)
class Told:
    """A message that a digest tells of."""

    kind: str
    made_ms: int
    subject: str
    text: str
    link: str


@dataclass(frozen=True, slots=True)
class Digest:
    """Messages to one recipient that are told in one; `zone` is the recipient's."""

    recipient: str
    due_ms: int
    zone: str
    messages: tuple[Told, ...]


WriteDigest = Callable[[Digest], Content]


def rules_of(recipient: str, rules: Mapping[str, Rules]) -> Rules:
    """The recipient's own rules, else those of everybody; everybody's do not bind chats and webhooks."""
    own = rules.get(recipient)
    if own is not None:
        return own
    return NO_RULES if recipient.startswith(("slack:", "webhook:")) else rules.get(EVERYBODY, NO_RULES)


def plan(rules: Rules, kind: str, at_ms: int, *, urgent: bool, planned: Callable[[Period], int]) -> Plan:
    """What becomes of a message that may go out from `at_ms` on.

    `planned`: how many single messages are planned for this recipient in a day (a Period of the recipient's zone).
    """
    if urgent or kind in rules.pass_kinds:
        return Plan(at_ms, joins=False)
    free_ms = end_of_quiet(rules, at_ms)
    if kind == DIGEST:
        return Plan(free_ms, joins=False)
    full = rules.max_per_day is not None and planned(local_day(rules.zone, free_ms)) >= rules.max_per_day
    if rules.digest or full:
        return Plan(next_digest(rules, at_ms), joins=True)
    return Plan(free_ms, joins=False)


def end_of_quiet(rules: Rules, at_ms: int) -> int:
    """The instant itself when it is not quiet, else the first whole minute that is not."""
    if rules.quiet is None or not _is_quiet(rules.quiet, _minute(rules.zone, at_ms)):
        return at_ms
    return _end_of_quiet(rules.quiet, rules.zone, at_ms // MINUTE_MS) * MINUTE_MS


@lru_cache(maxsize=4096)
def _end_of_quiet(quiet: tuple[int, int], zone: str, minute: int) -> int:
    return next(
        (at for at in range(minute, minute + _MOST_QUIET) if not _is_quiet(quiet, _minute(zone, at * MINUTE_MS))),
        minute + _MOST_QUIET,
    )


def _is_quiet(quiet: tuple[int, int], minute: int) -> bool:
    start, end = quiet
    return start <= minute < end if start < end else minute >= start or minute < end


def _minute(zone: str, at_ms: int) -> int:
    """Minute of the wall-clock day."""
    at = _local(zone, at_ms)
    return at.hour * 60 + at.minute


def _local(zone: str, at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC).astimezone(ZoneInfo(zone))


def next_digest(rules: Rules, at_ms: int) -> int:
    """The first instant after `at_ms` at which a digest is due. An hour that comes twice counts the first time."""
    clock = time(rules.digest_at // 60, rules.digest_at % 60)
    first = _local(rules.zone, at_ms).date()
    for ahead in range(9):
        day = first + timedelta(days=ahead)
        due_ms = round(datetime.combine(day, clock, ZoneInfo(rules.zone)).timestamp()) * 1000
        if due_ms > at_ms and (rules.digest != WEEKLY or day.weekday() == rules.digest_on):
            return due_ms
    raise AssertionError("a week has every weekday")


def local_day(zone: str, at_ms: int) -> Period:
    """The wall-clock day that holds an instant: 23, 24 or 25 hours."""
    day = _local(zone, at_ms).date()
    start, end = (
        round(datetime.combine(one, time(), ZoneInfo(zone)).timestamp()) * 1000
        for one in (day, day + timedelta(days=1))
    )
    return Period(start, end)


def local_week(zone: str, at_ms: int) -> Period:
    """The week from Monday on that holds an instant, in wall-clock days."""
    day = _local(zone, at_ms).date()
    monday = day - timedelta(days=day.weekday())
    start, end = (
        round(datetime.combine(one, time(), ZoneInfo(zone)).timestamp()) * 1000
        for one in (monday, monday + timedelta(days=7))
    )
    return Period(start, end)


def counted_kinds(messages: Sequence[Told]) -> list[tuple[str, int]]:
    """How many messages of each kind, the most first."""
    counts: dict[str, int] = {}
    for one in messages:
        counts[one.kind] = counts.get(one.kind, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
