"""The collector's log: one line for each record on standard error, and the traceback of a fault the
first time.

A batch that fails is sent again every few seconds by every agent that has one: each failure is one
line that says what and where, and only the first of a kind has its traceback. Values of variables,
and what a database adds about the rows that it refused, are never written (`faults`).
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import structlog

from gpuledger_collector import faults
from gpuledger_collector.settings import Settings
from gpuledger_common.escapes import escape_text

MAX_FAULTS = 100
"""Tracebacks that a process writes at most."""


class FirstTraceback:
    """A structlog processor: an exception becomes part of the line, its traceback is added once for
    each fault.
    """

    def __init__(self, max_faults: int = MAX_FAULTS) -> None:
        self._max_faults = max_faults
        self._seen: set[tuple[type[BaseException], str, int]] = set()
        self._lock = threading.Lock()

    def __call__(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Replace `exc_info` by a sentence in the event, and by `exception` when the fault is new."""
        error = _exception(event.pop("exc_info", None))
        if error is None:
            return event
        file, line = faults.origin(error)
        event["event"] = f"{event['event']}: {faults.sentence(error)} ({Path(file).name}:{line})"
        if self._admit((type(error), file, line)):
            event["exception"] = faults.report(error)
        return event

    def _admit(self, fault: tuple[type[BaseException], str, int]) -> bool:
        with self._lock:
            if fault in self._seen or len(self._seen) >= self._max_faults:
                return False
            self._seen.add(fault)
            return True


def _exception(given: object) -> BaseException | None:
    """The exception of a record: itself, the tuple of sys.exc_info, or True for the one that is
    handled now.
    """
    if isinstance(given, BaseException):
        return given
    value = given[1] if isinstance(given, tuple) else sys.exc_info()[1] if given else None
    return value if isinstance(value, BaseException) else None


def escape_event(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape invisible characters, so that a record is one line; lines of a traceback are indented
    below it.
    """
    for name, value in event.items():
        if name in {"exception", "stack"}:
            event[name] = "\n".join(f"    {escape_text(line)}" for line in str(value).split("\n"))
        elif isinstance(value, str):
            event[name] = escape_text(value)
    return event


def configure_logging(settings: Settings, worker: str | None = None) -> None:
    """Send log lines of all libraries through structlog to standard error, each with the number of
    the worker, or `jobs`.
    """

    def add_worker(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return event if worker is None else {**event, "worker": worker}

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_worker,
    ]
    as_json = settings.log_format == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    lines = [] if as_json else [escape_event]
    last: list[structlog.typing.Processor] = [FirstTraceback(), *lines, renderer]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for chatty in ("apscheduler", "alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
