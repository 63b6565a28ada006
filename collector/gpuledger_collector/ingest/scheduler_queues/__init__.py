"""Queues and quotas of Kueue, Volcano and KAI Scheduler, read from one API server."""
