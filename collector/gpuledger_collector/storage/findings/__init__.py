"""Findings and recommendations."""
