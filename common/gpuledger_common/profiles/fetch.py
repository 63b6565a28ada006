"""Fetch an exporter's page from its address or a file."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from gpuledger_common.readings import SourceUnavailable

TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 32 * 1024 * 1024


def fetch(target: str) -> str:
    """The text of an address or a file. Raises SourceUnavailable."""
    if not target.startswith(("http://", "https://")):
        try:
            return Path(target).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise SourceUnavailable(f"{target}: cannot be read ({error.strerror})") from error
    address = target if target.rstrip("/").endswith("/metrics") else target.rstrip("/") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the scheme was checked
            body: bytes = answer.read(MAX_PAGE_BYTES)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise SourceUnavailable(f"{address}: no answer ({getattr(error, 'reason', error)})") from error
    return body.decode("utf-8", errors="replace")
