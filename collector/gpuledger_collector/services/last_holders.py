"""Who held a GPU last since it is sick, which is who should look at what ran there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gpuledger_collector.insight.last_holder import LastHolder
from gpuledger_collector.storage.billing.last_holders import read_last_holders
from gpuledger_collector.storage.locks import Connection


class SickGpu(Protocol):
    """A GPU that is not well, and since when; None: not known."""

    @property
    def uuid(self) -> str:
        """Its name."""

    @property
    def health_since_ms(self) -> int | None:
        """When its reports first said so."""


def find_last_holders(connection: Connection, sick: Iterable[SickGpu]) -> Mapping[str, LastHolder]:
    """Find by UUID who held each of these GPUs last since it is sick, for a reader of the entire
    fleet; nothing where that is not known, or nobody did.
    """
    since_ms = {gpu.uuid: gpu.health_since_ms for gpu in sick if gpu.health_since_ms is not None}
    return read_last_holders(connection, since_ms) if since_ms else {}
