"""Tables for terminals and pipes: a cell is one line of text, whoever chose it; nothing in it acts
or is markup.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from gpuledger_common.escapes import escape_text


class Table(RichTable):
    """rich's table, whose rows are made of texts as they are shown."""

    def add_row(self, *cells: Any, **given: Any) -> None:
        """Add a row of texts."""
        super().add_row(*(Text(escape_text(str(cell))) for cell in cells), **given)
