"""Prometheus remote write: from scrapes that somebody else made to samples and usage intervals."""
