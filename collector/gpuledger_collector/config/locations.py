"""Where pools stand: [[location]] tables.

[[location]]
pool = "h100-eu"                  # none: every pool that no other names
region = "eu-central-1"           # what rates and commitments name
region_name = "Frankfurt"         # none: the region
availability_zone = "eu-central-1a"
effective_from = 2026-10-01

Dates are days of the bill, in its zone; `effective_to` is not included.
"""

from __future__ import annotations

from gpuledger_collector.accounting.locations import PoolLocation
from gpuledger_collector.config.fields import Name, Text
from gpuledger_collector.config.model import Dated


class DeclaredLocation(Dated):
    """The region of a pool."""

    pool: Name = ""
    region: Text
    region_name: Text = ""
    availability_zone: Text = ""

    value_type = PoolLocation
    identity = ("pool",)
    conflict = ("pool", "line {line} gives this pool a location for some of these days already")
