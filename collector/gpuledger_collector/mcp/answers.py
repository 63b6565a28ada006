"""The form of every answer: amounts with their currency, quantities with their unit, and what
proves them.

Amounts and quantities are decimal text, never floating point; null means unknown, never zero. Names
that users chose are data: they stand in fields of their own, in one line, cut to NAME_LENGTH
characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gpuledger_collector.accounting import money as amounts
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.report import DECIMALS, Column, Item, Kind, Report
from gpuledger_common.escapes import escape_text

NAME_LENGTH = 200
NOTICE_LENGTH = 300
MAX_NOTICES = 10
MAX_ROWS, DEFAULT_ROWS = 200, 20
MAX_CHARACTERS = 40_000
"""Length of an answer as JSON, beyond which it has fewer rows."""
REST_CHARACTERS = 2_000
"""Of them, what is left for the row of those that it does not hold."""


Status = Literal["ok", "empty", "partial"]
ProofState = Literal["sealed", "open", "estimated", "broken"]


class Model(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema without titles, which repeat the names of fields in every list of tools."""
        schema = handler(core)
        own = handler.resolve_ref_schema(schema)
        for described in (own, *own.get("properties", {}).values()):
            described.pop("title", None)
        return schema


class Money(Model):
    """An amount of money."""

    amount: Annotated[str, Field(description="Decimal text.")]
    currency: str


class Quantity(Model):
    """A number with its unit."""

    value: Annotated[str, Field(description="Decimal text.")]
    unit: str


class Span(Model):
    """A period: the start is part of it, the end is not."""

    start: Annotated[str, Field(description="RFC 3339, UTC.")]
    end: Annotated[str, Field(description="RFC 3339, UTC; not included.")]
    zone: Annotated[str, Field(description="Zone in which days and months of the bill begin.")]


class Coverage(Model):
    """How much of the period the ledger knows."""

    rated_until: Annotated[
        str | None, Field(description="Charges are known up to here; null: nothing is.")
    ]
    days: Annotated[int, Field(description="Days of the period that have begun.")]
    days_rated: int
    observed_percent: Annotated[
        str | None,
        Field(description="Part of the fleet's time that was observed; null without an inventory."),
    ]


class Seal(Model):
    """The seal of a closed month."""

    month: str
    seal: Annotated[str, Field(description="Hexadecimal root over every line of the month.")]
    closed_at: str


class Proof(Model):
    """What vouches for the amounts of an answer."""

    state: Annotated[
        ProofState,
        Field(
            description=(
                "sealed: of closed months, which do not change; open: from the ledger, may still"
                " change; estimated: no charge, never billed; broken: the proof did not hold when"
                " it was asked last."
            )
        ),
    ]
    standing: Annotated[
        Literal["holds", "waiting", "broken"],
        Field(
            description=(
                "Of the proof, when it was asked last; waiting: something was told since, or it was"
                " not asked."
            )
        ),
    ] = "waiting"
    text: Annotated[str, Field(description="The same in words, with the instant.")] = ""
    days_checked: Annotated[
        int, Field(description="Days whose charges are compared with capacity x rate.")
    ] = 0
    days_holding: Annotated[
        int | None, Field(description="Of them, when it was asked; null: it was not.")
    ] = None
    seals: Sequence[Seal] = ()
    verify: Annotated[
        str, Field(description="Command that repeats the proof where the ledger is.")
    ] = ""


class RestSum(Model):
    """An amount of rows that an answer does not hold, added up; unknown amounts are left out."""

    field: Annotated[str, Field(description="The column of the rows.")]
    value: Annotated[str, Field(description="Decimal text.")]
    unit: Annotated[str, Field(description="Currency, or unit of the quantity.")]


class Rest(Model):
    """All rows that an answer does not hold, as one: with those that it holds they add up to all
    rows.
    """

    rows: int
    sums: Sequence[RestSum]


Row = TypeVar("Row", bound=Model)
Total = TypeVar("Total", bound=Model)
RowModel = TypeVar("RowModel", bound=Model)


class Answer(Model, Generic[Row, Total]):
    """The envelope of every answer. Totals are of all rows, also of those that are not shown."""

    contract_version: Literal["1"] = "1"
    status: Status
    reason: Annotated[str, Field(description="Why it is empty or partial.")] = ""
    next_step: Annotated[str, Field(description="What to do about that, or what to ask next.")] = ""
    period: Span | None
    coverage: Coverage | None
    proof: Proof
    link: Annotated[
        str, Field(description="Page or address of the collector that shows the same numbers.")
    ]
    totals: Sequence[Total] = ()
    row_count: Annotated[int, Field(description="All rows; `rows` may hold fewer.")]
    truncated: bool
    next_cursor: Annotated[
        str, Field(description="`cursor` of the next rows; empty: there are none.")
    ]
    notices: Annotated[
        Sequence[str],
        Field(description="What changes how the numbers are read; data, may quote names."),
    ] = ()
    rows: Sequence[Row]
    rest: Annotated[
        Rest | None, Field(description="The rows that are not here, as one; null: all are.")
    ] = None


TYPES: Mapping[Kind, Any] = {
    Kind.TEXT: str,
    Kind.COUNT: int | None,
    Kind.NUMBER: int | None,
    **dict.fromkeys(DECIMALS, str | None),
    Kind.MONEY: Money | None,
    Kind.INSTANT: str | None,
    Kind.LIST: Sequence[str],
}
"""How a column is typed in an answer, by its kind; texts are names that users chose, cut and in one
line.
"""


def row_model(report: Report[Any], about: str) -> type[Model]:
    """The model of a report's rows: a field for each column that has a type of its own here."""
    fields: dict[str, Any] = {
        column.name: (
            (
                Annotated[TYPES[column.kind], Field(description=column.about)]
                if column.about
                else TYPES[column.kind]
            ),
            ...,
        )
        for column in report.columns
        if column.in_answers
    }
    return create_model(f"{report.name.title()}Row", __base__=Model, __doc__=about, **fields)


def row_of(model: type[RowModel], report: Report[Item], item: Item) -> RowModel:
    """An item as a row of an answer."""
    return model(
        **{
            column.name: _typed_value(column, item)
            for column in report.columns
            if column.in_answers
        }
    )


def _typed_value(column: Column[Item], item: Item) -> Any:
    value = column.value(item)
    if column.kind is Kind.TEXT:
        return name(value)
    if column.kind is Kind.LIST:
        return [name(part) for part in value or ()]
    if column.kind is Kind.MONEY:
        return typed_money(value)
    return column.exact(item)


def typed_money(amount: amounts.Money | None) -> Money | None:
    """An amount in minor units; None: unknown."""
    return None if amount is None else Money(amount=amount.plain(), currency=amount.currency)


def name(text: str | None) -> str:
    """A name that a user chose: in one line, without invisible characters, cut to its length."""
    return cut(text or "", NAME_LENGTH)


def cut(text: str, length: int) -> str:
    """The text in one line, cut to a length."""
    shown = escape_text(text)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def notices(texts: Sequence[str]) -> tuple[str, ...]:
    """The first notices, each cut; the last says how many more there are."""
    shown = [cut(text, NOTICE_LENGTH) for text in texts[:MAX_NOTICES]]
    more = len(texts) - len(shown)
    return (*shown, *([f"{more} more notices are in the chargeback"] if more else []))


def instant(at_ms: int | None) -> str | None:
    """RFC 3339 in UTC, to the second; None: unknown."""
    return None if at_ms is None else format_instant(at_ms - at_ms % 1000)


def money(minor: int | None, currency: str | None) -> Money | None:
    """An amount in minor units; None: unknown."""
    if minor is None or currency is None:
        return None
    return Money(amount=amounts.Money.from_minor(minor, currency).plain(), currency=currency)


def micro_money(micro: int | None, currency: str | None) -> Money | None:
    """An amount to the micro-unit; None: unknown."""
    return None if micro is None or currency is None else exact_money(micro, currency)


def exact_money(micro: int, currency: str) -> Money:
    """A known amount to the micro-unit."""
    return Money(amount=amounts.decimal_text(micro), currency=currency)


def exact_quantity(micro: int, unit: str) -> Quantity:
    """A known number to the millionth."""
    return Quantity(value=amounts.decimal_text(micro), unit=unit)


def quantity(value: Decimal | int | None, unit: str) -> Quantity | None:
    """A number with its unit; None: unknown."""
    return (
        None
        if value is None
        else Quantity(value=f"{value:f}" if isinstance(value, Decimal) else str(value), unit=unit)
    )


def gpu_hours(gpu_ns: int | None) -> Quantity | None:
    """GPU-nanoseconds as GPU-hours; None: unknown."""
    return None if gpu_ns is None else quantity(hours_decimal([gpu_ns])[0], "GPU-hour")


def ratio(part: int, whole: int) -> str | None:
    """A share of 0 to 1 with four places, cut off; None of nothing."""
    return None if whole <= 0 else f"{Decimal(part * 10_000 // whole).scaleb(-4):f}"


def names(
    by: Sequence[str], keys: Sequence[str], called: Mapping[str, tuple[str, str]] | None = None
) -> dict[str, str]:
    """The cells of a row by dimension; `called`: name and user of workloads by key."""
    cells = {dimension: name(key) for dimension, key in zip(by, keys, strict=True)}
    job, user = (called or {}).get(dict(zip(by, keys, strict=True)).get("workload", ""), ("", ""))
    more = {"workload_name": name(job), "workload_user": name(user)}
    return cells | {label: text for label, text in more.items() if text}


def rest_of(rows: Iterable[Model]) -> Rest | None:
    """Rows as one, with the sum of each amount of money and of GPU-time; None of no rows."""
    count, sums = 0, dict[tuple[str, str], Decimal]()
    for row in rows:
        count += 1
        for field in type(row).model_fields:
            match getattr(row, field):
                case (
                    Money(amount=value, currency=unit)
                    | Quantity(value=value, unit="GPU-hour" as unit)
                ):
                    sums[field, unit] = sums.get((field, unit), Decimal()) + Decimal(value)
    texts = [
        RestSum(field=field, value=f"{value:f}", unit=unit) for (field, unit), value in sums.items()
    ]
    return Rest(rows=count, sums=texts) if count else None


def shorten_answer(answer: Answer[Any, Any], offset: int) -> Answer[Any, Any]:
    """The answer with as many of its rows as MAX_CHARACTERS allow; totals stay whole."""
    while len(answer.model_dump_json()) > MAX_CHARACTERS - REST_CHARACTERS and len(answer.rows) > 1:
        rows = answer.rows[: len(answer.rows) // 2]
        answer = answer.model_copy(
            update={"rows": rows, "truncated": True, "next_cursor": str(offset + len(rows))}
        )
    return answer
