"""A running dcgm-exporter as a source, and the pod and job labels on its lines as owners."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpuledger_common.dcgm_page import DcgmPage, page_health, parse
from gpuledger_common.readings import Accelerator, Holder, Holders, Inventory, Sample, SourceUnavailable

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


class DcgmSource:
    """Reads the page at each tick; also an owner source, by the labels."""

    name = "dcgm"

    def __init__(self, target: str, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._target, self._monotonic_ns = target, monotonic_ns
        self._page: DcgmPage | None = None

    def _read_page(self) -> DcgmPage:
        try:
            self._page = parse(fetch(self._target))
        except ValueError as error:
            raise SourceUnavailable(f"{self._target}: {error}") from error
        return self._page

    def open(self) -> Inventory:
        """The accelerators on the page."""
        page = self._read_page()
        drivers = {entry.driver for entry in page.accelerators.values() if entry.driver}
        accelerators = [entry.accelerator for entry in page.accelerators.values()]
        return Inventory(min(drivers, default=None), accelerators, page.problems)

    def read(self, _tiers: Iterable[str]) -> Sequence[Sample]:
        """A sample of every accelerator on the page. Raises SourceUnavailable while the exporter does not answer."""
        page = self._read_page()
        now_ns = self._monotonic_ns()
        return [
            Sample(uuid, now_ns, dict(entry.values), {}, (), page_health(entry.values))
            for uuid, entry in page.accelerators.items()
        ]

    def holders(self, _accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The workloads in the labels of the last page; several pods on one device share it equally."""
        if self._page is None:
            return {}
        return {
            uuid: [Holder(workload) for workload in entry.owners.values()]
            for uuid, entry in self._page.accelerators.items()
            if entry.owners
        }

    def close(self) -> None:
        """Forget the page."""
        self._page = None
