"""Ledgers and charges as files that others read."""
