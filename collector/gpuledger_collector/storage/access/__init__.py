"""Who may read and write what: tokens, roles, row-level security, the audit log, personal data."""
