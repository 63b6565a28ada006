"""Links from Grafana's boards to the collector's pages, where its address is known.

The shipped boards name no address, since each installation has its own. Whoever knows it has a copy
made in which each board's first link opens the page that answers the same question.
"""

from __future__ import annotations

import json
from pathlib import Path

from gpuledger_collector.export.site import DEMAND, IDLE, JOBS, MODELS, SPEND, TRUST

PAGES = {
    "gpuledger-finops": SPEND,
    "gpuledger-team": "/statements",
    "gpuledger-research": SPEND,
    "gpuledger-chargeback": "/statements",
    "gpuledger-idle": IDLE,
    "gpuledger-fleet": "/",
    "gpuledger-workload": JOBS + "/${workload:percentencode}",
    "gpuledger-demand": DEMAND,
    "gpuledger-models": MODELS,
    "gpuledger-pipeline": TRUST,
}
"""The page beside each board; that of a workload is its receipt."""
TITLE = "This on the collector's pages"


def link_boards(folder: Path, public_url: str) -> None:
    """Put a link to its page first on every board of a folder."""
    for path in sorted(folder.glob("*.json")):
        board = json.loads(path.read_text())
        if page := PAGES.get(board["uid"]):
            link = {
                "type": "link",
                "title": TITLE,
                "url": public_url.rstrip("/") + page,
                "icon": "doc",
                "tooltip": "",
                "tags": [],
                "asDropdown": False,
                "includeVars": False,
                "keepTime": False,
                "targetBlank": True,
            }
            board["links"].insert(0, link)
            path.write_text(json.dumps(board, indent=1, ensure_ascii=False) + "\n")
