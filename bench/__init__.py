"""Side-by-side benchmarks: each module prints a table of ratios against a floor or a peer measured in the same run."""
