"""The base of what people write: rows of CSV files and tables of TOML files, checked by pydantic
models.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.fields import DECLARED, Day, Instants, end_after
from gpuledger_collector.config.files import require_few_problems

MAX_OF_ROW = 100
"""Mistakes of a row or table that are named: one may have any number of unknown keys."""
_BUILT_IN = {
    "missing": Problem("empty", "", "is empty"),
    "tuple_type": Problem("bad_list", "", 'must be a list, such as ["a", "b"] or [80, 100]'),
    "dict_type": Problem("bad_table", "", 'is not a table of texts, such as { team = "vision" }'),
}
"""Our words for the errors that pydantic itself raises in these models."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row or table of a file with the line on which it begins; the cells are texts (CSV) or
    values of TOML.
    """

    file: str
    line: int
    cells: Mapping[str, Any]

    @property
    def source(self) -> str:
        """The place as messages name it."""
        return f"{self.file}:{self.line}"


class Row(BaseModel):
    """A row of named cells.

    A blank cell is no cell: its field takes its default, or is refused as empty.

    Checks between fields belong to the later one of them (`field_validator` with `info.data`), not
    to the model: then one run names everything that is wrong with a row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    blank_columns: ClassVar[Sequence[str]] = ()
    """Optional columns that the header of a CSV file must name all the same: their cells may be
    blank.
    """
    blank_is_refused: ClassVar[Sequence[str]] = ()
    """Keys for which a blank value is a mistake although the key is optional."""

    @classmethod
    def cell_names(cls) -> list[str]:
        """The names of the cells."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def needed_columns(cls) -> list[str]:
        """The columns that the header of a CSV file must name."""
        required = [
            field.alias or name for name, field in cls.model_fields.items() if field.is_required()
        ]
        return [*required, *cls.blank_columns]

    @classmethod
    def read(
        cls, record: Record, problems: list[Problem], instants: Instants = DECLARED
    ) -> Self | None:
        """The row, or None after adding its problems, the first MAX_OF_ROW of them.

        `instants` are those that the file may hold. Raises FileTooLarge when the file has too many
        problems.
        """
        # a blank cell of CSV and an empty string of TOML both mean that nothing is given
        cells = {
            name: cell
            for name, cell in record.cells.items()
            if not isinstance(cell, str) or cell.strip()
        }
        blank = [
            name for name in cls.blank_is_refused if name in record.cells and name not in cells
        ]
        problems += [Problem("empty", f"{record.source}:{name}", "is empty") for name in blank]
        try:
            row = cls.model_validate(cells, context=instants)
        except ValidationError as error:
            entries = error.errors(include_url=False, include_context=False, include_input=False)
            problems += [cls._problem(record.source, entry) for entry in entries[:MAX_OF_ROW]]
            require_few_problems(record.file, problems)
            return None
        return None if blank else row

    @classmethod
    def _problem(cls, source: str, entry: ErrorDetails) -> Problem:
        first, *inner = (part for part in entry["loc"] if isinstance(part, str))
        if entry["type"] == "extra_forbidden":
            return unknown_key(source, first, cls.cell_names())
        # pydantic names the field rather than its alias where it refuses a default
        field = cls.model_fields.get(first)
        name = ":".join([(field and field.alias) or first, *inner])
        ours = _BUILT_IN.get(entry["type"], Problem(entry["type"], "", entry["msg"]))
        return Problem(ours.code, f"{source}:{name}", ours.message)


def unknown_key(source: str, name: str, known: Sequence[str]) -> Problem:
    """The problem of a key that means nothing, with the nearest one that does."""
    near = get_close_matches(name, known, 1)
    hint = f"is it {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return Problem("unknown_key", f"{source}:{name}", f"is not known here; {hint}")


class Declaration(Row):
    """A table of a declared file, or a row of the CSV that declares the same.

    Fields are named like those of the accounting value, so that both conversions take them over by
    name.
    """

    value_type: ClassVar[Any]
    """The accounting value that is declared."""
    identity: ClassVar[Sequence[str]] = ()
    """Fields that name what is declared: two tables of a file that agree in them conflict.

    Empty: any may repeat.
    """
    conflict: ClassVar[tuple[str, str]] = ("name", "line {line} declares the same name already")
    """The key that is blamed for a second table of one identity, and why."""
    may_repeat: ClassVar[bool] = False
    """Whether a second table that says exactly the same is no conflict."""

    def to_value(self, source: str, position: int) -> Any:
        """What is declared, as storage takes it: a value, or a list.

        `position` counts the file's tables from 1.
        """
        # accounting values have some of these, which the file does not write
        about = {"id": None, "source": source, "position": position}
        wanted = {field.name for field in dataclasses.fields(self.value_type)}
        return self.value_type(
            **{name: value for name, value in about.items() if name in wanted} | vars(self)
        )

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The declaration of a value that is in force."""
        return cls.model_construct(**{name: getattr(value, name) for name in cls.model_fields})

    def conflicts(self, earlier: Self) -> bool:  # noqa: ARG002  # kinds that are dated compare their days
        """Whether this cannot stand after an earlier table of the same identity."""
        return True

    def to_table(self) -> dict[str, Any]:
        """Keys and values of the TOML table; what is empty by default is left out."""
        empty: tuple[object, ...] = (None, "", (), {})
        written = self.model_dump(by_alias=True, exclude_unset=True)
        defaults = {
            field.alias or name: field.default for name, field in type(self).model_fields.items()
        }
        return {
            key: value
            for key, value in written.items()
            if value not in empty or defaults[key] not in empty
        }

    @classmethod
    def collect(cls, records: Iterable[Record], problems: list[Problem]) -> list[Any]:
        """The values of all good tables in their order; `problems` gets those of the others."""
        values: list[Any] = []
        known: dict[object, list[tuple[int, Any]]] = {}
        for position, record in enumerate(records, 1):
            declaration = cls.read(record, problems)
            if declaration is None:
                continue
            same = known.setdefault(
                tuple(getattr(declaration, name) for name in cls.identity) or position, []
            )
            # files that were put together from others repeat rows
            if cls.may_repeat and any(declaration == earlier for _, earlier in same):
                continue
            line = next((line for line, earlier in same if declaration.conflicts(earlier)), None)
            if line is not None:
                key, message = cls.conflict
                problems.append(
                    Problem("double", f"{record.source}:{key}", message.format(line=line))
                )
                continue
            same.append((record.line, declaration))
            value = declaration.to_value(record.source, position)
            values += value if isinstance(value, list) else [value]
        return values


class Dated(Declaration):
    """A declaration for days of the bill; `to_on` is not included."""

    from_on: Day | None = Field(None, alias="effective_from")
    to_on: Annotated[Day | None, end_after("from_on", "effective_from")] = Field(
        None, alias="effective_to"
    )

    def conflicts(self, earlier: Self) -> bool:
        """Whether both hold on some day."""

        def ends_before(end: dt.date | None, start: dt.date | None) -> bool:
            return end is not None and start is not None and end <= start

        return not ends_before(self.to_on, earlier.from_on) and not ends_before(
            earlier.to_on, self.from_on
        )
