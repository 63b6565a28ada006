"""Who provides a pool: the cloud or marketplace that is paid for it, and who made what it offers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProviderNames:
    """`provider` makes it available and invoices it; `publisher` produced it: on a marketplace
    another company.
    """

    provider: str
    publisher: str


@dataclass(frozen=True, slots=True)
class PoolProvider:
    """Who provides a pool; an empty pool is every pool that no other declaration names."""

    pool: str
    provider: str
    publisher: str = ""

    @property
    def names(self) -> ProviderNames:
        """Both names; who publishes is the provider where nobody else is named."""
        return ProviderNames(self.provider, self.publisher or self.provider)
