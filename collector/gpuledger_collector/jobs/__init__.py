"""Scheduled work, one file a job; each is idempotent: stopped after any step and run again, the
same ledger.
"""
