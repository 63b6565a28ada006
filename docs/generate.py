"""Makes the pages of docs/reference from the code, so that they cannot say something else.

`python -m docs.generate` writes them; `--check` writes nothing and ends with 1 when a page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gpuledger_agent.catalogue import METRICS
from gpuledger_agent.metrics import Metric

REFERENCE = Path(__file__).resolve().parent / "reference"
NOTICE = "<!-- Made from the code by `./dev docs`; edits here are lost. -->\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def metric_row(metric: Metric) -> list[str]:
    """One metric as the reference page shows it."""
    dcgm = f"`{metric.dcgm_field}`" if metric.dcgm_field else ""
    if metric.dcgm_field_46:
        dcgm += f" (4.6: `{metric.dcgm_field_46}`)"
    return [
        f"`{metric.name}`" + (" **hot**" if metric.hot else ""),
        f"{metric.unit} {metric.kind}",
        ", ".join(metric.scopes),
        metric.tier,
        f"`{metric.nvml}`",
        dcgm,
        metric.note,
    ]


def metrics_page() -> str:
    """Every metric of the catalogue, by tier."""
    tiers = list(dict.fromkeys(metric.tier for metric in METRICS))
    header = ["metric", "unit, kind", "scope", "tier", "NVML source", "DCGM field", "cards"]
    parts = [
        "# Metrics\n",
        NOTICE,
        f"{len(METRICS)} metrics are known. Names and units are Prometheus base units. A metric that a card does not "
        "give is absent, with its reason in `gpuledger-agent check`; it is never 0. **hot** metrics have a column of "
        "their own in the collector's sample table.\n",
    ]
    for tier in tiers:
        rows = [metric_row(metric) for metric in METRICS if metric.tier == tier]
        parts.append(f"## Tier `{tier}` ({len(rows)})\n\n{table(header, rows)}")
    return "\n".join(parts)


def schema_page() -> str:
    """Every table of the database with its columns and what it is for."""
    from gpuledger_collector.storage.schema import metadata

    parts = ["# Tables\n", NOTICE, (sys.modules["gpuledger_collector.storage.schema"].__doc__ or "").strip() + "\n"]
    for declared in metadata.sorted_tables:
        rows = [
            [
                f"`{column.name}`",
                str(column.type).lower(),
                "key" if column.primary_key else ("" if column.nullable else "not null"),
                column.comment or "",
            ]
            for column in declared.columns
        ]
        parts.append(f"## {declared.name}\n\n{declared.comment}\n\n{table(['column', 'type', '', 'meaning'], rows)}")
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {"metrics.md": metrics_page, "tables.md": schema_page}


def main(arguments: list[str]) -> int:
    """Writes or checks every page."""
    stale = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale and "--check" in arguments:
        sys.stderr.write(f"docs/reference: {', '.join(stale)} out of date; run ./dev docs\n")
        return 1
    sys.stdout.write(f"docs/reference: {', '.join(stale) or 'nothing'} written\n" if stale else "")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
