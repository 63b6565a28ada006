"""What a charge of the state `inference` is about: a tenant's part of what a shared server cost."""

from __future__ import annotations

from typing import NamedTuple

INFERENCE = "inference"
"""The state of charges that move the cost of a shared server (accounting.inference_charges)."""
PAYERS = "taken over by its tenants"
"""Who took over what a server's payers get back, for people."""


class InferenceShare(NamedTuple):
    """A tenant's part of a shared server, and what its tokens weighed.

    Without gateway and trust it is what the payers of the server get back, whoever took it over. A
    tuple, since a day has thousands of them as keys.
    """

    server: str
    gateway: str
    tenant: str
    trust: str
    weights: str

    @property
    def is_payers(self) -> bool:
        """Whether it is what those who pay for the server get back."""
        return not self.trust

    @property
    def name(self) -> str:
        """Server and tenant, for people."""
        return f"{self.server}: {PAYERS if self.is_payers else self.tenant}"
