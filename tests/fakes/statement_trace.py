"""Which SQL processes run: each text that psycopg sent to a server that took it, written to a file
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from psycopg import sql

from gpuledger_collector import wiring

KINDS = (psycopg.Cursor, psycopg.ServerCursor)


@contextmanager
def tracing(file: Path) -> Iterator[None]:
    """Write what this process runs while the block does."""
    own = {
        (kind, name): vars(kind)[name]
        for kind in KINDS
        for name in ("execute", "executemany", "copy", "stream")
        if name in vars(kind)
    }
    trace(file)
    try:
        yield
    finally:
        for (kind, name), method in own.items():
            setattr(kind, name, method)


def trace(file: Path) -> None:
    """Write each text that this process runs from now on, in one line, the first time that it is
    run.
    """
    seen: set[str] = set()

    def note(cursor: Any, query: object) -> None:
        text = query.as_string(cursor) if isinstance(query, sql.Composable) else query
        line = " ".join((text.decode() if isinstance(text, bytes) else str(text)).split())
        if line not in seen:
            seen.add(line)
            with file.open("a") as lines:
                lines.write(line + "\n")

    for kind in KINDS:
        for name in ("execute", "executemany", "copy", "stream"):
            if name in vars(kind):
                setattr(kind, name, _noting(vars(kind)[name], note))


def _noting(run: Callable[..., Any], note: Callable[[Any, object], None]) -> Callable[..., Any]:
    def noted(cursor: Any, query: object, *arguments: object, **options: object) -> Any:
        result = run(cursor, query, *arguments, **options)
        note(cursor, query)
        return result

    return noted


def settings(folder: Path, file: Path, ahead_ms: int = 0) -> dict[str, str]:
    """The environment in which another Python process writes what it runs to the same file;
    `ahead_ms`: of this machine's clock, by which a collector there then goes.
    """
    folder.mkdir(exist_ok=True)
    tests = Path(__file__).resolve().parents[1]
    (folder / "sitecustomize.py").write_text(
        f"import sys, pathlib\nsys.path.append({str(tests)!r})\nfrom fakes.statement_trace import"
        f" ahead, trace\ntrace(pathlib.Path({str(file)!r}))\nahead({ahead_ms}).start()\n"
    )
    return {"PYTHONPATH": str(folder)}


def ahead(ms: int) -> Any:
    """A patch of this process by which its collector's clock is ahead of the machine's."""
    of_the_machine = wiring.read_clock

    def read_clock() -> int:
        return of_the_machine() + ms

    return mock.patch.object(wiring, "read_clock", read_clock)
