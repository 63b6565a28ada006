"""Batches of agents: decoded, validated record by record, and committed in groups."""
