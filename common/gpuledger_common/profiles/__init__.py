"""Exporter profiles: how the series of an exporter become accelerators, readings and owners,
declared in TOML files.
"""
