"""Estimates: numpy, pandas, scikit-learn; no I/O, and nothing here can reach a bill."""
