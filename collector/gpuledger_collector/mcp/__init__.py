"""Answers for assistants: the ledger over the Model Context Protocol, read-only.

`tools` asks the services that the commands and the HTTP API ask; `answers` says how every answer is
built. Only `server` and `http` import the SDK, which is an extra (`gpuledger[mcp]`).
"""
