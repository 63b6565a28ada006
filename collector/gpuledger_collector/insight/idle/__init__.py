"""Idle accelerators: the state of every minute, the episodes a person should see, and their
confidence.
"""
