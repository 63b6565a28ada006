"""Recommendations, as files and programs read them, and as a terminal shows them."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.recommendation_record import (
    BOUNDS,
    SAVINGS,
    StoredRecommendation,
)

UNKNOWN = "not known"


def _bound(saving: str, place: int) -> Callable[[StoredRecommendation], Money | None]:
    return lambda item: item.money(item.saving(saving)[place])


def _freed_hours(item: StoredRecommendation) -> str:
    (hours,) = hours_decimal([item.freed_gpu_ns])
    return f"{hours:.2f}"


RECOMMENDATIONS = Report[StoredRecommendation](
    "recommendations",
    (
        Column("id", lambda item: item.id, Kind.NUMBER),
        Column("kind", lambda item: item.kind),
        Column("subject", lambda item: item.subject),
        Column("team", lambda item: item.team),
        Column("advice", lambda item: item.advice),
        Column("state", lambda item: item.state),
        *(
            Column(f"{saving}_{bound}", _bound(saving, place), Kind.MONEY)
            for saving in SAVINGS
            for place, bound in enumerate(BOUNDS)
        ),
        Column("currency", lambda item: item.currency),
        Column("freed_gpu_hours", _freed_hours, Kind.HOURS),
        Column("from", lambda item: item.start_ms, Kind.INSTANT),
        Column("to", lambda item: item.end_ms, Kind.INSTANT),
        Column("price_ids", lambda item: " ".join(map(str, item.price_ids))),
        Column("expires", lambda item: item.expires_ms, Kind.INSTANT),
        Column("decided_by", lambda item: item.decided_by),
        Column("reason", lambda item: item.reason),
        Column("realized", lambda item: item.money(item.realized_micro), Kind.MONEY),
        Column("realized_until", lambda item: item.realized_until_ms, Kind.INSTANT),
        Column("key", lambda item: item.key, in_csv=False),
        Column("evidence", lambda item: item.evidence, Kind.FACTS, in_csv=False),
        Column("realized_by", lambda item: item.realized, Kind.FACTS, in_csv=False),
    ),
)


def _bounds(saving: str) -> Callable[[StoredRecommendation], dict[str, int | None]]:
    return lambda item: dict(zip(BOUNDS, item.saving(saving), strict=True))


RECOMMENDATION_FACTS = Report[StoredRecommendation](
    "recommendation_facts",
    (
        Column("id", lambda item: item.id, Kind.NUMBER),
        Column("key", lambda item: item.key),
        Column("kind", lambda item: item.kind),
        Column("subject", lambda item: item.subject),
        Column("team", lambda item: item.team),
        Column("owner", lambda item: item.owner, Kind.OWNER),
        Column("advice", lambda item: item.advice),
        Column("state", lambda item: item.state),
        Column("currency", lambda item: item.currency),
        Column("freed_gpu_ns", lambda item: item.freed_gpu_ns, Kind.COUNT),
        Column("price_ids", lambda item: item.price_ids, Kind.LIST),
        Column("evidence", lambda item: item.evidence, Kind.FACTS),
        Column("decided_by", lambda item: item.decided_by),
        Column("reason", lambda item: item.reason),
        Column("realized_micro", lambda item: item.realized_micro, Kind.COUNT),
        Column("realized", lambda item: item.realized, Kind.FACTS),
        Column("start", lambda item: item.start_ms, Kind.INSTANT),
        Column("end", lambda item: item.end_ms, Kind.INSTANT),
        Column("made", lambda item: item.made_ms, Kind.INSTANT),
        Column("expires", lambda item: item.expires_ms, Kind.INSTANT),
        Column("decided", lambda item: item.decided_ms, Kind.INSTANT),
        Column("realized_until", lambda item: item.realized_until_ms, Kind.INSTANT),
        *(Column(f"{saving}_micro", _bounds(saving), Kind.FACTS) for saving in SAVINGS),
    ),
)
"""Recommendations as programs read them, by the names that they had before those of the report."""


def _range(saving: str) -> Callable[[StoredRecommendation], str]:
    """A saving in one cell: expected, with low and high: `12.00 (3.00 to 15.00)`."""

    def cell(item: StoredRecommendation) -> str:
        low, expected, high = (
            "" if amount is None else amount.grouped()
            for amount in map(item.money, item.saving(saving))
        )
        if not expected:
            return "" if saving == "energy" else UNKNOWN
        return expected if low == expected == high else f"{expected} ({low} to {high})"

    return cell


def _realized_text(item: StoredRecommendation) -> str:
    amount = item.money(item.realized_micro)
    if amount is not None:
        return amount.grouped()
    return "" if item.realized_until_ms is None else UNKNOWN


ADVICE = Report[StoredRecommendation](
    "advice",
    (
        Column("id", lambda item: item.id, Kind.NUMBER),
        Column("kind", lambda item: item.kind, is_optional=True),
        Column("team", lambda item: item.team),
        Column("advice", lambda item: item.advice),
        *(
            Column(saving, _range(saving), Kind.DECIMAL, is_optional=saving != "cash")
            for saving in SAVINGS
        ),
        Column("currency", lambda item: item.currency),
        Column("state", lambda item: item.state),
        Column("realized", _realized_text, Kind.DECIMAL, is_optional=True),
    ),
)
"""A row of a terminal's table, each saving in one cell."""
