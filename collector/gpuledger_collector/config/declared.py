"""A declared file: `gpuledger apply` reads it and puts it in force, `gpuledger export config`
writes what is in force.

The file has an array of tables for each kind of `kinds.KINDS`, the billing zone, and the month in
which fiscal years begin. Where it has tables of a kind, exactly these are in force afterwards; of a
kind that it does not name, nothing changes.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import (
    begins_days_at_hours,
    parse_date,
    parse_instant,
)
from gpuledger_collector.accounting.problems import DeclarationRefused, Problem
from gpuledger_collector.config import toml
from gpuledger_collector.config.fields import MONTHS, MonthName, Zone
from gpuledger_collector.config.kinds import KINDS
from gpuledger_collector.config.model import MAX_OF_ROW, Record, unknown_key
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import inference
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_common.bounded_file import read_toml_text
from gpuledger_common.instants import to_datetime

BILLING_ZONE = "billing_zone"
FISCAL_YEAR = "fiscal_year_begins"
INFERENCE = "inference"
TABLES = (BILLING_ZONE, FISCAL_YEAR, *KINDS)
_OF_TOKENS = {INFERENCE, "tenant"}
_LIKE_A_CLOSE = {
    *("adjustment", "node_cost", "shared_cost", "cost_center", "carbon", "location"),
    *_OF_TOKENS,
}
"""Kinds that are ordered with closes: what is declared while a month is being closed waits for it.
"""
_PLACE = re.compile(r"at line (\d+), column (\d+)")
_DATED = re.compile(
    r"\s*([\w-]+)\s*=\s*(\d{4}-\d{1,2}-\d{1,2}(?:[Tt"
    r" ]\d[\d:.]*(?:[Zz]|[+-]\d\d:\d\d)?)?)\s*(?:#.*)?$"
)


@dataclass
class Declared:
    """What a file declares: values by kind for the kinds that it names, and every problem in it."""

    source: str = ""
    values: dict[str, list[Any]] = field(default_factory=dict)
    billing_zone: str | None = None
    fiscal_month: int | None = None
    problems: list[Problem] = field(default_factory=list)


def read_declared(path: Path) -> Declared:
    """What the file declares, or every problem in it. Raises OSError when it cannot be opened."""
    declared = Declared(str(path))
    text, content = _parse(path, declared.problems)
    unknown = (name for name in content if name not in TABLES)
    declared.problems += [
        unknown_key(str(path), name, TABLES) for name in itertools.islice(unknown, MAX_OF_ROW)
    ]
    if BILLING_ZONE in content:
        declared.billing_zone = _scalar(
            path, BILLING_ZONE, TypeAdapter(Zone), content, declared.problems
        )
    if FISCAL_YEAR in content:
        name = _scalar(path, FISCAL_YEAR, TypeAdapter(MonthName), content, declared.problems)
        declared.fiscal_month = None if name is None else MONTHS.index(name) + 1
    for name, kind in KINDS.items():
        if name in content:
            records = _records(path, text, name, content[name], declared.problems)
            declared.values[name] = kind.model.collect(records, declared.problems)
    return declared


def _scalar(
    path: Path,
    name: str,
    kind: TypeAdapter[str],
    content: Mapping[str, Any],
    problems: list[Problem],
) -> str | None:
    """The value of a key outside of tables; None after adding a problem."""
    try:
        return kind.validate_python(content[name])
    except ValidationError as error:
        problems.append(Problem("bad_value", f"{path}:{name}", error.errors()[0]["msg"]))
        return None


def _parse(path: Path, problems: list[Problem]) -> tuple[str, Mapping[str, Any]]:
    """Text and content of a TOML file; no content after adding a problem.

    Numbers stay as they are written.
    """
    try:
        text = read_toml_text(path)
    except UnicodeDecodeError:
        problems.append(Problem("bad_encoding", str(path), "is not UTF-8 text"))
        return "", {}
    try:
        return text, tomllib.loads(text, parse_float=str)  # 0.1 stays 0.1 on its way to a decimal
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        source = str(path) if place is None else f"{path}:{place[1]}:{place[2]}"
        bad_date = None if place is None else _bad_date(path, text, int(place[1]))
        problems.append(bad_date or Problem("bad_toml", source, f"is not TOML: {error}"))
    except (ValueError, RecursionError):
        problems.append(
            Problem("bad_toml", str(path), "nests too deep, or holds a number that is too long")
        )
    return text, {}


def _bad_date(path: Path, text: str, line: int) -> Problem | None:
    """What is wrong with a date on a line that is not TOML; None where the date is not what is
    wrong.
    """
    match = _DATED.match(text.split("\n")[line - 1])
    if match is None:
        return None
    try:
        parse_date(match[2]) if len(match[2]) == len("2026-10-31") else parse_instant(match[2])
    except ValueError as error:
        return Problem("bad_instant", f"{path}:{line}:{match[1]}", str(error))
    return None


def _records(
    path: Path, text: str, name: str, tables: object, problems: list[Problem]
) -> list[Record]:
    """The tables of one name with the lines on which they begin."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append(
            Problem("bad_table", f"{path}:{name}", f"is not a list of tables: write [[{name}]]")
        )
        return []
    # tomllib does not say where a table stands
    header = re.compile(rf"\s*\[\[\s*{name}\s*\]\]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if header.match(line)]
    lines += [1] * (len(tables) - len(lines))  # tables written inline, as `price = [{ ... }]`
    return [Record(str(path), line, table) for line, table in zip(lines, tables, strict=False)]


def apply_declared(
    connection: Connection, declared: Declared, now_ms: int
) -> dict[str, ImportOutcome]:
    """Put in force what a file declares; outcomes by title.

    Raises DeclarationRefused; the caller commits.
    """
    # Locks are taken in the order of a close, the audit log's last: otherwise an apply and a close
    # wait for each other.
    if declared.billing_zone is not None or _LIKE_A_CLOSE & declared.values.keys():
        locks.take(connection, Lock.LEDGER)
    locks.take(connection, Lock.PRICES)
    if _OF_TOKENS & declared.values.keys():
        # Whoever stores tokens meanwhile marks their days for a server that is charged from now on.
        locks.take(connection, Lock.TOKENS)
    outcomes = {}
    if declared.billing_zone is not None:
        outcomes["billing zone"] = zones.replace_zone(connection, declared.billing_zone, now_ms)
    if declared.fiscal_month is not None:
        outcomes["fiscal year"] = zones.replace_fiscal_year(
            connection, declared.fiscal_month, now_ms
        )
    for name, kind in KINDS.items():
        if name in declared.values and (declared.values[name] or not kind.adds_only):
            outcomes[kind.title] = kind.replace(connection, declared.values[name], now_ms)
    if declared.billing_zone is not None or INFERENCE in declared.values:
        _require_hours(connection, declared, now_ms)
    return outcomes


def _require_hours(connection: Connection, declared: Declared, now_ms: int) -> None:
    """Refuse shared model servers where days of the bill begin within an hour: tokens are counted by
    hours of UTC, and the first of a day would lie on the day before.
    """
    if not inference.SERVERS.in_force(connection):
        return
    zone = zones.calendar(connection).zones[-1]
    if begins_days_at_hours(zone.tz, to_datetime(now_ms).year):
        return
    key = BILLING_ZONE if declared.billing_zone is not None else INFERENCE
    message = (
        f"days of {zone.name} begin within an hour of UTC, and tokens are counted by these hours:"
        " [[inference]] needs a billing zone of whole hours"
    )
    raise DeclarationRefused([Problem("bad_zone", f"{declared.source}:{key}", message)])


def export_declared(connection: Connection) -> str:
    """What is in force as a file that `gpuledger apply` takes back unchanged.

    A kind of which nothing is in force is written as an empty list: applied to another ledger, it
    empties it there.
    """
    tables = {
        name: [kind.model.from_value(value).to_table() for value in kind.current(connection)]
        for name, kind in KINDS.items()
        if kind.current is not None
    }
    calendar = zones.calendar(connection)
    lines = [f"{BILLING_ZONE} = {toml.value(calendar.zones[-1].name)}"]
    if calendar.fiscal_month is not None:
        lines.append(f"{FISCAL_YEAR} = {toml.value(MONTHS[calendar.fiscal_month - 1])}")
    lines += [f"{name} = []" for name, values in tables.items() if not values]
    for name, values in tables.items():
        for value in values:
            lines += toml.table(name, value)
    return "\n".join(lines) + "\n"
