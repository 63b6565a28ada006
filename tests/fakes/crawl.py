"""Follows the links of the collector's pages: to every page and file, with every value of every
parameter, and with every two values that a link combines.

Periods, owners, orders and the rest multiply: of 2,400 addresses most differ from others in a third
value alone.
"""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag

from fakes.pages import Page

NOT_PAGES = ("/metrics", "/readyz", "/openapi.json")
MOST_PARTS = {"/spend": 2, "/models": 1}
"""Pages whose charts lead to each of their parts, which lead to theirs; and how many parts of such a
page are followed, of those with the same parameters.
"""


def read_csv(text: str) -> list[list[str]]:
    """The rows of a CSV, all of one length."""
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1, rows
    return rows


MOST_HOURS = 3
"""Addresses of the fleet that are followed among those that differ in their hour or GPU alone: all
of them are a page for each hour of the ledger.
"""


def alike(path: str) -> str:
    """What addresses of the fleet have in common that differ in an instant or a GPU."""
    place, _, query = path.partition("?")
    names = [part.partition("=")[0] for part in query.split("&")]
    return f"{place if place.count('/') == 1 else '/fleet/gpu'}?{'&'.join(names)}"


def combinations_of(path: str) -> set[tuple[str, ...]]:
    """What an address combines: its page, or file, and every two of its parameters' values; of one
    with fewer than two the address.
    """
    place, _, query = path.partition("?")
    values = {part for part in query.split("&") if part}
    kind = (place, "csv" if "format=csv" in values else "page")
    values = sorted(values - {"format=csv"})
    return {(*kind, *two) for two in itertools.combinations(values, 2)} or {(*kind, *values)}


@dataclass
class Crawl:
    """Pages by their addresses, and CSVs, with every pair of values that links combine."""

    ask: Callable[[str], tuple[int, Any, str]]
    """Status, headers and text of an address."""
    pages: dict[str, Page] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[list[str]]] = field(default_factory=dict)
    loads: set[str] = field(default_factory=set)
    """What the pages load beside their text."""
    follows_all: bool = False
    """Whether addresses that combine nothing new are followed, too."""
    left_out: set[str] = field(default_factory=set)
    """Addresses that combine nothing new."""
    _combinations: set[tuple[str, ...]] = field(default_factory=set)
    _parts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _hours: Counter[str] = field(default_factory=Counter)

    def _admit(self, path: str) -> bool:
        """Count an address of its kind; whether it is followed."""
        combinations = combinations_of(path)
        if combinations <= self._combinations and not self.follows_all:
            self.left_out.add(path)
            return False
        name, _, query = path.partition("?")
        if name in MOST_PARTS:
            kind = (name, *sorted(part.partition("=")[0] for part in query.split("&")))
            self._parts[kind] += 1
            if self._parts[kind] > MOST_PARTS[name]:
                return False
        if name.startswith("/fleet"):
            self._hours[alike(path)] += 1
            if self._hours[alike(path)] > MOST_HOURS:
                return False
        self._combinations |= combinations
        return True

    def run(self, *starts: str) -> "Crawl":
        """Follow links from these addresses: each answers 200, and each fragment is there, and
        so is all that the pages load.
        """
        waiting = list(starts)
        while waiting:
            path = waiting.pop()
            if path in self.texts or path.partition("?")[0] in NOT_PAGES or not self._admit(path):
                continue
            status, headers, text = self.ask(path)
            if status == 303:
                self.texts[path] = ""
                waiting.append(headers["Location"])
                continue
            assert status == 200, (path, status, text)
            self.texts[path] = text
            if headers["Content-Type"].startswith("text/csv"):
                assert headers["Content-Disposition"].startswith('attachment; filename="gpuledger-')
                self.files[path] = read_csv(text)
                continue
            page = self.pages[path] = Page(text)
            assert page.faults == [], path
            self.loads |= {name for name in page.loads if name.startswith("/")}
            waiting += [urldefrag(link).url for link in page.links if link.startswith("/")]
        for name in self.loads:
            status, headers, _ = self.ask(name)
            assert (status, "immutable" in headers["Cache-Control"]) == (200, True), name
        for path, page in self.pages.items():
            for link in page.links:
                target, fragment = urldefrag(link)
                is_part = target.partition("?")[0] in MOST_PARTS and target not in self.pages
                is_followed = target.startswith("/") and target not in self.left_out
                if is_followed and fragment and not is_part:
                    assert fragment in self.pages[target].ids, (path, link)
        return self
