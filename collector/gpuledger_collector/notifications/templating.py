"""How messages are written: the templates, lines of one width, and a page of blocks that most messages are."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from gpuledger_collector.storage.notifications.messages import Content
from gpuledger_common.escapes import escape_lines, escape_text

WIDTH = 78
"""Characters of a line of text."""
NO_BREAK = "\u00a0"
_CODE = re.compile(r"`([^`]+)`")
BAD, WARN, CALM = "#b42318", "#b54708", "#175cd3"


@dataclass(frozen=True, slots=True)
class Block:
    """One thing that a message tells of: rows of facts, commands that help, and a link to answer."""

    title: str
    place: str = ""
    rows: Sequence[tuple[str, str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    """(what it does, the command or '')"""
    link: tuple[str, str] | None = None
    """(its words, its address)"""


@dataclass(frozen=True, slots=True)
class Page:
    """A message of blocks: one sentence that says it all, the blocks, what can be done, and why it came."""

    subject: str
    verdict: str
    blocks: Sequence[Block]
    why: str
    tone: str = WARN
    intro: Sequence[str] = ()
    actions: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    attachments: dict[str, str] = field(default_factory=dict)

    def content(self) -> Content:
        """Text and HTML of it; its link, where it has one block with one."""
        links = [block.link[1] for block in self.blocks if block.link is not None]
        text, html = (environment().get_template(f"page.{kind}").render(page=self) for kind in ("txt", "html"))
        return Content(escape_text(self.subject), text, html, self.attachments, links[0] if len(links) == 1 else "")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates; a name that is not given stops them."""
    made = Environment(
        loader=PackageLoader("gpuledger_collector.notifications"),
        autoescape=select_autoescape(("html",)),
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["filled"] = filled
    made.filters["together"] = together
    made.filters["coded"] = coded
    return made


class Lines(str):
    """A text of several lines that is as it is to be shown."""

    __slots__ = ()


def shown(value: Any) -> Any:
    """What a template writes: texts in one line, with what is not seen as escapes; paragraphs are so already."""
    if isinstance(value, Lines):
        return value
    if isinstance(value, Markup):
        return Markup(escape_lines(value))  # noqa: S704 - markup before, and no sign of markup is added
    return escape_text(value) if isinstance(value, str) else value


def filled(text: str, indent: str = "") -> Lines:
    """A paragraph in lines of WIDTH; words, and amounts with their unit, are kept whole."""
    made = textwrap.fill(
        together(escape_text(text)).replace(NO_BREAK, "\0"),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Lines(made.replace("\0", " "))


def together(text: str) -> str:
    """Amounts and percents that no line break parts from their unit."""
    return re.sub(r"(?<=\d) (?=%|[A-Z]{3}\b)|(?<=\b[A-Z]{3}) (?=-?\d)", NO_BREAK, text)


def coded(text: str) -> Markup:
    """A sentence of ours in HTML: what stands between backticks as code, all else escaped."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def named(text: str, longest: int = 120) -> str:
    """A name that users gave, fit to be shown: one line, nothing unseen, not endless."""
    said = " ".join(escape_text(text).split())
    return said if len(said) <= longest else said[: longest - 1] + "…"


def instant(at_ms: int, zone: str = "UTC") -> str:
    """`21 Nov, 03:10 UTC`, on the clock of a zone."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(zone))
    return f"{at.day} {at:%b, %H:%M} {at.tzname() or zone}"


def day(at_ms: int, zone: str = "UTC") -> str:
    """`21 Nov`."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(zone))
    return f"{at.day} {at:%b}"


def date(at_ms: int, zone: str = "UTC") -> str:
    """`2026-11-21`, as commands take it, on the calendar of a zone."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(zone)):%Y-%m-%d}"


def lasting(ms: int) -> str:
    """`6 h 10 min`; days from two on."""
    minutes = ms // 60_000
    hours, rest = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    return f"{hours} h {rest} min" if hours else f"{rest} min"
