"""The pages of docs/runbooks inside Grafana: an alert's `runbook_url` opens its own, also without
the internet.
"""

from __future__ import annotations

import re
from pathlib import Path

from dashboards.grafana import Board, text

FOLDER = Path(__file__).parents[2] / "docs" / "runbooks"
PAGES = tuple(sorted(path.stem for path in FOLDER.glob("*.md")))
UID = "gpuledger-runbooks"
FIRST_ID = 2
"""The panels' ids follow that of their row."""


def address(page: str) -> str:
    """Where a page is shown alone, below Grafana's own address."""
    return f"d/{UID}?viewPanel={FIRST_ID + PAGES.index(page)}"


def content(page: str) -> tuple[str, str]:
    """The alert's name and the rest of its page; links to other files of the repository lead
    nowhere here.
    """
    title, _, body = (FOLDER / f"{page}.md").read_text().partition("\n")
    return title.removeprefix("# "), re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", body.strip())


BOARD = Board(
    UID,
    "GPU Ledger / Runbooks",
    "What each alert means, what to look at, and what to do. Alerts link to their own page.",
    (),
    (("Alerts", tuple(text(*content(page)) for page in PAGES)),),
    since="now-24h",
)
"""For whoever an alert wakes."""
