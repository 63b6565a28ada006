"""The page of a running exporter as a source, and the pod and job labels on its lines as owners.

What the page means is declared by a profile (gpuledger_common.profiles): dcgm-exporter's, another
one's, or a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from gpuledger_common.profiles.fetch import fetch
from gpuledger_common.profiles.library import named_profile, only_match, packaged_profiles
from gpuledger_common.profiles.lines import read_lines
from gpuledger_common.profiles.page import Page, PageAccelerator, read_page
from gpuledger_common.readings import (
    Accelerator,
    Holder,
    Holders,
    Inventory,
    Sample,
    SourceUnavailable,
)


class ExporterSource:
    """Reads the page at each tick; also an owner source, by the labels."""

    def __init__(
        self,
        target: str,
        profile: str = "",
        node: str = "",
        name: str = "exporter",
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        fetch: Callable[[str], str] = fetch,
    ) -> None:
        self.name, self._fetch = name, fetch
        self._target, self._node, self._monotonic_ns = target, node, monotonic_ns
        self._profile = named_profile(profile) if profile else None
        self._accelerators: dict[str, PageAccelerator] = {}
        self._inventory: Inventory | None = None
        self._changed: Inventory | None = None

    def _read_page(self) -> Page:
        try:
            lines = read_lines(self._fetch(self._target))
            if self._profile is None:
                self._profile = only_match(packaged_profiles(), lines)
            page = read_page(self._profile, lines, self._node)
        except ValueError as error:
            raise SourceUnavailable(f"{self._target}: {error}") from error
        self._accelerators = self._of_this_node(page)
        return page

    def _of_this_node(self, page: Page) -> dict[str, PageAccelerator]:
        """The accelerators of this node: some exporters show those of several hosts."""
        if len(page.hosts) <= 1:
            return dict(page.accelerators)
        if self._node not in page.hosts:
            hosts = ", ".join(sorted(page.hosts)[:5])
            raise SourceUnavailable(
                f"{self._target}: the page shows the hosts {hosts}: --node names one of them"
            )
        return {
            uuid: entry for uuid, entry in page.accelerators.items() if entry.host == self._node
        }

    def _list(self, page: Page) -> Inventory:
        drivers = {entry.driver for entry in self._accelerators.values() if entry.driver}
        accelerators = [entry.accelerator for entry in self._accelerators.values()]
        return Inventory(min(drivers, default=None), accelerators, page.problems)

    def open(self) -> Inventory:
        """The accelerators on the page."""
        self._inventory, self._changed = self._list(self._read_page()), None
        return self._inventory

    def read(self, _tiers: Iterable[str]) -> Sequence[Sample]:
        """A sample of every accelerator on the page.

        Raises SourceUnavailable while the exporter does not answer.
        """
        inventory = self._list(self._read_page())
        # Parts of a device, and chips without a workload, come and go with what runs on them.
        if self._inventory is not None and inventory != self._inventory:
            self._changed = inventory
        self._inventory = inventory
        now_ns = self._monotonic_ns()
        return [
            Sample(uuid, now_ns, dict(entry.values), entry.absent, (), entry.health)
            for uuid, entry in self._accelerators.items()
        ]

    def take_changed(self) -> Inventory | None:
        """The inventory, if the last read showed another one than before."""
        changed, self._changed = self._changed, None
        return changed

    def holders(self, _accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The workloads in the labels of the last page; several pods on one device share it
        equally.
        """
        return {
            uuid: [Holder(workload) for workload in entry.owners.values()]
            for uuid, entry in self._accelerators.items()
            if entry.owners
        }

    def close(self) -> None:
        """Forget the page."""
        self._accelerators, self._inventory, self._changed = {}, None, None
