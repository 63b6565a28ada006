"""The SQL that stands in the product and names a table that Citus distributes, replicates or takes
over.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import gpuledger_collector
from gpuledger_collector.storage.distribution import DISTRIBUTED, REFERENCE

TIED = ("counter_series", "imported_usage", "ingest_batch", "inventory", "node_utilization")
"""Tables of the coordinator that foreign keys tie to replicated ones: Citus keeps them, but in its
own way.
"""
PACKAGE = Path(gpuledger_collector.__file__).parent
SPREAD = "|".join(DISTRIBUTED)
MANAGED = "|".join([*DISTRIBUTED, *REFERENCE])


def _naming(tables: str) -> re.Pattern[str]:
    return re.compile(
        rf"\b(?:FROM|JOIN|INTO|UPDATE|USING|COPY)\s+(?:ONLY\s+)?({tables})\b", re.IGNORECASE
    )


USED, KNOWN, TIED_USED = _naming(SPREAD), _naming(MANAGED), _naming("|".join(TIED))
WITHOUT_CITUS = ("SELECT {end}((SELECT {end}(minute_ms)",)
"""Statements that the product runs where there is no Citus only."""


def own_statements() -> Iterator[str]:
    """Every SQL text of the product that names such a table, behind its module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for text in texts(path.read_text(encoding="utf-8")):
            is_statement = re.search(r"\b(SELECT|INSERT|UPDATE|DELETE|COPY)\b", text)
            names_table = KNOWN.search(text) or TIED_USED.search(text)
            if is_statement and names_table and not text.startswith(WITHOUT_CITUS):
                yield f"{path.relative_to(PACKAGE)}: {' '.join(text.split())}"


def texts(source: str) -> Iterator[str]:
    """String literals of a module, with `{}` for what an f-string fills in."""

    def text(node: ast.AST | None) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(text(part) or "{}" for part in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (text(node.left) or "{}") + (text(node.right) or "{}")
        return None

    def walk(node: ast.AST) -> Iterator[str]:
        found = text(node)
        if found is not None and not (isinstance(node, ast.BinOp) and found == "{}{}"):
            yield found
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(source))


def never_run(statements: Iterable[str], lines: Iterable[str]) -> list[str]:
    """Those of which no line, as a process ran it, has the text."""
    ran = {line.replace("%%", "%") for line in lines}

    def was_run(statement: str) -> bool:
        parts = _parts(statement)
        return any(_has_all(line, parts) for line in ran)

    return [statement for statement in statements if not was_run(statement)]


def _parts(statement: str) -> list[str]:
    """The statement without what the product fills in: values, and parts of the text."""
    return re.split(r"\{\w*\}|%\(\w+\)s|%s", statement.partition(": ")[2].replace("%%", "%"))


def _has_all(line: str, parts: Iterable[str]) -> bool:
    """Whether a line has these parts in this order. A pattern with dozens of gaps never ends where
    there is no match.
    """
    place = 0
    for part in parts:
        found = line.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True
