"""The daemon: samples in the main thread and pushes in another, so that a hanging driver or
collector stops only one.

Signals: TERM and INT stop sampling, spool the open batch, send waiting batches, the newest first,
for at most LAST_SEND_S (even when the push loop hangs in a slow request), and exit with 0; HUP
reloads the settings (bad ones are reported and the old ones stay). A handler only puts its number
into a queue, because setting an Event that the interrupted thread waits on is not safe. systemd's
watchdog is fed only while both loops make progress. Any other exception is logged once, counted
(gpuledger_agent_faults_total), and aborts only the current round.
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
from pathlib import Path
from types import FrameType

from gpuledger_agent import goodbye, release
from gpuledger_agent.clock import Clock, wall_ms
from gpuledger_agent.owners import open_owners
from gpuledger_agent.push import TIMEOUT_S, Http, Pusher
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.settings import FIELDS, Settings
from gpuledger_agent.sources import open_source
from gpuledger_agent.spool import Spool
from gpuledger_common.escapes import escape_text
from gpuledger_common.meter import Meter
from gpuledger_common.readings import SourceUnavailable, StillStarting
from gpuledger_common.settings import SettingsError
from gpuledger_common.systemd import notify

log = logging.getLogger("gpuledger_agent")

GAP_INTERVALS = 3
MAX_ROUND_S = 5.0
"""How long a round waits for a hanging GPU (sources.nvml.READ_DEADLINE_S)."""
REOPEN_MIN_S, REOPEN_MAX_S = 5.0, 60.0
STALE_S = 120.0
"""Without progress of the push loop for so long, the watchdog is not fed."""
OFTEN, EVERY_TIER = ("fast", "gpm"), ("fast", "gpm", "slow", "static")
LAST_SEND_S = 10.0
HANDOVER_S = 2.0
"""How long a request that is in flight at the end may still take before the last send begins
without it.
"""


class LineFormatter(logging.Formatter):
    """One line per record, with invisible characters as escapes; the lines of a traceback are
    indented below it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Level and message."""
        first = f"{record.levelname} {escape_text(record.getMessage())}"
        below = [] if record.exc_info is None else self.formatException(record.exc_info).split("\n")
        return "\n    ".join([first, *map(escape_text, below)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        at = self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z")
        return json.dumps(
            {"at": at, "level": record.levelname.lower(), "message": record.getMessage()}
        )


def start_log(settings: Settings) -> None:
    """Log to standard error, as systemd and containers expect."""
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
    """A running agent. `reload` returns new settings on SIGHUP, or raises SettingsError."""

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
        self.pusher = self._new_pusher(TIMEOUT_S)

    def _new_pusher(self, timeout_s: float) -> Pusher:
        http = Http(
            self.settings.collector_url, self.settings.token_path, self.settings.ca_file, timeout_s
        )
        return Pusher(self.spool, http.post, wall_ms)

    def run(self) -> int:
        """Run until a signal; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._take_goodbye()  # of an uninstallation that never stopped an agent: this one is installed
        # Sampling stays in the main thread: Python delivers signals there, and the handler's queue
        # wakes it.
        pushing = threading.Thread(target=self._push, name="push", daemon=True)
        pushing.start()
        # Ready before the first sample: a driver may take a minute to start, and systemd would
        # restart the unit.
        notify("READY=1")
        source, collector = self.settings.source, self.settings.collector_url
        log.info(
            "node %s, source %s, collector %s, spool %s",
            self.sampler.node,
            source,
            collector,
            self.spool.path,
        )
        try:
            self._sample()
        finally:
            self._end(pushing)
        return 0

    def _push(self) -> None:
        while not self.stop.is_set():  # a reload retires the pusher and puts a new one in its place
            self.pusher.drain(self.stop, self.wake_push, self._push_moved)

    def _push_moved(self) -> None:
        self.moved_push = time.monotonic()

    def _sample(self) -> None:
        """The sampling loop, on a fixed grid of the monotonic clock, so that a slow tick does not
        shift the next.
        """
        next_tick = next_slow = time.monotonic()
        # The first batch is sent soon, so that a new node appears within seconds.
        next_flush = next_tick + min(self.settings.push_interval_s, 5.0)
        while not self.stop.is_set():
            now = time.monotonic()
            interval = self.settings.sample_interval_s
            slow = now >= next_slow
            if slow:
                next_slow = now + self.settings.slow_interval_s
            # A GPM value is the mean since the round before, so the optional ones are read in every
            # round as well.
            extra = (tier for tier in self.settings.extra if slow or tier == "gpm-opt")
            self._tick((*(EVERY_TIER if slow else OFTEN), *extra))
            if now >= next_flush:
                next_flush = now + self.settings.push_interval_s
                self._flush()
            # Reaching this line proves that sampling makes progress; the push loop reports its own.
            if now - self.moved_push < STALE_S:
                notify("WATCHDOG=1")
            # After a slow round the next one starts at once; missed ticks are not made up for.
            next_tick = max(next_tick + interval, time.monotonic())
            self._handle_signals(next_tick)

    def _handle_signals(self, until: float) -> None:
        """Wait for the next round, and handle signals as soon as they come."""
        while not self.stop.is_set():
            try:
                # A handled SIGHUP does not end the wait: sampling stays on its grid.
                number = self.signals.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if number == signal.SIGHUP:
                self._reload()
            else:
                self.stop.set()

    def _tick(self, tiers: tuple[str, ...]) -> None:
        """A round.

        An unexpected exception aborts only this one; after several, the source is closed and
        reopened.
        """
        try:
            self._round(tiers)
        except (
            Exception
        ) as error:  # a bug in the source, the clock or the meter must not end sampling
            self.sampler.exceptions.record("source", error)
            self._broken_rounds += 1
            # A single failure may pass by itself, and reopening attaches every GPU again.
            if self._broken_rounds >= GAP_INTERVALS:
                self._broken_rounds = 0
                self._close_source()
                self._source_lost(f"the source fails: {type(error).__name__}: {error}")
        else:
            self._broken_rounds = 0

    def _round(self, tiers: tuple[str, ...]) -> None:
        # First, so that no sample of this round is placed on the wrong side of the step.
        if self.clock.check(wall_ms(), time.monotonic_ns()):
            log.warning(
                "the wall clock was set: a gap begins; no time is invented, and none is counted"
                " twice"
            )
            self.sampler.meter.clock_set()
        if self._follow_release() or (not self._open and not self._try_open()):
            return
        try:
            self.sampler.tick(self.clock.at_ms, tiers)
        except SourceUnavailable as error:
            self._source_lost(str(error))

    def _follow_release(self) -> bool:
        """Whether a release is in force; its first round closes every handle and confirms that in
        the note.
        """
        folder = self.settings.spool_folder
        note = release.read(folder, wall_ms())
        if note is None:
            if self._released:
                log.info("the release is over: sampling resumes")
                self._released, self._reopen_at = False, 0.0
            return False
        if not self._released:
            self._close_source()  # also a lost one, which may still hold the driver's library or some GPUs
            self._released = True
            self.sampler.detach("released on request, for a GPU reset or a MIG change", "degraded")
            log.info(
                "every GPU is released until the time is over or `gpuledger-agent resume` is run"
            )
        # `release` waits for this confirmation before it says that the GPUs are free.
        if not note.confirmed:
            with contextlib.suppress(OSError):
                release.write(folder, dataclasses.replace(note, confirmed=True))
        return True

    def _take_goodbye(self) -> bool:
        """Whether `gpuledger-agent goodbye` was run; asking removes its note."""
        try:
            return goodbye.clear(self.settings.spool_folder)
        except OSError as error:  # a note that stays would be said again, at every stop
            log.warning("the note of an uninstallation cannot be removed: %s", error.strerror)
            return False

    def _close_source(self) -> None:
        self._open = False
        try:
            self.sampler.source.close()
        except Exception as error:
            self.sampler.exceptions.record("source", error)

    def _try_open(self) -> bool:
        """Open the source, at growing intervals; the heartbeat continues without it."""
        now = time.monotonic()
        if now < self._reopen_at:
            return False
        try:
            self.sampler.attach(self.sampler.source.open())
        except SourceUnavailable as error:
            # Not a failure yet: keep asking at the shortest interval instead of backing off.
            if isinstance(error, StillStarting):
                self._reopen_s = REOPEN_MIN_S
            self._source_lost(str(error))
            return False
        self._open, self._reopen_s = True, REOPEN_MIN_S
        detail = f"; {self.sampler.detail}" if self.sampler.detail else ""
        log.info(
            "%d accelerators, driver %s%s",
            len(self.sampler.latest.accelerators),
            self.sampler.driver,
            detail,
        )
        return True

    def _source_lost(self, reason: str) -> None:
        # A state that lasts is logged once, not at every attempt.
        if reason != self.sampler.detail:
            log.warning("%s", reason)
        self.sampler.detach(reason)
        self._open = False
        self._reopen_at = time.monotonic() + self._reopen_s
        self._reopen_s = min(self._reopen_s * 2, REOPEN_MAX_S)

    def _flush(self) -> None:
        try:
            self.sampler.flush(self.spool, wall_ms())
        except (
            Exception
        ) as error:  # disk full, I/O error: sampling continues, the intervals stay in memory
            log.error("a batch could not be spooled (%s); it is kept in memory", error)  # noqa: TRY400
            # OperationalError is a full disk or a lock, which passes; other database errors mean a
            # damaged file.
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.OperationalError
            ):
                self._renew_spool()
            return
        self.wake_push.set()

    def _renew_spool(self) -> None:
        """Reopen the spool, or begin a new one, after its file was damaged while in use."""
        try:
            self.spool.renew(wall_ms())
        except Exception as error:
            self.sampler.exceptions.record("spool", error)
        else:
            log.error(
                "the spool was reopened; quarantined file: %s", self.spool.quarantined or "none"
            )

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signals.put(number)

    def _reload(self) -> None:
        """Apply the settings that may change while running; the others need a restart."""
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            fresh = self.reload()
        except SettingsError as error:
            log.error("the settings are unchanged: %s", error)  # noqa: TRY400
        else:
            pending = [
                name
                for name, setting in FIELDS.items()
                if not setting.metadata["reloads"]
                and getattr(fresh, name) != getattr(self.settings, name)
            ]
            log.info(
                "settings reloaded%s",
                f"; a restart is needed for {', '.join(pending)}" if pending else "",
            )
            # What needs a restart stays as it is in force, also where this asks for a folder.
            reloaded = {name for name, setting in FIELDS.items() if setting.metadata["reloads"]}
            self.settings = dataclasses.replace(
                self.settings, **{name: getattr(fresh, name) for name in reloaded}
            )
            self.sampler.meter.busy_threshold = fresh.busy_threshold
            self.sampler.meter.gap_ms = gap_ms(fresh)
            start_log(fresh)
            # A request may be in flight with the old address: that pusher ends after it, the new
            # one takes over.
            retired, self.pusher = self.pusher, self._new_pusher(TIMEOUT_S)
            retired.retired = True
            # The pushing thread may be waiting for a batch: wake it, so that it sees that its
            # pusher was retired.
            self.wake_push.set()
        notify("READY=1")

    def _end(self, pushing: threading.Thread) -> None:
        """Spool what is open and deliver what is possible; a hanging request is abandoned, so it
        may arrive twice.
        """
        notify("STOPPING=1")
        deadline = time.monotonic() + LAST_SEND_S
        self.stop.set()
        self.wake_push.set()
        self.sampler.uninstalled = self._take_goodbye()
        self._flush()  # before the source is closed, which may hang in the driver
        # A request in flight usually ends soon; the last send would begin with the same batch and
        # send it twice.
        pushing.join(HANDOVER_S)
        # A daemon thread: a request that hangs beyond the deadline must not keep the process alive.
        last = threading.Thread(
            target=self._last_send, args=(deadline,), name="last send", daemon=True
        )
        last.start()
        if self._open:
            self._close_source()
        last.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(sqlite3.Error):
            log.info("stopped; %d batches wait in the spool", self.spool.counts().pending)

    def _last_send(self, deadline: float) -> None:
        with contextlib.suppress(Exception):  # whatever fails, the batches wait for the next start
            self._new_pusher(LAST_SEND_S / 2).last(deadline)


def gap_ms(settings: Settings) -> int:
    """The longest interval between samples that still counts as observed.

    A round that waits for one GPU until its deadline must not make the time of its neighbors
    unobserved.
    """
    interval_s = settings.sample_interval_s
    return round(max(GAP_INTERVALS * interval_s, MAX_ROUND_S + 2 * interval_s) * 1000)


def build(settings: Settings, reload: Callable[[], Settings]) -> Daemon:
    """A daemon from its settings.

    Raises SettingsError for a bad rules file, AgentError for an unusable spool.
    """
    start_log(settings)
    source = open_source(settings, patient=False)
    owners = open_owners(settings, source)
    spool = Spool(settings.spool_folder, settings.spool_bytes, wall_ms())
    if spool.quarantined is not None:
        log.error(
            "the spool was damaged; it was moved to %s, and a new one has begun", spool.quarantined
        )
    meter = Meter(gap_ms(settings), settings.busy_threshold)
    sampler = Sampler(settings.node_name, settings.pool, source, owners, meter, boot_id=boot_id())
    clock = Clock(wall_ms(), time.monotonic_ns())
    if settings.serving_endpoints or settings.progress_dir is not None:
        start_counter_reader(settings, sampler, clock)
    if settings.gateway_endpoints:
        start_gateway_reader(settings, sampler, clock)
    return Daemon(settings, reload, spool, sampler, clock)


def start_gateway_reader(settings: Settings, sampler: Sampler, clock: Clock) -> None:
    """Start reading tokens of gateways; imported only where it is configured, to save memory."""
    from gpuledger_agent.gateways import GatewayReader, gateways

    sampler.gateway_reader = GatewayReader(
        gateways(settings.gateway_endpoints), lambda: clock.at_ms(time.monotonic_ns())
    )
    sampler.gateway_reader.start(lambda: settings.slow_interval_s)


def start_counter_reader(settings: Settings, sampler: Sampler, clock: Clock) -> None:
    """Start reading what workloads produce; its code is imported only where it is configured, to
    save memory.
    """
    from gpuledger_agent.serving import CounterReader, endpoints

    reader = sampler.counter_reader = CounterReader(
        endpoints(settings.serving_endpoints),
        settings.progress_dir,
        lambda: sampler.latest.holders,
        lambda: clock.at_ms(time.monotonic_ns()),
    )
    reader.start(lambda: settings.slow_interval_s)
