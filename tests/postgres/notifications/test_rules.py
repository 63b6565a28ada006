"""When a message goes out: hours of a zone with its clock changes, digests, and a cap for a day."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger_collector.insight.notifications.delivery_rules import (
    EVERYBODY,
    NO_RULES,
    DeliveryRules,
    end_of_quiet,
    local_day,
    local_week,
    next_digest,
    plan,
    rules_of,
)

ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
)
INSTANTS = st.integers(1_735_689_600_000, 1_861_920_000_000)
MINUTES = st.integers(0, 1439)


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(at.timestamp() * 1000)


def local_minute(at_ms: int, zone: str) -> int:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(zone))
    return at.hour * 60 + at.minute


def is_quiet(quiet: tuple[int, int], minute: int) -> bool:
    start, end = quiet
    return start <= minute < end if start < end else not end <= minute < start


@settings(deadline=None)
@given(INSTANTS, ZONES, MINUTES, MINUTES)
def test_what_waits_goes_out_in_the_first_minute_that_is_not_quiet(at_ms, zone, start, end) -> None:
    """Never in quiet hours, never later than it must, and at once when it is not quiet: also where
    clocks change.
    """
    quiet = (start, (end + 1) % 1440 if start == end else end)
    found = end_of_quiet(DeliveryRules(quiet=quiet, zone=zone), at_ms)
    assert not is_quiet(quiet, local_minute(found, zone))
    if is_quiet(quiet, local_minute(at_ms, zone)):
        assert found > at_ms
        assert is_quiet(quiet, local_minute(found - 60_000, zone))
    else:
        assert found == at_ms


@pytest.mark.parametrize(
    ("at", "fold", "end", "fold_of_end"),
    [
        ("2026-03-29T01:30", 0, "2026-03-29T03:00", 0),  # 02:30 is left out: over at 03:00
        ("2026-10-25T02:15", 0, "2026-10-25T02:30", 0),
        ("2026-10-25T02:15", 1, "2026-10-25T02:30", 1),  # the hour comes twice, and is quiet twice
        ("2026-07-01T23:00", 0, "2026-07-02T02:30", 0),
    ],
)
def test_quiet_hours_when_clocks_change(at, fold, end, fold_of_end) -> None:
    """22:00 to 02:30 in Berlin, in the nights in which 02:30 is not there, and twice."""
    rules = DeliveryRules(quiet=(22 * 60, 2 * 60 + 30), zone="Europe/Berlin")
    assert end_of_quiet(rules, ms(at, "Europe/Berlin", fold)) == ms(
        end, "Europe/Berlin", fold_of_end
    )


@settings(deadline=None)
@given(INSTANTS, ZONES, MINUTES, st.sampled_from(["daily", "weekly"]), st.integers(0, 6))
def test_a_digest_is_due_after_and_soon(at_ms, zone, minute, digest, weekday) -> None:
    """Within a day or a week and an hour of clock change; at its hour, or right after the gap that
    swallowed it.
    """
    rules = DeliveryRules(digest=digest, digest_at=minute, digest_on=weekday, zone=zone)
    due = next_digest(rules, at_ms)
    assert 0 < due - at_ms <= (7 if digest == "weekly" else 1) * 86_400_000 + 3_600_000
    assert (local_minute(due, zone) - minute) % 1440 in (0, 30, 60)
    assert next_digest(rules, due) > due


def test_days_and_weeks_are_of_the_zone() -> None:
    """The day on which clocks go forward has 23 hours; a week begins on Monday."""
    day = local_day("Europe/Berlin", ms("2026-03-29T12:00"))
    assert day.ms == 23 * 3_600_000
    week = local_week("Europe/Berlin", ms("2026-11-21T12:00"))
    assert (week.start_ms, week.end_ms) == (ms("2026-11-15T23:00"), ms("2026-11-22T23:00"))


def test_urgent_messages_pass_and_the_others_are_planned() -> None:
    """Urgent at once; a digest is not held for another; over the cap joins the next daily digest."""
    night = ms("2026-11-21T23:00")
    rules = DeliveryRules(quiet=(1320, 420), max_per_day=2, pass_kinds=("anomaly",))
    full, free = (lambda _: 2), (lambda _: 1)
    assert plan(rules, "idle", night, urgent=True, planned=full).at_ms == night
    assert plan(rules, "anomaly", night, urgent=False, planned=full).at_ms == night
    assert plan(rules, "idle", night, urgent=False, planned=free) == plan(
        rules, "digest", night, urgent=False, planned=full
    )
    over = plan(rules, "idle", night, urgent=False, planned=full)
    assert (over.joins_digest, over.at_ms) == (True, ms("2026-11-22T08:00"))
    assert plan(
        DeliveryRules(digest="daily"), "idle", night, urgent=False, planned=free
    ).joins_digest


def test_everybodys_rules_do_not_bind_machines() -> None:
    """`*` is for mail addresses; a chat or webhook has rules only under its own name."""
    rules = {EVERYBODY: DeliveryRules(digest="daily"), "slack:ops": DeliveryRules(max_per_day=1)}
    assert rules_of("ada@example.org", rules).digest == "daily"
    assert rules_of("webhook:erp", rules) == NO_RULES
    assert rules_of("slack:ops", rules).max_per_day == 1
