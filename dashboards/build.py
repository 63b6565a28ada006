"""Makes the boards' JSON and Grafana's alert rules: `python -m dashboards.build [--check]`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from dashboards.alerts.grafana import provisioned
from dashboards.grafana import Board

HERE = Path(__file__).parent
JSON = HERE / "json"
ALERTING = HERE / "provisioning" / "alerting" / "gpuledger.yaml"
NAMES = tuple(sorted(path.stem for path in (HERE / "boards").glob("[a-z]*.py")))


def boards() -> dict[str, Board]:
    """Every board by the name of its module."""
    return {name: import_module(f"dashboards.boards.{name}").BOARD for name in NAMES}


def texts() -> dict[Path, str]:
    """What each file must hold."""
    files = {
        JSON / f"{name}.json": json.dumps(board.as_json(), indent=1, ensure_ascii=False) + "\n"
        for name, board in boards().items()
    }
    # JSON is YAML, and needs no library here.
    files[ALERTING] = json.dumps(provisioned(), indent=2, ensure_ascii=False) + "\n"
    return files


def stale() -> list[Path]:
    """Files that differ from what the boards make, and files that no board makes."""
    wanted = texts()
    differing = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    return differing + [path for path in sorted(JSON.glob("*.json")) if path not in wanted]


def main(arguments: list[str]) -> int:
    """Writes the files, or says which are stale and ends with 1."""
    if "--check" in arguments:
        for path in stale():
            sys.stderr.write(f"{path} is not what the boards make; run python -m dashboards.build\n")
        return 1 if stale() else 0
    for path in stale():
        wanted = texts().get(path)
        if wanted is None:
            path.unlink()
        else:
            path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
