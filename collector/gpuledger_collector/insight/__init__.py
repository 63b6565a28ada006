"""Estimates: numpy, pandas; no I/O, and nothing here can reach a bill."""
