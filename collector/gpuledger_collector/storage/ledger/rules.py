"""Attribution rules in Postgres: dated, ordered, superseded and never edited."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpuledger_collector.accounting.attribution import Rule, edges_of
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import columns_of, select_as
from gpuledger_common.instants import to_datetime


def current(connection: Connection) -> list[Rule]:
    """Read the rules in force, by position."""
    return select_as(
        connection,
        Rule,
        f"SELECT {columns_of(Rule)} FROM attribution_rule WHERE superseded_at IS NULL ORDER BY"
        " position, id",
    )


def replace_rules(connection: Connection, rules: Sequence[Rule], now_ms: int) -> ImportOutcome:
    """Replace the rules in force; rules of the same content stay. Requests every rated day."""
    known = {_content(rule): rule for rule in current(connection)}
    wanted = {_content(rule): rule for rule in rules}
    gone = [rule.id for content, rule in known.items() if content not in wanted]
    new = [rule for content, rule in wanted.items() if content not in known]
    connection.execute(
        "UPDATE attribution_rule SET superseded_at = %s WHERE id = ANY(%s)",
        (to_datetime(now_ms), gone),
    )
    for rule in new:
        connection.execute(
            "INSERT INTO attribution_rule (name, position, match, assign, effective_from_ms,"
            " effective_to_ms, recorded_at) VALUES (%s, %s, %s::jsonb, %s::jsonb, %s, %s, %s)",
            (
                rule.name,
                rule.position,
                json.dumps(dict(rule.match)),
                json.dumps(dict(rule.assign)),
                rule.effective_from_ms,
                rule.effective_to_ms,
                to_datetime(now_ms),
            ),
        )
    changes = [
        audit.Change("rule", known[content].name, _facts(content), None)
        for content in known
        if content not in wanted
    ]
    changes += [
        audit.Change("rule", wanted[content].name, None, _facts(content))
        for content in wanted
        if content not in known
    ]
    audit.record(connection, changes, now_ms)
    marked = 0
    changed = [known[content] for content in known if content not in wanted] + new
    usage.request_recompute_at(connection, edges_of(changed))
    if gone or new:
        marked = connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
        ).rowcount
    return ImportOutcome(len(new), 0, len(wanted) - len(new), marked)


def _facts(content: str) -> dict[str, object]:
    names = ("name", "position", "match", "assign", "effective_from_ms", "effective_to_ms")
    return dict(zip(names, json.loads(content), strict=True))


def _content(rule: Rule) -> str:
    return json.dumps(
        [
            rule.name,
            rule.position,
            dict(rule.match),
            dict(rule.assign),
            rule.effective_from_ms,
            rule.effective_to_ms,
        ],
        sort_keys=True,
    )
