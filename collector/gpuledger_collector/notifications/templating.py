"""Templates of mails: paragraphs of one width, and a page of blocks that most mails consist of."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.instants import to_datetime

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH = 78
"""Characters in a line of text."""
MIN_NAME, MAX_NAME = 12, 30
"""Of what stands before the value in a row of it."""
NO_BREAK = "\u00a0"
_CODE = re.compile(r"`([^`]+)`")
BAD, WARN, CALM = "#b42318", "#b54708", "#175cd3"


@dataclass(frozen=True, slots=True)
class MailBlock:
    """One subject of a mail: rows of facts, commands that help, and a link to respond."""

    title: str
    place: str = ""
    rows: Sequence[tuple[str, str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    """(label, command or '')"""
    link: tuple[str, str] | None = None
    """(label, address)"""

    @property
    def room(self) -> int:
        """Characters of a text's first column: so that amounts stand below each other, but for
        names that would leave them no room.
        """
        names = [len(name) for name, _ in self.rows if len(name) <= MAX_NAME]
        return max([MIN_NAME, *names])


@dataclass(frozen=True, slots=True)
class MailPage:
    """A mail of blocks: one sentence that summarizes it, the link to its page, the blocks, what can
    be done, and why.

    `open` is the label and the address of the page that shows what the mail is about.
    """

    subject: str
    verdict: str
    blocks: Sequence[MailBlock]
    why: str
    tone: str = WARN
    open: tuple[str, str] | None = None
    intro: Sequence[str] = ()
    actions: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    attachments: dict[str, str] = field(default_factory=dict)

    def content(self) -> Content:
        """Render text and HTML; the content has a link when exactly one block has one."""
        links = [block.link[1] for block in self.blocks if block.link is not None]
        text, html = (
            environment().get_template(f"page.{kind}").render(page=self) for kind in ("txt", "html")
        )
        page = "" if self.open is None else self.open[1]
        return Content(
            escape_text(self.subject),
            text,
            html,
            self.attachments,
            links[0] if len(links) == 1 else "",
            page,
        )


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates; an undefined name is an error."""
    # Only who writes a mail needs it.
    from jinja2 import (
        Environment,
        PackageLoader,
        StrictUndefined,
        select_autoescape,
    )

    templates = Environment(
        loader=PackageLoader("gpuledger_collector.notifications"),
        auto_reload=False,
        autoescape=select_autoescape(("html",)),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"filled": fill_paragraph, "together": together, "coded": mark_code}
    return templates


class Lines(str):
    """A text of several lines that needs no more escaping."""

    __slots__ = ()


def finalize(value: Any) -> Any:
    """Escape a value in a template: texts become one line with visible escapes; paragraphs are
    escaped already.
    """
    if isinstance(value, Lines):
        return value
    if isinstance(value, Markup):
        return Markup(escape_lines(value))  # noqa: S704 - it was markup, and no markup is added
    return escape_text(value) if isinstance(value, str) else value


def fill_paragraph(text: str, indent: str = "") -> Lines:
    """A paragraph in lines of WIDTH; words, and amounts with their unit, are not broken."""
    paragraph = textwrap.fill(
        together(escape_text(text)).replace(NO_BREAK, "\0"),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Lines(paragraph.replace("\0", " "))


def together(text: str) -> str:
    """Text whose amounts and percents are not separated from their unit by a line break."""
    return re.sub(r"(?<=\d) (?=%|[A-Z]{3}\b)|(?<=\b[A-Z]{3}) (?=-?\d)", NO_BREAK, text)


def mark_code(text: str) -> Markup:
    """A sentence in one line of HTML: text between backticks as code, everything else escaped."""
    escaped = escape(escape_text(text))
    return Markup(_CODE.sub(r"<code>\1</code>", str(escaped)))  # noqa: S704 - escaped before


def safe_name(text: str, max_length: int = 120) -> str:
    """A name that users gave, safe to show: one line, no invisible characters, not longer than
    `max_length`.
    """
    line = " ".join(escape_text(text).split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def instant(at_ms: int, zone: str = "UTC") -> str:
    """`21 Nov, 03:10 UTC`, in a time zone."""
    at = to_datetime(at_ms).astimezone(ZoneInfo(zone))
    return f"{at.day} {at:%b, %H:%M} {at.tzname() or zone}"


def day(at_ms: int, zone: str = "UTC") -> str:
    """`21 Nov`."""
    at = to_datetime(at_ms).astimezone(ZoneInfo(zone))
    return f"{at.day} {at:%b}"


def date(at_ms: int, zone: str = "UTC") -> str:
    """`2026-11-21`, as commands take it, in a time zone."""
    return f"{to_datetime(at_ms).astimezone(ZoneInfo(zone)):%Y-%m-%d}"
