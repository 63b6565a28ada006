"""The hypothesis profile."""

from fakes import profiles

profiles.load()
