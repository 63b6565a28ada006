"""Reads a page as a strict reader would: every tag closed, ids once, labels that exist, nothing
foreign; and nothing running, but the collector's own scripts and forms in a page whose policy
allows them.
"""

import asyncio
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}
ACTIVE = {"script", "iframe", "object", "embed", "form", "base", "audio", "video"}
FETCHING = {"src", "srcset", "data", "action", "poster", "background"}
SERVED = {
    ("script", "src"): re.compile(r"/assets/[\w.]+\.js"),
    ("img", "src"): re.compile(r"/assets/[\w.]+\.svg"),
    ("form", "action"): re.compile(r"/[^/].*|/"),
}
"""What pages of the collector may load and ask: the collector itself."""


@dataclass
class Table:
    """Cells of a table, as texts by row."""

    rows: list[list[str]] = field(default_factory=list)


class Page(HTMLParser):
    """A page taken apart; `faults` says what is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.pointed: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.headings: list[int] = []
        self.marks: set[str] = set()
        self.words: list[str] = []
        self.tables: list[Table] = []
        self.is_served = False
        self._open: list[str] = []
        self._cell: list[str] | None = None
        if not text.startswith("<!DOCTYPE html>\n"):
            self.faults.append("no doctype")
        self.feed(text)
        self.close()
        if self._open:
            self.faults.append(f"never closed: {self._open}")
        self._check()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if len(given) != len(attrs):
            self.faults.append(f"an attribute twice in <{tag}>")
        if tag == "meta" and "script-src 'self'" in given.get("content", ""):
            self.is_served = True
        loaded = {
            name
            for (element, name), shape in SERVED.items()
            if element == tag and self.is_served and shape.fullmatch(given.get(name, ""))
        }
        if tag in ACTIVE and not loaded:
            self.faults.append(f"<{tag}>")
        if tag == "form" and given.get("method") != "get":
            self.faults.append("a form that changes something")
        for name, value in attrs:
            if name.startswith("on") or name == "style" or name in FETCHING - loaded:
                self.faults.append(f"{name}= in <{tag}>")
            if name in {"id"}:
                self.ids.append(value)
            if name in {"aria-labelledby", "for", "headers"}:
                self.pointed += value.split()
            if name in {"href", "xlink:href"}:
                if given.get("rel") == "expect":
                    self.pointed.append(value.removeprefix("#"))
                else:
                    (self.loads if tag == "link" else self.links).append(value)
            if name == "src":
                self.loads.append(value)
        if (
            tag == "svg"
            and given.get("aria-hidden") != "true"
            # A picture of links is a group of them; an image would hide them.
            and not (given.get("role") in {"img", "group"} and given.get("aria-label"))
        ):
            self.faults.append("a plot without words")
        if tag == "section" and not ("aria-labelledby" in given or "aria-label" in given):
            self.faults.append("a section without a name")
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.marks.add(tag)
        if tag == "table":
            self.tables.append(Table())
        if tag == "tr":
            self.tables[-1].rows.append([])
        if tag in {"th", "td"}:
            self._cell = []
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self._open[-1:]}")
            return
        self._open.pop()
        if tag in {"th", "td"} and self._cell is not None:
            self.tables[-1].rows[-1].append(" ".join(" ".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            self.faults.append("a script within the page")
        if self._open and self._open[-1] not in {"style", "title", "desc", "script"}:
            self.words.append(data)
            if self._cell is not None:
                self._cell.append(data)

    @property
    def text(self) -> str:
        """What a reader reads."""
        return " ".join(" ".join(self.words).split())

    def _check(self) -> None:
        if len(set(self.ids)) != len(self.ids):
            self.faults.append(
                f"ids twice: {sorted({one for one in self.ids if self.ids.count(one) > 1})}"
            )
        self.faults += [f"nothing has id {one}" for one in self.pointed if one not in self.ids]
        self.faults += [
            f"no #{link[1:]}" for link in self.links if link[:1] == "#" and link[1:] not in self.ids
        ]
        if self.headings[:1] != [1] or self.headings.count(1) != 1:
            self.faults.append("not exactly one h1, first")
        self.faults += [
            f"h{after} after h{before}"
            for before, after in zip(self.headings, self.headings[1:], strict=False)
            if after > before + 1
        ]
        self.faults += [
            f"no <{one}>" for one in ("header", "main", "footer", "title") if one not in self.marks
        ]

    def table(self, head: str) -> Table:
        """The first table whose first cell of its head is this."""
        return next(one for one in self.tables if one.rows and one.rows[0][0] == head)


_UNREAD = re.compile(
    r"<(style|code|pre)\b.*?</\1>|<!--.*?-->"
    r"|\s(?:action|content|datetime|hx-[\w-]+|href|max|min|src|title|value)=\"[^\"]*\"",
    re.DOTALL,
)
"""What nobody reads, and what is to be copied as it stands."""
_WRITTEN_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*")


def written_instants(text: str) -> list[str]:
    """Instants that a page shows as machines write them, in its text or to a screen reader."""
    return _WRITTEN_INSTANT.findall(_UNREAD.sub("", text))


def text_for_machines(text: str) -> str:
    """What a page says, with each instant as its element has it for machines: to the minute."""
    return Page(re.sub(r'<time datetime="([^"]*)"[^>]*>[^<]*</time>', r"\1", text)).text


def to_minutes(sentence: str) -> str:
    """A sentence with its instants to the minute."""
    return re.sub(r"(T\d\d:\d\d):\d\d(?:\.\d+)?Z", r"\1Z", sentence)


def text_of(answer) -> str:
    """The text of an answer, also of one that is sent in pieces."""

    async def collect() -> bytes:
        return b"".join([piece async for piece in answer.body_iterator])

    return (asyncio.run(collect()) if hasattr(answer, "body_iterator") else answer.body).decode()
