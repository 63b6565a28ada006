"""gpuledger serve: the collector as a process.

Signals: INT and TERM stop accepting, answer what is under way, commit what waits, stop the jobs and the embedded
database, and end with 0. Before that, a replica that gets TERM leaves: for `shutdown_delay_seconds` it serves on
while /readyz says 503 and each answer closes its connection, so that balancer and agents go elsewhere. HUP reads the
agents' tokens again. KILL loses nothing that was acknowledged: what was not committed was not answered.
"""

from __future__ import annotations

import logging
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn

from gpuledger_collector import scheduled_jobs, wiring
from gpuledger_collector.api.auth.keys import FileTokens
from gpuledger_collector.api.limits import bounded_protocol
from gpuledger_collector.schedule import Schedule
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.errors import EnvironmentLacks, StorageError
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.wiring import Collector
from gpuledger_common.escapes import escape_text
from gpuledger_common.settings import SettingsError
from gpuledger_common.systemd import notify

WATCH_SECONDS = 0.5
CLOSE = (b"connection", b"close")
KEEP_ALIVE_SECONDS = 130
"""Longer than two pushes of an agent, so that a push need not connect anew."""

log = logging.getLogger(__name__)


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until a signal says to stop; `say` is told the address. Raises StorageError when it cannot begin."""
    configure_logging(settings)
    # uvicorn raises the signal again when it has stopped; by then it must no longer end the process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    allow_many_files()
    with listen(settings) as listener, wiring.database(settings) as opened:
        # What a setting can spoil comes before anything is started, or is said to be alive.
        parts = wiring.collector(settings, opened)
        schedule = scheduled_jobs.schedule(settings, opened, parts.metrics)
        presence, readers = wiring.presence(opened, parts.last_error), wiring.reader_watch(opened)
        parts.readiness.heartbeat = lambda: presence.error
        signal.signal(signal.SIGHUP, lambda *_: reload_tokens(settings, parts))
        parts.commit.start()
        presence.start()
        readers.start()
        if settings.jobs:
            schedule.start()
        stopping = watch(opened.server)
        try:
            # Beside the bundled database nobody takes over, so that leaving would only be waiting.
            leave_s = settings.shutdown_delay_seconds if opened.server is None else 0
            run_http(settings, parts, listener, say, leave_s)
        finally:
            stopping()
            stop(settings, parts, schedule)
            readers.stop()
            presence.stop()


def allow_many_files() -> None:
    """Use as many file descriptors as the system allows: every agent keeps a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises EnvironmentLacks when the address cannot be had."""
    host, port = settings.listen_host, settings.listen_port
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise EnvironmentLacks(
            f"{settings.listen} cannot be listened on ({error.strerror or error}): is a collector running already? "
            "GPULEDGER_LISTEN names another address"
        ) from error


class Replica(uvicorn.Server):
    """A server that leaves before it stops. `leaving` is set at the signal, `seconds` before the listener closes."""

    def __init__(self, config: uvicorn.Config, leaving: threading.Event, seconds: float) -> None:
        super().__init__(config)
        self._leaving = leaving
        self._seconds = seconds
        self._until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """TERM begins to leave; INT, and a second TERM, stop at once."""
        if sig == signal.SIGTERM and self._seconds and not self._leaving.is_set():
            self._until = time.monotonic() + self._seconds
            self._leaving.set()
            self._close_after_answers()
        else:
            self._leaving.set()
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop now."""
        ended: bool = await super().on_tick(counter)
        if not self._leaving.is_set():
            return ended
        self._close_after_answers()
        return ended or time.monotonic() >= self._until

    def _close_after_answers(self) -> None:
        """uvicorn makes these headers anew every second; this is called in its thread, right after."""
        if CLOSE not in self.server_state.default_headers:
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]


def run_http(
    settings: Settings, parts: Collector, listener: socket.socket, say: Callable[[str], None], leave_s: float
) -> None:
    """Answer requests until a signal and `leave_s` more; those under way are answered before this returns."""
    server = Replica(configuration(settings, parts), parts.leaving, leave_s)
    address = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    say(f"gpuledger listens on {'http' if settings.tls_certificate_file is None else 'https'}://{host}:{address[1]}")
    notify("READY=1")
    server.run(sockets=[listener])
    notify("STOPPING=1")


def configuration(settings: Settings, parts: Collector) -> uvicorn.Config:
    """How HTTP is served. Raises EnvironmentLacks when the certificate cannot be used.

    What a proxy says of the sender's address is not believed: `proxy_headers` would replace the peer's address by it.
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
        raise EnvironmentLacks(f"{certificate} and {key} cannot be used for TLS: {error.strerror or error}") from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def stop(settings: Settings, parts: Collector, schedule: Schedule) -> None:
    """Commit what waits and stop the jobs, each within `drain_seconds`."""
    deadline = time.monotonic() + settings.drain_seconds
    parts.commit.close(settings.drain_seconds)
    parts.remote.close(max(0.0, deadline - time.monotonic()))
    if settings.jobs:
        schedule.stop(settings.drain_seconds)


def watch(server: EmbeddedServer | None) -> Callable[[], None]:
    """Start the embedded server again whenever it dies; returns what ends the watch."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(WATCH_SECONDS):
            try:
                if server is not None and server.ensure_running():
                    log.warning("the embedded database had ended and was started again")
            except (StorageError, OSError):
                log.exception("the embedded database cannot be started again yet")

    thread = threading.Thread(target=look, name="database-watch", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(WATCH_SECONDS * 10)

    return end


def reload_tokens(settings: Settings, parts: Collector) -> None:
    """Read the files of tokens again; a file that cannot be read leaves the old ones in force."""
    try:
        parts.intake.keys.files = FileTokens.of(settings.agent_tokens(), settings.reader_tokens())
        log.info("the files of tokens were read again")
    except SettingsError as error:
        log.error("the old tokens stay in force: %s", error)  # noqa: TRY400 - the sentence says it all


def escaped(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A record is one line: what is not seen in it is an escape. The lines of a traceback stand indented below it."""
    for name, value in event.items():
        if name in {"exception", "stack"}:
            event[name] = "\n".join(f"    {escape_text(line)}" for line in str(value).split("\n"))
        elif isinstance(value, str):
            event[name] = escape_text(value)
    return event


def configure_logging(settings: Settings) -> None:
    """Every log line of every library through structlog to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_json = settings.log_format == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    lines = [] if as_json else [escaped]
    last: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, *lines, renderer]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for chatty in ("apscheduler", "alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
