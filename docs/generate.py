"""Makes the pages of docs/reference, the manual pages and the chart's page from the code, so that
they cannot differ, and the catalog that the code imports from what is declared.

`python -m docs.generate` writes them; `--check` writes nothing and ends with 1 when a page is out
of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from docs import admission, assistants, catalog, manual, profiles, seen_on

from gpuledger_common.catalog import METRICS
from gpuledger_common.metrics import Metric

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
CHART = ROOT / "deploy" / "helm" / "gpuledger"
NOTICE = "<!-- Made from the code by `./dev docs`; edits here are lost. -->\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return (
        "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        + "\n"
    )


def metric_row(metric: Metric, cards: list[str]) -> list[str]:
    """One metric as the reference page shows it, with the cards on which it was seen."""
    dcgm = f"`{metric.dcgm_field}`" if metric.dcgm_field else ""
    if metric.dcgm_field_46:
        dcgm += f" (4.6: `{metric.dcgm_field_46}`)"
    return [
        f"`{metric.name}`" + (" **hot**" if metric.hot else ""),
        metric.unit,
        metric.kind,
        ", ".join(metric.scopes),
        metric.tier,
        f"`{metric.nvml}`",
        dcgm,
        ", ".join(cards),
        metric.note,
    ]


def metrics_page() -> str:
    """Every metric of the catalog, by tier."""
    tiers = list(dict.fromkeys(metric.tier for metric in METRICS))
    header = [
        "metric",
        "unit",
        "kind",
        "scope",
        "tier",
        "NVML source",
        "DCGM field",
        "seen on",
        "said to be on",
    ]
    seen = seen_on.load()
    cards = sorted({card for several in seen.values() for card in several})
    parts = [
        "# Metrics\n",
        NOTICE,
        f"{len(METRICS)} metrics are known. Names and units are Prometheus base units. A metric that a card does not "
        "give is absent, with its reason in `gpuledger-agent check`; it is never 0. **hot** metrics have a column of "
        "their own in the collector's sample table.\n",
        f"*Seen on* is evidence: {len(seen)} of them were found with a value in outputs of {len(cards)} real cards "
        "([seen_on.csv](../seen_on.csv) names field and file of each). Only a field that is the metric itself counts; DCGM's "
        "profiling fields on cards older than Hopper do not, because they are measured another way. An empty cell says that "
        "no output at hand shows it, not that a card lacks it. *Said to be on* is NVIDIA's documentation.\n",
    ]
    for tier in tiers:
        rows = [
            metric_row(metric, seen.get(metric.name, []))
            for metric in METRICS
            if metric.tier == tier
        ]
        parts.append(f"## Tier `{tier}` ({len(rows)})\n\n{table(header, rows)}")
    return "\n".join(parts)


def profiles_page() -> str:
    """The exporters that are understood."""
    return NOTICE + profiles.page(table)


def schema_page() -> str:
    """Every table of the database with its columns and what it is for."""
    from gpuledger_collector.storage.schema import metadata

    parts = [
        "# Tables\n",
        NOTICE,
        (sys.modules["gpuledger_collector.storage.schema"].__doc__ or "").strip() + "\n",
    ]
    for declared in metadata.sorted_tables:
        if declared.dialect_options["postgresql"]["inherits"] is not None:
            continue  # a part of the table that it inherits from
        rows = [
            [
                f"`{column.name}`",
                str(column.type).lower(),
                "key" if column.primary_key else ("" if column.nullable else "not null"),
                column.comment or "",
            ]
            for column in declared.columns
        ]
        parts.append(
            f"## {declared.name}\n\n{declared.comment}\n\n{table(['column', 'type', '', 'meaning'], rows)}"
        )
    return "\n".join(parts)


def settings_page() -> str:
    """Every setting of the agent and of the collector."""
    from gpuledger_agent import settings as agent
    from gpuledger_collector import settings as collector

    parts = [
        "# Settings\n",
        NOTICE,
        "Settings come from a TOML file (`--config FILE`, for the collector also `GPULEDGER_CONFIG`; none is needed) and from "
        "the environment, which wins. The name "
        "in the environment is the key in upper case behind the prefix. An unknown key is an error that names the nearest "
        "known one; `--check-config` checks them and ends. Secrets are read from files, never from arguments.\n",
    ]
    for title, module in (("Collector", collector), ("Agent", agent)):
        rows = [
            [
                f"`{field.name}`",
                str(field.type).replace(" | None", ""),
                default_text(field),
                meaning(field),
            ]
            for field in dataclasses.fields(module.Settings)
        ]
        head = f"## {title} (`{module.PREFIX}...`)\n"
        parts.append(f"{head}\n{table(['key', 'type', 'default', 'meaning'], rows)}")
    return "\n".join(parts)


def meaning(field: dataclasses.Field[Any]) -> str:
    """What a setting is for, and its bounds."""
    least, most = field.metadata.get("least"), field.metadata.get("most")
    text: str = field.metadata["help"]
    least_text = (
        f"; {'otherwise ' if field.metadata.get('or_zero') else ''}at least {least}"
        if least
        else ""
    )
    return text + least_text + (f"; at most {most}" if most else "")


def default_text(field: dataclasses.Field[Any]) -> str:
    """A default as people write it."""
    if field.name == "data_dir":
        return "`$XDG_DATA_HOME/gpuledger`"
    if field.default in (None, "") or field.default is dataclasses.MISSING:
        return ""
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def commands_page() -> str:
    """Every command with its options and its example."""
    import typer

    from gpuledger_agent.cli import parser
    from gpuledger_collector.cli import build

    parts = [
        "# Commands\n",
        NOTICE,
        "Every command ends with 0 when it is done, also when it found something (`--exit-code`: then with 1); with 1 when a "
        "check failed; with 2 for bad input (one sentence with file and line); and with 3 when the environment lacks "
        "something, with the remedy.\n",
    ]
    parts += list(click_pages("gpuledger", typer.main.get_command(build())))
    commands = next(
        action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    for name, command in commands.choices.items():
        rows = [
            [f"`{' '.join(action.option_strings) or action.dest.upper()}`", action.help or ""]
            for action in command._actions
        ]
        parts.append(
            f"## gpuledger-agent {name}\n\n{command.description}\n\n{table(['option', 'meaning'], rows)}"
        )
        parts.append(f"{command.epilog}\n")
    return "\n".join(parts)


def click_pages(path: str, command: Any) -> Iterator[str]:
    """A command and those below it."""
    if hasattr(command, "commands"):
        for name in sorted(command.commands):
            yield from click_pages(f"{path} {name}", command.commands[name])
        return
    rows = [
        [
            f"`{' '.join((*parameter.opts, *parameter.secondary_opts)) or parameter.name}`",
            (getattr(parameter, "help", "") or "").replace("\n", " "),
        ]
        for parameter in command.params
    ]
    text = " ".join((command.help or "").split())
    yield f"## {path}\n\n{text}\n\n{table(['option', 'meaning'], rows)}"
    if command.epilog:
        yield f"{' '.join(command.epilog.split())}\n"


def chart_page() -> str:
    """Every value of the Helm chart, with its default and the comment above it in values.yaml."""
    parts = [
        "# Helm chart of GPU Ledger\n",
        NOTICE,
        "Agents on GPU nodes and collectors in front of your Postgres. Install: "
        "[docs/guides/deploy.md](../../../docs/guides/deploy.md#on-kubernetes). Examples of values: "
        "[docs/guides/kubernetes.md](../../../docs/guides/kubernetes.md#values-of-the-chart). An unknown value is refused.\n",
    ]
    rows: list[list[str]] = []
    for path, default, comment in chart_values((CHART / "values.yaml").read_text()):
        rows.append([f"`{'.'.join(path)}`", f"`{json.dumps(default)}`", comment])
    return "\n".join([*parts, table(["value", "default", "meaning"], rows)])


def chart_values(text: str) -> Iterator[tuple[list[str], Any, str]]:
    """(path, default, comment) of every value.

    A value without a comment shares that of the value before it.
    """
    values = yaml.safe_load(text)
    path: list[str] = []
    comment: list[str] = []
    meaning, group = "", ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.strip(" #"))
        elif key := re.match(r"( *)([\w./-]+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            default = functools.reduce(lambda inner, name: inner[name], path, values)
            if isinstance(default, dict) and default:
                group = " ".join(comment) if len(path) == 1 else group
            else:
                meaning = " ".join(comment) or meaning
                yield path, default, f"{group} {meaning}".strip() if len(path) > 1 else meaning
            comment = comment if isinstance(default, dict) and default and len(path) > 1 else []
        elif not line:
            comment = []


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "admission.md": lambda: NOTICE + admission.page(table),
    REFERENCE / "commands.md": commands_page,
    REFERENCE / "assistants.md": lambda: assistants.page(NOTICE, table),
    REFERENCE / "metrics.md": metrics_page,
    REFERENCE / "profiles.md": profiles_page,
    REFERENCE / "settings.md": settings_page,
    REFERENCE / "tables.md": schema_page,
    CHART / "README.md": chart_page,
    manual.MAN / "gpuledger.1": manual.collector_page,
    manual.MAN / "gpuledger-agent.1": manual.agent_page,
}


def main(arguments: list[str]) -> int:
    """Writes or checks the compiled catalog and every page."""
    stale = []
    if (compiled := catalog.module()) != catalog.MODULE.read_text():
        if "--check" not in arguments:
            catalog.MODULE.write_text(compiled)
            # The pages are made from the catalog that a process has imported.
            again = [sys.executable, "-m", "docs.generate", *arguments]
            return subprocess.run(again, cwd=ROOT, check=False).returncode
        stale.append(str(catalog.MODULE.relative_to(ROOT)))
    for path, make in PAGES.items():
        text = make()
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale and "--check" in arguments:
        sys.stderr.write(f"{', '.join(stale)}: out of date; run ./dev docs\n")
        return 1
    sys.stdout.write(f"{', '.join(stale)}: written\n" if stale else "")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
