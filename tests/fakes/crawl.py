"""Follows every link of the collector's pages."""

import csv
import io
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


@dataclass
class Crawl:
    """Every page that can be reached, by its address, and every CSV."""

    ask: Callable[[str], tuple[int, Any, str]]
    """Status, headers and text of an address."""
    pages: dict[str, Page] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[list[str]]] = field(default_factory=dict)
    loads: set[str] = field(default_factory=set)
    """What the pages load beside their text."""
    _parts: dict[tuple[str, ...], int] = field(default_factory=dict)

    def _admit(self, path: str) -> bool:
        """Count an address of its kind; whether it is still followed."""
        name, _, query = path.partition("?")
        if name not in MOST_PARTS:
            return True
        kind = (name, *sorted(part.partition("=")[0] for part in query.split("&")))
        self._parts[kind] = self._parts.get(kind, 0) + 1
        return self._parts[kind] <= MOST_PARTS[name]

    def run(self, *starts: str) -> "Crawl":
        """Follow every link from these addresses: each answers 200, and each fragment is there, and
        so is all that the pages load.
        """
        waiting, hours = list(starts), Counter()
        while waiting:
            path = waiting.pop()
            if path in self.texts or path.partition("?")[0] in NOT_PAGES or not self._admit(path):
                continue
            if path.startswith("/fleet"):
                hours[alike(path)] += 1
                if hours[alike(path)] > MOST_HOURS:
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
                if target.startswith("/") and fragment and not is_part:
                    assert fragment in self.pages[target].ids, (path, link)
        return self
