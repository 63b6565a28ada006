"""What a training plan asks of the ledger, and what it leaves there: a rate, similar runs, a
budget.
"""

from __future__ import annotations

from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.pricing import PriceBook, model_match
from gpuledger_collector.insight.past_runs import (
    MAX_PAST_RUNS,
    SimilarRuns,
    recent_days,
    similar_sizes,
)
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.storage.billing import budgets, locations, prices
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import past_runs


def find_rate(database: Database, gpu_model: str, pool: str, at_ms: int) -> GpuHourRate | None:
    """Find what an hour of a GPU model costs at an instant; None without a rate.

    The model is given by its short name, and found by a longer one that the book has.
    """
    with database.transaction() as connection:
        book = PriceBook(prices.current(connection), locations=locations.current(connection))
    # Longer names first: the book may call an H100 `NVIDIA H100 80GB HBM3`, which the short name
    # does not match.
    longer = {
        price.gpu_model for price in book.prices if model_match(gpu_model, price.gpu_model) > 0
    }
    for name in (*sorted(longer), gpu_model):
        price = book.price_at(pool, name, "", at_ms)
        if price is not None:
            return GpuHourRate(price.rate, price.currency)
    return None


def find_similar_runs(database: Database, gpu_model: str, gpus: int, now_ms: int) -> SimilarRuns:
    """Find past runs of the last weeks on this GPU model with about as many GPUs."""
    period, sizes = recent_days(now_ms), similar_sizes(gpus)
    with database.transaction() as connection:
        models = past_runs.models_like(connection, gpu_model, period)
        runs = past_runs.list_runs(connection, models, sizes, period, MAX_PAST_RUNS)
    return SimilarRuns(gpu_model, *sizes, runs)


def save_budget(database: Database, budget: Budget, now_ms: int) -> ImportOutcome:
    """Add a budget to those in force, or replace the one of its name."""
    # One snapshot, so that the budgets that are kept are those that are replaced.
    with database.transaction(one_snapshot=True) as connection:
        others = [other for other in budgets.current(connection) if other.name != budget.name]
        return budgets.replace_budgets(connection, [*others, budget], now_ms)
