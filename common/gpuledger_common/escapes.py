"""Show text from untrusted sources safely: control and invisible characters become escapes.

Names of nodes, jobs, teams and pools, and messages of other programs may contain anything. A
control character moves a cursor or sets a window's title, a bidirectional one reverses the reading
order, a line break forges a line of a report, and a zero-width one makes two names look alike.
Output to a terminal, pipe, mail, page or log shows these characters as escapes of JSON, so that
escaping twice, or inside JSON, changes nothing. Standard library only:
`gpuledger_agent.diagnostics` runs where nothing is installed.
"""

from __future__ import annotations

import re
from string import ascii_letters, digits
from unicodedata import normalize

_FORMULA = ("=", "+", "-", "@")
_HARMLESS = frozenset(ascii_letters + digits)
"""First characters of most cells."""
_CONTROLS, _CONTROLS_IN_A_LINE = "\x00-\x1f", "\x00-\x08\x0b-\x1f"
"""All of them, and all but tabs and line feeds."""
_HIDDEN = (
    f"{_CONTROLS}\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's categories Cc, Cf, Cs, Zl and Zp, and its plane of tags: invisible characters that
affect visible ones.
"""
_ONE_LINE = re.compile(f"[{_HIDDEN}]")
_LINES = re.compile(f"[{_HIDDEN.replace(_CONTROLS, _CONTROLS_IN_A_LINE, 1)}]")
_SELECTORS = re.compile("[\U000e0100-\U000e01ef]")
"""The hidden ones that Python takes for printable: they choose between forms of a character."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def escape_text(text: str) -> str:
    """The text in one line, with every invisible character as an escape."""
    return text if _shows_all(text) else _ONE_LINE.sub(_escape, text)


def escape_cells(cells: list[str]) -> list[str]:
    """Each text in one line, as `escape_text` gives it; most rows have nothing to escape, which one
    look shows.
    """
    return cells if _shows_all("".join(cells)) else [escape_text(cell) for cell in cells]


def escape_lines(text: str) -> str:
    """The text with every invisible character but line feeds and tabs as an escape."""
    # Nearly every page has nothing else: a look takes a sixth of what the pattern does.
    if _shows_all(text.replace("\n", "").replace("\t", "")):
        return text
    return _LINES.sub(_escape, text)


def neutral(text: str) -> str:
    """The text as a CSV cell: in one line, with an apostrophe before what a spreadsheet would take
    for a formula.

    One line, so that a row of the file is a line even for programs that end lines at a lone
    carriage return.
    """
    # A file has hundreds of thousands of cells, and nearly all are of this kind.
    if text[:1] in _HARMLESS and _shows_all(text):
        return text
    escaped = escape_text(text)
    first = escaped[:1]
    # Some spreadsheets treat full-width and small forms of these characters like the plain ones,
    # hence NFKC.
    plain = first if first.isascii() else normalize("NFKC", first)
    return f"'{escaped}" if plain.startswith(_FORMULA) else escaped


def _shows_all(text: str) -> bool:
    """Whether no character of a text is hidden: a quick look, before a pattern looks for which."""
    return text.isprintable() and (text.isascii() or not _SELECTORS.search(text))


def _escape(match: re.Match[str]) -> str:
    """The escape of one character; a surrogate pair beyond 16 bits, as in JSON."""
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    if ord(character) < 0x10000:
        return f"\\u{ord(character):04x}"
    units = character.encode("utf-16-be")
    return f"\\u{units[:2].hex()}\\u{units[2:].hex()}"
