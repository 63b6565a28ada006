"""gpuledger examples: the files that the package brings, in a folder of one's own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gpuledger_collector.cli.board_links import link_boards
from gpuledger_collector.cli.common import new_app, refuse, shipped_folder
from gpuledger_common.plurals import plural

app = new_app()
CODE = shutil.ignore_patterns("*.py", "__pycache__")


@app.command(
    epilog="Example: gpuledger examples && gpuledger start gpuledger-examples/jobs.csv --rate 2.50"
)
def examples(
    folder: Annotated[Path, Argument(help="A folder that does not exist yet.")] = Path(
        "gpuledger-examples"
    ),
    public_url: Annotated[
        str,
        Option(
            metavar="URL",
            help="Address at which people reach the collector: boards link to its pages.",
        ),
    ] = "",
) -> None:
    """Write the example files, the Grafana dashboards with their provisioning, and the alert rules
    of Prometheus.
    """
    if folder.exists():
        refuse(f"{folder} exists already: name another folder")
    if public_url and not re.fullmatch(r"https?://[!-~]+", public_url):
        refuse(f"--public-url {public_url} is no address, such as https://gpuledger.example.com")
    shutil.copytree(shipped_folder("examples"), folder, ignore=CODE)
    shutil.copytree(shipped_folder("dashboards"), folder / "dashboards", ignore=CODE)
    if public_url:
        link_boards(folder / "dashboards" / "json", public_url)
    for path in sorted(path for path in folder.rglob("*") if path.is_dir()):
        if not any(path.iterdir()):
            path.rmdir()
    for path in sorted(folder.iterdir()):
        count = sum(file.is_file() for file in path.rglob("*"))
        print(f"{path}/ ({plural(count, 'file')})" if path.is_dir() else path)
