"""The scheduled jobs as a process: beside the workers of a collector (`supervisor`), or alone
(`gpuledger jobs`), on this machine or another.

It answers nothing. Which of several such processes runs the jobs is decided by the leader's lock.
Signals: INT and TERM start no more runs, and exit with 0 once the current one has ended; from
`drain_seconds` on the log says that it is waited for. HUP changes nothing. KILL loses nothing: jobs
are idempotent, and whoever leads next repeats the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from gpuledger_collector import scheduled_jobs, wiring
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.logs import configure_logging
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.worker_group import WorkerGroup
from gpuledger_common.systemd import notify


def run_jobs(
    settings: Settings, say: Callable[[str], None], group: WorkerGroup | None = None
) -> None:
    """Run the jobs until a signal; `say` is told when they begin.

    `group`: the workers that this process stands beside.

    Raises StorageError when it cannot start.
    """
    configure_logging(settings, None if group is None else group.place.name)
    stopped = _signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(wiring.database(settings))
        refuse_standby(opened)
        schedule = scheduled_jobs.schedule(settings, opened, Metrics(group))
        # A newer collector asks who of older ones still writes; its workers say it for a group.
        presence = wiring.presence(opened) if group is None else None
        if presence is not None:
            presence.start()
        schedule.start()
        if group is None:
            say("gpuledger runs the jobs")
            notify("READY=1")
        else:
            group.say_ready()
        try:
            os.read(stopped, 1)
        finally:
            notify("STOPPING=1")
            schedule.stop(settings.drain_seconds)
            if presence is not None:
                presence.stop()


def _signals() -> int:
    """Return a file that has bytes from the first INT or TERM on.

    Written by the interpreter as the signal comes, in whichever thread: a handler in Python waits
    for the main thread, which sleeps until the file has bytes.
    """
    stopped, stop = os.pipe()
    os.set_blocking(stop, False)
    signal.set_wakeup_fd(stop, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return stopped


def refuse_standby(opened: Database) -> None:
    """Raise EnvironmentLacks where the database is a read replica."""
    if opened.standby:
        raise EnvironmentLacks(
            "the database is a read replica, where no job can run: set GPULEDGER_JOBS=false to"
            " serve pages from it"
        )
