"""Rows of the ledger's tables as Python values: what imports write and what rating reads."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.quick_values import made_quickly

UNKNOWN_POOL = "imported"
"""The pool of jobs for which neither the file nor the person names one."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of an imported usage file; `end_ms` None means still running.

    `line` is where it stands in the file.
    """

    line: int
    workload_id: str
    start_ms: int
    end_ms: int | None
    gpu_micro: int
    gpu_model: str = ""
    pool: str = UNKNOWN_POOL
    node: str = ""
    user: str | None = None
    account: str | None = None
    job_name: str | None = None
    queue: str | None = None
    """The queue of a Kubernetes scheduler; a partition of Slurm is a pool."""
    submitted_ms: int | None = None
    state: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


OPTIONAL = (
    "gpu_model",
    "pool",
    "node",
    "user",
    "account",
    "job_name",
    "queue",
    "submitted_ms",
    "state",
)
"""Fields of a UsageRow that a file need not have."""


@dataclass(frozen=True, slots=True)
class UsageColumns:
    """What an imported file has columns for: about the rest it says nothing, and what is known
    stays.
    """

    fields: frozenset[str] = frozenset(OPTIONAL)
    tags: frozenset[str] | None = None
    """Names of tags; None where the file has all tags of its jobs."""
    has_runs: bool = False
    """Whether rows of one id at different times are runs of a requeued job, each of which held its
    GPUs.
    """


ALL_COLUMNS = UsageColumns()


class UsageSource(enum.StrEnum):
    """What brought imported usage; each kind gives jobs ids of its own, so two of them would bill a
    job twice.
    """

    sacct = "sacct"
    table = "table"


UNKNOWN_SOURCE = "unknown"
"""Source of usage that was imported before sources were recorded, where neither its id nor its
times tell.
"""


class OnOverlap(enum.Enum):
    """What happens to usage that another source brought for the same time of the same GPUs."""

    refuse = "refuse"
    replace = "replace"
    also = "also"


class OtherSource(ValueError):
    """Another source brought usage for the same time; the message states the choice."""


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """A row of an inventory file: an accelerator, where it stands, and from when to when (`out_ms`
    None: still).
    """

    line: int
    node: str
    uuid: str
    gpu_model: str
    pool: str
    in_ms: int
    out_ms: int | None


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One imported sample: readings by catalog name of one accelerator at one instant, as checked
    decimal text.
    """

    line: int
    uuid: str
    at_ms: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """How many rows of a file did what; `days_to_recompute` is the number of UTC days to be rated
    again.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    days_to_recompute: int = 0
    kept: int = 0
    """Rows with values that their file has no column for, and that stay as they were."""
    replaced: int = 0
    """Workloads of another source that were removed."""
    nearby: int = 0
    """Workloads of another source that stay, though they begin or end within hours of the replaced
    time.
    """
    unknown: int = 0
    """Workloads of an unknown source in the time of the file: they are billed beside it."""
    closed_months: tuple[str, ...] = ()
    """Closed months among the days to rate again: they stay, and what changes is a correction."""


@made_quickly
@dataclass(frozen=True, slots=True)
class CapacityRow:
    """When an accelerator was there to be held, where and in which pool."""

    accelerator_id: int
    gpu_micro: int
    gpu_model: str
    pool: str
    node: str
    in_ms: int
    out_ms: int | None
    source: str
    uuid: str = ""
    device: str = ""
    """UUID of its board."""


@made_quickly
@dataclass(frozen=True, slots=True)
class EvidenceSum:
    """Usage intervals of an accelerator that begin in one hour, in one state and by one report of a
    holder, added up.

    `first_ms` and `last_ms` are their first start and last end; `is_additive` says that folding
    them gives these sums where nothing cuts the hour and the accelerator is on `node` from first to
    last.
    """

    accelerator_id: int
    hour_ms: int
    state: str
    workload_id: int | None
    attributes_id: int | None
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    energy_mj: int | None
    first_ms: int
    last_ms: int
    node_id: int
    node: str
    is_additive: bool


@dataclass(frozen=True, slots=True)
class RecomputeRequest:
    """A request to recompute an hour of an accelerator, for which evidence arrived."""

    id: int
    accelerator_id: int
    hour_ms: int


@dataclass(frozen=True, slots=True)
class HeldUsage(Measures):
    """What one workload held on one day in one place, in one currency."""

    day_ms: int
    workload_id: int
    pool: str
    node: str
    currency: str | None
