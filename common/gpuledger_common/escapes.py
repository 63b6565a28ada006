"""Texts that others chose, as they are shown: what acts on a terminal, a page or a log line stands as an escape.

Names of nodes, jobs, teams and pools, and sentences of other programs may hold anything. A control character moves a
cursor or sets a window's title, a bidirectional one turns the reading order, a line break forges a line of a report,
and one of no width makes two names look alike. Whatever shows such a text, to a terminal, a pipe, a mail, a page or a
log, shows these characters as escapes of JSON, so that a text escaped again, or inside of JSON, stays what it is.
Standard library only: `gpuledger_agent.inspect` runs where nothing is installed.
"""

from __future__ import annotations

import re
from unicodedata import normalize

_FORMULA = ("=", "+", "-", "@")
_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's categories Cc, Cf, Cs, Zl and Zp, and its plane of tags: what is not seen and acts on what is."""
_ONE_LINE = re.compile(f"[{_HIDDEN}]")
_LINES = re.compile(f"(?![\n\t])[{_HIDDEN}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def escape_text(text: str) -> str:
    """The text in one line, with everything that is not seen as an escape."""
    return text if text.isprintable() else _ONE_LINE.sub(_escape, text)


def escape_lines(text: str) -> str:
    """The same for a text of several lines: its line feeds and tabs stay."""
    return text if text.isprintable() else _LINES.sub(_escape, text)


def neutral(text: str) -> str:
    """The text as a cell of a CSV: in one line, and with an apostrophe before what would begin a formula.

    So a row of the file is a line of it for every program, also one that takes a lone carriage return for an end.
    """
    shown = escape_text(text)
    # Some spreadsheets take wide and small forms of these signs for them, hence NFKC.
    return f"'{shown}" if normalize("NFKC", shown[:1]).startswith(_FORMULA) else shown


def _escape(found: re.Match[str]) -> str:
    """The escape of one character; beyond 16 bits a pair, as in JSON."""
    sign = found[0]
    if sign in _SHORT:
        return _SHORT[sign]
    if ord(sign) < 0x10000:
        return f"\\u{ord(sign):04x}"
    units = sign.encode("utf-16-be")
    return f"\\u{units[:2].hex()}\\u{units[2:].hex()}"
