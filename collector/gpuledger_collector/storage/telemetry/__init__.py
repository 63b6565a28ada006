"""Samples, rollups and series: stored, packed, rolled up and expired."""
