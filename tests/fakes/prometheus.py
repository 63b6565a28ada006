"""A sender of remote write built with the real protobuf classes, and a page of a dcgm-exporter to
scrape.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cramjam

from gpuledger_collector.ingest.remote_write.messages import ONE, TWO

ONE_TYPE = "application/x-protobuf"
TWO_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
WRITE = "/api/v1/write"


def headers(version: int = 1, **others: str) -> dict[str, str]:
    """What a sender sends along."""
    return {
        "Content-Type": ONE_TYPE if version == 1 else TWO_TYPE,
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0" if version == 1 else "2.0.0",
        **others,
    }


@dataclass(frozen=True)
class Point:
    """One sample of one series."""

    labels: tuple[tuple[str, str], ...]
    value: float
    at_ms: int


def labels(
    name: str, gpu: int = 0, node: str = "node-1", **others: str
) -> tuple[tuple[str, str], ...]:
    """Labels as dcgm-exporter and Prometheus make them, sorted."""
    made = {
        "__name__": name,
        "DCGM_FI_DRIVER_VERSION": "570.86.15",
        "Hostname": node,
        "UUID": f"GPU-{node}-{gpu}",
        "device": f"nvidia{gpu}",
        "gpu": str(gpu),
        "instance": f"{node}:9400",
        "job": "dcgm",
        "modelName": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": f"00000000:{gpu:02X}:00.0",
        **others,
    }
    return tuple(sorted((key, value) for key, value in made.items() if value))


def pod(name: str, namespace: str = "vision", container: str = "train") -> dict[str, str]:
    """The labels of a pod that holds a GPU."""
    return {"pod": name, "namespace": namespace, "container": container}


VALUES = {
    "DCGM_FI_DEV_GPU_UTIL": 80.0,
    "DCGM_FI_DEV_POWER_USAGE": 400.0,
    "DCGM_FI_DEV_FB_USED": 40_000.0,
    "DCGM_FI_DEV_GPU_TEMP": 60.0,
}


def scrape(
    at_ms: int, gpu: int = 0, values: dict[str, float] | None = None, **others: str
) -> list[Point]:
    """One scrape of one GPU."""
    return [
        Point(labels(name, gpu, **others), value, at_ms)
        for name, value in (values or VALUES).items()
    ]


def one(points: Iterable[Point]) -> bytes:
    """A 1.0 message, not yet compressed; a series a point, as Prometheus writes it."""
    request = ONE["WriteRequest"]()
    for point in points:
        series = request.timeseries.add()
        for name, value in point.labels:
            series.labels.add(name=name, value=value)
        series.samples.add(value=point.value, timestamp=point.at_ms)
    return request.SerializeToString()


def two(points: Sequence[Point]) -> bytes:
    """A 2.0 message, not yet compressed."""
    request = TWO["Request"]()
    places = {"": 0}
    for point in points:
        series = request.timeseries.add()
        for text in (text for pair in point.labels for text in pair):
            series.labels_refs.append(places.setdefault(text, len(places)))
        series.samples.add(value=point.value, timestamp=point.at_ms)
        series.metadata.type = 2
    request.symbols.extend(places)
    return request.SerializeToString()


def snappy(message: bytes) -> bytes:
    """The block format."""
    return bytes(cramjam.snappy.compress_raw(message))
