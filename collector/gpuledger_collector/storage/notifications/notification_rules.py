"""Declared delivery rules, contacts and reclaim rules; what a file no longer declares is
superseded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.insight.notifications.delivery_rules import DeliveryRules
from gpuledger_collector.insight.notifications.finding_rules import AnomalyFloor, Contact
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimRule
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.instants import to_datetime

RECIPIENT, CONTACT, ACTION, ANOMALY_FLOOR = "recipient", "contact", "action", "anomaly_floor"


def recipients(connection: Connection) -> dict[str, DeliveryRules]:
    """The rules in force by recipient."""
    return {name: DeliveryRules(**terms) for name, terms in _current(connection, RECIPIENT).items()}


def contacts(connection: Connection) -> list[Contact]:
    """Contacts in force, by name."""
    return [Contact(**terms) for terms in _current(connection, CONTACT).values()]


def actions(connection: Connection) -> list[ReclaimRule]:
    """Reclaim rules of teams that opted in, by name."""
    return [ReclaimRule(**terms) for terms in _current(connection, ACTION).values()]


def anomaly_floors(connection: Connection) -> list[AnomalyFloor]:
    """What an anomaly must cost before it is mailed, by currency."""
    return [AnomalyFloor(**terms) for terms in _current(connection, ANOMALY_FLOOR).values()]


def _current(connection: Connection, kind: str) -> dict[str, dict[str, Any]]:
    rows = connection.execute(
        "SELECT name, terms FROM notification_rule WHERE kind = %s AND superseded_at IS NULL ORDER"
        " BY name",
        (kind,),
    )
    return {name: {key: _tuple(value) for key, value in terms.items()} for name, terms in rows}


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def replace_recipients(
    connection: Connection, wanted: Mapping[str, DeliveryRules], now_ms: int
) -> ImportOutcome:
    """Replace the rules of recipients."""
    return _replace(
        connection, RECIPIENT, {name: asdict(rules) for name, rules in wanted.items()}, now_ms
    )


def replace_contacts(
    connection: Connection, wanted: Sequence[Contact], now_ms: int
) -> ImportOutcome:
    """Replace the contacts."""
    return _replace(connection, CONTACT, {each.name: asdict(each) for each in wanted}, now_ms)


def replace_actions(
    connection: Connection, wanted: Sequence[ReclaimRule], now_ms: int
) -> ImportOutcome:
    """Replace the reclaim rules."""
    return _replace(connection, ACTION, {each.name: asdict(each) for each in wanted}, now_ms)


def replace_anomaly_floors(
    connection: Connection, wanted: Sequence[AnomalyFloor], now_ms: int
) -> ImportOutcome:
    """Replace what an anomaly must cost before it is mailed."""
    return _replace(
        connection, ANOMALY_FLOOR, {each.currency: asdict(each) for each in wanted}, now_ms
    )


def _replace(
    connection: Connection, kind: str, wanted: Mapping[str, Mapping[str, Any]], now_ms: int
) -> ImportOutcome:
    plain = {name: json.loads(json.dumps(terms)) for name, terms in wanted.items()}
    rows = connection.execute(
        "SELECT name, terms FROM notification_rule WHERE kind = %s AND superseded_at IS NULL",
        (kind,),
    ).fetchall()
    known: dict[str, Any] = dict(rows)
    changed = sorted(
        name for name in known.keys() | plain.keys() if known.get(name) != plain.get(name)
    )
    connection.execute(
        "UPDATE notification_rule SET superseded_at = %s WHERE kind = %s AND superseded_at IS NULL"
        " AND name = ANY(%s)",
        (to_datetime(now_ms), kind, changed),
    )
    for name in changed:
        if name in plain:
            connection.execute(
                "INSERT INTO notification_rule (kind, name, terms, recorded_at) VALUES (%s, %s,"
                " %s::jsonb, %s)",
                (kind, name, json.dumps(plain[name]), to_datetime(now_ms)),
            )
    changes = [audit.Change(kind, name, known.get(name), plain.get(name)) for name in changed]
    audit.record(connection, changes, now_ms)
    added = sum(name not in known for name in changed)
    unchanged = sum(known.get(name) == terms for name, terms in plain.items())
    return ImportOutcome(added, len(changed) - added, unchanged)
