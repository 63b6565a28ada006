"""What a page of a gateway counts: series of tokens by tenant, model and backend.

Labels that name persons, addresses or keys are never kept: a series is told from others by a digest
of its labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger_common.gateways.model import (
    OVERFLOW_TENANT,
    GatewayProfile,
    Kind,
    TokenFamily,
    Trust,
)
from gpuledger_common.gateways.twins import NamedCount, TwinIndex
from gpuledger_common.profiles.lines import Lines
from gpuledger_common.profiles.model import first
from gpuledger_common.serving_counters import STARTED, exact_count

MAX_TEXT = 500
"""Characters of a tenant, a model or a backend; longer ones are cut."""
DIGEST_CHARACTERS = 32


@dataclass(frozen=True, slots=True, order=True)
class GatewaySeries:
    """What a series of a gateway counts, and for whom."""

    profile: str
    kind: Kind
    tenant: str
    """Empty for a request whose key belongs to no tenant."""
    trust: Trust
    model: str
    backend: str
    digest: str
    rank: int
    """Of the names that repeat each other on a page, that of the lowest rank counts."""

    @property
    def count(self) -> NamedCount:
        """What the series counts, to find those that repeat it."""
        return NamedCount(self.kind, self.rank, self.tenant, self.model, self.backend)

    @property
    def part(self) -> str:
        """The series among those of one tenant, with the rank of its name."""
        return f"{self.rank}.{self.digest}"


@dataclass(frozen=True, slots=True)
class GatewayPage:
    """The series of a page with their values, and the start of its process where it says so."""

    counts: Mapping[GatewaySeries, int]
    started_ms: int | None
    twins: int
    """Series left out because a better name of the same count is on the page."""


def find_families(
    profile: GatewayProfile, name: str, labels: Mapping[str, str]
) -> Iterable[TokenFamily]:
    """The families of a profile that a series belongs to, with its labels."""
    if not profile.has_labels(labels):
        return ()
    return [family for family in profile.families.get(name, ()) if family.condition.holds(labels)]


def tenant_of(profile: GatewayProfile, labels: Mapping[str, str]) -> tuple[str, Trust]:
    """Who asked by the labels of a series, and who says so; the empty tenant where nobody does."""
    for tenant in profile.tenants:
        value = labels.get(tenant.label, "")
        if value in profile.overflow:
            return OVERFLOW_TENANT, tenant.trust
        if value and value not in profile.without_tenant:
            return value[:MAX_TEXT], tenant.trust
    return "", "authenticated"


def read_series(
    profile: GatewayProfile,
    name: str,
    labels: Mapping[str, str],
    dropped: frozenset[str] = frozenset(),
    target: str = "",
) -> GatewaySeries | None:
    """What a series counts by a profile; None where it counts nothing.

    `dropped`: labels of the scrape, which do not tell series apart; `target`: the page's address.
    """
    family = next(iter(find_families(profile, name, labels)), None)
    if family is None:
        return None
    tenant, trust = tenant_of(profile, labels)
    backend = target if profile.is_server else first(labels, profile.backends)
    return GatewaySeries(
        profile.id,
        family.kind,
        tenant,
        trust,
        first(labels, profile.models)[:MAX_TEXT],
        backend[:MAX_TEXT],
        series_digest(name, {key: labels[key] for key in labels if key not in dropped}),
        family.rank,
    )


def series_digest(name: str, labels: Mapping[str, str]) -> str:
    """What tells a series from others of its page, without showing its labels."""
    text = "\0".join(f"{key}\0{labels[key]}" for key in sorted(labels) if key != "__name__")
    return hashlib.sha256(f"{name}\0{text}".encode()).hexdigest()[:DIGEST_CHARACTERS]


def read_gateway_page(profile: GatewayProfile, lines: Lines, target: str = "") -> GatewayPage:
    """The series of a page by a profile; of series that repeat each other, the best name counts."""
    counts: dict[GatewaySeries, int] = {}
    doubled: set[GatewaySeries] = set()
    started_ms: int | None = None
    for sample in lines.samples:
        # With labels it would be the start of another process than this gateway.
        if sample.name == STARTED and not sample.labels:
            started_ms = round(sample.value * 1000) if 0 < sample.value < 1e11 else None
            continue
        if sample.name not in profile.families:
            continue
        count = exact_count(sample.value)
        series = read_series(profile, sample.name, sample.labels, target=target)
        if series is None or count is None:
            continue
        if counts.setdefault(series, count) != count:
            doubled.add(series)
    index = TwinIndex()
    for series in counts if any(series.rank for series in counts) else ():
        index.add(series.count)
    twins = {series for series in counts if index.is_twin(series.count)}
    chosen = {
        series: count
        for series, count in counts.items()
        if series not in twins and series not in doubled
    }
    return GatewayPage(chosen, started_ms if profile.starts_with_process else None, len(twins))
