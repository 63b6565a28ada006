"""The reference page of what each way in admits, from the rows that stand beside the code."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator

from gpuledger_common.admission import BOUNDS, Admission

Table = Callable[[list[str], list[list[str]]], str]
SECTIONS = {
    "Routes of the collector": (
        "gpuledger_collector.api.admission",
        "gpuledger_collector.mcp.admission",
    ),
    "Files and database roles": ("gpuledger_collector.config.admission",),
    "Answers that the collector asks for": ("gpuledger_collector.services.admission",),
    "Pages that the agent fetches and serves": ("gpuledger_agent.admission",),
}
"""Titles, and the modules with the rows of each in `ADMISSIONS`."""
INTRODUCTION = """One row for every way in: who pays for it, and what bounds it before the collector, its database or an
agent is harmed. A setting has its default in parentheses. `-` is a bound without meaning there. Tests fail for a way in
without a row, and for a row without a way in.
"""
TITLES = {
    "bytes": "bytes before decoding",
    "inflated_bytes": "bytes decompressed",
    "in_progress": "in progress",
    "query": "rows and time of a query",
    "adds": "adds to what others read",
}


def page(table: Table) -> str:
    """Every row, by section."""
    parts = [f"# What each way in admits\n\n{INTRODUCTION}"]
    for title, modules in SECTIONS.items():
        if rows := [row for name in modules for row in rows_of(name)]:
            parts.append(
                f"## {title}\n\n{table(['way in', 'payer', *map(heading, BOUNDS)], list(map(cells, rows)))}"
            )
    return "\n".join(parts)


def rows_of(name: str) -> Iterator[Admission]:
    """The rows of a module; none where it is not there."""
    if importlib.util.find_spec(name) is not None:
        yield from importlib.import_module(name).ADMISSIONS


def heading(bound: str) -> str:
    """The heading of a bound's column."""
    return TITLES.get(bound, bound)


def cells(row: Admission) -> list[str]:
    """A row of the table."""
    return [f"`{row.way_in}`", row.payer, *(getattr(row, bound) for bound in BOUNDS)]
