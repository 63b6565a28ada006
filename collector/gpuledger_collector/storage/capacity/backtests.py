"""Kept forecasts in Postgres, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.forecast import Workloads
from gpuledger_collector.insight.forecast_history import (
    HORIZON_HOURS,
    ForecastRecord,
    ForecastScore,
    StoredForecast,
    summarize_scores,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.storage.capacity import demand

_KEY = "grouped = :grouped AND series = :series AND origin_ms = :origin_ms AND step_ms = :step_ms"


@dataclass(frozen=True)
class ForecastStore:
    """Where forecasts are kept (jobs.store_forecasts.Forecasts)."""

    engine: Callable[[], Engine]

    @contextmanager
    def unit(self) -> Iterator[ForecastUnit]:
        """A transaction, undone when the block raises."""
        with self.engine().begin() as connection:
            yield ForecastUnit(connection)


@dataclass(frozen=True)
class ForecastUnit:
    """What the job reads and writes, over one connection inside a transaction."""

    connection: Connection

    def demand(self, start_ms: int, end_ms: int, group: str) -> Sequence[Series]:
        """Hourly demand."""
        return demand.demand(self.connection, start_ms, end_ms, group)

    def lives(self, start_ms: int, end_ms: int, group: str) -> Mapping[str, Workloads]:
        """The workloads behind it."""
        return demand.lives(self.connection, start_ms, end_ms, group)

    def kept(self, group: str, since_ms: int) -> Sequence[StoredForecast]:
        """Forecasts kept since an origin."""
        rows = self.connection.execute(
            sa.text(
                "SELECT * FROM backtest WHERE grouped = :grouped AND origin_ms >= :since ORDER BY origin_ms, series"
            ),
            {"grouped": group, "since": since_ms},
        )
        return [_kept(row) for row in rows]

    def put(self, made: Sequence[StoredForecast]) -> None:
        """Keep these; one that is there already stays."""
        if not made:
            return
        self.connection.execute(
            sa.text(
                "INSERT INTO backtest (grouped, series, origin_ms, step_ms, horizon_ms, made_ms, replayed, forecast, "
                "known, inside, under) VALUES (:grouped, :series, :origin_ms, :step_ms, :horizon_ms, :made_ms, "
                ":replayed, CAST(:forecast AS jsonb), 0, 0, '{}') ON CONFLICT DO NOTHING"
            ),
            [
                {
                    "grouped": one.grouped,
                    "series": one.series,
                    "origin_ms": one.origin_ms,
                    "step_ms": HOUR_MS,
                    "horizon_ms": HORIZON_HOURS * HOUR_MS,
                    "made_ms": one.made_ms,
                    "replayed": one.replayed,
                    "forecast": json.dumps(
                        {
                            "quantiles": one.quantiles,
                            "values": one.values,
                            "naive": one.naive,
                            "models": dict(one.models),
                            "note": one.note,
                        }
                    ),
                }
                for one in made
            ],
        )

    def score(self, kept: StoredForecast, score: ForecastScore, now_ms: int) -> None:
        """Note what came of one."""
        self.connection.execute(
            sa.text(
                "UPDATE backtest SET known = :known, inside = :inside, under = CAST(:under AS jsonb), loss = :loss, "
                f"naive_loss = :naive_loss, actual = :actual, scored_ms = :now_ms WHERE {_KEY}"
            ),
            {
                "grouped": kept.grouped,
                "series": kept.series,
                "origin_ms": kept.origin_ms,
                "step_ms": HOUR_MS,
                "known": score.known,
                "inside": score.inside,
                "under": json.dumps(dict(score.under)),
                "loss": score.loss,
                "naive_loss": score.naive_loss,
                "actual": score.actual,
                "now_ms": now_ms,
            },
        )


def _kept(row: sa.Row[tuple[object, ...]]) -> StoredForecast:
    made = row.forecast

    def rows(name: str) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(one) for one in made[name])

    return StoredForecast(
        row.grouped,
        row.series,
        row.origin_ms,
        row.made_ms,
        row.replayed,
        tuple(made["quantiles"]),
        rows("values"),
        rows("naive"),
        made["models"],
        made["note"],
    )


def records(connection: Connection, group: str, only: str | None = None) -> list[ForecastRecord]:
    """How good the kept forecasts of each series were, by name."""
    found: dict[str, list[tuple[bool, ForecastScore]]] = {}
    rows = connection.execute(
        sa.text(
            "SELECT series, replayed, known, inside, under, loss, naive_loss, actual FROM backtest "
            "WHERE grouped = :grouped AND (CAST(:only AS text) IS NULL OR series = :only) ORDER BY series, origin_ms"
        ),
        {"grouped": group, "only": only},
    )
    for row in rows:
        score = ForecastScore(
            row.known, row.inside, row.under, row.loss or 0.0, row.naive_loss or 0.0, row.actual or 0.0
        )
        found.setdefault(row.series, []).append((row.replayed, score))
    return [summarize_scores(name, scores) for name, scores in found.items()]
