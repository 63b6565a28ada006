"""The collector's HTTP surface."""
