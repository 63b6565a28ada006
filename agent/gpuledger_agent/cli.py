"""The gpuledger-agent command."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger_agent import __version__
from gpuledger_agent.settings import Settings, load
from gpuledger_agent.sources import SOURCES, require_fleet
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.plurals import plural
from gpuledger_common.readings import AgentError, SourceUnavailable
from gpuledger_common.settings import SettingsError

if TYPE_CHECKING:
    from gpuledger_agent.queue import QueuedWorkload

SUCCESS, FINDINGS, BAD_INPUT, UNAVAILABLE = 0, 1, 2, 3
Command = Callable[[argparse.Namespace], int]
CONFIRM_TRIES = 300
"""Tenths of a second in which a running agent confirms a release: three of its sampling intervals
by default.
"""


class HelpFormatter(argparse.HelpFormatter):
    """Help as wide as the terminal.

    argparse itself imports shutil to find the width, also where no help is asked for, and with it
    two libraries for archives: half a MiB in every agent.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_columns() - 2)


def terminal_columns() -> int:
    """COLUMNS, else what the terminal has, else 80."""
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["COLUMNS"])
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 80


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="gpuledger-agent",
        description="Sample the GPUs of a node, record who holds them, and deliver the evidence.",
        epilog="Example: gpuledger-agent once --json",
        formatter_class=HelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"gpuledger-agent {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False, formatter_class=HelpFormatter)
    common.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    common.add_argument("--source", choices=SOURCES, help="source of samples (default: nvml)")
    common.add_argument(
        "--target", metavar="URL|FILE", help="address or page of an exporter; a recording"
    )
    text = "profile of an exporter: a file, or an id of `gpuledger profiles list`"
    common.add_argument(
        "--profile", metavar="FILE|ID", help=f"{text} (default: the one that fits its page)"
    )
    common.add_argument("--node", metavar="NAME", help="name of this node (default: its host name)")

    def add(execute: Command, text: str, example: str) -> argparse.ArgumentParser:
        name = execute.__name__.removesuffix("_command")
        epilog = f"Example: gpuledger-agent {name}{example}"
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=epilog,
            parents=[common],
            formatter_class=HelpFormatter,
        )
        command.set_defaults(execute=execute)
        return command

    run = add(
        run_command, "Sample, spool and push until stopped.", " --config /etc/gpuledger/agent.toml"
    )
    run.add_argument("--check-config", action="store_true", help="check the settings and exit")
    once = add(once_command, "Sample once and print the result.", " --json")
    once.add_argument("--json", action="store_true", help="print one JSON object")
    add(check_command, "Show which metrics these cards give and which not, and why.", "")
    record = add(record_command, "Write what the source gives into a recording.", " out.jsonl.gz")
    record.add_argument("file", metavar="FILE", help="the recording to write (.jsonl or .jsonl.gz)")
    record.add_argument(
        "--seconds", type=float, default=60.0, help="how long to record (default: 60)"
    )
    record.add_argument(
        "--interval", type=float, default=1.0, help="seconds between samples (default: 1)"
    )
    text = "Release every GPU for a reset or a MIG change; sampling resumes by itself."
    release = add(release_command, text, " --for 10m")
    release.add_argument(
        "--for", dest="duration", default="10m", metavar="DURATION", help="how long (default: 10m)"
    )
    add(resume_command, "Resume sampling before the time of a release is over.", "")
    text = (
        "Let the agent say, when it stops next, that it is being uninstalled: nobody calls its node"
        " silent then."
    )
    add(goodbye_command, text, "")
    text = (
        "Read which workloads wait for GPUs in a scheduler's queue, and send them to the collector."
    )
    add_queue_options(add(queue_command, text, " --slurm --every 60"))
    text = "Send the past of a simulated fleet through the real meter, spool and push."
    example = " --from 2026-10-01T00:00:00Z --to 2026-11-01T00:00:00Z --step 5m"
    add_simulate_options(add(simulate_command, text, example))
    return root


def add_queue_options(queue: argparse.ArgumentParser) -> None:
    """Options of `queue`."""
    scheduler = queue.add_mutually_exclusive_group(required=True)
    scheduler.add_argument("--slurm", action="store_true", help="pending jobs, by squeue")
    scheduler.add_argument(
        "--kubernetes", action="store_true", help="pending pods, by the API server"
    )
    queue.add_argument(
        "--pool", default="", metavar="NAME", help="pool of all of them (Slurm: else the partition)"
    )
    queue.add_argument(
        "--name", default="", metavar="NAME", help="name of the cluster, when there are several"
    )
    queue.add_argument(
        "--every", type=float, metavar="SECONDS", help="repeat until stopped; else once"
    )
    queue.add_argument(
        "--print", dest="show", action="store_true", help="print the queue and send nothing"
    )


def add_simulate_options(simulate: argparse.ArgumentParser) -> None:
    """Options of `simulate`."""
    simulate.add_argument("--from", dest="start", metavar="INSTANT", help="RFC 3339 with zone")
    simulate.add_argument("--to", dest="end", metavar="INSTANT", help="RFC 3339 with zone")
    simulate.add_argument(
        "--step", default="5m", help="time between samples, such as 30s or 5m (default: 5m)"
    )
    simulate.add_argument("--collector", metavar="URL", help="address of the collector")
    simulate.add_argument(
        "--only", metavar="NODES", default="", help="only these nodes, comma-separated"
    )
    simulate.add_argument("--without", metavar="NODES", default="", help="all nodes except these")
    simulate.add_argument(
        "--story",
        action="store_true",
        help=(
            "print the incidents in that time and exit. Not listed: all jobs of the simulated fleet"
            " end at every fourth midnight (UTC), so demand falls then"
        ),
    )
    simulate.add_argument(
        "--asked",
        metavar="FILE",
        default="",
        help=(
            "write the tokens that teams had from the fleet's shared model in whole hours of that"
            " time to a CSV file for `gpuledger import inference`, and exit"
        ),
    )
    text = (
        "replay saved pages of exporters instead: folders NODE/*.prom, each page for an hour, in a"
        " loop"
    )
    simulate.add_argument("--pages", metavar="FOLDER", default="", help=text)
    simulate.add_argument(
        "--list-nodes", action="store_true", help="print the names of the nodes and exit"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an expected error becomes one line on standard error and an exit code."""
    given = parser().parse_args(arguments)
    try:
        code = given.execute(given)
        sys.stdout.flush()  # here, where a reader that has gone (head) is no error
        sys.exit(code)
    except SourceUnavailable as error:
        code, message = UNAVAILABLE, str(error)
    except (SettingsError, AgentError) as error:
        code, message = BAD_INPUT if error.permanent else UNAVAILABLE, str(error)
    except KeyboardInterrupt:
        code, message = 130, "stopped"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(SUCCESS)
    except OSError as error:
        code, message = UNAVAILABLE, f"{error.filename or 'the system'}: {error.strerror or error}"
    print(f"gpuledger-agent: {escape_text(message)}", file=sys.stderr)
    sys.exit(code)


def settings_of(given: argparse.Namespace) -> Settings:
    """Settings from file, environment and command line. Raises SettingsError."""
    return load(
        given.config,
        os.environ,
        source=given.source,
        target=given.target,
        node=given.node,
        profile=given.profile,
    )


def reloaded_settings(given: argparse.Namespace) -> Settings:
    """The settings again, while sampling waits. Raises SettingsError, also for a pipe: it would
    block, and has nothing new to say.
    """
    if given.config is not None and given.config.exists() and not given.config.is_file():
        raise SettingsError(f"{given.config}: is not a regular file, so it cannot be read again")
    return settings_of(given)


def run_command(given: argparse.Namespace) -> int:
    """`run`."""
    settings = settings_of(given)
    if given.check_config:
        print("the settings are good")
        return SUCCESS
    from gpuledger_agent import daemon

    agent = daemon.build(settings, lambda: reloaded_settings(given))
    if settings.metrics_listen:
        from gpuledger_agent.exposition import MetricsPage, serve

        vintage: Any = settings.dcgm_names
        page = MetricsPage(agent.sampler, agent.spool, vintage, hardware=settings.hw_names == "on")
        try:
            serve(settings.metrics_listen, page)
        except OSError as error:
            raise SettingsError(
                f"metrics_listen: {settings.metrics_listen} cannot be used ({error.strerror})"
            ) from None
    return agent.run()


def once_command(given: argparse.Namespace) -> int:
    """`once`."""
    from gpuledger_agent.diagnostics import once, once_text

    report = once(settings_of(given))
    print(json.dumps(report, indent=2) if given.json else once_text(report))
    return SUCCESS


def check_command(given: argparse.Namespace) -> int:
    """`check`."""
    from gpuledger_agent.diagnostics import check

    text, code = check(settings_of(given))
    print(text)
    return code


def record_command(given: argparse.Namespace) -> int:
    """`record`."""
    from gpuledger_agent.diagnostics import record

    ticks = record(settings_of(given), Path(given.file), given.seconds, given.interval)
    print(f"{given.file}: {ticks} ticks")
    return SUCCESS


def release_command(given: argparse.Namespace) -> int:
    """`release`: returns when the daemon has confirmed it, or after a while without confirmation
    (exit 1).
    """
    from gpuledger_agent import release
    from gpuledger_agent.clock import wall_ms
    from gpuledger_agent.settings import duration_ms

    folder = settings_of(given).agent_folder
    release.write(
        folder,
        release.Release(wall_ms() + duration_ms(given.duration, "--for", release.MAX_RELEASE_MS)),
    )
    for _ in range(CONFIRM_TRIES):
        note = release.read(folder, wall_ms())
        if note is not None and note.confirmed:
            print(
                f"every GPU is released for {given.duration}; `gpuledger-agent resume` ends it"
                " earlier"
            )
            return SUCCESS
        time.sleep(0.1)
    print(
        f"no agent with the state folder {folder} has confirmed; it will when it runs",
        file=sys.stderr,
    )
    return FINDINGS


def resume_command(given: argparse.Namespace) -> int:
    """`resume`."""
    from gpuledger_agent import release

    was_released = release.clear(settings_of(given).agent_folder)
    print("sampling resumes with the next round" if was_released else "nothing was released")
    return SUCCESS


def goodbye_command(given: argparse.Namespace) -> int:
    """`goodbye`."""
    from gpuledger_agent import goodbye

    goodbye.write(settings_of(given).agent_folder)
    print(
        "the agent says goodbye when it stops; its GPUs stay capacity until `gpuledger nodes retire"
        " NODE`"
    )
    return SUCCESS


def simulate_command(given: argparse.Namespace) -> int:
    """`simulate`."""
    require_fleet()
    from gpuledger_agent.simulate import incidents, node_names, replay_pages, simulate, write_asked

    settings = settings_of(given)
    if given.list_nodes:
        print("\n".join(node_names(settings.seed)))
    elif given.story:
        print(escape_lines(incidents(settings, given.start, given.end)))
    elif given.asked:
        print(write_asked(given.asked, given.start, given.end))
    elif given.pages:
        address = given.collector or settings.collector_url
        replay_pages(settings, given.start, given.end, given.step, address, given.pages)
    else:
        address = given.collector or settings.collector_url
        simulate(
            settings,
            given.start,
            given.end,
            given.step,
            address,
            only=given.only,
            without=given.without,
        )
    return SUCCESS


def queue_command(given: argparse.Namespace) -> int:
    """`queue`: with --every a failed attempt is reported and repeated; without it, it is the
    command's failure.
    """
    from gpuledger_agent.queue import report, send

    settings = settings_of(given)
    while True:
        begun = time.monotonic()
        try:
            source, waiting = queued_workloads(given, settings)
            body = report(source, time.time(), waiting)
            if given.show:
                print(json.dumps(body, indent=2))
            else:
                gpus = plural(f"{sum(workload.gpus for workload in waiting):g}", "GPU")
                status = send(body, settings.collector_url, settings.token_path, settings.ca_file)
                line = f"{source}: {plural(len(waiting), 'job')} waiting for {gpus} ({status})"
                print(escape_text(line), flush=True)
        except AgentError as error:
            if given.every is None:
                raise
            print(f"gpuledger-agent: {escape_text(str(error))}", file=sys.stderr, flush=True)
        if given.every is None:
            return SUCCESS
        time.sleep(max(1.0, given.every - (time.monotonic() - begun)))


def queued_workloads(
    given: argparse.Namespace, settings: Settings
) -> tuple[str, Sequence[QueuedWorkload]]:
    """The source's name and the workloads that wait in its queue.

    Raises AgentError or SettingsError.
    """
    if given.slurm:
        from gpuledger_agent.queue import slurm

        return ":".join(filter(None, ["slurm", given.name])), slurm.pending(given.pool)
    from gpuledger_agent.owners.kubernetes_api import ApiServer
    from gpuledger_agent.queue import kubernetes
    from gpuledger_common.kubernetes_client import in_cluster_url

    url, account = settings.kubernetes_api_url or in_cluster_url(), settings.kubernetes_account_dir
    if not url or url == "off" or account is None:
        raise SettingsError(
            "kubernetes_api_url: there is no API server here; run this in the cluster or name one"
        )
    pods = kubernetes.pending(
        ApiServer(url, account, 10.0), given.pool or settings.pool or "default"
    )
    return ":".join(filter(None, ["kubernetes", given.name])), pods


if __name__ == "__main__":
    main()
