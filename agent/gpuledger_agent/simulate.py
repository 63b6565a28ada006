"""Replay a simulated fleet, or saved pages of exporters, in virtual time: the real sampler, meter,
spool and push.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from gpuledger_agent.clock import wall_ms
from gpuledger_agent.owners import open_owners
from gpuledger_agent.push import Http, Pusher
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.settings import Settings, duration_ms
from gpuledger_agent.sources.exporter import ExporterSource
from gpuledger_agent.sources.shared_model import (
    READ_EVERY_MS,
    ReplicaCounters,
    asked_lines,
    first_counted_ms,
)
from gpuledger_agent.sources.simulated import Fleet, SimulatedSource
from gpuledger_agent.spool import Spool
from gpuledger_common.instants import to_datetime, to_ms
from gpuledger_common.meter import Meter
from gpuledger_common.plurals import plural
from gpuledger_common.readings import HOUR_MS, OwnerSource, Source, SourceUnavailable
from gpuledger_common.settings import SettingsError

SimulatedNode = tuple[Source, Sequence[OwnerSource]]
"""A source and who knows the holders of its accelerators."""
FLUSH_TICKS = 288
"""Rounds of samples in a batch, a day at five minutes: each batch costs the collector a
transaction.
"""
PATIENCE_S = 30.0
"""How long the collector may refuse batches before the simulation gives up."""


def node_names(seed: int) -> list[str]:
    """Names of the fleet's nodes."""
    return [node.name for node in Fleet(seed).nodes]


def instant_ms(text: str | None, name: str) -> int:
    """An RFC 3339 instant with zone as unix milliseconds. Raises SettingsError."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        raise SettingsError(
            f"{name}: {text!r} is not an instant such as 2026-10-31T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise SettingsError(f"{name}: {text!r} has no zone")
    return to_ms(at)


def chosen_nodes(fleet: Fleet, only: str, without: str) -> list[str]:
    """Names of the nodes to simulate.

    Raises SettingsError for a name that the fleet does not have.
    """
    names = [node.name for node in fleet.nodes]
    wanted, unwanted = (
        [name.strip() for name in text.split(",") if name.strip()] for text in (only, without)
    )
    for name in (*wanted, *unwanted):
        if name not in names:
            raise SettingsError(f"{name!r} is not a node of the fleet; it has {', '.join(names)}")
    return [name for name in names if (not wanted or name in wanted) and name not in unwanted]


def incidents(settings: Settings, start: str | None, end: str | None) -> str:
    """The incidents of the fleet between two instants, a line each."""
    fleet = Fleet(settings.seed, settings.given_back_ms)
    entries = fleet.incidents(instant_ms(start, "--from"), instant_ms(end, "--to"))
    lines = [
        f"{minute_text(begin)} to {minute_text(until)}  {text}" for begin, until, text in entries
    ]
    return "\n".join(lines or ["nothing out of the ordinary"])


def write_asked(file: str, start: str | None, end: str | None) -> str:
    """Write what the gateway before the fleet's shared model counted between two instants as CSV;
    returns a sentence. Raises OSError.
    """
    lines = list(asked_lines(instant_ms(start, "--from"), instant_ms(end, "--to")))
    Path(file).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return f"{file}: {plural(len(lines) - 1, 'row')} of tokens by hour and team"


def minute_text(at_ms: int) -> str:
    """An instant to the minute, in UTC."""
    return to_datetime(at_ms).strftime("%Y-%m-%dT%H:%MZ")


def simulate(
    settings: Settings,
    start: str | None,
    end: str | None,
    step: str,
    collector: str,
    *,
    only: str = "",
    without: str = "",
) -> None:
    """Simulate nodes of the fleet from start to end, with progress on a terminal."""
    start_ms, end_ms, every_ms = (
        instant_ms(start, "--from"),
        instant_ms(end, "--to"),
        duration_ms(step),
    )
    if end_ms <= start_ms:
        raise SettingsError("--to: must come after --from")
    fleet = Fleet(settings.seed, settings.given_back_ms)
    names = chosen_nodes(fleet, only, without)
    http = Http(collector, settings.token_path, settings.ca_file)
    batches = 0
    with tempfile.TemporaryDirectory(prefix="gpuledger-simulate-") as folder:
        for done, name in enumerate(names):
            show_progress(done, len(names), name)
            period = start_ms, end_ms, every_ms
            batches += simulate_node(settings, fleet, name, period, http, Path(folder) / name)
    show_progress(len(names), len(names), "")
    gpus = sum(len(node.accelerators) for node in fleet.nodes if node.name in names)
    sys.stdout.write(
        f"{plural(len(names), 'node')}, {plural(gpus, 'accelerator')}, batches acknowledged:"
        f" {batches}\n"
    )


def show_progress(done: int, total: int, name: str) -> None:
    """Redraw the progress line, on a terminal only."""
    if sys.stderr.isatty():
        bar = "#" * (30 * done // total)
        sys.stderr.write(
            f"\r  [{bar:30}] {done}/{total} nodes {name:16}" + ("\n" if done == total else "")
        )
        sys.stderr.flush()


def replay_pages(
    settings: Settings, start: str | None, end: str | None, step: str, collector: str, pages: str
) -> None:
    """Replay saved pages of exporters: each folder of `pages` is a node, each page in it holds for
    an hour, in a loop.

    Raises SettingsError for a folder without pages.
    """
    start_ms, end_ms, every_ms = (
        instant_ms(start, "--from"),
        instant_ms(end, "--to"),
        duration_ms(step),
    )
    if end_ms <= start_ms:
        raise SettingsError("--to: must come after --from")
    nodes = {
        folder.name: sorted(folder.glob("*.prom"))
        for folder in sorted(Path(pages).glob("*"))
        if folder.is_dir()
    }
    if not nodes or not all(nodes.values()):
        raise SettingsError(f"--pages: {pages} has no folders NODE/*.prom")
    http = Http(collector, settings.token_path, settings.ca_file)
    batches = 0
    with tempfile.TemporaryDirectory(prefix="gpuledger-simulate-") as folder:
        for name, files in nodes.items():
            texts = [path.read_text(encoding="utf-8") for path in files]
            batches += run_node(
                settings,
                name,
                partial(page_source, settings, name, texts),
                (start_ms, end_ms, every_ms),
                http,
                Path(folder) / name,
            )
    sys.stdout.write(f"{plural(len(nodes), 'node')}, batches acknowledged: {batches}\n")


def page_source(
    settings: Settings, name: str, texts: Sequence[str], now_ms: Callable[[], int]
) -> SimulatedNode:
    """A source of these pages, by the hour, and who holds its accelerators."""
    source = ExporterSource(
        name,
        settings.profile,
        name,
        monotonic_ns=lambda: now_ms() * 1_000_000,
        fetch=lambda _: texts[now_ms() // HOUR_MS % len(texts)],
    )
    return source, open_owners(replace(settings, node=name), source)


def simulate_node(
    settings: Settings,
    fleet: Fleet,
    name: str,
    period: tuple[int, int, int],
    http: Http,
    folder: Path,
) -> int:
    """Simulate one node of the fleet; returns the number of acknowledged batches."""

    def source(now_ms: Callable[[], int]) -> SimulatedNode:
        simulated = SimulatedSource(fleet, name, now_ms)
        return simulated, [simulated]

    counters = ReplicaCounters(fleet, fleet.node(name), first_counted_ms(wall_ms()))
    return run_node(settings, name, source, period, http, folder, counters)


def run_node(
    settings: Settings,
    name: str,
    make_source: Callable[[Callable[[], int]], SimulatedNode],
    period: tuple[int, int, int],
    http: Http,
    folder: Path,
    counters: ReplicaCounters | None = None,
) -> int:
    """Run one node for a period (start, end, step in ms); returns the number of acknowledged
    batches.

    `counters`: those of the model servers on it.
    """
    at_ms, end_ms, every_ms = period
    source, owners = make_source(lambda: at_ms)
    spool = Spool(folder, settings.spool_bytes, at_ms, free_floor=0)
    sampler = Sampler(
        name, settings.pool, source, owners, Meter(3 * every_ms, settings.busy_threshold)
    )
    sampler.counter_reader = counters
    sampler.attach(source.open())
    pusher = Pusher(spool, http.post, lambda: at_ms)
    next_flush = at_ms + FLUSH_TICKS * every_ms
    while at_ms <= end_ms:
        # Slow metrics once an hour: a month of them takes seconds, not minutes.
        due = at_ms % HOUR_MS < every_ms
        sampler.tick(
            lambda monotonic_ns: monotonic_ns // 1_000_000, ("fast", "slow") if due else ("fast",)
        )
        if counters is not None and at_ms % READ_EVERY_MS < every_ms:
            counters.read(at_ms)
        if at_ms >= next_flush:
            next_flush += FLUSH_TICKS * every_ms
            sampler.flush(spool, at_ms)
            drain(pusher)
        at_ms += every_ms
    sampler.flush(spool, at_ms)
    drain(pusher)
    counts = spool.counts()
    dead_letters = spool.dead_letters()
    spool.close()
    if counts.pending or counts.dead or dead_letters:
        why = (
            f"; the first refused record: {dead_letters[0][1]}, {dead_letters[0][2]}"
            if dead_letters
            else ""
        )
        raise SourceUnavailable(
            f"{counts.pending} batches of {name} wait, {counts.dead} were refused{why}"
        )
    return counts.acked


def drain(pusher: Pusher) -> None:
    """Send everything, at the pace that the collector allows.

    Raises SourceUnavailable when it stays unavailable.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (wait_s := pusher.step()) is not None:
        if wait_s > 0:
            if time.monotonic() > deadline:
                raise SourceUnavailable(f"the collector does not accept batches: {pusher.problem}")
            time.sleep(min(wait_s, 1.0))
