"""Makes the README's picture from a real run: what the demo's ledger prints, as an SVG.

    ./dev demo --once && python -m docs.pictures demo-output

The terminal's text is the commands' own output; nothing in the picture is typed by hand.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent / "pictures" / "demo.svg"
WIDTH = 92


def printed(folder: Path, *arguments: str) -> str:
    """What a command prints over the demo's database, with its colours."""
    environment = {
        **os.environ,
        "GPULEDGER_DATA_DIR": str(folder / "data"),
        "FORCE_COLOR": "1",
        "COLUMNS": str(WIDTH),
        "TERM": "xterm-256color",
    }
    program = str(Path(sys.executable).with_name("gpuledger"))
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.rstrip() + "\n"


def main(arguments: list[str]) -> int:
    """Draws the bill and its proof over the last thirty days of a demo's folder."""
    folder = Path(arguments[0] if arguments else "demo-output")
    today = date.today()  # noqa: DTZ011 - the demo's days are counted from today
    span = ("--from", str(today - timedelta(days=30)), "--to", str(today))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command in (("chargeback", *span, "--by", "team"), ("reconcile", *span)):
        console.print(Text(f"$ gpuledger {' '.join(command)}", style="bold green"))
        console.print(Text.from_ansi(printed(folder, *command)))
    svg = console.export_svg(title="GPU Ledger")
    # rich names web fonts by address; a picture in a repository loads nothing from elsewhere.
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
