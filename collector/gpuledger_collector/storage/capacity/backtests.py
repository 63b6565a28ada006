"""Stored forecasts and their scores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.forecast_history import (
    HORIZON_HOURS,
    ForecastScore,
    StoredForecast,
)
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select


def list_stored(connection: Connection, group: str, since_ms: int) -> list[StoredForecast]:
    """Forecasts stored since an origin, by origin and series."""
    return [
        _forecast(row)
        for row in select(
            connection,
            "SELECT * FROM backtest WHERE grouped = %s AND origin_ms >= %s ORDER BY origin_ms,"
            " series",
            (group, since_ms),
        )
    ]


def insert(connection: Connection, forecasts: Iterable[StoredForecast]) -> None:
    """Store forecasts; one that is stored already stays as it is."""
    rows = []
    for forecast in forecasts:
        content = {
            "quantiles": forecast.quantiles,
            "values": _to_json(forecast.values),
            "naive": _to_json(forecast.naive),
            "models": dict(forecast.models),
            "note": forecast.note,
        }
        rows.append(
            (
                forecast.grouped,
                forecast.series,
                forecast.origin_ms,
                HOUR_MS,
                HORIZON_HOURS * HOUR_MS,
                forecast.made_ms,
                forecast.replayed,
                json.dumps(content),
            )
        )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO backtest (grouped, series, origin_ms, step_ms, horizon_ms, made_ms,"
            " replayed, forecast, known, inside, under) VALUES (%s, %s, %s, %s, %s, %s, %s,"
            " %s::jsonb, 0, 0, '{}') ON CONFLICT DO NOTHING",
            rows,
        )


def update_score(
    connection: Connection, forecast: StoredForecast, score: ForecastScore, now_ms: int
) -> None:
    """Store the score of a forecast."""
    connection.execute(
        "UPDATE backtest SET known = %s, inside = %s, under = %s::jsonb, loss = %s, naive_loss ="
        " %s, actual = %s, scored_ms = %s WHERE grouped = %s AND series = %s AND origin_ms = %s AND"
        " step_ms = %s",
        (
            score.known,
            score.inside,
            json.dumps(dict(score.under)),
            score.loss,
            score.naive_loss,
            score.actual,
            now_ms,
            forecast.grouped,
            forecast.series,
            forecast.origin_ms,
            HOUR_MS,
        ),
    )


def _to_json(rows: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Rows with null for an unknown value: JSON has no NaN."""
    return [[value if math.isfinite(value) else None for value in values] for values in rows]


def _forecast(row: Any) -> StoredForecast:
    content = row.forecast

    def rows(name: str) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(math.nan if value is None else value for value in values)
            for values in content[name]
        )

    return StoredForecast(
        grouped=row.grouped,
        series=row.series,
        origin_ms=row.origin_ms,
        made_ms=row.made_ms,
        replayed=row.replayed,
        quantiles=tuple(content["quantiles"]),
        values=rows("values"),
        naive=rows("naive"),
        models=content["models"],
        note=content["note"],
    )


def scores(
    connection: Connection, group: str, only: str | None = None
) -> dict[str, list[tuple[bool, ForecastScore]]]:
    """The scores of all stored forecasts of each series, by name, and whether each was replayed."""
    by_series: dict[str, list[tuple[bool, ForecastScore]]] = {}
    rows = select(
        connection,
        "SELECT series, replayed, known, inside, under, coalesce(loss, 0) AS loss,"
        " coalesce(naive_loss, 0) AS naive_loss, coalesce(actual, 0) AS actual FROM backtest WHERE"
        " grouped = %(grouped)s AND (%(only)s::text IS NULL OR series = %(only)s) ORDER BY series,"
        " origin_ms",
        {"grouped": group, "only": only},
    )
    for row in rows:
        score = ForecastScore(
            known=row.known,
            inside=row.inside,
            under=row.under,
            loss=row.loss,
            naive_loss=row.naive_loss,
            actual=row.actual,
        )
        by_series.setdefault(row.series, []).append((row.replayed, score))
    return by_series
