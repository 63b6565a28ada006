"""The entry point of the gpuledger command, also where only the agent's parts are installed."""

from __future__ import annotations

import sys

from gpuledger_collector import __version__


def main() -> None:
    """Run the command; without the collector's libraries, say in one sentence how to get them (exit
    3).
    """
    # Answered here: importing the command line takes longer than this.
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gpuledger {__version__}\n")
        return
    try:
        from gpuledger_collector.cli import main as command
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"gpuledger: the package {error.name} is missing; the collector's parts are extras of"
            " the wheel: pip install"
            " 'dist/gpuledger-VERSION-py3-none-any.whl[collector,embedded]', which ./dev wheel"
            " builds\n"
        )
        sys.exit(3)
    command()


if __name__ == "__main__":
    main()
