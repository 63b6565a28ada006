"""Makes the pictures of README and docs from a real run: what the demo's ledger prints, and the
page that it serves.

    ./dev demo --once && python -m docs.pictures demo-output python -m docs.pictures demo-output
    http://127.0.0.1:8440 # while `./dev demo` runs: its nodes report

The terminal's text is the commands' own output (demo.svg), and the page is what a browser shows of
the collector's `/` over the same database (overview.png, where a Chromium is installed), and other
PAGES). Nothing in them is typed by hand.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import date, timedelta
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).resolve().parent / "pictures"
PICTURE = PICTURES / "demo.svg"
OVERVIEW = PICTURES / "overview.png"
PAGES = {
    "overview.png": "/",
    "idle.png": "/idle",
    "statement.png": "/statements/team/vision/{month}",
}
"""Pictures of pages, by their address."""
WIDTH = 92
PAGE = (1280, 1200)
"""Pixels of the overview's picture: a desk's width, and as far down as a reader looks at first."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PATIENCE_S = 60


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a command over the demo's database."""
    return {**os.environ, "GPULEDGER_DATA_DIR": str(folder / "data")}


def program() -> str:
    """The command of this environment."""
    return str(Path(sys.executable).with_name("gpuledger"))


def run_command(folder: Path, *arguments: str) -> str:
    """What a command prints over the demo's database, with its colors."""
    colored = {
        **surroundings(folder),
        "FORCE_COLOR": "1",
        "COLUMNS": str(WIDTH),
        "TERM": "xterm-256color",
    }
    done = subprocess.run(
        [program(), *arguments], env=colored, capture_output=True, text=True, check=True
    )
    return done.stdout.rstrip() + "\n"


@contextmanager
def serve_demo(folder: Path) -> Iterator[str]:
    """The address of a collector over the demo's database, which runs no jobs: the picture changes
    nothing.
    """
    environment = {
        **surroundings(folder),
        "GPULEDGER_LISTEN": "127.0.0.1:0",
        "GPULEDGER_JOBS": "false",
    }
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [program(), "serve"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield answering(server, log)
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def answering(server: subprocess.Popen[bytes], log: IO[str]) -> str:
    """The address that the collector names in its log, once it is ready.

    Raises SystemExit when it never is.
    """
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends and server.poll() is None:
        log.seek(0)
        found = re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read())
        if found and ready(found[0]):
            return found[0]
        time.sleep(0.2)
    log.seek(0)
    raise SystemExit(f"the collector did not come up:\n{log.read()}")


def ready(address: str) -> bool:
    """Whether it answers."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=5) as answer:  # noqa: S310 - our own address
            return int(answer.status) == 200
    except OSError:
        return False


def photograph(browser: str, address: str, target: Path) -> None:
    """What the browser shows of a page, at PAGE's size, as a PNG."""
    width, height = PAGE
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                *QUIET,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--screenshot={target}",
                address,
            ],
            check=True,
            capture_output=True,
            timeout=90,
        )


def overview(folder: Path, running: str = "", target: Path = OVERVIEW) -> bool:
    """The overview and the other pages of the demo's ledger as pictures; False where there is no
    browser.

    `running`: the address of a collector that serves it already; else one is started and stopped
    again.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return False
    with nullcontext(running.rstrip("/")) if running else serve_demo(folder) as address:
        for _ in range(2):  # the first look begins the forecast, the second has it
            with urllib.request.urlopen(f"{address}/", timeout=PATIENCE_S) as page:  # noqa: S310 - our own address
                page.read()
            time.sleep(5)
        photograph(browser, f"{address}/", target)
        others = (
            {name: path for name, path in PAGES.items() if path != "/"}
            if target == OVERVIEW
            else {}
        )
        for name, path in others.items():
            month = f"{date.today():%Y-%m}"  # noqa: DTZ011
            photograph(browser, address + path.format(month=month), PICTURES / name)
    return True


def main(arguments: list[str]) -> int:
    """Draws the bill and its proof over the last thirty days of a demo's folder."""
    folder = Path(arguments[0] if arguments else "demo-output")
    today = date.today()  # noqa: DTZ011 - the demo's days are counted from today
    span = ("--from", str(today - timedelta(days=30)), "--to", str(today))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command in (("chargeback", *span, "--by", "team"), ("reconcile", *span)):
        console.print(Text(f"$ gpuledger {' '.join(command)}", style="bold green"))
        console.print(Text.from_ansi(run_command(folder, *command)))
    svg = console.export_svg(title="GPU Ledger")
    # rich names web fonts by address; a picture in a repository loads nothing from elsewhere.
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL).replace(
        "Fira Code", "DejaVu Sans Mono, Menlo, Consolas"
    )
    PICTURES.mkdir(exist_ok=True)
    PICTURE.write_text(svg)
    if not overview(folder, arguments[1] if len(arguments) > 1 else ""):
        sys.stderr.write(f"no {' or '.join(BROWSERS)} is here: {OVERVIEW.name} stays as it was\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
