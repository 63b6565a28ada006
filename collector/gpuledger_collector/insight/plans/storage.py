"""Storage requirements: bytes per second of samples, bytes of a checkpoint and how fast they must
be written.

A checkpoint holds what the optimizer needs to resume: fp32 weights and moments, and the weights as
trained where those are narrower; no gradients. With Adam and bf16 that is 14 bytes a parameter
(BLOOM 176B's are 2.3 TB; Workshop 2022). Limits: no file system's metadata, striping or cache; one
full copy, whatever the number of ranks that write it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger_collector.insight.plans.memory import MOMENT_BYTES, TRAINING, require, trained_bytes


@dataclass(frozen=True, slots=True)
class Storage:
    """Data read and stored.

    `interval_seconds`: work between checkpoints; `stall`: share of wall time for them.
    """

    parameters: float
    samples_per_second: float
    sample_bytes: float
    interval_seconds: float
    stall: float = 0.01
    kept: int = 3
    precision: str = "bf16"
    optimizer: str = "adam"
    dataset_bytes: float = 0.0

    def __post_init__(self) -> None:
        require("--precision of training", self.precision, TRAINING)
        require("--optimizer", self.optimizer, MOMENT_BYTES)
        if not (
            self.parameters > 0
            and self.samples_per_second > 0
            and self.sample_bytes > 0
            and self.kept > 0
        ):
            raise ValueError(
                "parameters, samples, their bytes and the checkpoints to keep must be above 0"
            )
        if not (self.interval_seconds > 0 and 0 < self.stall < 1 and self.dataset_bytes >= 0):
            raise ValueError(
                "the interval must be above 0, and the stall budget a share between 0 and 1"
            )


@dataclass(frozen=True, slots=True)
class StorageNeed:
    """Bytes, and bytes per second.

    `write_bytes_per_second`: where the run waits for the write; `background_bytes_per_second`:
    where it continues after a copy to host memory and the write has to end in time.
    `capacity_bytes`: dataset, the checkpoints that are kept and the one being written.
    """

    read_bytes_per_second: float
    checkpoint_bytes: float
    weights_bytes: float
    stall_seconds: float
    write_bytes_per_second: float
    background_bytes_per_second: float
    capacity_bytes: float


def checkpoint_bytes(parameters: float, precision: str, optimizer: str) -> float:
    """Return the bytes of a checkpoint that training can resume from."""
    # fp32 weights always, and the weights as trained where those are narrower.
    narrow = trained_bytes(precision) % 4.0
    return parameters * (4.0 + narrow + MOMENT_BYTES[optimizer])


def storage_need(asked: Storage) -> StorageNeed:
    """A stall of d after t of work takes d / (t + d) of the wall, so a budget s leaves d = s t / (1
    - s).
    """
    size = checkpoint_bytes(asked.parameters, asked.precision, asked.optimizer)
    stall = asked.stall * asked.interval_seconds / (1.0 - asked.stall)
    return StorageNeed(
        read_bytes_per_second=asked.samples_per_second * asked.sample_bytes,
        checkpoint_bytes=size,
        weights_bytes=asked.parameters * trained_bytes(asked.precision),
        stall_seconds=stall,
        write_bytes_per_second=size / stall,
        background_bytes_per_second=size / (asked.interval_seconds + stall),
        capacity_bytes=asked.dataset_bytes + (asked.kept + 1) * size,
    )
