"""What tokens weigh on shared model servers, as a list and as a declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from gpuledger_collector.accounting.inference_split import SharedServer
from gpuledger_collector.config import toml
from gpuledger_collector.config.inference import DeclaredInference
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.token_weights import Interval, ServerWeights


def _bounds(
    kind: str, value: Callable[[ServerWeights], Interval | None]
) -> list[Column[ServerWeights]]:
    def bound(name: str) -> Callable[[ServerWeights], float | None]:
        def read(item: ServerWeights) -> float | None:
            interval = value(item)
            estimate: float | None = None if interval is None else getattr(interval, name)
            # Without a bound is not known.
            return estimate if estimate is not None and isfinite(estimate) else None

        return read

    return [
        Column(f"{kind}_low", bound("low"), Kind.ESTIMATE, is_optional=True),
        Column(
            f"{kind}_weight",
            bound("likely"),
            Kind.ESTIMATE,
            about=f"Of a {kind} token, where a computed prompt token weighs 1.",
        ),
        Column(f"{kind}_high", bound("high"), Kind.ESTIMATE, is_optional=True),
    ]


TOKEN_WEIGHTS: Report[ServerWeights] = Report(
    "token_weights",
    (
        Column("server", lambda item: item.server),
        Column("declared", lambda item: item.declared),
        Column("measured", lambda item: item.estimate.weights or None),
        Column(
            "source",
            lambda item: item.estimate.source,
            is_optional=True,
            about="What it is measured by: gpu_seconds of SGLang, or an estimate from busy_time.",
        ),
        Column("hours", lambda item: item.estimate.hours, Kind.COUNT),
        Column("left_out", lambda item: item.estimate.left_out, Kind.COUNT, is_optional=True),
        Column(
            "explained",
            lambda item: item.estimate.explained,
            Kind.ESTIMATE,
            about="Share of the busy time that tokens explain on days held out.",
        ),
        *_bounds("cached", lambda item: item.estimate.cached),
        *_bounds("output", lambda item: item.estimate.output),
        Column("reason", lambda item: item.estimate.reason or None, about="Why it is refused."),
    ),
)


def declaration_text(
    servers: Sequence[SharedServer], measured: Sequence[ServerWeights], of_days: str
) -> str:
    """Servers as a file that `gpuledger apply` takes, with what their weights come from."""
    lines = [
        "# All servers, since applying a file replaces what is declared of them.",
        *(_origin(each, of_days) for each in measured),
    ]
    for server in servers:
        lines += toml.table("inference", DeclaredInference.from_value(server).to_table())
    return "\n".join(lines) + "\n"


def _origin(item: ServerWeights, of_days: str) -> str:
    estimate = item.estimate
    assert estimate.output is not None
    interval = f"output weighs {estimate.output.low:.2g} to {estimate.output.high:.2g} (90 %)"
    if estimate.explained is None:
        return (
            f"# {toml.quote_text(item.server)}: measured by GPU seconds in {estimate.hours} hours of"
            f" {of_days}; {interval}; cached tokens weigh as declared"
        )
    cached = "" if estimate.cached else "; cached tokens are not told apart, and weigh as input"
    return (
        f"# {toml.quote_text(item.server)}: estimated from {estimate.hours} hours of {of_days}, which"
        f" explain {estimate.explained:.0%} on days held out; {interval}{cached}"
    )
