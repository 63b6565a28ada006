"""What assistants are admitted: the rows of POST /mcp and of standard input."""

from __future__ import annotations

from gpuledger_collector.mcp import http, ledger, server, stdio
from gpuledger_collector.mcp.answers import MAX_CHARACTERS, MAX_ROWS
from gpuledger_common.admission import NONE, Admission

ROUTES = (
    Admission(
        way_in=f"POST {http.PATH}",
        payer="token; without tokens, the address",
        bytes=f"{http.MAX_BODY_BYTES // 1024} KiB",
        inflated_bytes=NONE,
        records="one call",
        age=NONE,
        rate=NONE,
        in_progress=(
            f"turns of readers; {server.CALLS_AT_ONCE} calls of all read the ledger at once"
        ),
        deadline=f"{ledger.STATEMENT_SECONDS} s a statement",
        query=f"read only; {MAX_ROWS} rows, {MAX_CHARACTERS:,} characters an answer",
        adds=NONE,
    ),
)
STREAMS = (
    Admission(
        way_in="standard input of gpuledger mcp",
        payer="whoever starts it",
        bytes=f"{stdio.MAX_LINE_BYTES // 1024} KiB a line",
        inflated_bytes=NONE,
        records="one call a line",
        age=NONE,
        rate="as answers are read",
        in_progress=f"{server.CALLS_AT_ONCE} calls read the ledger at once",
        deadline=f"{ledger.STATEMENT_SECONDS} s a statement",
        query=f"read only; {MAX_ROWS} rows, {MAX_CHARACTERS:,} characters an answer",
        adds=NONE,
    ),
)
ADMISSIONS = (*ROUTES, *STREAMS)
