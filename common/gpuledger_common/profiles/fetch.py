"""Fetch an exporter's page from its address or a file."""

from __future__ import annotations

import http.client
from pathlib import Path

from gpuledger_common.bounded_file import read_regular
from gpuledger_common.http_exchange import get_page
from gpuledger_common.readings import SourceUnavailable

TIMEOUT_S = 5.0
"""For the whole page; sampling waits for it."""
MAX_PAGE_BYTES = 16 * 1024 * 1024


def fetch(target: str) -> str:
    """The text of an address or a file. Raises SourceUnavailable."""
    if not target.startswith(("http://", "https://")):
        try:
            return read_regular(Path(target), MAX_PAGE_BYTES).decode("utf-8", errors="replace")
        except OSError as error:
            raise SourceUnavailable(f"{target}: cannot be read ({error.strerror})") from error
    address = target if target.rstrip("/").endswith("/metrics") else target.rstrip("/") + "/metrics"
    try:
        return get_page(address, timeout_s=TIMEOUT_S, max_bytes=MAX_PAGE_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceUnavailable(
            f"{address}: no answer ({error or type(error).__name__})"
        ) from error
