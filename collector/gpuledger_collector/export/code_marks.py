"""Sentences with commands in them: what stands between backticks is code in HTML."""

from __future__ import annotations

import re
from collections.abc import Callable

from markupsafe import Markup, escape

from gpuledger_common.escapes import escape_text

_CODE = re.compile(r"`([^`]+)`")


def mark_code(sentence: str, mark_rest: Callable[[str], Markup] = escape) -> Markup:
    """A sentence of ours in one line: what stands between backticks as code, all else as
    `mark_rest` has it, which escapes it. Names in it may hold any characters, and markup keeps its
    line feeds and tabs (`html.show_value`), so these are escaped here.
    """
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else mark_rest(part)
        for at, part in enumerate(_CODE.split(escape_text(sentence)))
    )
