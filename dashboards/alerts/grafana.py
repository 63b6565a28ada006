"""Alert rules that Grafana evaluates on the ledger: what no /metrics can say. Made by `python -m dashboards.build`.

Grafana's Postgres alerting takes time series alone and a `$` in provisioned YAML is a variable, so each query gives one
row (time, value) and uses no macro. The condition is of the classic kind, which 9.3 to 13 evaluate alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboards.sql import whole

LEDGER = "gpuledger-postgres"
FOLDER = "GPU Ledger"


@dataclass(frozen=True)
class Rule:
    """An alert: it fires while `value` of the query is above `above` for `lasting`."""

    uid: str
    title: str
    summary: str
    sql: str
    above: float
    lasting: str
    severity: str
    runbook: str


RULES = (
    Rule(
        "gpuledger-proof",
        "GpuLedgerProofBroken",
        "Charges of a day and capacity times rate differ: the bill is wrong",
        'SELECT now() AS "time", count(*)::float8 AS value FROM (SELECT holds FROM conservation_check '
        "UNION ALL SELECT holds FROM corrected_day) proofs WHERE NOT holds",
        0,
        "5m",
        "critical",
        "docs/runbooks/proof-broken.md",
    ),
    Rule(
        "gpuledger-silent",
        "GpuLedgerNodeSilent",
        "A node that reported in the last day has been silent for 15 minutes: its time becomes unobserved",
        'SELECT now() AS "time", count(*)::float8 AS value FROM node '
        "WHERE last_seen_at < now() - interval '15 minutes' AND last_seen_at > now() - interval '1 day'",
        0,
        "5m",
        "warning",
        "docs/runbooks/node-silent.md",
    ),
    Rule(
        "gpuledger-unobserved",
        "GpuLedgerUnobserved",
        "More than 5 % of the last full day's capacity was unobserved",
        'SELECT now() AS "time", coalesce((SELECT (unobserved_ns / nullif(capacity_ns, 0))::float8 FROM '
        "conservation_check "
        f"p WHERE {whole('p')} ORDER BY day_ms DESC LIMIT 1), 0) AS value",
        0.05,
        "5m",
        "warning",
        "docs/runbooks/unobserved.md",
    ),
    Rule(
        "gpuledger-unpriced",
        "GpuLedgerUnpriced",
        "GPU-hours of the last week have no rate: they are missing from every amount",
        'SELECT now() AS "time", (coalesce(sum(gpu_ns), 0) / 3.6e12)::float8 AS value FROM ledger_day '
        "WHERE currency IS NULL AND day_ms > extract(epoch FROM now())::bigint * 1000 - 604800000",
        0,
        "15m",
        "warning",
        "docs/runbooks/unpriced.md",
    ),
    Rule(
        "gpuledger-behind",
        "GpuLedgerBehind",
        "Nodes report but the newest hour of usage is more than three hours old: the ledger is not updated",
        'SELECT now() AS "time", greatest(0, extract(epoch FROM (SELECT max(last_seen_at) FROM node)) / 3600.0 '
        "- (SELECT max(hour_ms) FROM usage_hour) / 3600000.0)::float8 AS value",
        3,
        "10m",
        "critical",
        "docs/runbooks/ledger-behind.md",
    ),
    Rule(
        "gpuledger-conflict",
        "GpuLedgerConflict",
        "Different bytes came under a known batch number: a copied spool or two nodes with the same name",
        'SELECT now() AS "time", count(*)::float8 AS value FROM ingest_conflict '
        "WHERE received_at > now() - interval '1 hour'",
        0,
        "0s",
        "warning",
        "docs/runbooks/batch-conflict.md",
    ),
    Rule(
        "gpuledger-budget",
        "GpuLedgerBudget",
        "A budget's threshold was crossed and nobody has acknowledged it",
        'SELECT now() AS "time", count(*)::float8 AS value FROM budget_alert a JOIN budget b ON b.id = a.budget_id '
        "WHERE a.state = 'firing' AND b.superseded_at IS NULL",
        0,
        "0s",
        "warning",
        "docs/runbooks/budget-crossed.md",
    ),
    Rule(
        "gpuledger-queue-silent",
        "GpuLedgerQueueSilent",
        "A scheduler's queue was read in the last day but not for an hour: its pools get no scaling advice",
        'SELECT now() AS "time", coalesce(max(minutes), 0)::float8 AS value FROM ('
        "SELECT extract(epoch FROM now()) / 60 - max(at_ms) / 60000.0 AS minutes FROM queue_reading "
        "WHERE at_ms > extract(epoch FROM now())::bigint * 1000 - 86400000 GROUP BY source) queues",
        60,
        "5m",
        "warning",
        "docs/runbooks/queue-silent.md",
    ),
    Rule(
        "gpuledger-scaling-stands",
        "GpuLedgerScalingStands",
        "Scaling decisions were made in the last week but none for three hours, although there is demand",
        'SELECT now() AS "time", coalesce((SELECT extract(epoch FROM now()) / 60 - max(made_ms) / 60000.0 '
        "FROM scaling_decision WHERE made_ms > extract(epoch FROM now())::bigint * 1000 - 604800000), 0)::float8 "
        "AS value",
        180,
        "5m",
        "warning",
        "docs/runbooks/scaling-stands.md",
    ),
    Rule(
        "gpuledger-forecasts-off",
        "GpuLedgerForecastsOff",
        "A pool's demand was outside the forecast band in more than four of ten hours last week; two are expected",
        'SELECT now() AS "time", coalesce(max(missed), 0)::float8 AS value FROM ('
        "SELECT 1 - sum(inside)::float8 / sum(known) AS missed FROM backtest WHERE grouped = 'pool' "
        "AND origin_ms > extract(epoch FROM now())::bigint * 1000 - 691200000 "
        "GROUP BY series HAVING sum(known) >= 48) pools",
        0.4,
        "15m",
        "info",
        "docs/runbooks/forecasts-off.md",
    ),
    Rule(
        "gpuledger-messages-stuck",
        "GpuLedgerMessagesStuck",
        "Notifications or alerts are an hour overdue, or were given up in the last day",
        'SELECT now() AS "time", count(*)::float8 AS value FROM outbox, '
        "(SELECT extract(epoch FROM now())::bigint * 1000 AS ms) at WHERE kind <> 'scaling' AND ("
        "state IN ('waiting', 'handing_over') AND (not_before_ms < at.ms - 3600000 "
        "OR attempts > 0 AND made_ms < at.ms - 3600000) "
        "OR state IN ('dead', 'unconfirmed') AND made_ms > at.ms - 86400000)",
        0,
        "5m",
        "warning",
        "docs/runbooks/messages-stuck.md",
    ),
    Rule(
        "gpuledger-webhook-failing",
        "GpuLedgerWebhookFailing",
        "A pool could not send a decision to its webhook: capacity is unchanged",
        'SELECT now() AS "time", count(*)::float8 AS value FROM outbox, '
        "(SELECT extract(epoch FROM now())::bigint * 1000 AS ms) at WHERE kind = 'scaling' AND ("
        "state IN ('waiting', 'handing_over') AND made_ms < at.ms - 600000 "
        "OR state IN ('dead', 'unconfirmed') AND made_ms > at.ms - 86400000)",
        0,
        "0s",
        "warning",
        "docs/runbooks/webhook-failing.md",
    ),
)


def provisioned() -> dict[str, Any]:
    """The content of Grafana's provisioning file."""
    return {
        "apiVersion": 1,
        "groups": [
            {"orgId": 1, "name": "gpuledger", "folder": FOLDER, "interval": "1m", "rules": [_rule(r) for r in RULES]}
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": "B",
        "for": rule.lasting,
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": {"severity": rule.severity},
        "annotations": {"summary": rule.summary, "runbook": rule.runbook},
        "data": [
            {
                "refId": "A",
                "datasourceUid": LEDGER,
                "relativeTimeRange": {"from": 600, "to": 0},
                "model": {
                    "refId": "A",
                    "format": "time_series",
                    "rawQuery": True,
                    "editorMode": "code",
                    "rawSql": rule.sql,
                    "intervalMs": 60000,
                    "maxDataPoints": 100,
                },
            },
            {
                "refId": "B",
                "datasourceUid": "__expr__",
                "relativeTimeRange": {"from": 0, "to": 0},
                "model": {
                    "refId": "B",
                    "type": "classic_conditions",
                    "datasource": {"type": "__expr__", "uid": "__expr__"},
                    "conditions": [
                        {
                            "type": "query",
                            "evaluator": {"type": "gt", "params": [rule.above]},
                            "operator": {"type": "and"},
                            "query": {"params": ["A"]},
                            "reducer": {"type": "last", "params": []},
                        }
                    ],
                },
            },
        ],
    }
