"""The way into the gpuledger command, also where only the agent's parts are installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command; without the collector's libraries, says in one sentence how to get them (exit 3)."""
    try:
        from gpuledger_collector.cli import main as command
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"gpuledger: the package {error.name} is missing; the collector's parts are an extra: "
            "pip install 'gpuledger[collector,embedded]'\n"
        )
        sys.exit(3)
    command()


if __name__ == "__main__":
    main()
