"""Compiles the declared metrics, Xids and names of dcgm-exporter into the module that agent and
collector import: reading TOML at every start would cost the agent time and memory.

`python -m docs.generate` writes the module, as does `python -m docs.catalog`, which imports nothing
of it; what is declared wrongly is refused with its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuledger_common.metrics import (
    Call,
    Field,
    Gpm,
    Kind,
    Meaning,
    Metric,
    Reader,
    Scope,
    Tier,
    XidFamily,
    XidSeverity,
)

COMMON = Path(__file__).resolve().parents[1] / "common" / "gpuledger_common"
DECLARED = COMMON / "declared"
MODULE = COMMON / "catalog.py"
HEAD = '''"""The metric catalog, the meanings of Xids and dcgm-exporter's names.

Made from `declared/` by `./dev docs`; edits here are lost.
"""

from gpuledger_common.metrics import Call, Field, Gpm, Meaning, Metric

# fmt: off
'''
TAIL = '''# fmt: on

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
HOT: tuple[Metric, ...] = tuple(metric for metric in METRICS if metric.hot)
"""Metrics with a column of their own in the collector's sample table, in catalog order."""
'''
Row = TypeVar("Row")


class Wrong(Exception):
    """A declaration that cannot be compiled; the message names file and place."""


class MetricRow(msgspec.Struct, forbid_unknown_fields=True):
    """A table of metrics.toml."""

    unit: str
    kind: Kind
    scopes: tuple[Scope, ...]
    tier: Tier
    call: str = ""
    args: tuple[str, ...] = ()
    item: int | str | None = None
    field: str = ""
    scope: int | None = None
    gpm: str = ""
    nvml: str = ""
    scale: float = 1.0
    dcgm_field: str = ""
    dcgm_field_46: str = ""
    dcgm_id: int | None = None
    dcgm_scale: float = 1.0
    hot: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse keys that do not go together."""
        if bool(self.call) + bool(self.field) + bool(self.gpm) > 1:
            raise ValueError("give one of `call`, `field` and `gpm`")
        if (self.args or self.item is not None) and not self.call:
            raise ValueError("`args` and `item` go with `call`")
        if self.scope is not None and not self.field:
            raise ValueError("`scope` goes with `field`")
        if not (self.nvml or self.call or self.field or self.gpm):
            raise ValueError("`nvml` says where a metric without a reader comes from")
        if not self.dcgm_field and (self.dcgm_field_46 or self.dcgm_id is not None):
            raise ValueError("`dcgm_field_46` and `dcgm_id` go with `dcgm_field`")
        if not self.scopes or self.scale <= 0 or self.dcgm_scale <= 0:
            raise ValueError("a scope is needed, and scales are positive")

    @property
    def reader(self) -> Reader | None:
        """What the agent calls; None for what it derives, or gets as an event."""
        if self.call:
            return Call(self.call, self.args, self.item)
        if self.field:
            return Field(self.field, self.scope)
        return Gpm(self.gpm) if self.gpm else None

    @property
    def source(self) -> str:
        """Where its value comes from, for people."""
        if self.nvml:
            return self.nvml
        if not self.call:
            function = "nvmlDeviceGetFieldValues" if self.field else "nvmlGpmMetricsGet"
            return f"{function} {self.field or self.gpm}"
        item = f"[{self.item}]" if isinstance(self.item, int) else f".{self.item}"
        return f"{self.call}({', '.join(self.args)}){item if self.item is not None else ''}"


class XidRow(msgspec.Struct, forbid_unknown_fields=True):
    """A table of xids.toml."""

    family: XidFamily
    severity: XidSeverity
    action: str
    text: str


class DcgmExporter(msgspec.Struct, forbid_unknown_fields=True):
    """The content of dcgm_exporter.toml."""

    order: list[str]
    counters: list[str]
    not_numeric: str


def read(name: str, kind: type[Row], folder: Path = DECLARED) -> Row:
    """The content of a file, as declared. Raises Wrong."""
    path = folder / name
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise Wrong(f"{path.name}: {error}") from error


def metrics(folder: Path = DECLARED) -> tuple[Metric, ...]:
    """The declared metrics in their order. Raises Wrong."""
    return tuple(
        Metric(
            name,
            row.unit,
            row.kind,
            row.scopes,
            row.tier,
            row.source,
            row.reader,
            row.scale,
            row.dcgm_field,
            row.dcgm_field_46,
            row.dcgm_id,
            row.dcgm_scale,
            row.hot,
            row.note,
        )
        for name, row in read("metrics.toml", dict[str, MetricRow], folder).items()
    )


def xids(folder: Path = DECLARED) -> dict[int, Meaning]:
    """The declared meanings of Xids. Raises Wrong."""
    rows = read("xids.toml", dict[str, XidRow], folder)
    if wrong := [name for name in rows if not name.isdecimal()]:
        raise Wrong(f"xids.toml: {wrong[0]} is no number")
    return {
        int(name): Meaning(row.family, row.severity, row.action, row.text)
        for name, row in rows.items()
    }


def dcgm_exporter(known: Sequence[Metric], folder: Path = DECLARED) -> DcgmExporter:
    """The declared names of dcgm-exporter, each a field of a metric. Raises Wrong."""
    names = read("dcgm_exporter.toml", DcgmExporter, folder)
    fields = {metric.dcgm_field for metric in known}
    short = {name.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_") for name in fields}
    unknown = [*(set(names.counters) - fields), *(set(names.order) - short)]
    if unknown:
        raise Wrong(f"dcgm_exporter.toml: {sorted(unknown)[0]} is the field of no metric")
    return names


def module(folder: Path = DECLARED) -> str:
    """The text of the compiled module. Raises Wrong."""
    declared = metrics(folder)
    names = dcgm_exporter(declared, folder)
    lines = [
        HEAD + "METRICS: tuple[Metric, ...] = (",
        *(f"    {metric_text(metric)}," for metric in declared),
        ")",
        "XIDS: dict[int, Meaning] = {",
        *(
            f"    {number}: Meaning({_values(*dataclasses.astuple(meaning))}),"
            for number, meaning in xids(folder).items()
        ),
        "}",
        f"DCGM_ORDER: tuple[str, ...] = ({_values(*names.order)})",
        f"DCGM_COUNTERS: frozenset[str] = frozenset(({_values(*names.counters)}))",
        f"DCGM_NOT_NUMERIC: str = {_value(names.not_numeric)}",
    ]
    return "\n".join(lines) + "\n" + TAIL


def metric_text(metric: Metric) -> str:
    """A metric as Python: what nearly every one has by position, the rest by name."""
    needed = (metric.name, metric.unit, metric.kind, metric.scopes, metric.tier, metric.nvml)
    values = [_values(*needed), _reader_text(metric.reader), _value(metric.scale)]
    values += [
        f"{field.name}={_value(getattr(metric, field.name))}"
        for field in dataclasses.fields(metric)
        if field.default is not dataclasses.MISSING and getattr(metric, field.name) != field.default
    ]
    return f"Metric({', '.join(values)})"


def _reader_text(reader: Reader | None) -> str:
    if reader is None:
        return "None"
    values = list(dataclasses.astuple(reader))
    defaults = [field.default for field in dataclasses.fields(reader)]
    while values[-1] == defaults[len(values) - 1]:
        values.pop()
    return f"{type(reader).__name__}({_values(*values)})"


def _values(*values: object) -> str:
    return ", ".join(map(_value, values))


def _value(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return f"({_values(*value)}{',' if len(value) == 1 else ''})"
    return repr(value)


if __name__ == "__main__":
    # Alone, for a module that the rest of the repository cannot import yet.
    MODULE.write_text(module())
