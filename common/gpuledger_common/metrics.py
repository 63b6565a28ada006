"""The row types of the catalog: what a card can report, in which unit, and which call reads it; and
what its error codes mean.

The sampler, the wire's column types, the storage columns, the exposition and the reference page in
docs/ all follow from one file (`declared/metrics.toml`, compiled into `catalog.METRICS`): adding a
table there adds a metric everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["fast", "gpm", "gpm-opt", "slow", "static", "event", "opt-in", "compat"]
Kind = Literal["gauge", "counter"]
Scope = Literal["GPU", "MIG", "NVLink", "process"]
XidFamily = Literal["program", "memory", "link", "hung", "driver", "other"]
XidSeverity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True)
class Call:
    """A plain NVML call on a device handle: function, names of pynvml constants to pass, item or
    attribute to take.

    The name of a pynvml structure stands for a new instance, which the call fills in and which is
    then the answer.
    """

    function: str
    args: tuple[str, ...] = ()
    item: int | str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the batched nvmlDeviceGetFieldValues call, by pynvml constant; scope None means no
    scope id.
    """

    constant: str
    scope: int | None = None


@dataclass(frozen=True, slots=True)
class Gpm:
    """A GPU performance monitoring metric (Hopper and newer), computed over a pair of samples."""

    constant: str


Reader = Call | Field | Gpm


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalog.

    `scale` turns the raw NVML number into the base unit of `unit`. `reader` is None for metrics
    that the agent derives or receives as events. `hot` metrics have a column of their own in the
    collector's sample table.
    """

    name: str
    unit: str
    kind: Kind
    scopes: tuple[Scope, ...]
    tier: Tier
    nvml: str
    reader: Reader | None
    scale: float
    dcgm_field: str = ""
    dcgm_field_46: str = ""
    dcgm_id: int | None = None
    dcgm_scale: float = 1.0
    """Turns the number that dcgm-exporter prints (MHz, MiB, percent, mJ) into the base unit."""
    hot: bool = False
    note: str = ""

    @property
    def column_kind(self) -> Literal["f4", "f8", "i8"]:
        """How the wire carries it: float32 for gauges, float64 where float32 would lose precision."""
        if self.unit == "bitmask":
            return "i8"
        return "f8" if self.kind == "counter" or self.unit == "bytes" else "f4"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an Xid means: `severity` is info (a fault of the program), warning (look at it) or
    critical (the card needs an action).
    """

    family: XidFamily
    severity: XidSeverity
    action: str
    text: str
