"""Side-by-side benchmarks: each module prints a table of ratios against a floor or a peer measured
in the same run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import guardian

if sys.argv[0] == "-m":  # `python -m bench.NAME` imports this first
    guardian.enter()
