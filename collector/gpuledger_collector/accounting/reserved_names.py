"""Reserved names: what reports call rows of their own, which no owner, pool or model may be called.

Reports name time that nobody pays for in parentheses: (unattributed), (unallocated), (unavailable),
(unobserved), (unpriced), (commitment_unused), (stranded), (unshared), (corrections), (total). An
owner of such a name would vanish into that row. Every name in parentheses is therefore reserved, so
that a row added later is safe as well. What people declare under a reserved name is refused;
evidence keeps its time, under the name that `escape_name` gives it.
"""

from __future__ import annotations

import re
import unicodedata

ESCAPE = "tag:"
"""Stands before a reserved name that came with evidence: `(unallocated)` is shown as
`tag:(unallocated)`.
"""
UNNAMED = "(unnamed)"
"""How an address and a form ask for what has an empty name, which asks for nothing there."""
# Besides the category Cf: joiners, fillers and variation selectors, which no screen shows either.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_ESCAPED = re.compile(f"(?:{re.escape(ESCAPE)})+")


def is_reserved(name: str) -> bool:
    """Whether a name reads as one in parentheses: full-width ones, blanks around and invisible
    characters included.
    """
    if name.isascii():
        plain = name.strip()
    else:
        visible = "".join(
            notification for notification in name if unicodedata.category(notification) != "Cf"
        )
        plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", visible)).strip()
    return plain.startswith("(") and plain.endswith(")")


def escape_name(name: str) -> str:
    """The name under which evidence is shown and booked; two names never become one, and none
    becomes reserved.

    A name that looks escaped already is escaped once more: whoever calls a team `tag:(total)` is
    not `(total)`.
    """
    if ")" not in name and name.isascii():
        return name
    prefix = _ESCAPED.match(name)
    return f"{ESCAPE}{name}" if is_reserved(name[prefix.end() :] if prefix else name) else name


def unescape_name(shown: str) -> str:
    """The name that `escape_name` shows like this."""
    bare = shown.removeprefix(ESCAPE)
    return bare if bare != shown and escape_name(bare) == shown else shown


def booked_name(declared: str) -> str:
    """The name under which evidence is booked, where people declare it as the evidence has it, or
    as it is shown: `(other)` and `tag:(other)` are both booked as `tag:(other)`.
    """
    return escape_name(unescape_name(declared))


def reserved_message(name: str) -> str:
    """Why a declared name is refused."""
    return f"{name!r} is reserved: names in parentheses are rows that reports make themselves"
