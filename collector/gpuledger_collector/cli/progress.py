"""A progress bar for long work: on a terminal only, on standard error, and gone when the work is
done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function that takes how much is done, of how much; in a pipe it shows nothing."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console  # in a pipe nothing is drawn
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(title), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def busy(title: str) -> Iterator[None]:
    """A bar without an end, for work of unknown length."""
    with bar(title):
        yield


def show_progress(title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
    """The items one after the other, with a bar that shows how many of them are done."""
    with bar(title) as advance:
        for done, item in enumerate(items):
            advance(done, total)
            yield item
        advance(total, total)
