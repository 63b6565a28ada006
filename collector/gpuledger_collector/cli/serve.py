"""gpuledger serve: the collector; and gpuledger jobs: its scheduled work, apart."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app, refuse
from gpuledger_collector.cli.session import load_settings
from gpuledger_collector.settings import Settings, check

app = new_app()


@app.command("serve", epilog="Example: gpuledger serve --config /etc/gpuledger/collector.toml")
def serve(
    dsn: options.Dsn = None,
    config: options.Config = None,
    workers: Annotated[
        str | None,
        Option(
            "--workers",
            metavar="N|auto",
            help="Processes that serve (default: the setting workers).",
        ),
    ] = None,
    without_jobs: Annotated[
        bool,
        Option("--no-jobs", help="Leave the jobs to `gpuledger jobs` or another collector."),
    ] = False,
    check_config: Annotated[
        bool, Option("--check-config", help="Check the settings and exit.")
    ] = False,
    worker: Annotated[str | None, Option("--worker", hidden=True)] = None,
    opens_at: Annotated[str, Option("--opens-at", hidden=True)] = "",
) -> None:
    """Accept batches from agents, keep the ledger, run the jobs, answer the API."""
    settings = load_settings(config, dsn)
    if workers is not None:
        settings = _with_workers(settings, workers)
    if without_jobs:
        settings = dataclasses.replace(settings, jobs=False)
    # Secrets are read now, so that a missing file is an error at start.
    settings.agent_tokens()
    settings.reader_tokens()
    settings.database_dsn()
    if check_config:
        print("the settings are good")
        return
    # `worker`: what the supervisor says to a process that it starts with its own command line.
    if worker is not None:
        _start_in_group(settings, worker, opens_at)
    else:
        run_collector(settings, _say, config)


@app.command("jobs", epilog="Example: gpuledger jobs --config /etc/gpuledger/collector.toml")
def jobs(dsn: options.Dsn = None, config: options.Config = None) -> None:
    """Run the scheduled jobs alone, beside collectors that serve with --no-jobs."""
    from gpuledger_collector import jobs_process

    settings = load_settings(config, dsn)
    if settings.database_dsn() is None:
        refuse(
            "jobs: the embedded database belongs to `gpuledger serve`, which runs the jobs itself;"
            " name a database with --dsn"
        )
    jobs_process.run_jobs(settings, _say)


def _with_workers(settings: Settings, workers: str) -> Settings:
    if workers != "auto" and not workers.isdigit():
        refuse(f"--workers: {workers!r} is neither auto nor a whole number")
    chosen = dataclasses.replace(settings, workers=0 if workers == "auto" else int(workers))
    check(chosen)
    return chosen


def run_collector(
    settings: Settings,
    say: Callable[[str], None],
    config: Path | None,
    command: Sequence[str] | None = None,
    *,
    opens_at: str = "",
) -> None:
    """Serve until a signal, with the jobs where the settings want them, and exit.

    `config`: where the settings are from; `command`: the arguments of Python by which another
    command starts the processes of `serve`.
    `opens_at`: the period that the first page shows.
    """
    from gpuledger_collector import supervisor

    count = supervisor.worker_count(settings.workers, supervisor.available_cores())
    if count > 1 or settings.jobs:
        if config is not None and not config.is_file():
            refuse(
                f"--config: {config} can be read once, and each process of the collector reads it:"
                " write it into a file, or serve in one process with --workers 1 --no-jobs"
            )
        raise typer.Exit(supervisor.supervise(settings, count, say, command))
    from gpuledger_collector import serving

    serving.serve(settings, say, opens_at=opens_at)
    _leave()


def _start_in_group(settings: Settings, place: str, opens_at: str) -> None:
    from gpuledger_collector.worker_group import JOBS, WorkerGroup

    group = WorkerGroup.join(place)
    if group.place.name == JOBS:
        from gpuledger_collector import jobs_process

        jobs_process.run_jobs(settings, _say, group)
    else:
        from gpuledger_collector import serving

        serving.serve(settings, _say, group, opens_at=opens_at)
        _leave()


def _leave() -> None:
    """End a process whose work is done, without waiting for a forecast that a page asked for: its
    thread, stopped by the interpreter in the middle of native code, would abort the process.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _say(sentence: str) -> None:
    print(sentence, flush=True)
