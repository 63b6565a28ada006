"""The parts of a gateway profile, as `read.py` builds them from a file;
docs/guides/gateways.md explains every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from gpuledger_common.profiles.model import Condition, Evidence, Ignored

Kind = Literal["input", "cached", "output", "requests"]
KINDS: Mapping[str, str] = {
    "input": "input tokens",
    "cached": "input tokens that the server had in its cache, a part of the input",
    "output": "output tokens",
    "requests": "requests",
}
"""What a series of a gateway may count."""
Trust = Literal["authenticated", "claim"]
TRUST: Mapping[str, str] = {
    "authenticated": "set by the gateway after authentication",
    "claim": "claimed by the client",
}
"""Who set a label. A claim is shown, and never charged unless a declaration names it."""
OVERFLOW_TENANT = "(other)"
"""Tokens of all tenants beyond a limit of series, the gateway's or ours."""


@dataclass(frozen=True, slots=True)
class TenantLabel:
    """A label that says who asked, and who set it."""

    label: str
    trust: Trust
    reason: str
    """Why it is trusted, or why it is not."""


@dataclass(frozen=True, slots=True)
class TokenFamily:
    """A family that counts tokens or requests.

    `rank` orders the names of one kind: of twins that a page has at once, the first counts.
    """

    name: str
    kind: Kind
    condition: Condition
    rank: int


@dataclass(frozen=True, slots=True)
class GatewayProfile:
    """A gateway: which pages are its own, and what they mean."""

    id: str
    title: str
    evidence: Evidence
    match: tuple[str, ...]
    match_condition: Condition
    tenants: tuple[TenantLabel, ...]
    """The first that is not empty says who asked."""
    without_tenant: tuple[str, ...]
    """Values that stand for no tenant, such as `None`."""
    overflow: tuple[str, ...]
    """Values under which the gateway adds up the tenants beyond its own limit of series."""
    not_read: tuple[str, ...]
    """Labels that are never read: names of persons, e-mail addresses, keys."""
    models: tuple[str, ...]
    backends: tuple[str, ...]
    is_server: bool
    """Whether the page is that of an inference server itself: its address is the backend."""
    needs_tenant: bool
    """Whether series that name no tenant are not this gateway's."""
    starts_with_process: bool
    """Whether its counters begin at zero with the process whose start the page says."""
    families: Mapping[str, tuple[TokenFamily, ...]]
    ignored: tuple[Ignored, ...]
    limits: tuple[str, ...]
    fingerprint: str = ""
    """Changes with the text of the profile: counters that it did not read before are not new."""

    def page_name(self, address: str) -> str:
        """What a page is known by: its address, and the profile by which it is read."""
        return f"{address} {self.fingerprint}".strip()

    def is_matched_by(self, name: str) -> bool:
        """Whether a family shows that a page is this gateway's."""
        return any(fnmatchcase(name, pattern) for pattern in self.match)

    def has_twins(self, kind: Kind) -> bool:
        """Whether several names count this kind, of which one may repeat another."""
        return any(
            family.rank > 0 and family.kind == kind
            for families in self.families.values()
            for family in families
        )

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels of a series are those of this gateway."""
        return self.match_condition.holds(labels) and not (
            self.needs_tenant and not any(labels.get(tenant.label) for tenant in self.tenants)
        )

    def why_ignored(self, name: str) -> str | None:
        """Why a family is not counted on purpose; None where the profile does not mention it."""
        return next(
            (entry.reason for entry in self.ignored if fnmatchcase(name, entry.pattern)), None
        )
