"""The committed boards as Grafana would open them: variables with their options, panels with their
final SQL.
"""

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from fakes.grafana import Range, expanded, interpolated, own_range

FOLDER = Path(__file__).parents[2] / "dashboards" / "json"
DAYS = 3
UNTIL = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
SINCE = UNTIL.replace(hour=0) - dt.timedelta(days=DAYS)
SPAN = Range(SINCE, UNTIL + dt.timedelta(hours=2))
"""The days of the seed, and the minute in which it arrived."""
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
QUOTE = 'it\'s \\ "none"'
"""A value that nobody has, with everything in it that breaks careless quoting."""


@dataclass(frozen=True)
class Asked:
    """A panel's query as Postgres gets it."""

    board: str
    title: str
    kind: str
    form: str
    sql: str
    empty: bool

    def __str__(self) -> str:
        return f"{self.board}: {self.title}"


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Panels with queries, also of collapsed rows."""
    for panel in board["panels"]:
        yield from (
            one for one in [panel, *panel.get("panels", [])] if one["type"] not in ("row", "text")
        )


def reads_postgres(board: dict[str, Any]) -> bool:
    return any(one["name"] == "datasource" for one in board["templating"]["list"])


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in board["templating"]["list"] if one["type"] == "query"}


def hidden(board: dict[str, Any], name: str) -> bool:
    """Whether a variable follows from others and is shown to nobody."""
    return bool(variables(board)[name]["hide"] == 2)


def options(reader: psycopg.Connection, board: dict[str, Any], span: Range) -> dict[str, list[str]]:
    """What each variable offers, in the order of the board, each query with the first values of
    those before it.
    """
    found: dict[str, list[str]] = {}
    known = variables(board)
    for name, variable in known.items():
        text = interpolated(variable["query"], known, chosen(board, found, "all"))
        rows = reader.execute(expanded(text, span, 3600).encode())
        found[name] = ["" if row[0] is None else str(row[0]) for row in rows]
    return found


def chosen(
    board: dict[str, Any], offered: dict[str, list[str]], choice: str
) -> dict[str, str | list[str]]:
    """A reader's choice: all, the first, two, or a value that nobody has."""
    values: dict[str, str | list[str]] = {}
    for name, variable in variables(board).items():
        has = offered.get(name, [])
        if not variable["multi"]:
            values[name] = QUOTE if choice == "quote" else (has[0] if has else "")
        else:
            values[name] = {"all": ["$__all"], "first": has[:1], "two": has[:2], "quote": [QUOTE]}[
                choice
            ]
            values[name] = values[name] or ["$__all"]
    return values


def asked(name: str, values: dict[str, str | list[str]], span: Range) -> Iterator[Asked]:
    """Every Postgres query of a board, over `span` or, where a panel has one of its own, over that
    range from now.
    """
    board = BOARDS[name]
    known = variables(board)
    whole = span
    for panel in panels(board):
        span = whole
        if "timeFrom" in panel:
            texts = [
                interpolated(panel.get(name, ""), known, values)
                for name in ("timeFrom", "timeShift")
            ]
            span = own_range(texts[0], dt.datetime.now(dt.UTC), texts[1]) or whole
        for target in panel["targets"]:
            if target["datasource"]["type"] != "postgres":
                continue
            text = interpolated(target["rawSql"], known, values)
            text = expanded(text, span, span.interval_s(panel.get("interval", "")))
            empty = "may be empty" in panel["description"].lower()
            yield Asked(name, panel["title"], panel["type"], target["format"], text, empty)


def panel_rows(
    connection: psycopg.Connection, name: str, title: str, span: Range
) -> list[dict[str, Any]]:
    """The rows of a board's panel, by column, with all chosen."""
    board = BOARDS[name]
    values = chosen(board, options(connection, board, span), "all")
    (query,) = [query for query in asked(name, values, span) if query.title == title]
    cursor = connection.execute(query.sql.encode())
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
