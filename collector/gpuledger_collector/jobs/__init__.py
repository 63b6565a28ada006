"""Scheduled work, one file a job; each is idempotent."""
