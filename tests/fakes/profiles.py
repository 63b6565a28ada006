"""Hypothesis profiles by HYPOTHESIS_PROFILE: `default` for every run, `ci` with the same examples
in each run of the same tests, `long` with 10,000 examples.
"""

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
LONG_FACTOR = 20

settings.register_profile("default", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.register_profile(
    "long", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def load():
    """Load the profile that the environment asks for; the same for all tests, whichever are
    collected.
    """
    settings.load_profile(PROFILE)


def examples(count: int) -> settings:
    """Settings of a law whose examples each cost a database or a long simulation: so many, and 20
    times that in `long`.

    Its fixtures serve all of its examples.
    """
    return settings(
        max_examples=count * (LONG_FACTOR if PROFILE == "long" else 1),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
