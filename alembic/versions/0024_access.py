"""Locks that a role for reading cannot hold, and the roles whose sessions are watched.

Revision ID: 0024
Revises: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
phase = "pre"

LOCKS = ("actions", "audit", "budgets", "findings", "imports", "jobs", "ledger", "letters", "outbox",
         "outbox_plan", "packing", "partitions", "prices", "recommendations", "scaling", "scrapes", "series",
         "viewer_wall")
CREATE = """
CREATE TABLE database_reader (
    role TEXT NOT NULL,
    granted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_database_reader PRIMARY KEY (role)
);

COMMENT ON TABLE database_reader IS
    'Roles made by `gpuledger db grant-reader`: a collector ends their sessions that go beyond their limits.';

INSERT INTO database_reader (role)
SELECT r.rolname FROM pg_roles r JOIN pg_db_role_setting s ON s.setrole = r.oid
JOIN pg_database d ON d.oid = s.setdatabase
WHERE d.datname = current_database() AND 'default_transaction_read_only=on' = ANY (s.setconfig) AND NOT r.rolsuper
AND r.rolname <> current_user AND has_table_privilege(r.oid, 'charge', 'SELECT');
"""


def upgrade() -> None:
    """Create them; what `grant-reader` has made so far is watched as well. `lock_migrations` is held, so it is there."""
    for lock in LOCKS:
        op.execute(f"CREATE TABLE lock_{lock} ()")
        op.execute(f"COMMENT ON TABLE lock_{lock} IS 'Locked by whoever does this alone; holds nothing.'")
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    op.execute("DROP TABLE database_reader")
    for lock in (*LOCKS, "migrations"):
        op.execute(f"DROP TABLE lock_{lock}")
