"""Hypothesis profiles: `default` for every run, `long` (10,000 examples) by HYPOTHESIS_PROFILE=long."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", max_examples=75, deadline=None)
settings.register_profile("long", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load():
    """The profile that the environment asks for; the same for all tests, whichever are collected."""
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
