"""The gpuledger-agent command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger_agent import __version__
from gpuledger_agent.settings import SOURCES, Settings, SettingsError, load
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.plurals import plural
from gpuledger_common.readings import AgentError, SourceUnavailable

if TYPE_CHECKING:
    from gpuledger_agent.queue import Waiting

DONE, FINDINGS, BAD_INPUT, LACKING = 0, 1, 2, 3
CONFIRM_TRIES = 300
"""Tenths of a second in which a running agent confirms a release: three of its sampling intervals by default."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="gpuledger-agent",
        description="Samples the GPUs of a node, knows who holds them, and delivers what it saw.",
        epilog="Example: gpuledger-agent once --json --source simulated",
    )
    root.add_argument("--version", action="version", version=f"gpuledger-agent {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    common.add_argument("--source", choices=SOURCES, help="where samples come from (default: nvml)")
    common.add_argument("--target", metavar="URL|FILE", help="a dcgm-exporter's address or page; a recording")
    common.add_argument("--node", metavar="NAME", help="name of this node (default: its host name)")

    def add(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, epilog=f"Example: {example}", parents=[common])

    run = add(
        "run", "Sample, spool and push until told to stop.", "gpuledger-agent run --config /etc/gpuledger/agent.toml"
    )
    run.add_argument("--check-config", action="store_true", help="check the settings and end")
    once = add("once", "Sample once and print it.", "gpuledger-agent once --json")
    once.add_argument("--json", action="store_true", help="print one JSON object")
    add("check", "Say what these cards give and what not, and why.", "gpuledger-agent check")
    record = add("record", "Write what the source gives into a recording.", "gpuledger-agent record out.jsonl.gz")
    record.add_argument("file", metavar="FILE", help="the recording to write (.jsonl or .jsonl.gz)")
    record.add_argument("--seconds", type=float, default=60.0, help="how long to record (default: 60)")
    record.add_argument("--interval", type=float, default=1.0, help="seconds between samples (default: 1)")
    letting = add(
        "release",
        "Let every GPU go, for a reset or a MIG change; the agent comes back by itself.",
        "gpuledger-agent release --for 10m",
    )
    letting.add_argument("--for", dest="duration", default="10m", metavar="SPAN", help="how long (default: 10m)")
    add("resume", "Take the GPUs up again before the time is over.", "gpuledger-agent resume")
    queue = add(
        "queue",
        "Read what waits for GPUs in a scheduler's queue, and tell the collector.",
        "gpuledger-agent queue --slurm --every 60",
    )
    which = queue.add_mutually_exclusive_group(required=True)
    which.add_argument("--slurm", action="store_true", help="pending jobs, by squeue")
    which.add_argument("--kubernetes", action="store_true", help="pending pods, by the API server")
    queue.add_argument("--pool", default="", metavar="NAME", help="pool of all that waits (Slurm: else the partition)")
    queue.add_argument("--name", default="", metavar="NAME", help="name of the cluster, when there are several")
    queue.add_argument("--every", type=float, metavar="SECONDS", help="go on until told to stop; else once")
    queue.add_argument("--print", dest="show", action="store_true", help="print the reading and send nothing")
    simulate = add(
        "simulate",
        "Send a simulated fleet's past through the real meter, spool and push.",
        "gpuledger-agent simulate --from 2026-10-01T00:00:00Z --to 2026-11-01T00:00:00Z --step 5m",
    )
    simulate.add_argument("--from", dest="start", metavar="INSTANT", help="RFC 3339 with zone")
    simulate.add_argument("--to", dest="end", metavar="INSTANT", help="RFC 3339 with zone")
    simulate.add_argument("--step", default="5m", help="time between samples, such as 30s or 5m (default: 5m)")
    simulate.add_argument("--collector", metavar="URL", help="address of the collector")
    simulate.add_argument("--only", metavar="NODES", default="", help="these nodes alone, comma-separated")
    simulate.add_argument("--without", metavar="NODES", default="", help="all nodes but these")
    simulate.add_argument(
        "--story",
        action="store_true",
        help="print what is out of the ordinary there, and end; not in it: every job of the simulated fleet ends at "
        "each fourth midnight (UTC), so its demand falls then",
    )
    simulate.add_argument("--list-nodes", action="store_true", help="print the fleet's node names and end")
    return root


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; what a person can cure is one sentence on standard error and an exit code."""
    given = parser().parse_args(arguments)
    try:
        sys.exit(COMMANDS[given.command](given))
    except SourceUnavailable as error:
        code, sentence = LACKING, str(error)
    except SettingsError as error:
        code, sentence = BAD_INPUT, str(error)
    except AgentError as error:
        code, sentence = BAD_INPUT if error.permanent else LACKING, str(error)
    except KeyboardInterrupt:
        code, sentence = 130, "stopped"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except OSError as error:
        code, sentence = LACKING, f"{error.filename or 'the system'}: {error.strerror or error}"
    print(f"gpuledger-agent: {escape_text(sentence)}", file=sys.stderr)
    sys.exit(code)


def settings_of(given: argparse.Namespace) -> Settings:
    """Settings from file, environment and command line. Raises SettingsError."""
    chosen: dict[str, Any] = {name: getattr(given, name) for name in ("source", "target", "node")}
    return load(given.config, os.environ, **chosen)


def run_command(given: argparse.Namespace) -> int:
    """`run`."""
    settings = settings_of(given)
    if given.check_config:
        print("the settings are good")
        return DONE
    from gpuledger_agent import daemon

    agent = daemon.build(settings, lambda: settings_of(given))
    if settings.metrics_listen:
        from gpuledger_agent.exposition import AgentCollector, serve

        vintage: Any = settings.dcgm_names
        collector = AgentCollector(agent.sampler, agent.spool, vintage)
        try:
            serve(settings.metrics_listen, collector)
        except OSError as error:
            raise SettingsError(
                f"metrics_listen: {settings.metrics_listen} cannot be used ({error.strerror})"
            ) from None
    return agent.run()


def once_command(given: argparse.Namespace) -> int:
    """`once`."""
    from gpuledger_agent.inspect import once, once_text

    seen = once(settings_of(given))
    print(json.dumps(seen, indent=2) if given.json else once_text(seen))
    return DONE


def check_command(given: argparse.Namespace) -> int:
    """`check`."""
    from gpuledger_agent.inspect import check

    text, code = check(settings_of(given))
    print(text)
    return code


def record_command(given: argparse.Namespace) -> int:
    """`record`."""
    from gpuledger_agent.inspect import record

    ticks = record(settings_of(given), Path(given.file), given.seconds, given.interval)
    print(f"{given.file}: {ticks} ticks")
    return DONE


def release_command(given: argparse.Namespace) -> int:
    """`release`: ends when the daemon has confirmed it, or after a while without a confirmation (exit 1)."""
    import time

    from gpuledger_agent import release
    from gpuledger_agent.simulate import step_ms

    folder = settings_of(given).agent_folder
    until_ms = time.time_ns() // 1_000_000 + step_ms(given.duration, "--for", release.LONGEST_MS)
    release.write(folder, release.Release(until_ms))
    for _ in range(CONFIRM_TRIES):
        found = release.read(folder, time.time_ns() // 1_000_000)
        if found is not None and found.confirmed:
            print(f"every GPU is let go for {given.duration}; `gpuledger-agent resume` ends it earlier")
            return DONE
        time.sleep(0.1)
    print(f"no agent with the state folder {folder} has confirmed; it will when it runs", file=sys.stderr)
    return FINDINGS


def resume_command(given: argparse.Namespace) -> int:
    """`resume`."""
    from gpuledger_agent import release

    there = release.clear(settings_of(given).agent_folder)
    print("the GPUs are taken up again with the next sample" if there else "nothing was released")
    return DONE


def simulate_command(given: argparse.Namespace) -> int:
    """`simulate`."""
    from gpuledger_agent.simulate import chronicle, node_names, simulate

    settings = settings_of(given)
    if given.list_nodes:
        print("\n".join(node_names(settings.seed)))
        return DONE
    if given.story:
        print(escape_lines(chronicle(settings, given.start, given.end)))
        return DONE
    address = given.collector or settings.collector_url
    return simulate(settings, given.start, given.end, given.step, address, only=given.only, without=given.without)


def queue_command(given: argparse.Namespace) -> int:
    """`queue`: with --every a reading that fails is told and the next one tried; once, it is the command's failure."""
    import time

    from gpuledger_agent.queue import reading, send

    settings = settings_of(given)
    while True:
        begun = time.monotonic()
        try:
            source, waiting = queue_of(given, settings)
            body = reading(source, time.time(), waiting)
            if given.show:
                print(json.dumps(body, indent=2))
            else:
                gpus = f"{sum(one.gpus for one in waiting):g}"
                said = send(body, settings.collector_url, settings.token_path, settings.ca_file)
                sentence = f"{source}: {plural(len(waiting), 'job')} waiting for {plural(gpus, 'GPU')} ({said})"
                print(escape_text(sentence), flush=True)
        except AgentError as error:
            if given.every is None:
                raise
            print(f"gpuledger-agent: {escape_text(str(error))}", file=sys.stderr, flush=True)
        if given.every is None:
            return DONE
        time.sleep(max(1.0, given.every - (time.monotonic() - begun)))


def queue_of(given: argparse.Namespace, settings: Settings) -> tuple[str, Sequence[Waiting]]:
    """The source's name and what waits in it. Raises AgentError."""
    from dataclasses import replace

    if given.slurm:
        from gpuledger_agent.queue import slurm

        waiting = slurm.pending()
        return ":".join(filter(None, ["slurm", given.name])), [
            replace(one, pool=given.pool or one.pool) for one in waiting
        ]
    from gpuledger_agent.owners.kubernetes_api import ApiServer, in_cluster_url
    from gpuledger_agent.queue import kubernetes

    url, account = settings.kubernetes_api_url or in_cluster_url(), settings.kubernetes_account_dir
    if not url or url == "off" or account is None:
        raise SettingsError("kubernetes_api_url: there is no API server here; run this in the cluster or name one")
    pods = kubernetes.pending(ApiServer(url, account, 10.0), given.pool or settings.pool or "default")
    return ":".join(filter(None, ["kubernetes", given.name])), pods


COMMANDS = {
    "run": run_command,
    "queue": queue_command,
    "once": once_command,
    "check": check_command,
    "record": record_command,
    "release": release_command,
    "resume": resume_command,
    "simulate": simulate_command,
}


if __name__ == "__main__":
    main()
