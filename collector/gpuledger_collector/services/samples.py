"""Raw readings of accelerators, recent and packed alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.readings import AcceleratorPeriod, Readings
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.telemetry import archive

METRICS: Mapping[str, str] = archive.KINDS
"""Kinds of number (f4, f8 or i8) of the catalog's metrics that are stored as samples."""


def accelerators_named(
    connection: Connection, period: Period, *, node: str | None = None, uuid: str | None = None
) -> list[AcceleratorPeriod]:
    """The accelerator with this UUID for the whole period, or those of a node while they were on
    it, by index.
    """
    return archive.accelerator_periods(connection, period, node, uuid)


def read_samples(connection: Connection, accelerator: AcceleratorPeriod) -> Readings:
    """All samples of an accelerator in its period."""
    samples = archive.samples(connection, [accelerator.accelerator_id], accelerator.period)
    return Readings(samples.at_ms, samples.columns)


def stream_samples(
    connection: Connection, accelerators: Iterable[AcceleratorPeriod]
) -> Iterator[tuple[str, Readings]]:
    """The samples of each accelerator by its UUID, a day after the other, so that no more than a
    day is in memory.
    """
    for accelerator in accelerators:
        for _, readings in archive.readings(
            connection, [accelerator.accelerator_id], accelerator.period
        ):
            yield accelerator.uuid, readings
