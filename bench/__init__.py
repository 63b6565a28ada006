"""Side-by-side benchmarks: each module prints a table of ratios against a floor or a peer measured
in the same run.
"""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import guardian


def help_of(module: Path) -> str | None:
    """What `--help` prints of a benchmark that reads its few options itself; None of one that has
    argparse, which answers better.
    """
    source = module.read_text()
    return None if "import argparse" in source else ast.get_docstring(ast.parse(source))


def answer_help() -> None:
    """Print the help and exit, where it is asked for: a benchmark must not run instead."""
    name = sys.orig_argv[sys.orig_argv.index("-m") + 1].rpartition(".")[2]
    text = help_of(Path(__file__).with_name(f"{name}.py"))
    if text and {"-h", "--help"} & set(sys.argv):
        print(text)
        sys.exit(0)


if sys.argv[0] == "-m":  # `python -m bench.NAME` imports this first
    answer_help()
    guardian.enter()
