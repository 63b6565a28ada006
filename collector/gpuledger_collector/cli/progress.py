"""A progress bar for long work: on a terminal only, on standard error, and gone when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to be told how much is done, of how much; nothing is shown in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _done, _whole: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(what), total=None)
        yield lambda done, whole: progress.update(task, completed=done, total=whole)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A bar without an end, for work that does not say how far it is."""
    with bar(what):
        yield


def over(what: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other, with a bar that says how many of them are done."""
    with bar(what) as told:
        for done, item in enumerate(items):
            told(done, len(items))
            yield item
        told(len(items), len(items))
