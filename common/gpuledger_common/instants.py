"""Instants: integer Unix milliseconds inside, `datetime` at the edges (docs/decisions/0042).

An edge is what shows an instant to people, reads one from text, counts days in a zone, or stores it
in a column of type timestamptz. Whoever stands at one converts with these two functions, so that
there is one rounding: down, which never moves an instant into the future.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_ms(at: datetime) -> int:
    """Round an aware instant down to milliseconds."""
    return (at - EPOCH) // _MILLISECOND


def to_datetime(at_ms: int) -> datetime:
    """The same instant, aware and in UTC. Raises OverflowError outside the years 1 to 9999."""
    return EPOCH + timedelta(milliseconds=at_ms)
