"""Who reads beside the collector, and what is locked against doing something twice at once."""

import sqlalchemy as sa

from gpuledger_collector.storage.locks import ABOUT, Lock
from gpuledger_collector.storage.schema.columns import metadata

database_reader = sa.Table(
    "database_reader",
    metadata,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    comment="Roles made by `gpuledger db grant-reader`: a collector ends their sessions that go beyond their limits.",
)
for _lock in Lock:
    sa.Table(_lock.value, metadata, comment=ABOUT)
