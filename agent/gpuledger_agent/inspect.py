"""Looking at a node by hand: `once`, `check`, `record`.

Runs with nvidia-ml-py alone (`python3 -m gpuledger_agent.inspect once|check|record FILE`), so that a card can be looked
at where nothing else is installed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from gpuledger_agent.join import HolderObservations, ask
from gpuledger_agent.owners import open_owners
from gpuledger_agent.owners.places import Places
from gpuledger_agent.sources import open_source
from gpuledger_agent.sources.recording import header_line, open_text, tick_line
from gpuledger_common.catalogue import BY_NAME, METRICS
from gpuledger_common.escapes import escape_text
from gpuledger_common.plurals import plural
from gpuledger_common.readings import AgentError, Holder, Inventory, OwnerSource, Sample, Source, SourceUnavailable

ALL_TIERS = ("fast", "gpm", "slow", "static")
GPM_PAUSE_S = 0.25
"""GPM needs two samples at least 100 ms apart (nvml.h)."""
LEAST_INTERVAL_S = 0.1
PERSISTENCE_HINT = (
    "persistence mode is off, so that a cold card waits seconds and forgets counters; run nvidia-persistenced"
)
PERMISSION_HINT = "some readings need root, or the capability CAP_SYS_ADMIN, on this driver"
DONE, FINDINGS, BAD_INPUT, LACKING = 0, 1, 2, 3
LONGEST_INTERVAL_S = 3600


class BadSpan(AgentError):
    """A recording cannot be that long, or its samples that far apart."""

    permanent = True


class Looking(Protocol):
    """What of the settings these commands read."""

    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def target(self) -> str: ...  # noqa: D102
    @property
    def node_name(self) -> str: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def given_back_ms(self) -> int: ...  # noqa: D102
    @property
    def owner_sources(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def owner_rules_file(self) -> Path | None: ...  # noqa: D102
    @property
    def owner_places(self) -> Places: ...  # noqa: D102


class Defaults:
    """The settings when nothing but a source is chosen."""

    target = ""
    seed, given_back_ms = 7, 0
    owner_sources = ("static", "slurm", "kubernetes", "containers", "processes")
    owner_rules_file = None
    owner_places = Places()

    def __init__(self, source: str = "nvml", target: str = "") -> None:
        self.source, self.target, self.node_name = source, target, socket.gethostname()


def opened(settings: Looking) -> Source:
    """The source that the settings name."""
    return open_source(
        settings.source,
        settings.target or None,
        node=settings.node_name,
        seed=settings.seed,
        given_back_ms=settings.given_back_ms,
    )


def look(settings: Looking) -> tuple[Inventory, Sequence[Sample], HolderObservations]:
    """One full look: the inventory, a sample of every tier (GPM included), and who holds and uses what."""
    source = opened(settings)
    inventory = source.open()
    try:
        samples = source.read(ALL_TIERS)
        if any(not samples_gpm(sample) for sample in samples) and settings.source == "nvml":
            time.sleep(GPM_PAUSE_S)
            samples = source.read(ALL_TIERS)
        owners = open_owners(
            settings.owner_sources, settings.owner_rules_file, settings.node_name, source, settings.owner_places
        )
        witnesses, problems = witnesses_of(owners, inventory, samples)
    finally:
        source.close()
    return replace(inventory, problems=(*inventory.problems, *problems)), samples, witnesses


def witnesses_of(
    owners: Sequence[OwnerSource], inventory: Inventory, samples: Sequence[Sample]
) -> tuple[HolderObservations, list[str]]:
    """Who holds and who uses what, and a sentence about every owner source that failed."""
    problems: list[str] = []

    def failed(owner: OwnerSource, error: Exception) -> None:
        problems.append(f"owner source {owner.name} failed: {error or type(error).__name__}")

    return ask(owners, inventory.accelerators, samples, failed), problems


def samples_gpm(sample: Sample) -> bool:
    """Whether a sample has a word (value or reason) on activity."""
    return "gpu_sm_active_ratio" in sample.values or "gpu_sm_active_ratio" in sample.absent


def once(settings: Looking) -> dict[str, Any]:
    """One look as the object that `once --json` prints."""
    inventory, samples, witnesses = look(settings)
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
                "owner": [_owner(holder) for holder in witnesses.holders.get(entry.uuid, ())],
                "users": [_owner(holder) for holder in witnesses.users.get(entry.uuid, ())],
                "disagreement": witnesses.disagreement(entry.uuid, _processes(sample)),
                "health": None if sample is None else {"status": sample.health.status, "cause": sample.health.cause},
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
        name: [{"labels": dict(one.labels), "value": one.value} for one in several]
        for name, several in sorted(sample.series.items())
    }


def _processes(sample: Sample | None) -> float | None:
    return None if sample is None else sample.values.get("gpu_processes")


def _owner(holder: Holder) -> dict[str, Any]:
    workload = holder.workload
    return {
        "id": workload.id,
        "kind": workload.kind,
        "user": workload.user,
        "account": workload.account,
        "name": workload.name,
        "tags": dict(workload.tags),
        "weight": holder.weight,
    }


def once_text(seen: Mapping[str, Any]) -> str:
    """The same for people: a block for each accelerator."""
    lines = [
        f"node {seen['node']}, driver {seen['driver'] or 'unknown'}, {plural(len(seen['accelerators']), 'accelerator')}"
    ]
    lines += [f"  problem: {problem}" for problem in seen["problems"]]
    for entry in seen["accelerators"]:
        mig = f" MIG {entry['mig_instance']}" if entry["mig_instance"] else ""
        health = entry["health"] or {"status": "unknown", "cause": ""}
        cause = f" ({health['cause']})" if health["cause"] else ""
        owner = ", ".join(f"{holder['kind']} {holder['id']}" for holder in entry["owner"]) or "nobody"
        lines += ["", f"{entry['index']}: {entry['model']}{mig} {entry['uuid']}"]
        lines.append(f"   health {health['status']}{cause}; held by {owner}; {len(entry['metrics'])} metrics")
        lines += [f"   {name:48} {_shown(name, value)}" for name, value in entry["metrics"].items()]
        lines += [
            f"   {name + label(one['labels']):48} {_shown(name, one['value'])}"
            for name, several in entry["series"].items()
            for one in several
        ]
    return "\n".join(map(escape_text, lines))


def label(labels: Mapping[str, str]) -> str:
    """Labels as Prometheus writes them."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items() if value) + "}"


def _shown(name: str, value: float) -> str:
    unit = BY_NAME[name].unit if name in BY_NAME else ""
    return f"{value:g} {unit}" if isinstance(value, float) else f"{value} {unit}"


def check(settings: Looking) -> tuple[str, int]:
    """What these cards give and what not, and why; with the exit code (3: no source, 1: something is wrong)."""
    try:
        inventory, samples, witnesses = look(settings)
    except SourceUnavailable as error:
        said = escape_text(f"source {settings.source}: {error}")
        return f"{said}\nThe agent would run, keep its heartbeat and try again.", LACKING
    lines = [
        f"source {settings.source}, driver {inventory.driver or 'unknown'}: "
        f"{plural(len(inventory.accelerators), 'accelerator')}"
    ]
    lines += [f"problem: {problem}" for problem in inventory.problems]
    sick = bool(inventory.problems)
    by_uuid = {sample.uuid: sample for sample in samples}
    for entry in inventory.accelerators:
        lines += ["", f"{entry.index}: {entry.model} {entry.mig_instance or ''} {entry.uuid}"]
        sample = by_uuid.get(entry.uuid)
        lines += ["   gave no sample"] if sample is None else checked(sample)
        differ = witnesses.disagreement(entry.uuid, _processes(sample))
        lines += [f"   {differ}"] if differ else []
        sick = sick or sample is None or sample.health.status != "ok"
    return "\n".join(map(escape_text, lines)), FINDINGS if sick else DONE


def checked(sample: Sample) -> list[str]:
    """The lines of one accelerator: health, how much it gives, what not and why, and what would help."""
    lines = [
        f"   health {sample.health.status} {sample.health.cause}".rstrip(),
        f"   gives {len({*sample.values, *sample.series})} of {len(METRICS)} metrics that are known",
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in sorted(sample.absent.items()):
        by_reason.setdefault(reason, []).append(name)
    lines += [f"   {reason}: {', '.join(names)}" for reason, names in sorted(by_reason.items())]
    if sample.values.get("gpu_persistence_mode") == 0:
        lines.append(f"   hint: {PERSISTENCE_HINT}")
    if any("not permitted" in reason for reason in by_reason):
        lines.append(f"   hint: {PERMISSION_HINT}")
    return lines


def record(settings: Looking, path: Path, seconds: float, interval: float) -> int:
    """Writes what the source gives for some seconds, or until Ctrl-C; the number of ticks.

    The file appears whole, or (when the source or the disk fails) not at all.
    """
    if not (seconds >= 0 and 0 < interval <= LONGEST_INTERVAL_S):
        raise BadSpan(f"--seconds must be 0 or more, --interval above 0 and at most {LONGEST_INTERVAL_S}")
    source = opened(settings)
    owners = open_owners(
        settings.owner_sources, settings.owner_rules_file, settings.node_name, source, settings.owner_places
    )
    inventory = source.open()
    unfinished = path.with_name(f".{path.name}.part" + (".gz" if path.suffix == ".gz" else ""))
    ticks = 0
    try:
        with open_text(unfinished, "w") as file, contextlib.suppress(KeyboardInterrupt):
            file.write(header_line(settings.node_name, inventory) + "\n")
            start = time.monotonic()
            while (now := time.monotonic()) - start < seconds or ticks == 0:
                samples = source.read(ALL_TIERS)
                witnesses, _ = witnesses_of(owners, inventory, samples)
                file.write(tick_line(round((now - start) * 1000), samples, witnesses.holders) + "\n")
                ticks += 1
                time.sleep(max(LEAST_INTERVAL_S / 2, start + ticks * interval - time.monotonic()))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
        source.close()
    return ticks


def main(arguments: Sequence[str]) -> int:
    """The three commands without the rest of the agent."""
    command = arguments[0] if arguments else "check"
    settings = Defaults()
    try:
        if command == "once":
            sys.stdout.write(json.dumps(once(settings), indent=2) + "\n")
            return DONE
        if command == "record" and len(arguments) > 1:
            seconds = float(arguments[2]) if len(arguments) > 2 else 30.0
            sys.stdout.write(f"{record(settings, Path(arguments[1]), seconds, 1.0)} ticks\n")
            return DONE
        text, code = check(settings)
    except SourceUnavailable as error:
        sys.stderr.write(f"{escape_text(str(error))}\n")
        return LACKING
    except BadSpan as error:
        sys.stderr.write(f"{escape_text(str(error))}\n")
        return BAD_INPUT
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'the system'}: {error.strerror or error}\n")
        return LACKING
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
