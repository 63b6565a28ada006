"""The daemon: the main thread only schedules; a sick driver, a slow collector or a full disk stops nothing else.

Signals: TERM and INT stop sampling, spool the open batch, send what waits, the newest first, for LAST_SEND_S at most
(also when the push loop hangs in a slow request), and end with 0; HUP reads the settings again (bad ones are reported
and the old ones kept). A handler only puts its number into a queue: an Event that the interrupted thread waits on is
not safe to set there. The watchdog of systemd is fed only while both loops move. Whatever else goes wrong in a round
is said once, counted (gpuledger_agent_faults_total), and the next round begins as if nothing had been.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import queue
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from gpuledger_agent import release
from gpuledger_agent.clock import Clock
from gpuledger_agent.owners import open_owners
from gpuledger_agent.push import TIMEOUT_S, Http, Pusher
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.settings import FIELDS, Settings, SettingsError
from gpuledger_agent.sources import open_source
from gpuledger_agent.spool import Spool
from gpuledger_common.escapes import escape_text
from gpuledger_common.meter import Meter
from gpuledger_common.readings import SourceUnavailable, StillStarting
from gpuledger_common.systemd import notify

log = logging.getLogger("gpuledger_agent")

GAP_INTERVALS = 3
LONGEST_ROUND_S = 5.0
"""How long a round waits for a GPU that hangs (sources.nvml.READ_DEADLINE_S)."""
REOPEN_MIN_S, REOPEN_MAX_S = 5.0, 60.0
RELOADED = frozenset(
    {
        "collector_url",
        "token_file",
        "ca_file",
        "sample_interval_s",
        "slow_interval_s",
        "extra_tiers",
        "push_interval_s",
        "busy_threshold",
        "log_level",
        "log_format",
    }
)
"""Settings that change while the agent runs; the others do with a restart."""
STALE_S = 120.0
"""A loop that has not moved for so long gets no watchdog signal."""
OFTEN, EVERY_TIER = ("fast", "gpm"), ("fast", "gpm", "slow", "static")
LAST_SEND_S = 10.0
HANDOVER_S = 2.0
"""How long a request that is under way at the end may still take before the last send begins without it."""


def wall_ms() -> int:
    """The wall clock in unix milliseconds."""
    return time.time_ns() // 1_000_000


class LineFormatter(logging.Formatter):
    """A record is one line: what is not seen in it is an escape. The lines of a traceback stand indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Level and message."""
        first = f"{record.levelname} {escape_text(record.getMessage())}"
        below = [] if record.exc_info is None else self.formatException(record.exc_info).split("\n")
        return "\n    ".join([first, *map(escape_text, below)])


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        return json.dumps(
            {
                "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
                "level": record.levelname.lower(),
                "message": record.getMessage(),
            }
        )


def start_log(settings: Settings) -> None:
    """Logs go to standard error, as systemd and containers want them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else LineFormatter())
    log.handlers[:] = [handler]
    log.setLevel(settings.log_level.upper())


def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@dataclass
class Daemon:
    """One running agent. `reload` gives new settings on SIGHUP, or raises SettingsError."""

    settings: Settings
    reload: Callable[[], Settings]
    spool: Spool
    sampler: Sampler
    clock: Clock
    stop: threading.Event = field(default_factory=threading.Event)
    wake_push: threading.Event = field(default_factory=threading.Event)
    signals: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    moved_push: float = field(default_factory=time.monotonic)
    _open: bool = False
    _released: bool = False
    _reopen_at: float = 0.0
    _reopen_s: float = REOPEN_MIN_S
    _broken_rounds: int = 0

    def __post_init__(self) -> None:
        self._make_pusher()

    def _make_pusher(self) -> None:
        self.pusher = self._new_pusher(TIMEOUT_S)

    def _new_pusher(self, timeout_s: float) -> Pusher:
        http = Http(self.settings.collector_url, self.settings.token_path, self.settings.ca_file, timeout_s)
        return Pusher(self.spool, http.post, wall_ms)

    def run(self) -> int:
        """Until a signal; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        pushing = threading.Thread(target=self._push, name="push", daemon=True)
        pushing.start()
        notify("READY=1")
        log.info(
            "node %s, source %s, collector %s, spool %s",
            self.sampler.node,
            self.settings.source,
            self.settings.collector_url,
            self.spool.path,
        )
        try:
            self._sample()
        finally:
            self._end(pushing)
        return 0

    def _push(self) -> None:
        while not self.stop.is_set():
            pusher = self.pusher
            pusher.drain(_Either(self.stop, partial(self._replaced, pusher)), self.wake_push, self._push_moved)

    def _replaced(self, pusher: Pusher) -> bool:
        return self.pusher is not pusher

    def _push_moved(self) -> None:
        self.moved_push = time.monotonic()

    def _sample(self) -> None:
        """The sampling loop: on a fixed grid of the monotonic clock, so that a slow tick does not shift the next."""
        next_tick = next_slow = time.monotonic()
        next_flush = next_tick + min(self.settings.push_interval_s, 5.0)
        while not self.stop.is_set():
            now = time.monotonic()
            interval = self.settings.sample_interval_s
            slow = now >= next_slow
            if slow:
                next_slow = now + self.settings.slow_interval_s
            self._tick(
                (*(EVERY_TIER if slow else OFTEN), *(tier for tier in self.settings.extra if slow or tier == "gpm-opt"))
            )
            if now >= next_flush:
                next_flush = now + self.settings.push_interval_s
                self._flush()
            if now - self.moved_push < STALE_S:
                notify("WATCHDOG=1")
            next_tick = max(next_tick + interval, time.monotonic())
            self._obey(next_tick)

    def _obey(self, until: float) -> None:
        """Waits for the next round, and does what signals say as soon as they come."""
        while not self.stop.is_set():
            try:
                number = self.signals.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if number == signal.SIGHUP:
                self._reload()
            else:
                self.stop.set()

    def _tick(self, tiers: tuple[str, ...]) -> None:
        """A round. What nobody foresaw ends only this one; when it goes on, the source is closed and opened again."""
        try:
            self._round(tiers)
        except Exception as error:  # a source's, the clock's or the meter's own mistake must not end sampling
            self.sampler.faults.note("source", error)
            self._broken_rounds += 1
            if self._broken_rounds >= GAP_INTERVALS:
                self._broken_rounds = 0
                self._let_source_go()
                self._lost(f"the source fails: {type(error).__name__}: {error}")
        else:
            self._broken_rounds = 0

    def _round(self, tiers: tuple[str, ...]) -> None:
        if self.clock.check(wall_ms(), time.monotonic_ns()):
            log.warning("the wall clock was set: a gap begins; no time is invented, and none is counted twice")
            self.sampler.meter.clock_set()
        if self._expired() or (not self._open and not self._try_open()):
            return
        try:
            self.sampler.tick(self.clock.at_ms, tiers)
        except SourceUnavailable as error:
            self._lost(str(error))

    def _expired(self) -> bool:
        """While a release is in force: every handle is closed, once, and confirmed in the note."""
        folder = self.settings.spool_folder
        released = release.read(folder, wall_ms())
        if released is None:
            if self._released:
                log.info("the release is over: the GPUs are taken up again")
                self._released, self._reopen_at = False, 0.0
            return False
        if not self._released:
            self._let_source_go()  # also one that was lost: it may still have the driver's library, or some GPUs
            self._released = True
            self.sampler.detached("released on request: the GPUs are let go for a reset or a MIG change", "degraded")
            log.info("every GPU is let go; `gpuledger-agent resume` or the end of the time takes them up again")
        if not released.confirmed:
            with contextlib.suppress(OSError):
                release.write(folder, dataclasses.replace(released, confirmed=True))
        return True

    def _let_source_go(self) -> None:
        self._open = False
        try:
            self.sampler.source.close()
        except Exception as error:
            self.sampler.faults.note("source", error)

    def _try_open(self) -> bool:
        """Opens the source, at growing intervals; the heartbeat goes on without it."""
        now = time.monotonic()
        if now < self._reopen_at:
            return False
        try:
            self.sampler.attached(self.sampler.source.open())
        except SourceUnavailable as error:
            if isinstance(error, StillStarting):
                self._reopen_s = REOPEN_MIN_S
            self._lost(str(error))
            return False
        self._open, self._reopen_s = True, REOPEN_MIN_S
        log.info(
            "%d accelerators, driver %s%s",
            len(self.sampler.latest.accelerators),
            self.sampler.driver,
            f"; {self.sampler.detail}" if self.sampler.detail else "",
        )
        return True

    def _lost(self, sentence: str) -> None:
        if sentence != self.sampler.detail:
            log.warning("%s", sentence)
        self.sampler.detached(sentence)
        self._open = False
        self._reopen_at = time.monotonic() + self._reopen_s
        self._reopen_s = min(self._reopen_s * 2, REOPEN_MAX_S)

    def _flush(self) -> None:
        try:
            self.sampler.flush(self.spool, wall_ms())
        except Exception as error:  # disk full, I/O error: sampling goes on, the spans stay in memory
            log.error("the spool could not take a batch (%s); it is kept in memory", error)  # noqa: TRY400
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                self._renew_spool()
            return
        self.wake_push.set()

    def _renew_spool(self) -> None:
        """The file was damaged under us: a new one is begun, or the sound old one opened anew, by the next batch."""
        try:
            self.spool.renew(wall_ms())
        except Exception as error:
            self.sampler.faults.note("spool", error)
        else:
            log.error("the spool was opened again; what was damaged lies at %s", self.spool.quarantined or "no place")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signals.put(number)

    def _reload(self) -> None:
        """Takes what can change while running: intervals, threshold, collector, token, log; the rest at a restart."""
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            fresh = self.reload()
        except SettingsError as error:
            log.error("the settings stay as they were: %s", error)  # noqa: TRY400
        else:
            kept = [
                name for name in FIELDS if name not in RELOADED and getattr(fresh, name) != getattr(self.settings, name)
            ]
            log.info("settings read again%s", f"; {', '.join(kept)} change with a restart" if kept else "")
            self.settings = fresh
            self.sampler.meter.busy_threshold = fresh.busy_threshold
            self.sampler.meter.gap_ms = gap_ms(fresh)
            start_log(fresh)
            self._make_pusher()
            self.wake_push.set()
        notify("READY=1")

    def _end(self, pushing: threading.Thread) -> None:
        """Spools what is open and delivers what it can; a request that hangs is left to itself (it may come twice)."""
        notify("STOPPING=1")
        deadline = time.monotonic() + LAST_SEND_S
        self.stop.set()
        self.wake_push.set()
        self._flush()
        pushing.join(HANDOVER_S)
        last = threading.Thread(target=self._last_send, args=(deadline,), name="last send", daemon=True)
        last.start()
        if self._open:
            self._let_source_go()
        last.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(sqlite3.Error):
            log.info("stopped; %d batches wait in the spool", self.spool.counts().pending)

    def _last_send(self, deadline: float) -> None:
        with contextlib.suppress(Exception):  # whatever it is, the batches wait for the next start
            self._new_pusher(LAST_SEND_S / 2).last(deadline)


class _Either(threading.Event):
    """A stop that is also set when the pusher was replaced."""

    def __init__(self, stop: threading.Event, replaced: Callable[[], bool]) -> None:
        super().__init__()
        self._stop, self._replaced = stop, replaced

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._stop.is_set() or self._replaced()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits on the true stop."""
        return self._stop.wait(timeout) or self._replaced()


def gap_ms(settings: Settings) -> int:
    """The longest interval between samples that still counts as seen.

    A round that waits for one GPU until its deadline must not cost its neighbours their time.
    """
    interval_s = settings.sample_interval_s
    return round(max(GAP_INTERVALS * interval_s, LONGEST_ROUND_S + 2 * interval_s) * 1000)


def build(settings: Settings, reload: Callable[[], Settings]) -> Daemon:
    """A daemon from its settings. Raises AgentError with a sentence when the spool or a rules file cannot be used."""
    start_log(settings)
    source = open_source(
        settings.source,
        settings.target or None,
        node=settings.node_name,
        seed=settings.seed,
        given_back_ms=settings.given_back_ms,
        patient=False,
    )
    owners = open_owners(
        settings.owner_sources, settings.owner_rules_file, settings.node_name, source, settings.owner_places
    )
    spool = Spool(settings.spool_folder, settings.spool_bytes, wall_ms())
    if spool.quarantined is not None:
        log.error("the spool was damaged; it lies at %s, a new one has begun", spool.quarantined)
    meter = Meter(gap_ms(settings), settings.busy_threshold)
    sampler = Sampler(settings.node_name, settings.pool, source, owners, meter, boot_id=boot_id())
    clock = Clock(wall_ms(), time.monotonic_ns())
    if settings.serving_endpoints or settings.progress_dir is not None:
        count_outputs(settings, sampler, clock)
    return Daemon(settings, reload, spool, sampler, clock)


def count_outputs(settings: Settings, sampler: Sampler, clock: Clock) -> None:
    """Begin to read what workloads produce; only agents that are asked to have the code for it in memory."""
    from gpuledger_agent.serving import CounterReader, endpoints

    sampler.counting = CounterReader(
        endpoints(settings.serving_endpoints),
        settings.progress_dir,
        lambda: sampler.latest.holders,
        lambda: clock.at_ms(time.monotonic_ns()),
    )
    sampler.counting.start(lambda: settings.slow_interval_s)
