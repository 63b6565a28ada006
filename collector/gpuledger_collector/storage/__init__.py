"""Postgres: the declared schema, the migrations' runner, the embedded server, the adapters of
accounting's ports.
"""
