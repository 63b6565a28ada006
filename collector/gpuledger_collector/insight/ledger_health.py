"""What a look at the ledger finds that somebody may have to repair."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger_collector.accounting.placement import RefusedClaim
from gpuledger_collector.insight.queue_health import QueueHealth

MAX_PARTITIONS = 1_000
"""Of all tables together; ten years of evidence have some 300.

A server with default settings can lock a few thousand tables and indexes at once.
"""


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """The ledger over the last days. Counts are rows, `_ns` GPU-nanoseconds."""

    nodes: int
    silent: tuple[str, ...]
    back_again: tuple[str, ...]
    uninstalled: tuple[str, ...]
    troubled: tuple[tuple[str, str], ...]
    accelerators: int
    prices: int
    held_ns: int
    unattributed_ns: int
    unpriced_ns: int
    failed_jobs: tuple[tuple[str, str], ...]
    last_job_ms: int | None
    conflicts: int
    claims: tuple[RefusedClaim, ...]
    unbound_tokens: int
    """Live agent tokens without a node: they can report any node."""
    partitions: int
    """Partitions of all partitioned tables."""
    refused: tuple[tuple[str, str], ...]
    """Senders of which reports are refused for a limit, and about how many lately."""
    first_heard: tuple[str, ...]
    """Nodes of which the ledger first heard within the last day, from agents."""
    has_agent_tokens: bool
    """Whether a token of an agent was ever created: from then on each agent needs one."""
    failed_writers: tuple[tuple[str, str], ...]
    """Hosts of live collectors -> why they last failed to write batches."""


@dataclass(frozen=True, slots=True)
class Declarations:
    """What is declared or open, to be compared with settings and clocks.

    Instants are unix milliseconds.
    """

    server_ms: int
    """The database's clock."""
    unknown_zones: tuple[str, ...]
    """Billing zones in force of which this machine has no data."""
    commitments: tuple[tuple[str, int], ...]
    """Names of commitments in force, and when they end."""
    recipients: tuple[tuple[str, tuple[str, ...]], ...]
    """Budgets and their recipients."""
    queues: tuple[tuple[str, int], ...]
    """Schedulers and when their queue was last read."""
    acting: tuple[str, ...]
    """Pools in mode `act` without a rate in force."""
    disputed_ms: tuple[tuple[int, int], ...]
    """Open disputes, and the instant from which they need evidence."""
    unknown_regions: tuple[str, ...]
    """Regions of rates and commitments in which no pool stands."""
    versions: tuple[tuple[str, str], ...]
    """Nodes and the versions of their agents."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The ledger over the last days, what is declared, and what of the database's own protection
    is missing.
    """

    server_version: str
    health: LedgerHealth
    declared: Declarations
    declared_ms: int
    """The collector's clock when the declarations were read."""
    viewers_remedy: str
    """What to run so that row-level security holds viewers to their rows; empty where it does."""
    unfiltered: tuple[str, ...]
    """Tables that take no policy on Citus."""
    unlimited_readers: tuple[str, ...]
    """Roles of dashboards that could take more than their share of the database."""
    broken_proofs: tuple[str, ...]
    """What the ledger states twice and differently, in sentences."""
    missing_grant: str
    """The statement without which a session may be refused the partition of a new day."""
    unmatched_tokens: tuple[str, ...] = ()
    """What of shared model servers moves nothing, in sentences."""
    queues: QueueHealth = field(default_factory=QueueHealth)
    """Queues of Kubernetes schedulers."""
