"""Templates of an ERP's import file: columns with a source field or a constant, and how numbers and
dates are written.

level = "team"                # whose invoices are posted
delimiter = ";"
decimal = ","
date = "%d.%m.%Y"
header = true

[[column]]
name = "Company"
constant = "1000"

[[column]]
name = "Posting date"
field = "last_day"

[[column]]
name = "Cost center"
field = "cost_center"

[[column]]
name = "Amount"
field = "amount"

Rows are one for each combination of the fields that name something (cost center, kind, pool, ...),
and always one for each invoice at least.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.fields import Flag, Scalar, matching, one_of, refusal
from gpuledger_collector.config.model import MAX_OF_ROW, Record, Row, unknown_key
from gpuledger_common.bounded_file import read_toml_text

NAMING = (*LEVELS, "pool", "model", "kind", "cost_center", "gl_code")
"""Fields by which amounts are told apart, where a template has them."""
FIELDS = (
    *(
        "number",
        "period",
        "first_day",
        "last_day",
        "closed_on",
        "invoice",
        "owner",
        "currency",
        "amount",
        "gpu_hours",
    ),
    *("description", *NAMING),
)
"""Everything that a column can show."""


class TemplateColumn(Row):
    """A column: its heading, and what stands in it."""

    name: Scalar
    field: Annotated[str, one_of(FIELDS)] = ""
    constant: Scalar = Field("", validate_default=True)

    @field_validator("constant")
    @classmethod
    def _say_one_thing(cls, constant: str, info: ValidationInfo) -> str:
        if "field" in info.data and bool(constant) == bool(info.data["field"]):
            raise refusal(
                "not_one", "is needed where there is no field, and refused where there is one"
            )
        return constant


class _Layout(Row):
    level: Annotated[str, one_of(LEVELS)] = "team"
    delimiter: Annotated[str, matching(r"[,;|\t]", "no delimiter: use , ; | or a tab")] = ","
    decimal: Annotated[str, matching(r"[.,]", "no decimal sign: use . or ,")] = "."
    date: Scalar = "%Y-%m-%d"
    header: Flag = True

    @field_validator("date")
    @classmethod
    def _write_a_date(cls, form: str) -> str:
        # A day of which day, month and year differ, so that a form without one of them is seen.
        if len({dt.date(2026, 10, day).strftime(form) for day in (1, 2)}) != 2:
            raise refusal("bad_date", f"{form!r} writes no day; write it as %d.%m.%Y")
        return form


@dataclass(frozen=True, slots=True)
class Template:
    """How a row of the file is made."""

    columns: Sequence[TemplateColumn]
    level: str
    delimiter: str
    decimal: str
    date: str
    header: bool

    @property
    def naming(self) -> tuple[str, ...]:
        """The fields of the template by which amounts are told apart."""
        used = {column.field for column in self.columns}
        return tuple(name for name in NAMING if name in used)


def read_template(path: Path) -> Template | list[Problem]:
    """The template, or every problem in it. Raises OSError when it cannot be opened."""
    try:
        text = read_toml_text(path)
        content = tomllib.loads(text)
    except UnicodeDecodeError:
        return [Problem("bad_encoding", str(path), "is not UTF-8 text")]
    except tomllib.TOMLDecodeError as error:
        return [Problem("bad_toml", str(path), f"is not TOML: {error}")]
    except (ValueError, RecursionError):
        return [
            Problem("bad_toml", str(path), "nests too deep, or holds a number that is too long")
        ]
    problems: list[Problem] = []
    tables: Any = content.pop("column", [])
    if (
        not isinstance(tables, list)
        or not tables
        or not all(isinstance(table, dict) for table in tables)
    ):
        return [
            Problem(
                "bad_table",
                f"{path}:column",
                "is not a list of tables: write [[column]] for each column",
            )
        ]
    headers = [
        number for number, line in enumerate(text.splitlines(), 1) if line.strip() == "[[column]]"
    ]
    lines = [*headers, *[1] * len(tables)]
    columns = [
        TemplateColumn.read(Record(str(path), line, _texts(table)), problems)
        for line, table in zip(lines, tables, strict=False)
    ]
    known = _Layout.cell_names()
    unknown = [name for name in content if name not in known]
    problems += [unknown_key(str(path), name, [*known, "column"]) for name in unknown[:MAX_OF_ROW]]
    layout = _Layout.read(
        Record(str(path), 1, {name: content[name] for name in content if name in known}), problems
    )
    if problems or layout is None:
        return problems
    return Template(
        columns=[column for column in columns if column is not None],
        level=layout.level,
        delimiter=layout.delimiter,
        decimal=layout.decimal,
        date=layout.date,
        header=layout.header,
    )


def _texts(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A constant is a text also where it is written as a number."""
    return {
        key: str(value) if isinstance(value, int) and key == "constant" else value
        for key, value in table.items()
    }
