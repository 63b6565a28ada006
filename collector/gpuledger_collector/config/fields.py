"""Types of declared values: how a scalar of TOML or a cell of CSV is read, checked, and written to
TOML again.

A type refuses a value with a `refusal`, a sentence for the person who wrote it. Values are read
from their text, so that a file of either form means the same, and no number ever becomes a float on
its way.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, Any
from zoneinfo import available_timezones

from pydantic import AfterValidator, PlainSerializer, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from gpuledger_collector.accounting.currencies import currency_problem
from gpuledger_collector.accounting.money import MICRO, parse_amount
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    format_date,
    parse_date,
    parse_instant,
)
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.insight.notifications.messages import is_recipient
from gpuledger_common.instants import to_datetime

EARLIEST_MS = 946_684_800_000
"""2000-01-01: an instant before it is an empty cell that became 0, or a year with a typing error.
"""
LATEST_MS = 4_102_444_800_000
"""2100-01-01: an instant after it is a mistake of units (milliseconds taken for seconds)."""
MAX_TEXT = 4_000
MAX_AMOUNT = 1_000_000_000
"""Of an amount in major units: a typing error is refused, not billed."""
MAX_RATE = 1_000_000
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def refusal(code: str, message: str) -> PydanticCustomError:
    """Why a value is refused, in a sentence that follows the name of its key."""
    return PydanticCustomError(code, message)


@dataclass(frozen=True, slots=True)
class Instants:
    """Which instants a file may hold, from `first_ms` (in) to `end_ms` (out)."""

    first_ms: int = EARLIEST_MS
    end_ms: int = LATEST_MS
    option: str = ""
    """The option that allows more, empty where none does."""

    def problem(self, text: str, at_ms: int) -> str | None:
        """Why an instant is refused; None when it is fine."""
        if self.first_ms <= at_ms < self.end_ms:
            return None
        last = format_date(self.end_ms)[:4]
        if self.end_ms != LATEST_MS:
            last = f"tomorrow, {format_date(self.end_ms - 1)}"
        hint = f" ({self.option} allows it)" if self.option and 0 <= at_ms < LATEST_MS else ""
        return (
            f"{text!r} lies outside {format_date(self.first_ms)[:4]} to {last}{hint}; unix instants"
            " are in seconds"
        )


DECLARED = Instants()
"""Declarations may lie ahead: prices, rules, commitments, budgets."""
ANY_INSTANT = Instants(0, LATEST_MS)
"""1970 to 2100, where an option asks for it."""


def evidence_until(now_ms: int, option: str = "") -> Instants:
    """Evidence lies between 2000 and tomorrow: clocks and zones are not always right."""
    return Instants(end_ms=now_ms - now_ms % DAY_MS + 2 * DAY_MS, option=option)


def scalar(value: object) -> str:
    """The text of a value as written."""
    if isinstance(value, dict | list):
        raise refusal("bad_value", "must be a single value, not a list or a table")
    text = (
        value
        if isinstance(value, str)
        else value.isoformat()
        if isinstance(value, dt.datetime)
        else str(value)
    )
    # Printable text, the usual case, holds neither.
    if not text.isprintable() and _UNSTORABLE.search(text):
        raise refusal(
            "bad_character",
            "holds a character that cannot be stored (NUL, or half of a surrogate pair)",
        )
    if len(text) > MAX_TEXT:
        raise refusal("too_long", f"has {len(text)} characters; at most {MAX_TEXT} are kept")
    return text


def read_text(value: object) -> str:
    """The text of a value without surrounding blanks."""
    return scalar(value).strip()


def read_name(value: object) -> str:
    """The name of an owner, a pool or a model; a name of a row of the reports is refused."""
    text = read_text(value)
    if is_reserved(text):
        raise refusal("reserved_name", reserved_message(text))
    return text


def _read_currency(value: object) -> str:
    text = read_text(value)
    problem = currency_problem(text) if text else None
    if problem is not None:
        raise refusal("bad_currency", problem)
    return text


def read_instant(value: object, info: ValidationInfo) -> int:
    """Unix milliseconds of an instant with a zone, or of unix seconds; the context of the model
    bounds them.
    """
    return _checked_instant(read_text(value), parse_instant, info)


def _read_dated_instant(value: object, info: ValidationInfo) -> int:
    text = read_text(value)
    return _checked_instant(text, parse_date if _DATE.fullmatch(text) else parse_instant, info)


def _checked_instant(text: str, parse: Callable[[str], int], info: ValidationInfo) -> int:
    try:
        at_ms = parse(text)
    except (ValueError, OverflowError) as error:
        raise refusal("bad_instant", str(error)) from None
    # CSV imports bound evidence more tightly than declarations.
    instants: Instants = info.context or DECLARED
    problem = instants.problem(text, at_ms)
    if problem is not None:
        raise refusal("bad_instant", problem)
    return at_ms


def _whole_hour(at_ms: int) -> int:
    if at_ms % HOUR_MS:
        raise refusal("not_an_hour", "is not on a whole hour (UTC)")
    return at_ms


def _whole_day(at_ms: int) -> int:
    if at_ms % DAY_MS:
        raise refusal("not_a_day", "is not a whole day (UTC); write it as 2026-11-01")
    return at_ms


def _read_day(value: object) -> dt.date:
    text = read_text(value)
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise refusal("bad_date", f"{text!r} is not a day; write it as 2026-10-31") from None


def _read_zone(value: object) -> str:
    text = read_text(value)
    if text not in _zones():
        raise refusal("bad_zone", f"{text!r} is not a time zone such as Europe/Berlin")
    return text


@cache  # the names are read from the disk
def _zones() -> frozenset[str]:
    # unlike ZoneInfo, this leaves out `right/...`, whose clocks count leap seconds
    return frozenset({"UTC", *available_timezones()})


def _read_clock(value: object) -> int:
    text = read_text(value)
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise refusal("bad_hour", f"{text!r} is not an hour such as 08:00")
    return int(match[1]) * 60 + int(match[2])


def _read_quiet_hours(value: object) -> tuple[int, int]:
    """The first and the last minute of the day of `22:00-07:00`, which may cross midnight."""
    text = read_text(value)
    first, _, last = text.partition("-")
    if not (_CLOCK.fullmatch(first) and _CLOCK.fullmatch(last)):
        raise refusal("bad_hours", f"{text!r} is not a span of the day such as 22:00-07:00")
    if first == last:
        raise refusal("bad_hours", "begins when it ends")
    return _read_clock(first), _read_clock(last)


def _write_clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _write_quiet_hours(span: tuple[int, int]) -> str:
    return "-".join(map(_write_clock, span))


def _read_flag(value: object) -> bool:
    text = read_text(value)
    if text not in {"True", "False"}:
        raise refusal("bad_flag", f"{text!r} is neither true nor false")
    return text == "True"  # as str() writes the true of TOML


def read_decimal(text: str) -> Decimal:
    """A decimal number as written. Raises a refusal."""
    if not _DECIMAL.fullmatch(text):
        raise refusal("bad_number", f"{text!r} is not a decimal number such as 1.25")
    return Decimal(text)


def read_bounded(value: object, digits: int, most: int, least: str = "0") -> Decimal:
    """A decimal number between two bounds, of at most `digits` places."""
    text = read_text(value)
    number = read_decimal(text)
    if not Decimal(least) <= number <= most:
        raise refusal("out_of_range", f"{text} is not between {least} and {most}")
    # Refused instead of rounded: a rate that silently differs from the file would be billed.
    if number != round(number, digits):
        raise refusal("too_precise", f"{text} has more than {digits} decimals")
    return number


def decimal(digits: int, most: int, least: str = "0") -> PlainValidator:
    """Fields of `read_bounded`."""
    return PlainValidator(lambda value: read_bounded(value, digits, most, least))


def whole(least: int, most: int, unit: str = "") -> PlainValidator:
    """Whole numbers between two bounds."""

    def read(value: object) -> int:
        text = read_text(value)
        number = Decimal(text) if _DECIMAL.fullmatch(text) else Decimal("NaN")
        if not (number.is_finite() and least <= number <= most and number == int(number)):
            of_unit = f" of {unit}" if unit else ""
            raise refusal(
                "out_of_range", f"{text!r} is not a whole number{of_unit} from {least} to {most}"
            )
        return int(number)

    return PlainValidator(read)


def one_of(choices: Iterable[str]) -> PlainValidator:
    """One of several words."""
    known = [choice for choice in choices if choice]

    def read(value: object) -> str:
        text = read_text(value)
        if text not in known:
            raise refusal("bad_choice", f"{text!r} is not one of {', '.join(known)}")
        return text

    return PlainValidator(read)


def matching(pattern: str, complaint: str) -> PlainValidator:
    """Texts of a pattern; others are refused as `complaint`."""
    compiled = re.compile(pattern)

    def read(value: object) -> str:
        text = read_text(value)
        if not compiled.fullmatch(text):
            raise refusal("bad_value", f"{text!r} is {complaint}")
        return text

    return PlainValidator(read)


def _read_micro(value: object) -> int:
    return int(read_bounded(value, 6, MAX_AMOUNT) * MICRO)


def _read_positive_micro(value: object) -> int:
    try:
        return parse_amount(read_text(value))
    except ValueError as error:
        raise refusal("bad_amount", str(error)) from None


def _write_micro(micro: int) -> Decimal:
    return Decimal(micro) / MICRO


def _read_recipient(value: object) -> str:
    text = read_text(value)
    if not is_recipient(text):
        raise refusal(
            "bad_recipient", f"{text!r} is no mail address, slack:NAME, teams:NAME or webhook:NAME"
        )
    return text


def end_after(start: str, key: str, or_at: bool = False) -> AfterValidator:
    """Ends that lie after the field `start`, or at it; `key` is its key in the file."""

    def check(end: Any, info: ValidationInfo) -> Any:
        begin = info.data.get(start)
        if end is not None and begin is not None and (end < begin if or_at else end <= begin):
            raise refusal("order", f"lies before {key}" if or_at else f"does not lie after {key}")
        return end

    return AfterValidator(check)


def unique(values: tuple[str, ...]) -> tuple[str, ...]:
    """The values without repetitions, in their order."""
    return tuple(dict.fromkeys(values))


Scalar = Annotated[str, PlainValidator(scalar)]
Text = Annotated[str, PlainValidator(read_text)]
Name = Annotated[str, PlainValidator(read_name)]
Currency = Annotated[str, PlainValidator(_read_currency)]
"""A code of ISO 4217."""
Instant = Annotated[int, PlainValidator(read_instant)]
"""Unix milliseconds."""
DatedInstant = Annotated[int, PlainValidator(_read_dated_instant), PlainSerializer(to_datetime)]
"""The same; a bare date is its midnight UTC."""
HourInstant = Annotated[DatedInstant, AfterValidator(_whole_hour)]
EffectiveTo = Annotated[DatedInstant | None, end_after("effective_from_ms", "effective_from")]
DayInstant = Annotated[
    int,
    PlainValidator(_read_dated_instant),
    AfterValidator(_whole_day),
    PlainSerializer(lambda at_ms: to_datetime(at_ms).date()),
]
Day = Annotated[dt.date, PlainValidator(_read_day)]
"""A day of the bill, in its zone."""
Zone = Annotated[str, PlainValidator(_read_zone)]
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
MonthName = Annotated[str, one_of(MONTHS)]
Clock = Annotated[int, PlainValidator(_read_clock), PlainSerializer(_write_clock)]
"""A minute of the day."""
QuietHours = Annotated[
    tuple[int, int], PlainValidator(_read_quiet_hours), PlainSerializer(_write_quiet_hours)
]
"""Minutes of the day, first and last."""
Flag = Annotated[bool, PlainValidator(_read_flag)]
Rate = Annotated[Decimal, decimal(9, MAX_RATE)]
Amount = Annotated[Decimal, decimal(6, MAX_AMOUNT)]
"""Money in major units."""
MicroAmount = Annotated[int, PlainValidator(_read_micro), PlainSerializer(_write_micro)]
"""Money in micro-units, which files have in major units."""
PositiveMicroAmount = Annotated[
    int, PlainValidator(_read_positive_micro), PlainSerializer(_write_micro)
]
Recipients = Annotated[
    tuple[Annotated[str, PlainValidator(_read_recipient)], ...], AfterValidator(unique)
]
