"""What the tables share: metadata and its naming, the kinds of columns, and short ways to declare
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_common.catalog import HOT

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

BIG = sa.BigInteger
TEXT = sa.Text
JSONB = pg.JSONB
INSTANT = sa.DateTime(timezone=True)
RATE = sa.Numeric(18, 9)
"""A price: currency units per GPU-hour, or per unit of another currency."""
SUM = sa.Numeric(30, 0)
"""A whole number that may exceed 64 bits when a large fleet's GPU-nanoseconds are added up."""
TIMES_NS = ("gpu_ns", "busy_ns", "idle_ns", "unknown_ns")
"""GPU-nanoseconds: all of them, and what they divide into."""
HOT_TYPES = {"f4": sa.REAL, "f8": sa.Double, "i8": sa.BigInteger}


def table(
    name: str, comment: str, *items: sa.schema.SchemaItem, stays: str = "", **options: Any
) -> sa.Table:
    """Declare a table; `stays`: why the name of a person is not erased in it."""
    return sa.Table(name, metadata, *items, comment=comment, info={"stays": stays}, **options)


def column(
    name: str,
    kind: Any,
    comment: str = "",
    *,
    nullable: bool = False,
    default: Any = None,
    unique: bool | None = None,
    person: Person | None = None,
) -> sa.Column[Any]:
    """Declare a column with a comment, a default, or what it may hold of a person."""
    return sa.Column(
        name,
        kind,
        nullable=nullable,
        server_default=default,
        comment=comment or None,
        unique=unique,
        info={"person": person},
    )


def required_columns(kind: Any, *names: str, person: Person | None = None) -> list[sa.Column[Any]]:
    """Declare columns of one kind that are never null."""
    return [column(name, kind, person=person) for name in names]


def optional(kind: Any, *names: str, person: Person | None = None) -> list[sa.Column[Any]]:
    """Declare columns of one kind in which null means unknown or not applicable."""
    return [column(name, kind, nullable=True, person=person) for name in names]


def texts(*names: str, person: Person | None = None) -> list[sa.Column[Any]]:
    """Declare texts that are empty by default, never null."""
    return [column(name, TEXT, default="", person=person) for name in names]


def key(name: str, kind: Any, comment: str = "", *, person: Person | None = None) -> sa.Column[Any]:
    """Declare a part of the primary key; the value is always given by who inserts."""
    return sa.Column(
        name,
        kind,
        primary_key=True,
        autoincrement=False,
        comment=comment or None,
        info={"person": person},
    )


def keys(kind: Any, *names: str, person: Person | None = None) -> list[sa.Column[Any]]:
    """Declare parts of the primary key, of one kind."""
    return [key(name, kind, person=person) for name in names]


def identity() -> sa.Column[int]:
    """Declare a primary key that the database numbers."""
    return sa.Column("id", BIG, sa.Identity(), primary_key=True)


def foreign(
    name: str, target: str, *, comment: str = "", nullable: bool = False, primary_key: bool = False
) -> sa.Column[int]:
    """Declare a reference to a row of another table."""
    reference = sa.ForeignKey(target)
    return sa.Column(
        name, BIG, reference, nullable=nullable, primary_key=primary_key, comment=comment or None
    )


def checked(name: str, target: str, *, comment: str = "", nullable: bool = False) -> sa.Column[int]:
    """Declare a reference to a row of another table that triggers check, once for a statement."""
    return sa.Column(name, BIG, nullable=nullable, comment=comment or None, info={"target": target})


def target_of(declared: sa.Column[Any]) -> sa.Column[Any] | None:
    """The column to which a reference refers; None for what is none."""
    for reference in declared.foreign_keys:
        return reference.column
    if (target := declared.info.get("target")) is None:
        return None
    table, _, name = target.partition(".")
    referred: sa.Column[Any] = declared.table.metadata.tables[table].columns[name]
    return referred


def version_columns() -> list[sa.Column[Any]]:
    """Declare from when to when a row was in force: rows are superseded, never edited."""
    return [column("recorded_at", INSTANT), column("superseded_at", INSTANT, nullable=True)]


def hot_columns() -> list[sa.Column[Any]]:
    """Declare a column for each metric that is sampled often."""
    return [column(metric.name, HOT_TYPES[metric.column_kind], nullable=True) for metric in HOT]


def index(*names: str, **options: Any) -> sa.Index:
    """Declare an index under its conventional name."""
    return sa.Index(None, *names, **options)


def personal_columns() -> Iterator[tuple[sa.Table, sa.Column[Any], Person]]:
    """The columns that may hold the name of a person, by table and name; JSON of which nothing else
    is declared may.
    """
    for owner in sorted(metadata.tables.values(), key=lambda known: known.name):
        for member in sorted(owner.columns, key=lambda known: known.name):
            default = Person.KEYS if isinstance(member.type, sa.JSON) else None
            person = member.info.get("person") or default
            if person is not None:
                yield owner, member, person
