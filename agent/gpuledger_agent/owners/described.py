"""Holders that one source finds, described by others: a container found by its processes gets its name and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpuledger_common.readings import Accelerator, Holder, OwnerSource, Sample, Workload


class DescribedOwners:
    """The holders of another source, each passed through those who may know more of it."""

    def __init__(self, owners: OwnerSource, describe: Sequence[Callable[[Workload], Workload]]) -> None:
        self.name = owners.name
        self._owners, self._describe = owners, describe

    def holders(self, accelerators: Sequence[Accelerator], samples: Sequence[Sample]) -> Mapping[str, Sequence[Holder]]:
        """The same holders at the same weights."""
        return {
            uuid: [replace(holder, workload=self._told(holder.workload)) for holder in holders]
            for uuid, holders in self._owners.holders(accelerators, samples).items()
        }

    def _told(self, workload: Workload) -> Workload:
        for describe in self._describe:
            workload = describe(workload)
        return workload
