"""Instants as people say them, on every page: `8 Nov, 05:00, 15 days ago`, in the billing zone.

The title of each names it in full with its zone, for whoever must be sure; machines read UTC.
"""

from __future__ import annotations

import re
from datetime import datetime

from markupsafe import Markup, escape

from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, parse_instant
from gpuledger_collector.export.code_marks import mark_code
from gpuledger_collector.insight.durations import lasting
from gpuledger_common.instants import to_datetime

_WRITTEN = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z")
"""An instant as sentences of other surfaces have it."""
_ELEMENT = Markup('<time datetime="{0:%Y-%m-%dT%H:%MZ}" title="{1}">{2}</time>')


def say_instant(at_ms: int, now_ms: int | None = None, calendar: Calendar = UTC_DAYS) -> Markup:
    """`8 Nov, 05:00`, with the year where it is another one or no `now_ms` is given."""
    return _element(at_ms, _day_and_hour(at_ms, now_ms, calendar), calendar)


def say_when(at_ms: int, now_ms: int | None = None, calendar: Calendar = UTC_DAYS) -> Markup:
    """The same and how long ago that is: `8 Nov, 05:00, 15 days ago`; of what lies ahead, or
    without `now_ms`, the instant alone.
    """
    text = _day_and_hour(at_ms, now_ms, calendar)
    if now_ms is not None and at_ms <= now_ms:
        text += f", {lasting(now_ms - at_ms)} ago"
    return _element(at_ms, text, calendar)


def say_sentence(sentence: str, now_ms: int | None, calendar: Calendar) -> Markup:
    """A sentence that other surfaces have, too: its instants as people say them, and what stands
    between backticks as code, in which an instant stays as a command reads it.
    """

    def say(written: re.Match[str]) -> str:
        try:
            at_ms = parse_instant(written.group())
        except (ValueError, OverflowError):  # a part of somebody's name
            return written.group()
        return say_instant(at_ms, now_ms, calendar)

    def mark_instants(part: str) -> Markup:
        return Markup(_WRITTEN.sub(say, str(escape(part))))  # noqa: S704 - escaped, then elements

    return mark_code(sentence, mark_instants)


def _day_and_hour(at_ms: int, now_ms: int | None, calendar: Calendar) -> str:
    at = _local(at_ms, calendar)
    is_this_year = now_ms is not None and _local(now_ms, calendar).year == at.year
    day = f"{at.day} {at:%b}" if is_this_year else f"{at.day} {at:%b %Y}"
    return f"{day}, {at:%H:%M}"


def _element(at_ms: int, text: str, calendar: Calendar) -> Markup:
    at, zone = _local(at_ms, calendar), calendar.zone_at(at_ms).name
    # Clocks that go back show an hour twice: the offset tells one from the other.
    offset = "" if zone == "UTC" else f" {at.isoformat()[-6:]}"
    return _ELEMENT.format(to_datetime(at_ms), f"{at:%Y-%m-%d %H:%M}{offset} {zone}", text)


def _local(at_ms: int, calendar: Calendar) -> datetime:
    return to_datetime(at_ms).astimezone(calendar.zone_at(at_ms).tz)
