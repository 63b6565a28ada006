"""gpuledger serve: a process that answers requests.

Signals: INT and TERM stop accepting, answer current requests, commit waiting batches, stop the
embedded database where it is this process', and exit with 0. A replica that gets TERM first drains: for
`shutdown_delay_seconds` it serves while /readyz says 503 and each answer closes its connection, so
that balancer and agents go elsewhere. HUP reads the token files again. KILL loses nothing that was
acknowledged: an uncommitted batch is unanswered.

It is a worker of a `supervisor`, on a socket that it inherits; or alone, where the collector is one
worker without jobs.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from gpuledger_collector import wiring
from gpuledger_collector.api.auth.keys import FileTokens
from gpuledger_collector.api.limits import bounded_protocol
from gpuledger_collector.jobs_process import refuse_standby
from gpuledger_collector.listening import address_of, listen
from gpuledger_collector.logs import configure_logging
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.wiring import Collector
from gpuledger_collector.worker_group import WorkerGroup
from gpuledger_common.settings import SettingsError
from gpuledger_common.systemd import notify

CLOSE = (b"connection", b"close")
KEEP_ALIVE_SECONDS = 130
"""Longer than two pushes of an agent, so that a push reuses its connection."""

log = logging.getLogger(__name__)


def serve(
    settings: Settings,
    say: Callable[[str], None],
    group: WorkerGroup | None = None,
    *,
    opens_at: str = "",
) -> None:
    """Serve until a signal; `say` receives the address.

    `group`: the workers that this process is one of. `opens_at`: the period that the first page
    shows; empty: this month.

    Raises StorageError when it cannot start.
    """
    configure_logging(settings, None if group is None else group.place.name)
    # Until uvicorn takes the signals; it raises its own again after it has stopped, and then they
    # must not end the process.
    asked_to_end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked_to_end.set())
    allow_many_files()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(settings) if group is None else group.listener())
        opened = stack.enter_context(wiring.database(settings))
        if settings.jobs:
            refuse_standby(opened)
        # Whatever a setting can break is created before anything starts and before the heartbeat.
        parts = wiring.collector(settings, opened, group=group)
        parts.app.state.opens_at = opens_at
        presence, readers = wiring.presence(opened, parts.last_error), wiring.reader_watch(opened)
        server = Replica(
            configuration(settings, parts),
            parts.leaving,
            leave_seconds(settings, opened, group),
            (lambda: None) if group is None else parts.metrics.note_queue,
            asked_to_end,
        )
        parts.readiness.heartbeat = lambda: (
            "it is a read replica" if opened.standby else presence.error
        )
        signal.signal(signal.SIGHUP, lambda *_: reload_tokens(settings, parts))
        parts.commit.start()
        if not opened.standby:
            presence.start()
            readers.start()
        if opened.server is not None and group is None:  # else the supervisor keeps it running
            stack.enter_context(opened.server.kept_running())
        try:
            run_http(settings, server, listener, say, group)
        finally:
            stop(settings, parts)
            if not opened.standby:
                readers.stop()
                presence.stop()


def leave_seconds(
    settings: Settings, opened: Database, group: WorkerGroup | None
) -> Callable[[], int]:
    """How long this process serves on after TERM, asked when it comes: not at all where nobody else
    can serve.
    """

    def seconds() -> int:
        others_serve = opened.server is None or (group is not None and not group.is_stopping)
        return settings.shutdown_delay_seconds if others_serve else 0

    return seconds


def allow_many_files() -> None:
    """Raise the limit of file descriptors as far as allowed: every agent keeps a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Replica(uvicorn.Server):
    """A server that drains before it stops.

    `leaving` is set at the signal, `seconds` before the listener closes. `asked_to_end` is set by a
    signal that came before this server could take it.

    `at_each_tick` is called ten times a second.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        leaving: threading.Event,
        seconds: Callable[[], float],
        at_each_tick: Callable[[], None],
        asked_to_end: threading.Event,
    ) -> None:
        super().__init__(config)
        self._at_each_tick = at_each_tick
        self._asked_to_end = asked_to_end
        self._leaving = leaving
        self._seconds = seconds
        self._until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at TERM; stop at once at INT and at a second TERM."""
        seconds = self._seconds()
        if sig == signal.SIGTERM and seconds and not self._leaving.is_set():
            self._until = time.monotonic() + seconds
            self._leaving.set()
            self._close_after_answers()
        else:
            self._leaving.set()
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop now."""
        ended: bool = await super().on_tick(counter)
        self._at_each_tick()
        if self._asked_to_end.is_set():
            return True
        if not self._leaving.is_set():
            return ended
        self._close_after_answers()
        return ended or time.monotonic() >= self._until

    def _close_after_answers(self) -> None:
        """Close connections after their answer; uvicorn resets these headers every second, right
        before this call.
        """
        if CLOSE not in self.server_state.default_headers:
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]


def run_http(
    settings: Settings,
    server: Replica,
    listener: socket.socket,
    say: Callable[[str], None],
    group: WorkerGroup | None,
) -> None:
    """Answer requests until the server is to stop; current requests are answered before this
    returns.
    """
    if group is None:
        say(f"gpuledger listens on {address_of(settings, listener)}")
        notify("READY=1")
    else:
        group.say_ready()
    server.run(sockets=[listener])
    notify("STOPPING=1")


def configuration(settings: Settings, parts: Collector) -> uvicorn.Config:
    """Configure the HTTP server. Raises EnvironmentLacks when the certificate cannot be used.

    `proxy_headers` is off: it would replace the peer's address by what a proxy claims.
    """
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    config = uvicorn.Config(
        parts.app,
        http=bounded_protocol(settings.max_connections),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.drain_seconds,
        ssl_certfile=None if certificate is None else str(certificate),
        ssl_keyfile=None if key is None else str(key),
    )
    try:
        config.load()
    except OSError as error:
        raise EnvironmentLacks(
            f"{certificate} and {key} cannot be used for TLS: {error.strerror or error}"
        ) from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def stop(settings: Settings, parts: Collector) -> None:
    """Commit waiting batches within `drain_seconds`."""
    deadline = time.monotonic() + settings.drain_seconds
    parts.commit.close(settings.drain_seconds)
    parts.remote.close(max(0.0, deadline - time.monotonic()))


def reload_tokens(settings: Settings, parts: Collector) -> None:
    """Read the token files again; an unreadable file leaves the old tokens in force."""
    try:
        parts.intake.keys.files = FileTokens.from_secrets(
            settings.agent_tokens(), settings.reader_tokens()
        )
        log.info("the files of tokens were read again")
    except SettingsError as error:
        log.error("the old tokens stay in force: %s", error)  # noqa: TRY400 - the sentence says it all
