"""Commands that look at a node without running the agent: `once`, `check`, `record`.

They need nvidia-ml-py alone (`python3 -m gpuledger_agent.diagnostics once|check|record FILE`), so
that a card can be examined where nothing else is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuledger_agent.holder_observations import HolderObservations, observe_holders
from gpuledger_agent.owners import open_owners
from gpuledger_agent.settings import Settings
from gpuledger_agent.sources import open_source
from gpuledger_agent.sources.recording import header_line, open_text, tick_line
from gpuledger_common.catalog import BY_NAME, METRICS
from gpuledger_common.escapes import escape_text
from gpuledger_common.plurals import plural
from gpuledger_common.readings import (
    AgentError,
    Holder,
    Inventory,
    OwnerSource,
    Sample,
    SourceUnavailable,
)

ALL_TIERS = ("fast", "gpm", "slow", "static")
GPM_PAUSE_S = 0.25
"""GPM needs two samples at least 100 ms apart (nvml.h)."""
MIN_PAUSE_S, MAX_INTERVAL_S = 0.05, 3600
PERSISTENCE_HINT = (
    "persistence mode is off, so that a cold card waits seconds and forgets counters; run"
    " nvidia-persistenced"
)
EXPORTER_HINT = (
    "the other metrics have no line on the page that the profile maps; `gpuledger profiles check`"
    " shows each family"
)
PERMISSION_HINT = "some readings need root, or the capability CAP_SYS_ADMIN, on this driver"
SUCCESS, FINDINGS, BAD_INPUT, UNAVAILABLE = 0, 1, 2, 3


class BadDuration(AgentError):
    """A recording cannot be that long, or its samples that far apart."""

    permanent = True


def look(settings: Settings) -> tuple[Inventory, Sequence[Sample], HolderObservations]:
    """The inventory, a sample of every tier (GPM included), and the holders and users of each
    accelerator.
    """
    source = open_source(settings)
    inventory = source.open()
    try:
        samples = source.read(ALL_TIERS)
        # The first GPM sample alone gives no value: read once more after a pause.
        if settings.source == "nvml" and not all(map(has_gpm_reading, samples)):
            time.sleep(GPM_PAUSE_S)
            samples = source.read(ALL_TIERS)
        observations, problems = observe(open_owners(settings, source), inventory, samples)
    finally:
        source.close()
    return (
        dataclasses.replace(inventory, problems=(*inventory.problems, *problems)),
        samples,
        observations,
    )


def observe(
    owners: Sequence[OwnerSource], inventory: Inventory, samples: Sequence[Sample]
) -> tuple[HolderObservations, list[str]]:
    """The holders and users, and a sentence about every owner source that failed."""
    problems: list[str] = []

    def note_failure(owner: OwnerSource, error: Exception) -> None:
        problems.append(f"owner source {owner.name} failed: {error or type(error).__name__}")

    return observe_holders(owners, inventory.accelerators, samples, note_failure), problems


def has_gpm_reading(sample: Sample) -> bool:
    """Whether a sample has a value of SM activity, or a reason for its absence."""
    return "gpu_sm_active_ratio" in sample.values or "gpu_sm_active_ratio" in sample.absent


def once(settings: Settings) -> dict[str, Any]:
    """One look as the object that `once --json` prints."""
    inventory, samples, observations = look(settings)
    by_uuid = {sample.uuid: sample for sample in samples}
    accelerators = []
    for entry in inventory.accelerators:
        sample = by_uuid.get(entry.uuid)
        accelerators.append(
            {
                "uuid": entry.uuid,
                "device_uuid": entry.device_uuid,
                "model": entry.model,
                "index": entry.index,
                "mig_instance": entry.mig_instance,
                "gpu_micro": entry.gpu_micro,
                "owner": [
                    _holder_row(holder) for holder in observations.holders.get(entry.uuid, ())
                ],
                "users": [_holder_row(holder) for holder in observations.users.get(entry.uuid, ())],
                "disagreement": observations.disagreement(entry.uuid, _processes(sample)),
                "health": None if sample is None else dataclasses.asdict(sample.health),
                "metrics": {} if sample is None else dict(sorted(sample.values.items())),
                "series": {} if sample is None else _series(sample),
                "absent": {} if sample is None else dict(sorted(sample.absent.items())),
            }
        )
    return {
        "node": settings.node_name,
        "driver": inventory.driver,
        "problems": list(inventory.problems),
        "accelerators": accelerators,
    }


def _series(sample: Sample) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"labels": dict(entry.labels), "value": entry.value} for entry in series]
        for name, series in sorted(sample.series.items())
    }


def _processes(sample: Sample | None) -> float | None:
    return None if sample is None else sample.values.get("gpu_processes")


def _holder_row(holder: Holder) -> dict[str, Any]:
    return {**dataclasses.asdict(holder.workload), "weight": holder.weight}


def once_text(report: Mapping[str, Any]) -> str:
    """The object of `once` for people: a block for each accelerator."""
    count = plural(len(report["accelerators"]), "accelerator")
    lines = [f"node {report['node']}, driver {report['driver'] or 'unknown'}, {count}"]
    lines += [f"  problem: {problem}" for problem in report["problems"]]
    for entry in report["accelerators"]:
        mig = f" MIG {entry['mig_instance']}" if entry["mig_instance"] else ""
        health = entry["health"] or {"status": "unknown", "cause": ""}
        cause = f" ({health['cause']})" if health["cause"] else ""
        owner = (
            ", ".join(f"{holder['kind']} {holder['id']}" for holder in entry["owner"]) or "nobody"
        )
        lines += ["", f"{entry['index']}: {entry['model']}{mig} {entry['uuid']}"]
        lines.append(
            f"   health {health['status']}{cause}; held by {owner}; {len(entry['metrics'])} metrics"
        )
        lines += [
            f"   {name:48} {_with_unit(name, value)}" for name, value in entry["metrics"].items()
        ]
        lines += [
            f"   {name + label_text(row['labels']):48} {_with_unit(name, row['value'])}"
            for name, series in entry["series"].items()
            for row in series
        ]
    return "\n".join(map(escape_text, lines))


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as Prometheus writes them."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items() if value) + "}"


def _with_unit(name: str, value: float) -> str:
    unit = BY_NAME[name].unit if name in BY_NAME else ""
    return f"{value:g} {unit}" if isinstance(value, float) else f"{value} {unit}"


def check(settings: Settings) -> tuple[str, int]:
    """Which metrics these cards give and which not, and why; with the exit code (3: no source, 1: a
    problem).
    """
    try:
        inventory, samples, observations = look(settings)
    except SourceUnavailable as error:
        problem = escape_text(f"source {settings.source}: {error}")
        return f"{problem}\nThe agent would run, keep its heartbeat and try again.", UNAVAILABLE
    count = plural(len(inventory.accelerators), "accelerator")
    lines = [f"source {settings.source}, driver {inventory.driver or 'unknown'}: {count}"]
    lines += [f"problem: {problem}" for problem in inventory.problems]
    lines += [f"reason: {EXPORTER_HINT}"] if settings.source in {"exporter", "dcgm"} else []
    has_findings = bool(inventory.problems)
    by_uuid = {sample.uuid: sample for sample in samples}
    for entry in inventory.accelerators:
        lines += ["", f"{entry.index}: {entry.model} {entry.mig_instance or ''} {entry.uuid}"]
        sample = by_uuid.get(entry.uuid)
        lines += ["   gave no sample"] if sample is None else sample_report(sample)
        disagreement = observations.disagreement(entry.uuid, _processes(sample))
        lines += [f"   {disagreement}"] if disagreement else []
        has_findings = has_findings or sample is None or sample.health.status != "ok"
    return "\n".join(map(escape_text, lines)), FINDINGS if has_findings else SUCCESS


def sample_report(sample: Sample) -> list[str]:
    """The lines of one accelerator: health, number of metrics, which are absent and why, and hints."""
    lines = [
        f"   health {sample.health.status} {sample.health.cause}".rstrip(),
        f"   gives {len({*sample.values, *sample.series})} of {len(METRICS)} known metrics",
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in sorted(sample.absent.items()):
        by_reason.setdefault(reason, []).append(name)
    lines += [
        f"   {names[0]}: {reason}" if len(names) == 1 else f"   {reason}: {', '.join(names)}"
        for reason, names in sorted(by_reason.items())
    ]
    if sample.values.get("gpu_persistence_mode") == 0:
        lines.append(f"   hint: {PERSISTENCE_HINT}")
    if any("not permitted" in reason for reason in by_reason):
        lines.append(f"   hint: {PERMISSION_HINT}")
    return lines


def record(settings: Settings, path: Path, seconds: float, interval: float) -> int:
    """Record what the source gives for some seconds, or until Ctrl-C; returns the number of ticks.

    The file appears when it is complete, or not at all if the source or the disk fails.
    """
    if not (seconds >= 0 and 0 < interval <= MAX_INTERVAL_S):
        raise BadDuration(
            f"--seconds must be 0 or more, --interval above 0 and at most {MAX_INTERVAL_S}"
        )
    source = open_source(settings)
    owners = open_owners(settings, source)
    inventory = source.open()
    unfinished = path.with_name(f".{path.name}.part" + (".gz" if path.suffix == ".gz" else ""))
    ticks = 0
    try:
        with open_text(unfinished, "w") as file, contextlib.suppress(KeyboardInterrupt):
            file.write(header_line(settings.node_name, inventory) + "\n")
            start = time.monotonic()
            while (now := time.monotonic()) - start < seconds or ticks == 0:
                samples = source.read(ALL_TIERS)
                observations, _ = observe(owners, inventory, samples)
                file.write(
                    tick_line(round((now - start) * 1000), samples, observations.holders) + "\n"
                )
                ticks += 1
                time.sleep(max(MIN_PAUSE_S, start + ticks * interval - time.monotonic()))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
        source.close()
    return ticks


def main(arguments: Sequence[str]) -> int:
    """Run one of the three commands without the rest of the agent."""
    command, settings = arguments[0] if arguments else "check", Settings()
    try:
        if command == "once":
            text, code = json.dumps(once(settings), indent=2), SUCCESS
        elif command == "record" and len(arguments) > 1:
            seconds = float(arguments[2]) if len(arguments) > 2 else 30.0
            text, code = f"{record(settings, Path(arguments[1]), seconds, 1.0)} ticks", SUCCESS
        else:
            text, code = check(settings)
    except AgentError as error:
        sys.stderr.write(f"{escape_text(str(error))}\n")
        return BAD_INPUT if error.permanent else UNAVAILABLE
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'the system'}: {error.strerror or error}\n")
        return UNAVAILABLE
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
