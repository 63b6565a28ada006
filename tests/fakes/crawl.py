"""Follows every link of the collector's pages."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag

from fakes.pages import Page

NOT_PAGES = ("/metrics", "/readyz", "/openapi.json")


def read_csv(text: str) -> list[list[str]]:
    """The rows of a CSV, all of one length."""
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1, rows
    return rows


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

    def run(self, *starts: str) -> "Crawl":
        """Follow every link from these addresses: each answers 200, and each fragment is there, and
        so is all that the pages load.
        """
        waiting = list(starts)
        while waiting:
            path = waiting.pop()
            if path in self.texts or path.partition("?")[0] in NOT_PAGES:
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
                if target.startswith("/") and fragment:
                    assert fragment in self.pages[target].ids, (path, link)
        return self
