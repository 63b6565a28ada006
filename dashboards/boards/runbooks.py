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
FIRST_ID = 4
"""The panels' ids follow those of the list, of its row and of their own."""


def address(page: str) -> str:
    """Where a page is shown alone, below Grafana's own address."""
    return f"d/{UID}?viewPanel={FIRST_ID + PAGES.index(page)}"


def content(page: str) -> tuple[str, str]:
    """The alert's name and the rest of its page; links to other files of the repository lead
    nowhere here.
    """
    title, _, body = (FOLDER / f"{page}.md").read_text().partition("\n")
    return title.removeprefix("# "), re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", body.strip())


def list_alerts() -> str:
    """Every alert with the first sentence of its page, and a link that opens it alone.

    Grafana drops addresses that begin with neither a slash nor a scheme; a click below the path of a
    proxy is its router's, which puts that path before the slash.
    """
    lines = ["| alert | what it means |", "|---|---|"]
    for page in PAGES:
        title, body = content(page)
        meaning = body.partition("## What it means")[2].partition("\n#")[0]
        first = re.split(r"(?<=[.])\s", " ".join(meaning.split()))[0]
        lines.append(f"| [{title}](/{address(page)}) | {first.replace('|', '/')} |")
    return "\n".join(lines)


BOARD = Board(
    UID,
    "Runbooks",
    "what does this alert mean, and what is to be done?",
    "What each alert means, what to look at, and what to do. Alerts link to their own page.",
    (),
    (
        ("All alerts", (text("Which alert?", list_alerts(), width=24, height=31),)),
        ("Their pages", tuple(text(*content(page)) for page in PAGES)),
    ),
    since="now-24h",
)
"""For whoever an alert wakes."""
