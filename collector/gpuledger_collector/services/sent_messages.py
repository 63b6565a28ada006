"""Who was told what: notifications and the messages of the outbox."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.insight.notifications.delivery_rules import WriteDigest
from gpuledger_collector.insight.notifications.listed import ListedNotification, OutboxEntry
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications import finding_notifications, outbox

MAX_LISTED = 200


def list_notifications(database: Database, now_ms: int) -> list[ListedNotification]:
    """The last notifications, newest first."""
    with database.connect() as connection:
        return [
            ListedNotification(
                notification, finding_notifications.subject_of(connection, notification), now_ms
            )
            for notification in finding_notifications.newest(connection, MAX_LISTED)
        ]


def list_messages(database: Database, states: Sequence[str] | None = None) -> list[OutboxEntry]:
    """Messages of these states (None: of all), newest first."""
    with database.connect() as connection:
        return outbox.list_messages(connection, states)


def rehearse_sending(
    database: Database, now_ms: int, write: WriteDigest, channels: Sequence[str]
) -> list[tuple[str, str]]:
    """Recipient and subject of what would be sent now over these channels; nothing is changed."""
    with database.transaction(dry_run=True) as connection:
        return outbox.rehearse(connection, now_ms, write, channels)
