"""The declared schema: what the migrations must add up to (a test compares the two).

Units stand in the names: `_ms` integer milliseconds (instants: UTC unix), `gpu_micro` millionths of
a device, `gpu_ns` GPU-nanoseconds (micro-GPUs x milliseconds, 3.6e12 make one GPU-hour), `_micro`
millionths of the currency's major unit, `_mj` millijoules. Big tables carry `accelerator_id` in
every key, have no triggers and can be partitioned or sharded by it later.
"""

from gpuledger_collector.storage.schema import (
    access,
    billing,
    capacity,
    findings,
    ledger,
    notifications,
    server,
    telemetry,
)
from gpuledger_collector.storage.schema.columns import metadata

__all__ = [
    "access",
    "billing",
    "capacity",
    "findings",
    "ledger",
    "metadata",
    "notifications",
    "server",
    "telemetry",
]
