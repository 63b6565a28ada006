"""Rules that Grafana evaluates on the ledger: each fires on its fault, none on the clean fleet, as
the reading role.
"""

import datetime as dt
import re
from pathlib import Path

import psycopg
import pytest
import yaml
from dashboards.alerts.grafana import RULES

from dashboards import build
from fakes.boards import BOARDS, SINCE, panels
from fakes.runbooks import assert_runbook

ROOT = Path(__file__).parents[2]
PROVISIONED = yaml.safe_load(build.ALERTING.read_text())
SOURCES = yaml.safe_load((ROOT / "dashboards/provisioning/datasources/gpuledger.yaml").read_text())[
    "datasources"
]
OUTBOX = (
    "INSERT INTO outbox (key, kind, recipient, attempts, made_ms, state, not_before_ms) "
    "SELECT *, extract(epoch FROM now()) * 1000 + 60000 FROM (VALUES"
)
"""What was tried and is to be tried again in a minute; the rest of its row follows."""
FAULTS = {
    "GpuLedgerProofBroken": (
        "UPDATE conservation_check SET holds = false WHERE day_ms = (SELECT min(day_ms) FROM"
        " conservation_check)"
    ),
    "GpuLedgerNodeSilent": (
        "UPDATE node SET last_seen_at = now() - interval '1 hour' WHERE name = 'h100-01'"
    ),
    "GpuLedgerUnobserved": "UPDATE conservation_check SET unobserved_ns = capacity_ns / 10",
    "GpuLedgerUnpriced": (
        "UPDATE ledger_day SET currency = NULL, cost_micro = NULL WHERE gpu_model LIKE '%L4'"
    ),
    "GpuLedgerBehind": (
        "DELETE FROM usage_hour WHERE hour_ms > (SELECT max(hour_ms) - 5 * 3600000 FROM usage_hour)"
    ),
    "GpuLedgerConflict": (
        "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) "
        "VALUES ('n', gen_random_uuid(), 1, '\\x00', now())"
    ),
    "GpuLedgerBudget": (
        "INSERT INTO budget_alert (budget_id, period_start_ms, rule, percent, state, seen, "
        "evaluated_ms) SELECT id, 0, 'actual', 80, 'firing', 3, 0 FROM budget LIMIT 1"
    ),
    "GpuLedgerQueueSilent": (
        "DELETE FROM queue_reading WHERE received_at > now() - interval '10 minutes' "
        "AND at_ms > extract(epoch FROM now()) * 1000 - 6000000"
    ),
    "GpuLedgerScalingStands": "UPDATE scaling_decision SET made_ms = made_ms - 21600000",
    "GpuLedgerForecastsOff": "UPDATE backtest SET known = 48, inside = 20",
    "GpuLedgerMessagesStuck": (
        f"{OUTBOX} ('a', 'notification', 'ann@example.org', 1, extract(epoch FROM now()) "
        "* 1000 - 4000000, 'waiting')) one"
    ),
    "GpuLedgerWebhookFailing": (
        f"{OUTBOX} ('b', 'scaling', 'webhook:capacity', 3, extract(epoch FROM now()) * 1000 - "
        "700000, 'waiting')) one"
    ),
}
CLEAN = (
    "DELETE FROM ledger_day WHERE currency IS NULL",
    "DELETE FROM ingest_conflict",
    "DELETE FROM budget_alert",
    "UPDATE node SET last_seen_at = now()",
    (
        "INSERT INTO queue_reading SELECT source, extract(epoch FROM now()) * 1000 - 60000, 0, 0,"
        " '[]', now() FROM (SELECT DISTINCT source FROM queue_reading) sources"
    ),
    "UPDATE backtest SET inside = known * 0.8",
    (
        "INSERT INTO outbox (key, kind, recipient, made_ms, not_before_ms, state) VALUES "
        "('young', 'notification', 'a', extract(epoch FROM now()) * 1000, 0, 'sent'), "
        "('quiet', 'notification', 'a', 0, extract(epoch FROM now()) * 1000 + 3600000, 'waiting'), "
        "('old', 'scaling', 'a', 0, 0, 'dead')"
    ),
)
"""The seed has faults on purpose, for the boards' sake; these end them, and add what looks like one
and is none.
"""


@pytest.fixture
def clean(seeded):
    """The seeded database without its faults, until the end of the test."""
    with psycopg.connect(seeded) as connection:
        for statement in CLEAN:
            connection.execute(statement)
        yield connection
        connection.rollback()


def values(connection, rule):
    """What Grafana's condition compares: a point of each label's time series, or of the only one."""
    cursor = connection.execute(rule.query)
    rows = cursor.fetchall()
    columns = ["time", rule.label, "value"] if rule.label else ["time", "value"]
    assert [column.name for column in cursor.description] == columns
    assert rule.label or len(rows) == 1
    assert all(isinstance(row[0], dt.datetime) and isinstance(row[-1], float) for row in rows)
    assert not rule.label or f"{{{{ .Labels.{rule.label} }}}}" in rule.summary
    return {row[1] if rule.label else "": row[-1] for row in rows}


@pytest.mark.parametrize("rule", RULES, ids=[rule.title for rule in RULES])
def test_a_rule_fires_on_its_fault_alone(clean, rule):
    """Below the threshold on the clean fleet, above it with the fault."""
    assert all(value <= rule.above for value in values(clean, rule).values())
    changed = clean.execute(FAULTS[rule.title]).rowcount
    assert changed > 0
    assert max(values(clean, rule).values()) > rule.above


@pytest.mark.parametrize("rule", RULES, ids=[rule.title for rule in RULES])
def test_the_role_may_ask(reader, nothing, rule):
    """The reading role can evaluate the rule, with a row where nothing is: Grafana 9.3 mails an
    empty answer.
    """
    reader.execute(rule.query)
    rows = nothing.execute(rule.query).fetchall()
    assert rows
    assert all((row[-1] or 0) <= rule.above for row in rows)


@pytest.mark.parametrize("rule", RULES, ids=[rule.title for rule in RULES])
def test_a_rule_has_its_page(rule):
    """What it means, what to look at, what to do."""
    assert_runbook((ROOT / "docs" / "runbooks" / f"{rule.runbook}.md").read_text(), rule.title)
    (annotations,) = [
        entry["annotations"]
        for entry in PROVISIONED["groups"][0]["rules"]
        if entry["uid"] == rule.uid
    ]
    _, _, panel = annotations["runbook_url"].partition(
        "{{ externalURL }}d/gpuledger-runbooks?viewPanel="
    )
    assert [
        shown["title"] for shown in BOARDS["runbooks"]["panels"] if str(shown["id"]) == panel
    ] == [rule.title]


def test_the_file_is_what_grafana_reads():
    """Unique uids and titles, a known data source, a condition on the query, and no `$` to be
    expanded.
    """
    (group,) = PROVISIONED["groups"]
    assert PROVISIONED["apiVersion"] == 1
    assert [rule["title"] for rule in group["rules"]] == [rule.title for rule in RULES]
    assert len({rule["uid"] for rule in group["rules"]}) == len(RULES)
    for rule in group["rules"]:
        query, *expressions = rule["data"]
        assert query["datasourceUid"] in {source["uid"] for source in SOURCES}
        assert expressions[-1]["refId"] == rule["condition"]
        if len(expressions) == 1:
            assert expressions[0]["model"]["conditions"][0]["query"]["params"] == [query["refId"]]
        else:
            assert [model["model"]["expression"] for model in expressions] == ["A", "B"]
    assert "$" not in build.ALERTING.read_text()


def test_the_seed_is_recent():
    """The rules speak of now; so does the seed."""
    assert dt.datetime.now(dt.UTC) - SINCE < dt.timedelta(days=5)


def test_the_alert_of_a_budget_names_it(clean):
    """Of several budgets the one whose threshold was crossed fires, under its own name, whatever it
    measures.
    """
    (rule,) = [rule for rule in RULES if rule.label == "budget"]
    clean.execute(FAULTS[rule.title])
    fired = values(clean, rule)
    assert set(fired) == {"vision", "fleet", "vision in all", "vision hours"}
    assert sorted(fired.values()) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "runbooks").glob("*.md")), ids=lambda path: path.stem
)
def test_a_page_names_panels_that_exist(page):
    """What stands in italics beside a dashboard is the title of that dashboard or of one of its
    panels.
    """
    titles = {board["title"].partition(": ")[0]: board for board in BOARDS.values()}
    # A name may be broken at the end of a line of a list.
    for line in re.sub(r"\n +", " ", page.read_text()).splitlines():
        if "ashboard *" not in line and "ashboards *" not in line:
            continue
        names = [
            name for name in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", line) if name[0].isupper()
        ]
        assert any(name in titles for name in names), line
        shown = {
            panel["title"] for name in names if name in titles for panel in panels(titles[name])
        }
        unknown = (
            set(names)
            - titles.keys()
            - shown
            - {title.removesuffix(" ($currency)") for title in shown}
        )
        assert not unknown, (line, unknown)
