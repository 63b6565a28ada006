"""Postgres: the declared schema, the migrations' runner, the embedded server, and the adapters of accounting's ports."""
