"""The list of scheduled jobs: name, interval, work, and what the number that it returns counts.

They run once at the start in the order of the list, and then on their intervals. Long ones ask
`stopping` whether to leave the rest to their next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.notifications import budget_mail, finding_mail
from gpuledger_collector.schedule import Job, Schedule, delete_old_runs
from gpuledger_collector.services import idle_search
from gpuledger_collector.services.anomaly_search import find_anomalies
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.services.capacity_plan import store_capacity_plans
from gpuledger_collector.services.finding_notifications import notify_findings
from gpuledger_collector.services.forecasts import store_forecasts
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_context import IdleContext
from gpuledger_collector.services.inference_days import store_inference_days
from gpuledger_collector.services.month_proof import compare_seals, prove_months
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.services.reclaim import reclaim_idle
from gpuledger_collector.services.recommendation_search import recommend
from gpuledger_collector.services.scaling_advice import advise_scaling
from gpuledger_collector.services.scheduler_queues import read_queues
from gpuledger_collector.services.spend_forecasts import SpendForecasts
from gpuledger_collector.services.spending_watch import SpendingWatch
from gpuledger_collector.services.upkeep import (
    create_partitions,
    expire,
    merge_partitions,
    pack_samples,
    pack_slow_metrics,
    pack_usage_intervals,
    roll_up_node_utilization,
    roll_up_pool_hours,
    roll_up_series,
)
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.capacity import queues, scaling, scheduler_queues
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import token_counters, token_usage
from gpuledger_collector.storage.notifications import outbox
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_collector.storage.telemetry.retention import expire_records
from gpuledger_collector.wiring import (
    ack_links,
    archive_retention,
    latest_evidence_days,
    merged_tables,
    metering,
    notification_writers,
    page_links,
    queue_client,
    read_clock,
    reclaim_backends,
    retention_days,
    sender,
    tariff,
)

MINUTE_SECONDS = 60
HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400
PROVE_SECONDS = 900


def schedule(settings: Settings, database: Database, metrics: Metrics) -> Schedule:
    """Create the schedule of all jobs over a database. Nothing is started."""
    stopping = threading.Event()
    database = database.as_application("gpuledger-jobs")
    return Schedule(
        scheduled_jobs(settings, database, stopping.is_set), database, read_clock, metrics, stopping
    )


def scheduled_jobs(
    settings: Settings, database: Database, stopping: Callable[[], bool] = lambda: False
) -> list[Job]:
    """List every job that has an interval; one of 0 seconds is left to its command."""
    context = _Context(settings, database, stopping)
    made = [*_ledger_jobs(context), *_insight_jobs(context), *_upkeep_jobs(context)]
    return [job for job in made if job.seconds]


@dataclass(frozen=True)
class _Context:
    """What the jobs work with."""

    settings: Settings
    database: Database
    stopping: Callable[[], bool]

    @property
    def now_ms(self) -> int:
        """The instant, in unix milliseconds."""
        return read_clock()


def _ledger_jobs(c: _Context) -> list[Job]:
    """From evidence to charges."""
    settings, database = c.settings, c.database
    meter = metering(settings)
    return [
        Job(
            "create_partitions",
            HOUR_SECONDS,
            lambda: create_partitions(database, c.now_ms),
            "partitions created",
        ),
        Job(
            "meter_scrapes", settings.roll_up_seconds, lambda: meter.run(database), "slots metered"
        ),
        Job(
            "fold_usage",
            settings.roll_up_seconds,
            lambda: fold_usage(database, stopping=c.stopping),
            "hours of usage folded",
        ),
        Job(
            "rate_usage",
            settings.rate_seconds,
            lambda: rate_usage(database, c.now_ms, stopping=c.stopping),
            "days rated",
        ),
        # Remote: an API server may take its time, and a reading holds for two and a half minutes, so
        # that it cannot wait for jobs that take longer.
        Job(
            "read_queues",
            MINUTE_SECONDS if settings.queue_schedulers else 0,
            lambda: read_queues(
                database,
                queue_client(settings),
                settings.queue_schedulers,
                settings.kubernetes_cluster,
                read_clock,
            ),
            "queues with a quota",
            remote=True,
        ),
        # Apart: they read every charge of a month, and rating need not wait for them.
        Job(
            "prove_months",
            PROVE_SECONDS,
            lambda: prove_months(database, c.now_ms, c.stopping),
            "months proven",
            apart=True,
        ),
        Job(
            "store_inference_days",
            PROVE_SECONDS,
            lambda: store_inference_days(database, c.now_ms),
            "days of servers stored",
            apart=True,
        ),
        Job(
            "compare_seals",
            PROVE_SECONDS,
            lambda: compare_seals(database, c.now_ms, c.stopping),
            "seals compared",
            apart=True,
        ),
    ]


def _insight_jobs(c: _Context) -> list[Job]:
    """Budgets, findings, recommendations and scaling, and the messages about them."""
    settings, database = c.settings, c.database
    spending = SpendingWatch(database)
    spend_forecasts = SpendForecasts(database)
    idle_context = IdleContext()
    writers = notification_writers(settings)
    write_budget_mail = partial(
        budget_mail.write, links=ack_links(settings), pages=page_links(settings)
    )
    return [
        Job(
            "watch_budgets",
            settings.budget_seconds,
            lambda: watch_budgets(database, c.now_ms, write_budget_mail),
            "messages",
        ),
        Job(
            idle_search.JOB,
            settings.idle_seconds,
            lambda: idle_search.find_idle(database, c.now_ms, idle_context),
            "idle findings opened or updated",
        ),
        Job(
            "watch_spending",
            MINUTE_SECONDS,
            lambda: spending.run(c.now_ms),
            "episodes opened, updated or resolved",
        ),
        Job(
            "find_anomalies",
            settings.anomaly_seconds,
            lambda: find_anomalies(database, c.now_ms),
            "spending episodes",
        ),
        Job(
            "recommend",
            settings.recommend_seconds,
            lambda: recommend(database, c.now_ms, tariff(settings)),
            "recommendations",
        ),
        Job(
            "notify_findings",
            settings.notification_seconds,
            lambda: notify_findings(database, c.now_ms, writers),
        ),
        Job(
            "reclaim_idle",
            settings.notification_seconds,
            lambda: reclaim_idle(
                database,
                c.now_ms,
                reclaim_backends(settings),
                finding_mail.write_reclaim_mail,
                enabled=settings.actions,
            ),
        ),
        Job(
            "advise_scaling",
            settings.scaling_seconds,
            lambda: len(advise_scaling(database, c.now_ms)),
            "pools advised",
        ),
        Job("send_outbox", settings.send_seconds, sender(settings, database).send_due),
        Job(
            "store_forecasts",
            HOUR_SECONDS,
            lambda: store_forecasts(database, c.now_ms),
            "forecasts stored",
        ),
        Job(
            "store_spend_forecasts",
            MINUTE_SECONDS,
            lambda: spend_forecasts.run(c.now_ms),
            "forecasts stored",
        ),
        Job(
            "store_capacity_plans",
            HOUR_SECONDS,
            lambda: store_capacity_plans(database, c.now_ms),
            "plans stored",
            apart=True,
        ),
    ]


def _upkeep_jobs(c: _Context) -> list[Job]:
    """Rollups for drawing, and retention."""
    settings, database = c.settings, c.database
    return [
        Job(
            "roll_up_series",
            settings.series_seconds,
            lambda: roll_up_series(database, settings.keep_series_days, c.now_ms, c.stopping),
            "days rolled up",
            apart=True,
        ),
        Job(
            "roll_up_pool_hours",
            MINUTE_SECONDS,
            lambda: roll_up_pool_hours(database, c.now_ms, c.stopping),
            "hours added up",
            apart=True,
        ),
        Job(
            "roll_up_node_utilization",
            HOUR_SECONDS,
            lambda: roll_up_node_utilization(
                database, settings.keep_node_utilization_days, c.now_ms, c.stopping
            ),
            "days computed",
            apart=True,
        ),
        Job(
            "expire",
            DAY_SECONDS,
            lambda: expire(database, retention_days(settings), c.now_ms, c.stopping),
            apart=True,
        ),
        Job("tidy", DAY_SECONDS, lambda: _tidy(c)),
        Job(
            "pack_samples",
            DAY_SECONDS,
            lambda: pack_samples(
                database, archive_retention(settings), c.now_ms, stopping=c.stopping
            ),
            apart=True,
        ),
        Job(
            "pack_slow_metrics",
            HOUR_SECONDS,
            lambda: pack_slow_metrics(database, c.now_ms, c.stopping),
            "changes of slow metrics packed",
            apart=True,
        ),
        Job(
            "pack_usage_intervals",
            DAY_SECONDS,
            lambda: pack_usage_intervals(
                database, latest_evidence_days(settings), c.now_ms, c.stopping
            ),
            apart=True,
        ),
        Job(
            "merge_partitions",
            DAY_SECONDS,
            lambda: merge_partitions(
                database, merged_tables(settings), partitions.coarse_before(c.now_ms), c.stopping
            ),
            "partitions merged",
            apart=True,
        ),
    ]


def _tidy(c: _Context) -> None:
    """Delete small records past their retention, and sum queue readings that an older collector
    left unsummed.
    """
    with c.database.connect() as connection:
        delete_old_runs(connection, c.now_ms)
        for delete_old in (
            outbox.expire,
            counters.delete_old,
            token_counters.expire_readings,
            scaling.expire,
            queues.expire,
            scheduler_queues.expire,
            expire_records,
            queues.sum_missing,
        ):
            delete_old(connection, c.now_ms)
        token_usage.expire_requests(connection, c.settings.keep_token_request_days, c.now_ms)
