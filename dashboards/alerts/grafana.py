"""Alert rules that Grafana evaluates on the ledger: what no /metrics can say.

Made by `python -m dashboards.build`.

Grafana's Postgres alerting takes time series alone and a `$` in provisioned YAML is a variable, so
each query gives rows (time, value) and uses no macro. A rule with a `label` has a row for each
budget, node, queue or pool: each fires by itself, and the alert's text names it. The others give
one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboards.boards.runbooks import address
from dashboards.sql import UNWATCHED, whole
from gpuledger_collector.insight.nodes import SILENT_MS

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
    label: str = ""
    """Column that tells the rows apart; `{{ .Labels.NAME }}` in the summary is its value."""

    @property
    def query(self) -> str:
        """The SQL that Grafana sends: where nothing is to be watched, a row without a fault.

        Grafana 9.3 takes an answer without rows for a fault of the data source, and mails it.
        """
        if not self.label:
            return self.sql
        none = "SELECT now(), '', 0::float8 WHERE NOT EXISTS (SELECT FROM watched)"
        return f"WITH watched AS ({self.sql}) SELECT * FROM watched UNION ALL {none} ORDER BY 2"


RULES = (
    Rule(
        "gpuledger-proof",
        "GpuLedgerProofBroken",
        "Charges of a day and capacity times rate differ: the bill is wrong",
        'SELECT now() AS "time", count(*)::float8 AS value FROM (SELECT holds FROM'
        " conservation_check UNION ALL SELECT holds FROM corrected_day) proofs WHERE NOT holds",
        0,
        "5m",
        "critical",
        "proof-broken",
    ),
    Rule(
        "gpuledger-silent",
        "GpuLedgerNodeSilent",
        f"Node {{{{ .Labels.node }}}} has been silent for {SILENT_MS // 60_000} minutes: its time"
        " becomes unobserved",
        'SELECT now() AS "time", name AS node, (last_seen_at < now() - interval'
        f" '{SILENT_MS // 60_000} minutes')::int::float8 AS value FROM node WHERE status NOT IN"
        f" ({UNWATCHED}) ORDER BY 2",
        0,
        "0s",
        "warning",
        "node-silent",
        "node",
    ),
    Rule(
        "gpuledger-unobserved",
        "GpuLedgerUnobserved",
        "More than 5 % of the last full day's capacity was unobserved",
        'SELECT now() AS "time", coalesce((SELECT (unobserved_ns / nullif(capacity_ns, 0))::float8'
        " FROM "
        "conservation_check "
        f"p WHERE {whole('p')} ORDER BY day_ms DESC LIMIT 1), 0) AS value",
        0.05,
        "5m",
        "warning",
        "unobserved",
    ),
    Rule(
        "gpuledger-unpriced",
        "GpuLedgerUnpriced",
        "GPU-hours of the last week have no rate: they are missing from every amount",
        'SELECT now() AS "time", (coalesce(sum(gpu_ns), 0) / 3.6e12)::float8 AS value FROM'
        " ledger_day WHERE currency IS NULL AND day_ms > extract(epoch FROM now())::bigint * 1000 -"
        " 604800000",
        0,
        "15m",
        "warning",
        "unpriced",
    ),
    Rule(
        "gpuledger-behind",
        "GpuLedgerBehind",
        "Nodes report but the newest hour of usage is more than three hours old: the ledger is not"
        " updated",
        'SELECT now() AS "time", greatest(0, extract(epoch FROM (SELECT max(last_seen_at) FROM'
        " node)) / 3600.0 - (SELECT max(hour_ms) FROM usage_hour) / 3600000.0)::float8 AS value",
        3,
        "10m",
        "critical",
        "ledger-behind",
    ),
    Rule(
        "gpuledger-conflict",
        "GpuLedgerConflict",
        "Different bytes came under a known batch number: a copied spool or two nodes with the same"
        " name",
        'SELECT now() AS "time", count(*)::float8 AS value FROM ingest_conflict '
        "WHERE received_at > now() - interval '1 hour'",
        0,
        "0s",
        "warning",
        "batch-conflict",
    ),
    Rule(
        "gpuledger-budget",
        "GpuLedgerBudget",
        "Budget {{ .Labels.budget }} crossed a threshold and nobody has acknowledged it",
        'SELECT now() AS "time", b.name AS budget, count(a.id)::float8 AS value FROM budget b '
        "LEFT JOIN budget_alert a ON a.budget_id = b.id AND a.state = 'firing' "
        "WHERE b.superseded_at IS NULL GROUP BY 2 ORDER BY 2",
        0,
        "0s",
        "warning",
        "budget-crossed",
        "budget",
    ),
    Rule(
        "gpuledger-queue-silent",
        "GpuLedgerQueueSilent",
        "The queue of {{ .Labels.queue }} has not been read for an hour: its pools get no scaling"
        " advice",
        'SELECT now() AS "time", source AS queue, (extract(epoch FROM now()) / 60 - max(at_ms) /'
        " 60000.0)::float8 AS value FROM queue_reading WHERE at_ms > extract(epoch FROM"
        " now())::bigint * 1000 - 86400000 GROUP BY 2 ORDER BY 2",
        60,
        "5m",
        "warning",
        "queue-silent",
        "queue",
    ),
    Rule(
        "gpuledger-scaling-stands",
        "GpuLedgerScalingStands",
        "Scaling decisions were made in the last week but none for three hours, although there is"
        " demand",
        'SELECT now() AS "time", coalesce((SELECT extract(epoch FROM now()) / 60 - max(made_ms) /'
        " 60000.0 FROM scaling_decision WHERE made_ms > extract(epoch FROM now())::bigint * 1000 -"
        " 604800000), 0)::float8 AS value",
        180,
        "5m",
        "warning",
        "scaling-stands",
    ),
    Rule(
        "gpuledger-forecasts-off",
        "GpuLedgerForecastsOff",
        "Demand of pool {{ .Labels.pool }} was outside the forecast band in more than four of ten"
        " hours last week; two are expected",
        'SELECT now() AS "time", series AS pool, (1 - sum(inside)::float8 / sum(known))::float8'
        " AS value FROM backtest WHERE grouped = 'pool' AND origin_ms > extract(epoch FROM"
        " now())::bigint * 1000 - 691200000 GROUP BY 2 HAVING sum(known) >= 48 ORDER BY 2",
        0.4,
        "15m",
        "info",
        "forecasts-off",
        "pool",
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
        "messages-stuck",
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
        "webhook-failing",
    ),
)


def provisioning() -> dict[str, Any]:
    """The content of Grafana's provisioning file."""
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": "gpuledger",
                "folder": FOLDER,
                "interval": "1m",
                "rules": [_rule(r) for r in RULES],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    expressions = _by_label(rule.above) if rule.label else [_classic(rule.above)]
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": expressions[-1]["refId"],
        "for": rule.lasting,
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": rule.summary,
            "runbook_url": "{{ externalURL }}" + address(rule.runbook),
        },
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
                    "rawSql": rule.query,
                    "intervalMs": 60000,
                    "maxDataPoints": 100,
                },
            },
            *expressions,
        ],
    }


def _classic(above: float) -> dict[str, Any]:
    """A condition of the classic kind, which 9.3 to 13 evaluate alike; it has no labels."""
    return _expression(
        "B",
        {
            "type": "classic_conditions",
            "conditions": [
                {
                    "type": "query",
                    "evaluator": {"type": "gt", "params": [above]},
                    "operator": {"type": "and"},
                    "query": {"params": ["A"]},
                    "reducer": {"type": "last", "params": []},
                }
            ],
        },
    )


def _by_label(above: float) -> list[dict[str, Any]]:
    """The newest value of each label, and whether it is above the threshold."""
    return [
        _expression("B", {"type": "reduce", "expression": "A", "reducer": "last"}),
        _expression(
            "C",
            {
                "type": "threshold",
                "expression": "B",
                "conditions": [{"evaluator": {"type": "gt", "params": [above]}}],
            },
        ),
    ]


def _expression(reference: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": reference,
        "datasourceUid": "__expr__",
        "relativeTimeRange": {"from": 0, "to": 0},
        "model": {
            "refId": reference,
            "datasource": {"type": "__expr__", "uid": "__expr__"},
            **model,
        },
    }
