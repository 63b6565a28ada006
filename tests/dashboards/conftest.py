"""A simulated fleet's days in a real database, through the real agent and collector, read by the
dashboards' role.
"""

import datetime as dt
import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from fakes.boards import SINCE, UNTIL
from fakes.collector import running
from fakes.postgres import administrator, fresh_database, postgres
from fakes.queue_hours import fill_queues
from gpuledger_agent.settings import Settings
from gpuledger_agent.simulate import simulate
from gpuledger_agent.sources.shared_model import asked_lines
from gpuledger_collector.cli import build
from gpuledger_collector.cli.demo import INFERENCE, PRICES
from gpuledger_collector.services.budget_status import statuses
from gpuledger_collector.services.forecasts import store_forecasts
from gpuledger_collector.services.inference_days import store_inference_days
from gpuledger_collector.services.scaling_advice import advise_scaling
from gpuledger_collector.services.spend_forecasts import store_spend_forecasts
from gpuledger_collector.services.upkeep import roll_up_series
from gpuledger_collector.storage.billing.spend_forecasts import upsert_budget
from gpuledger_collector.storage.database import Database

__all__ = ["postgres"]

READER, PASSWORD = "grafana_of_the_tests", "only-for-reading"


def command(dsn, *arguments):
    """Standard output of a gpuledger command on the database."""
    result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", dsn])
    assert result.exit_code in (0, 1), (result.output, result.exception)
    return result.stdout


def reader_of(dsn, folder):
    """DSN of the role for dashboards, made by the command that people use."""
    secret = folder / "reader.password"
    secret.write_text(PASSWORD)
    command(dsn, "db", "grant-reader", READER, "--password-file", secret)
    return make_conninfo(dsn, user=READER, password=PASSWORD)


def drop_reader(postgres):
    with psycopg.connect(administrator(postgres), autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {READER}")


@pytest.fixture(scope="session")
def seeded(postgres, tmp_path_factory) -> Iterator[str]:
    """DSN of a database with the fleet's last three days, folded, rated, and with slow metrics and
    some faults.
    """
    with fresh_database(postgres) as dsn:
        prices = tmp_path_factory.mktemp("prices") / "prices.csv"
        start = (SINCE - dt.timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        prices.write_text(
            PRICES.format(start=start, change=(SINCE + dt.timedelta(hours=30)).isoformat())
        )
        command(dsn, "import", "prices", prices)
        add_imported_usage(dsn)
        with running(dsn) as collector:
            simulate(
                Settings(),
                SINCE.isoformat(),
                UNTIL.isoformat(),
                "5m",
                f"http://127.0.0.1:{collector.port}",
            )
        until = (UNTIL + dt.timedelta(days=1)).date()
        command(dsn, "chargeback", "--from", SINCE.date(), "--to", until)
        add_what_the_simulation_lacks(dsn)
        add_a_correction_a_budget_and_findings(dsn)
        add_what_looks_ahead(dsn, tmp_path_factory.mktemp("queue") / "queue.csv")
        add_who_asked(dsn, tmp_path_factory.mktemp("inference"))
        fill_queues(dsn, int(UNTIL.timestamp() * 1000) - 3 * 3_600_000)
        yield dsn
    drop_reader(postgres)


def add_a_correction_a_budget_and_findings(dsn):
    """A closed day's charge amended in this range; a team's budget; an idle GPU and an odd day of
    spending.
    """
    now_ms = int(UNTIL.timestamp() * 1000)
    day_ms = int(SINCE.timestamp() * 1000)
    # Budgets of a range that holds all of the seed: a month holds little of it on its first days.
    span = (day_ms, day_ms + 31 * 86_400_000)
    with psycopg.connect(dsn, autocommit=True) as connection:
        columns = (
            "start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool, gpu_model, node,"
            " price_id"
        )
        connection.execute(
            f"INSERT INTO correction (booked_day_ms, recorded_ms, day_ms, {columns}, gpu_ns,"
            " busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro) SELECT day_ms,"
            f" %s, day_ms - 86400000 * 40::bigint, {columns}, -gpu_ns / 3, -busy_ns / 3, -idle_ns /"
            " 3, 0, currency, -cost_micro / 3 + 1, -idle_cost_micro / 3 FROM charge WHERE day_ms ="
            " %s AND state = 'held' LIMIT 7",
            (now_ms, day_ms),
        )
        connection.execute(
            "WITH b AS (INSERT INTO budget (name, owner, period, amount_micro, currency, terms,"
            " recorded_at, start_ms, end_ms) VALUES ('vision', '{\"team\": \"vision\"}', 'range',"
            " 1000000000, 'USD', '{}', now(), %s, %s), ('fleet', '{}', 'quarter', 90000000000,"
            " 'USD', '{}', now(), NULL, NULL) RETURNING id) INSERT INTO budget_alert (budget_id,"
            " period_start_ms, rule, percent, state, seen, evaluated_ms) SELECT min(id), %s,"
            " 'actual', 80, 'acked', 3, %s FROM b",
            (*span, day_ms, now_ms),
        )
        connection.execute(
            "WITH b AS (INSERT INTO budget (name, owner, period, amount_micro, currency, measure,"
            " terms, recorded_at, start_ms, end_ms) VALUES ('vision in all', '{\"team\":"
            " \"vision\"}', 'range', 1000000000, 'USD', 'total', '{}', now(), %s, %s), ('vision"
            " hours', '{\"team\": \"vision\"}', 'range', 500000000, '', 'gpu_hours', '{}', now(),"
            " %s, %s) RETURNING id, measure) INSERT INTO budget_share (budget_id, start_ms, end_ms,"
            " shared_micro) SELECT id, %s, %s, 25000000 FROM b WHERE measure = 'total'",
            (*span, *span, day_ms, now_ms),
        )
        connection.execute(
            "INSERT INTO finding (key, kind, state, subject, accelerator_id, team, owner, since_ms,"
            " opened_ms, until_ms, confidence, currency, cost_micro, per_day_micro, evidence)"
            " SELECT kind || a.uuid, kind, state, a.uuid, a.id, 'vision', '{}', %s, %s, %s, 0.9,"
            " 'USD', 5000000, 9000000, '{}' FROM (SELECT id, uuid FROM accelerator ORDER BY id"
            " LIMIT 1) a, (VALUES ('idle', 'abandoned'), ('anomaly', 'usage')) f (kind, state)",
            (now_ms - 7_200_000, now_ms - 7_100_000, now_ms),
        )


def add_what_looks_ahead(dsn, queue):
    """Readings of a queue, forecasts that are kept and scored, and decisions with outcomes: by the
    jobs themselves.
    """
    now_ms, hour = int(UNTIL.timestamp() * 1000), 3_600_000
    rows = [
        f"{(now_ms - hours * hour) // 1000},w{hours},{hours},train,slurm" for hours in (2, 3, 4)
    ]
    queue.write_text("\n".join(["at,workload_id,gpus,pool,source", *rows]) + "\n")
    command(dsn, "import", "queue", queue)
    roll_up_series(Database(dsn), 0, now_ms)
    store_forecasts(Database(dsn), now_ms)
    store_spend_forecasts(Database(dsn), now_ms)
    # Three days are too few for a forecast.
    with psycopg.connect(dsn, autocommit=True) as connection:
        for status in statuses(connection, now_ms):
            upsert_budget(connection, status)
        for table in ("budget_forecast", "owner_forecast"):
            connection.execute(
                f"UPDATE {table} SET low_micro = spent_micro * 2, middle_micro = spent_micro * 3,"
                " high_micro = spent_micro * 4"
            )
    for hours in (6, 5, 4, 0):
        advise_scaling(Database(dsn), now_ms - hours * hour)


def add_who_asked(dsn, folder):
    """The demo's shared model server and who asked it, split by the job itself."""
    declared, asked = folder / "inference.toml", folder / "asked.csv"
    declared.write_text(INFERENCE)
    command(dsn, "apply", declared)
    since_ms, until_ms = (int(at.timestamp() * 1000) for at in (SINCE, UNTIL))
    asked.write_text("\n".join([*asked_lines(since_ms, until_ms), ""]))
    command(dsn, "import", "inference", asked)
    assert store_inference_days(Database(dsn), until_ms) >= 3


def add_imported_usage(dsn):
    """A job that a scheduler's records tell of: it waited, and no rate covers it."""
    now_ms = int(UNTIL.timestamp() * 1000)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "WITH w AS (INSERT INTO workload (key, kind, external_id, first_seen_at) "
            "VALUES ('imported::9', 'imported', '9', %s) RETURNING id) "
            "INSERT INTO imported_usage (workload_id, start_ms, end_ms, gpu_micro, pool, "
            "submitted_ms) SELECT id, %s, %s, 4000000, 'cloud', %s FROM w",
            (UNTIL, now_ms - 7_200_000, now_ms - 3_600_000, now_ms - 9_000_000),
        )


def add_what_the_simulation_lacks(dsn):
    """Slow metrics, a sick GPU, a conflict, runs of jobs, imported usage: what boards show beside
    the simulation.
    """
    now_ms = int(UNTIL.timestamp() * 1000)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for metric, value in (
            ("gpu_ecc_uncorrected_volatile_total", 0),
            ("gpu_remapped_rows_pending", 0),
            ("gpu_pcie_replays_total", 3),
            ("gpu_power_limit_watts", 700),
        ):
            connection.execute(
                "INSERT INTO gpu_state SELECT id, %s, %s, %s FROM accelerator",
                (metric, now_ms - 3_600_000, value),
            )
        connection.execute(
            "INSERT INTO gpu_state SELECT min(id), 'gpu_xid_errors_total', %s, 79 FROM accelerator",
            (now_ms - 60_000,),
        )
        connection.execute(
            "UPDATE accelerator SET health = 'failed', health_cause = 'Xid 79: fell off the bus' "
            "WHERE id = (SELECT min(id) FROM accelerator)"
        )
        connection.execute(
            "UPDATE accelerator SET health = 'ok' WHERE health = 'unknown' AND id % 2 = 0"
        )
        connection.execute(
            "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) "
            "VALUES ('h100-01', gen_random_uuid(), 5, '\\x00', %s)",
            (UNTIL - dt.timedelta(hours=1),),
        )
        for at, (job, outcome) in enumerate(
            [("fold_usage", "done"), ("rate_usage", "done"), ("rate_usage", "failed")]
        ):
            begun = UNTIL - dt.timedelta(hours=2, minutes=at)
            connection.execute(
                "INSERT INTO job_run (job, started_at, ended_at, outcome, detail) VALUES (%s, %s,"
                " %s, %s, %s)",
                (job, begun, begun + dt.timedelta(seconds=2), outcome, json.dumps({"hours": at})),
            )


@pytest.fixture(scope="session")
def reader(seeded, tmp_path_factory) -> Iterator[psycopg.Connection]:
    """A connection of the dashboards' role."""
    with psycopg.connect(
        reader_of(seeded, tmp_path_factory.mktemp("reader")), autocommit=True
    ) as connection:
        yield connection


@pytest.fixture(scope="session")
def nothing(postgres, seeded, tmp_path_factory) -> Iterator[psycopg.Connection]:
    """The same role on a database without a single GPU."""
    with (
        fresh_database(postgres) as dsn,
        psycopg.connect(
            reader_of(dsn, tmp_path_factory.mktemp("none")), autocommit=True
        ) as connection,
    ):
        yield connection
