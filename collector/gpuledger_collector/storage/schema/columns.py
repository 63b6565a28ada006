"""What the tables share: metadata and its naming, and the kinds of columns."""

from __future__ import annotations

import sqlalchemy as sa

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
STATES = ("held", "unallocated", "unavailable", "unobserved", "stranded")
"""States of an accelerator's time as stored; `unobserved` and `stranded` are never reported, only derived by rating."""

HOT_TYPES = {"f4": sa.REAL, "f8": sa.Double, "i8": sa.BigInteger}


def identity() -> sa.Column[int]:
    """A number that the database gives."""
    return sa.Column("id", BIG, sa.Identity(), primary_key=True)


def instant(name: str, *, nullable: bool = False) -> sa.Column[object]:
    """An instant with its zone."""
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def text(name: str, default: str = "") -> sa.Column[str]:
    """A text, never null."""
    return sa.Column(name, sa.Text, nullable=False, server_default=default)


def foreign(name: str, target: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[int]:
    """A reference to a row of another table."""
    return sa.Column(name, BIG, sa.ForeignKey(target), nullable=nullable, primary_key=primary_key)
