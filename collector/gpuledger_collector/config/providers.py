"""Who provides a pool: [[provider]] tables.

[[provider]]
pool = "aws-train"                # none: every pool that no other names
name = "Amazon Web Services"      # makes it available, and invoices it

[[provider]]
pool = "marketplace"
name = "Amazon Web Services"
publisher = "Example GPU Cloud"   # on a marketplace: who produced what is bought there
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.providers import PoolProvider
from gpuledger_collector.config.fields import Name, Text, refusal
from gpuledger_collector.config.model import Declaration


class DeclaredProvider(Declaration):
    """The provider of a pool; owned hardware names the organization itself."""

    pool: Name = ""
    provider: Text = Field(alias="name")
    publisher: Text = ""

    value_type = PoolProvider
    identity = ("pool",)

    @field_validator("publisher")
    @classmethod
    def _differ(cls, publisher: str, info: ValidationInfo) -> str:
        if publisher and publisher == info.data.get("provider"):
            raise refusal("same", "is the same as name: leave it out")
        return publisher
