"""Jobs that a sentence names, as links to their receipts.

Users choose the names of jobs, so a name may be a word of the sentence around it: one that reads
like a word is left as it is, and the table below has its link.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from markupsafe import Markup

_NO_WORD = re.compile(r"[\d_./:-]|[A-Z]")
"""What words of our sentences do not have."""


def link_jobs(
    sentence: str,
    names: Sequence[str],
    path_of: Callable[[str], str],
    say: Callable[[str], Markup],
) -> Markup:
    """The sentence with each of these names as a link; `say` writes what is between them, and the
    names.
    """
    wanted = sorted({name for name in names if _NO_WORD.search(name)}, key=len, reverse=True)
    if not wanted:
        return say(sentence)
    either = "|".join(map(re.escape, wanted))
    parts = re.split(rf"(?<![\w-])({either})(?![\w-])", sentence)
    return Markup("").join(
        Markup('<a href="{}">{}</a>').format(path_of(part), say(part)) if at % 2 else say(part)
        for at, part in enumerate(parts)
    )
