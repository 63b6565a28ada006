"""Periods: half-open usage intervals of time between two integer instants (UTC unix milliseconds)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation

from gpuledger_common.instants import to_datetime, to_ms

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
_UNIX_SECONDS = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,2})?", re.ASCII)
# Bounds for what people write: milliseconds given by mistake for seconds lie outside of them.
_YEAR_1900_MS = -2_208_988_800_000
_YEAR_2200_MS = 7_258_118_400_000


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """From `start_ms` (in) to `end_ms` (out)."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.end_ms < self.start_ms:
            raise ValueError("a period ends before it starts")

    @property
    def ms(self) -> int:
        """Its length."""
        return self.end_ms - self.start_ms

    def clip(self, other: Period) -> Period | None:
        """The common part, None when there is none."""
        start, end = max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms)
        return Period(start, end) if start < end else None

    def _buckets(self, size: int) -> Iterator[Period]:
        start = self.start_ms
        while start < self.end_ms:
            end = min((start // size + 1) * size, self.end_ms)
            yield Period(start, end)
            start = end

    def hours(self) -> list[Period]:
        """Its parts by UTC hour; the first and the last may be shorter."""
        return list(self._buckets(HOUR_MS))

    def days(self) -> list[Period]:
        """Its parts by UTC day; the first and the last may be shorter."""
        return list(self._buckets(DAY_MS))


def join_periods(periods: Iterable[Period]) -> list[Period]:
    """Join periods that overlap or adjoin, by time."""
    joined: list[Period] = []
    for period in sorted(periods):
        if joined and period.start_ms <= joined[-1].end_ms:
            joined[-1] = Period(joined[-1].start_ms, max(joined[-1].end_ms, period.end_ms))
        else:
            joined.append(period)
    return joined


def day_of(at_ms: int) -> Period:
    """The UTC day that holds an instant."""
    start = at_ms // DAY_MS * DAY_MS
    return Period(start, start + DAY_MS)


def parse_date(text: str) -> int:
    """The instant of midnight UTC of a date `YYYY-MM-DD`. Raises ValueError with a sentence."""
    try:
        day = date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) else None
    except ValueError:
        day = None
    if day is None:
        raise ValueError(f"{text!r} is not a date; write it as 2026-10-31")
    return to_ms(datetime(day.year, day.month, day.day, tzinfo=UTC))


def month(text: str) -> Period:
    """The month `YYYY-MM`. Raises ValueError with a sentence."""
    if not re.fullmatch(r"\d{4}-\d{2}", text):
        raise ValueError(f"{text!r} is not a month; write it as 2026-10")
    year, number = int(text[:4]), int(text[5:])
    if not 1 <= number <= 12 or year < 1:
        raise ValueError(f"{text!r} is not a month; write it as 2026-10")
    if not 1900 <= year < 2200:
        raise ValueError(f"{text!r} lies outside the years 1900 to 2200")
    following = f"{year + number // 12:04d}-{number % 12 + 1:02d}-01"
    return Period(parse_date(f"{text}-01"), parse_date(following))


_QUARTER = re.compile(r"([0-9]{4})[-/ ]?Q([1-4])|Q([1-4])[-/ ]?([0-9]{4})")
_FISCAL = re.compile(r"FY[- ]?([0-9]{4})(?:[-/ ]?Q([1-4]))?")


def parse_period(text: str, fiscal_month: int | None = None) -> Period:
    """The month `2026-10`, the quarter `2026-Q3`, `2026Q3` or `Q3 2026`, the year `2026`, or the
    fiscal `FY2027` or `FY2027-Q1`, named after the year in which it ends. `fiscal_month`: the month
    in which fiscal years begin, 1 to 12.

    Raises ValueError with a sentence.
    """
    if fiscal := _FISCAL.fullmatch(text.strip().upper()):
        return _fiscal(int(fiscal[1]), int(fiscal[2] or 0), fiscal_month)
    if re.fullmatch(r"[0-9]{4}", text):
        return Period(month(f"{text}-01").start_ms, month(f"{text}-12").end_ms)
    if quarter := _QUARTER.fullmatch(text.strip().upper()):
        year, last = quarter[1] or quarter[4], 3 * int(quarter[2] or quarter[3])
        return Period(month(f"{year}-{last - 2:02}").start_ms, month(f"{year}-{last:02}").end_ms)
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}", text):
        raise ValueError(f"{text!r} is not a period; write it as 2026-10, 2026-Q3, 2026 or FY2027")
    return month(text)


def _fiscal(year: int, quarter: int, first_month: int | None) -> Period:
    """A fiscal year, or a quarter of it (0: all of it)."""
    if first_month is None:
        raise ValueError(
            'no fiscal year is declared: apply a file with fiscal_year_begins = "July", or your'
            " month"
        )
    if not 1901 <= year < 2200:
        raise ValueError(f"fiscal year {year} lies outside the years 1901 to 2199")
    first = 12 * year + first_month - 1 - (12 if first_month > 1 else 0) + 3 * max(quarter - 1, 0)
    first_name, last_name = (
        f"{at // 12:04d}-{at % 12 + 1:02d}" for at in (first, first + (3 if quarter else 12) - 1)
    )
    return Period(month(first_name).start_ms, month(last_name).end_ms)


def months_of(period: Period) -> list[str]:
    """The names of the months of a period that begins and ends with one, such as that of
    `parse_period`.
    """
    names, at_ms = [], period.start_ms
    while at_ms < period.end_ms:
        names.append(format_date(at_ms)[:7])
        at_ms = month(names[-1]).end_ms
    return names


def date_range(start: str, end: str) -> Period:
    """From a date (in) to a date (out). Raises ValueError with a sentence."""
    period_start, period_end = parse_date(start), parse_date(end)
    if period_end <= period_start:
        raise ValueError(
            f"the range {start} to {end} is empty: its end, which is not included, must come later"
        )
    if period_start < _YEAR_1900_MS or period_end > _YEAR_2200_MS:
        raise ValueError(f"the range {start} to {end} lies outside the years 1900 to 2200")
    return Period(period_start, period_end)


def parse_instant(text: str) -> int:
    """Milliseconds of an RFC 3339 instant with zone, or of unix seconds.

    Raises ValueError with a sentence.
    """
    cleaned = text.strip()
    at_ms = _unix_ms(cleaned) if _UNIX_SECONDS.fullmatch(cleaned) else _rfc3339_ms(cleaned)
    if not _YEAR_1900_MS <= at_ms <= _YEAR_2200_MS:
        raise ValueError(f"{text!r} lies outside the years 1900 to 2200")
    return at_ms


def _unix_ms(text: str) -> int:
    try:
        return int((Decimal(text) * 1000).to_integral_value())
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an instant") from None


def _rfc3339_ms(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an instant; write it as 2026-10-31T12:00:00Z or as unix seconds"
        ) from None
    if at.tzinfo is None:
        raise ValueError(
            f"{text!r} has no zone; write 2026-10-31T12:00:00Z or 2026-10-31T12:00:00+01:00"
        )
    return to_ms(at)


def format_instant(at_ms: int) -> str:
    """RFC 3339 in UTC; milliseconds are written only when there are any."""
    text = to_datetime(at_ms).isoformat()[:19]
    return f"{text}.{at_ms % 1000:03d}Z" if at_ms % 1000 else f"{text}Z"


def format_date(at_ms: int) -> str:
    """The UTC date of an instant."""
    return format_instant(at_ms)[:10]


class DatedDays:
    """What holds from the day `from_on` (in) to the day `to_on` (out); None: without end."""

    __slots__ = ()
    from_on: date | None
    to_on: date | None

    def holds_on(self, day: date) -> bool:
        """Whether it holds on a day of the bill."""
        return (self.from_on is None or self.from_on <= day) and (
            self.to_on is None or day < self.to_on
        )


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone in which days of the bill begin, from the midnight `from_ms` on that was the one of
    `first_on`.
    """

    name: str
    tz: tzinfo
    from_ms: int = 0
    first_on: date = date.min


@dataclass(frozen=True, slots=True)
class Calendar:
    """Days and months of the bill: from midnight to midnight in the billing zone, 23 to 25 hours
    where its clocks move.

    Zones follow each other where one was changed. The first day of a later zone begins where the
    last day of the zone before it ended, so that no instant belongs to no day or to two; it may be
    longer or shorter than others.
    """

    zones: tuple[Zone, ...] = (Zone("UTC", UTC),)
    fiscal_month: int | None = None
    """The month in which fiscal years begin, 1 to 12; None: not declared."""

    @property
    def is_utc(self) -> bool:
        """Whether every day is a UTC day."""
        return all(zone.name == "UTC" for zone in self.zones)

    def start_of(self, day: date) -> int:
        """The instant at which a day begins; where its midnight does not exist, that at which the
        clocks jump.
        """
        for zone in reversed(self.zones[1:]):
            if day == zone.first_on:
                return zone.from_ms
            # From the latest zone back: the first that had begun by then has the day.
            if day > zone.first_on:
                return _midnight(day, zone.tz)
        return _midnight(day, self.zones[0].tz)

    def zone_at(self, at_ms: int) -> Zone:
        """The zone whose days hold an instant."""
        return next(
            zone for zone in reversed(self.zones) if zone.from_ms <= at_ms or zone is self.zones[0]
        )

    def date_of(self, at_ms: int) -> date:
        """The day that holds an instant."""
        zone = self.zone_at(at_ms)
        # Right after a change of zone the new zone's clock may still show the day before; that time
        # belongs to its first day.
        return max(to_datetime(at_ms).astimezone(zone.tz).date(), zone.first_on)

    def day_of(self, at_ms: int) -> Period:
        """The day that holds an instant, as a period."""
        if self.is_utc:
            return day_of(at_ms)
        day = self.date_of(at_ms)
        return Period(self.start_of(day), self.start_of(day + timedelta(days=1)))

    def days(self, period: Period) -> list[Period]:
        """The parts of a period by day; the first and the last may be shorter."""
        days = []
        start = period.start_ms
        while start < period.end_ms:
            end = min(self.day_of(start).end_ms, period.end_ms)
            days.append(Period(start, end))
            start = end
        return days

    def days_before(self, at_ms: int, count: int) -> int:
        """The start of the day that many days before the one that begins at an instant."""
        return self.start_of(self.date_of(at_ms) - timedelta(days=count))

    def month_of(self, at_ms: int) -> str:
        """The month `YYYY-MM` that holds an instant."""
        return self.date_of(at_ms).isoformat()[:7]

    def month(self, text: str) -> Period:
        """The month `YYYY-MM`. Raises ValueError with a sentence."""
        return self.days_named(month(text))

    def month_named(self, period: Period) -> str | None:
        """The name of the month that a period is; None for any other."""
        text = self.month_of(period.start_ms)
        return text if self.month(text) == period else None

    def period(self, text: str) -> Period:
        """The period that `parse_period` reads. Raises ValueError with a sentence."""
        return self.days_named(parse_period(text, self.fiscal_month))

    def date_range(self, start: str, end: str) -> Period:
        """From a date (in) to a date (out). Raises ValueError with a sentence."""
        return self.days_named(date_range(start, end))

    def last_days(self, now_ms: int, count: int) -> Period:
        """So many days up to now, and today."""
        today = self.day_of(now_ms)
        return Period(self.days_before(today.start_ms, count), today.end_ms)

    def up_to_today(self, now_ms: int, start: str) -> Period:
        """From a date (in) up to now, and today. Raises ValueError with a sentence."""
        return self.date_range(start, str(self.date_of(self.day_of(now_ms).end_ms)))

    def days_named(self, nominal: Period) -> Period:
        """The days of the bill that have the names of these UTC days."""
        bounds = (to_datetime(at_ms).date() for at_ms in (nominal.start_ms, nominal.end_ms))
        return Period(*(self.start_of(day) for day in bounds))

    def months_of(self, period: Period) -> list[str]:
        """The months of a period that begins and ends with one."""
        return list(dict.fromkeys(self.month_of(day.start_ms) for day in self.days(period)))

    def cuts(self, period: Period) -> list[int]:
        """Midnights strictly inside a period that lie inside an hour of UTC: zones of half and
        quarter hours.
        """
        return [day.start_ms for day in self.days(period)[1:] if day.start_ms % HOUR_MS]


UTC_DAYS = Calendar()


def begins_days_at_hours(tz: tzinfo, year: int) -> bool:
    """Whether the days of a year and of those beside it begin at hours of UTC: a zone is at another
    minute all year, or half of it.
    """
    return not any(
        _midnight(date(each, month, 1), tz) % HOUR_MS
        for each in (year - 1, year, year + 1)
        for month in range(1, 13)
    )


def _midnight(day: date, tz: tzinfo) -> int:
    # In a gap `fold` 0 has the offset from before it, which makes this the instant of the jump; of
    # two, the first.
    return to_ms(datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC))
