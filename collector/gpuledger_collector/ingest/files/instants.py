"""Instants and durations as people and programs write them into tables.

A column has few different dates and few different times of a day, so each is understood once and
then looked up.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from zoneinfo import ZoneInfo

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS, parse_instant
from gpuledger_common.plurals import plural

UNIT_MS = {"duration_hours": HOUR_MS, "duration_minutes": MINUTE_MS, "duration_seconds": 1000}
"""Meanings of columns that hold a duration as a number, and their units."""
_EXCEL_EPOCH = dt.datetime(1899, 12, 30)  # noqa: DTZ001  a serial number is a local time
_EXCEL_DAYS = (36_526, 73_051)
"""Serial numbers of 2000-01-01 and 2100-01-01."""
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?)?", re.ASCII)
_YEAR_FIRST = re.compile(
    r"(?P<year>\d{4})[/.](?P<month>\d{1,2})[/.](?P<day>\d{1,2})(?P<clock>[T ,]++.*+)?", re.ASCII
)
_YEAR_LAST = re.compile(
    r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d{2})(?P<clock>[T"
    r" ,]++.*+)?",
    re.ASCII,
)
_CLOCK = re.compile(
    r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,6}))?)?(?: ?([AaPp])\.?[Mm]\.?)?", re.ASCII
)
_NUMBER = re.compile(r"\d+([.,]\d+)?", re.ASCII)
_SPAN = re.compile(r"(?:(\d+)(?:-| days?,? ))?(\d+):([0-5]\d):([0-5]\d)(?:\.\d+)?", re.ASCII)
_SPAN_UNITS = re.compile(r"(?=\d)(?:(\d+)d)? ?(?:(\d+)h)? ?(?:(\d+)m)? ?(?:(\d+)s)?", re.ASCII)
_SUSPENDED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", re.ASCII)
_NO_SPAN = {"", "None", "Unknown", "N/A", "0"}
_FIRST_MILLISECONDS = 10**11


@dataclass(frozen=True, slots=True)
class DateOrder:
    """What the dates of a file say about their order: an example of each kind."""

    day_first: str | None = None
    month_first: str | None = None
    either: str | None = None
    """A date that has another meaning in either order."""
    is_dotted: bool = True
    """Whether all are written with dots, which only countries with the day first do."""


def date_order(dates: Iterable[str]) -> DateOrder | None:
    """What the dates with the year at their end say; None where there are none."""
    found = [match for date in dates if (match := _YEAR_LAST.fullmatch(date))]
    if not found:
        return None
    return DateOrder(
        next((date[0] for date in found if int(date["first"]) > 12), None),
        next((date[0] for date in found if int(date["second"]) > 12), None),
        next((date[0] for date in found if date["first"] != date["second"]), None),
        all(date["mark"] == "." for date in found),
    )


def date_part(cell: str) -> str:
    """The part of an instant before its time of day."""
    return split_clock(cell)[0].rstrip(",")


def split_clock(cell: str) -> tuple[str, str]:
    """An instant as date and time of day; the latter is empty where it cannot be told apart."""
    date, mark, clock = cell.partition(" ")
    return (date, clock) if mark else (cell[:10], cell[11:]) if cell[10:11] == "T" else (cell, "")


def is_local(cell: str) -> bool:
    """Whether a cell has one of the forms of a local time."""
    return _is_excel(cell) or any(form.fullmatch(cell) for form in (_ISO, _YEAR_FIRST, _YEAR_LAST))


def is_instant(cell: str) -> bool:
    """Whether a cell is an instant in any form but that of a bare number."""
    if _NUMBER.fullmatch(cell):
        return False
    try:
        return is_local(cell) or bool(parse_instant(cell))
    except ValueError:
        return False


def is_number(cell: str) -> bool:
    """Whether a cell is a number, with either mark of decimals."""
    return _NUMBER.fullmatch(cell) is not None


@dataclass(slots=True)
class InstantReader:
    """Reads the instants of one table.

    `zone`: of times without one; `day_first`: how 03/04/2026 is read.
    """

    zone: ZoneInfo | None
    day_first: bool | None
    repeated: int = 0
    """How many were read as the first of an hour that the zone has twice."""
    _dates: dict[str, int] = field(default_factory=dict)
    """Midnights as if they were UTC."""
    _clocks: dict[str, int] = field(default_factory=dict)
    """Milliseconds since midnight."""
    _offsets: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By local minute: how far it is ahead of UTC, and whether it occurs twice."""

    def read(self, cell: str) -> int:
        """Unix milliseconds. Raises ValueError with a sentence."""
        date, clock = split_clock(cell)
        date_ms, clock_ms = self._dates.get(date), self._clocks.get(clock)
        if date_ms is None or clock_ms is None:
            return self._read_new(cell, date, clock)
        return self._in_zone(date_ms + clock_ms, cell)

    @property
    def repeated_note(self) -> str:
        """The sentence about instants that the zone has twice."""
        zone = "" if self.zone is None else self.zone.key
        return (
            f"{plural(self.repeated, 'instant')} in an hour that {zone} has twice: read as the"
            " first of the two"
        )

    def _read_new(self, cell: str, date: str, clock: str) -> int:
        if cell.endswith("Z"):
            return parse_instant(cell)
        if _NUMBER.fullmatch(cell) and float(cell.replace(",", ".")) >= _FIRST_MILLISECONDS:
            raise ValueError(f"{cell!r} looks like milliseconds; unix instants are in seconds")
        local = _local(cell, self.day_first)
        if local is None:  # unix seconds, an instant with a zone, or nothing that is one
            return parse_instant(f"{cell[:-4]}Z" if cell.endswith(" UTC") else cell)
        local_ms = _as_utc_ms(local)
        midnight = _local(date, self.day_first) if clock else None
        if midnight is not None:
            self._dates[date] = _as_utc_ms(midnight)
            self._clocks[clock] = local_ms - self._dates[date]
        return self._in_zone(local_ms, cell)

    def _in_zone(self, local_ms: int, cell: str) -> int:
        """The instant of a local time. Offsets of zones change on whole minutes."""
        minute = local_ms // MINUTE_MS
        offset = self._offsets.get(minute)
        if offset is None:
            offset = self._offsets[minute] = self._offset(minute, cell)
        self.repeated += offset[1]
        return local_ms - offset[0]

    def _offset(self, minute: int, cell: str) -> tuple[int, bool]:
        if self.zone is None:
            raise ValueError(
                f"{cell!r} has no zone; --zone Europe/Berlin or --zone UTC says which it is"
            )
        local = dt.datetime(1970, 1, 1) + dt.timedelta(minutes=minute)  # noqa: DTZ001  local until the zone is added
        at = local.replace(tzinfo=self.zone)
        if at.astimezone(dt.UTC).astimezone(self.zone).replace(tzinfo=None) != local:
            raise ValueError(
                f"{cell!r} does not exist in {self.zone.key}: clocks were put forward over it"
            )
        ahead = at.utcoffset() or dt.timedelta(0)
        return round(ahead.total_seconds() * 1000), ahead != at.replace(fold=1).utcoffset()


def span_ms(cell: str) -> int:
    """Milliseconds of `1-02:03:04`, `26:03:04`, `1 day, 2:03:04` or `5h12m`.

    Raises ValueError with a sentence.
    """
    match = _SPAN.fullmatch(cell) or _SPAN_UNITS.fullmatch(cell.lower())
    if match is None:
        raise ValueError(f"{cell!r} is no duration; write it as 1-02:03:04, 26:03:04 or 5h12m")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * 1000


def suspended_ms(text: str) -> int | None:
    """Milliseconds of `[days-][hours:]minutes:seconds`, as sacct prints them; None for any other
    text.
    """
    span = _SUSPENDED.fullmatch(text.strip())
    if span is None:
        return 0 if text.strip() in _NO_SPAN else None
    days, hours, minutes, seconds = (int(part or 0) for part in span.groups())
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * 1000


def units_ms(number: str, unit_ms: int) -> int:
    """Milliseconds of a number of units. Raises ValueError with a sentence."""
    try:
        amount = Decimal(number)
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and 0 <= amount * unit_ms < 100 * 366 * DAY_MS):
        raise ValueError(f"{number!r} is no duration; write it as a number such as 12.5")
    return int((amount * unit_ms).to_integral_value())


def _as_utc_ms(local: dt.datetime) -> int:
    return (local - dt.datetime(1970, 1, 1)) // dt.timedelta(milliseconds=1)  # noqa: DTZ001  both are local


def _is_excel(cell: str) -> bool:
    return (
        bool(_NUMBER.fullmatch(cell))
        and _EXCEL_DAYS[0] <= float(cell.replace(",", ".")) < _EXCEL_DAYS[1]
    )


def _local(cell: str, day_first: bool | None) -> dt.datetime | None:
    """A local time in any of the known forms; None for what is none.

    Raises ValueError for an impossible one.
    """
    if _is_excel(cell):
        days = float(cell.replace(",", "."))
        # A serial number has a resolution of about a millisecond; spreadsheets show seconds.
        return _EXCEL_EPOCH + dt.timedelta(seconds=round(days * 86_400))
    if _ISO.fullmatch(cell):
        return _datetime(cell, dt.datetime.fromisoformat, cell.replace(",", "."))
    if match := _YEAR_FIRST.fullmatch(cell):
        return _datetime(
            cell, _join_date, match["year"], match["month"], match["day"], match["clock"]
        )
    match = _YEAR_LAST.fullmatch(cell)
    if match is None:
        return None
    year = match["year"] if len(match["year"]) == 4 else f"20{match['year']}"
    day, month = (
        (match["first"], match["second"]) if day_first else (match["second"], match["first"])
    )
    return _datetime(cell, _join_date, year, month, day, match["clock"])


def _datetime(cell: str, make: Callable[..., dt.datetime], *parts: str | None) -> dt.datetime:
    try:
        return make(*parts)
    except ValueError:
        raise ValueError(f"{cell!r} is not an instant") from None


def _join_date(year: str, month: str, day: str, clock: str | None) -> dt.datetime:
    date = dt.datetime(int(year), int(month), int(day))  # noqa: DTZ001  local until the zone is added
    text = (clock or "").strip(" T,")
    if not text:
        return date
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hour, half = int(match[1]), (match[5] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + 12 * (half == "p")
    micro = int((match[4] or "0").ljust(6, "0"))
    return date.replace(
        hour=hour, minute=int(match[2]), second=int(match[3] or 0), microsecond=micro
    )
