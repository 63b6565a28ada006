"""Rules that Grafana evaluates on the ledger: each fires on its fault, none on the clean fleet, as the reading role."""

import datetime as dt
from pathlib import Path

import psycopg
import pytest
import yaml
from dashboards.alerts.grafana import RULES

from dashboards import build
from fakes.boards import SINCE
from fakes.runbooks import assert_runbook

ROOT = Path(__file__).parents[2]
PROVISIONED = yaml.safe_load(build.ALERTING.read_text())
SOURCES = yaml.safe_load((ROOT / "dashboards/provisioning/datasources/gpuledger.yaml").read_text())["datasources"]
OUTBOX = (
    "INSERT INTO outbox (key, kind, recipient, attempts, made_ms, state, not_before_ms) "
    "SELECT *, extract(epoch FROM now()) * 1000 + 60000 FROM (VALUES"
)
"""What was tried and is to be tried again in a minute; the rest of its row follows."""
FAULTS = {
    "GpuLedgerProofBroken": (
        "UPDATE conservation_check SET holds = false WHERE day_ms = (SELECT min(day_ms) FROM conservation_check)"
    ),
    "GpuLedgerNodeSilent": "UPDATE node SET last_seen_at = now() - interval '1 hour' WHERE name = 'h100-01'",
    "GpuLedgerUnobserved": "UPDATE conservation_check SET unobserved_ns = capacity_ns / 10",
    "GpuLedgerUnpriced": "UPDATE ledger_day SET currency = NULL, cost_micro = NULL WHERE gpu_model LIKE '%L4'",
    "GpuLedgerBehind": "DELETE FROM usage_hour WHERE hour_ms > (SELECT max(hour_ms) - 5 * 3600000 FROM usage_hour)",
    "GpuLedgerConflict": "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) "
    "VALUES ('n', gen_random_uuid(), 1, '\\x00', now())",
    "GpuLedgerBudget": "INSERT INTO budget_alert (budget_id, period_start_ms, rule, percent, state, seen, "
    "evaluated_ms) SELECT id, 0, 'actual', 80, 'firing', 3, 0 FROM budget LIMIT 1",
    "GpuLedgerQueueSilent": "DELETE FROM queue_reading WHERE received_at > now() - interval '10 minutes' "
    "AND at_ms > extract(epoch FROM now()) * 1000 - 6000000",
    "GpuLedgerScalingStands": "UPDATE scaling_decision SET made_ms = made_ms - 21600000",
    "GpuLedgerForecastsOff": "UPDATE backtest SET known = 48, inside = 20",
    "GpuLedgerMessagesStuck": f"{OUTBOX} ('a', 'notification', 'ann@example.org', 1, extract(epoch FROM now()) "
    "* 1000 - 4000000, 'waiting')) one",
    "GpuLedgerWebhookFailing": f"{OUTBOX} ('b', 'scaling', 'webhook:capacity', 3, extract(epoch FROM now()) * 1000 - "
    "700000, 'waiting')) one",
}
CLEAN = (
    "DELETE FROM ledger_day WHERE currency IS NULL",
    "DELETE FROM ingest_conflict",
    "DELETE FROM budget_alert",
    "UPDATE node SET last_seen_at = now()",
    "INSERT INTO queue_reading SELECT source, extract(epoch FROM now()) * 1000 - 60000, 0, 0, '[]', now() "
    "FROM (SELECT DISTINCT source FROM queue_reading) sources",
    "UPDATE backtest SET inside = known * 0.8",
    "INSERT INTO outbox (key, kind, recipient, made_ms, not_before_ms, state) VALUES "
    "('young', 'notification', 'a', extract(epoch FROM now()) * 1000, 0, 'sent'), "
    "('quiet', 'notification', 'a', 0, extract(epoch FROM now()) * 1000 + 3600000, 'waiting'), "
    "('old', 'scaling', 'a', 0, 0, 'dead')",
)
"""The seed has faults on purpose, for the boards' sake; these end them, and add what looks like one and is none."""


@pytest.fixture
def clean(seeded):
    """The seeded database without its faults, until the end of the test."""
    with psycopg.connect(seeded) as connection:
        for statement in CLEAN:
            connection.execute(statement)
        yield connection
        connection.rollback()


def value(connection, sql):
    """What Grafana's classic condition compares: one time series with one point."""
    cursor = connection.execute(sql)
    (row,) = cursor.fetchall()
    assert [column.name for column in cursor.description] == ["time", "value"]
    assert isinstance(row[0], dt.datetime)
    assert isinstance(row[1], float)
    return row[1]


@pytest.mark.parametrize("rule", RULES, ids=[rule.title for rule in RULES])
def test_a_rule_fires_on_its_fault_alone(clean, rule):
    """Below the threshold on the clean fleet, above it with the fault."""
    assert value(clean, rule.sql) <= rule.above
    changed = clean.execute(FAULTS[rule.title]).rowcount
    assert changed > 0
    assert value(clean, rule.sql) > rule.above


@pytest.mark.parametrize("rule", RULES, ids=[rule.title for rule in RULES])
def test_the_role_may_ask(reader, nothing, rule):
    """The reading role can evaluate the rule, also where nothing is; no row or null would be no data, which is well."""
    reader.execute(rule.sql)
    assert (nothing.execute(rule.sql).fetchone()[1] or 0) <= rule.above


@pytest.mark.parametrize("rule", RULES, ids=[rule.title for rule in RULES])
def test_a_rule_has_its_page(rule):
    """What it means, what to look at, what to do."""
    assert_runbook((ROOT / rule.runbook).read_text(), rule.title)


def test_the_file_is_what_grafana_reads():
    """Unique uids and titles, a known data source, a condition on the query, and no `$` to be expanded."""
    (group,) = PROVISIONED["groups"]
    assert PROVISIONED["apiVersion"] == 1
    assert [rule["title"] for rule in group["rules"]] == [rule.title for rule in RULES]
    assert len({rule["uid"] for rule in group["rules"]}) == len(RULES)
    for rule in group["rules"]:
        query, condition = rule["data"]
        assert query["datasourceUid"] in {source["uid"] for source in SOURCES}
        assert condition["refId"] == rule["condition"]
        assert condition["model"]["conditions"][0]["query"]["params"] == [query["refId"]]
    assert "$" not in build.ALERTING.read_text()


def test_the_seed_is_recent():
    """The rules speak of now; so does the seed."""
    assert dt.datetime.now(dt.UTC) - SINCE < dt.timedelta(days=5)
