"""gpuledger serve: the collector."""

from __future__ import annotations

import typer

from gpuledger_collector.cli.common import Config, Dsn, settings


def register(root: typer.Typer) -> None:
    """Add `gpuledger serve`."""
    root.command(epilog="Example: gpuledger serve --config /etc/gpuledger/collector.toml")(serve)


def serve(
    dsn: Dsn = None,
    config: Config = None,
    check_config: bool = typer.Option(False, "--check-config", help="Check the settings and end."),
) -> None:
    """Take batches from agents, keep the ledger, run the jobs, answer the API."""
    wanted = settings(config, dsn)
    wanted.agent_tokens()
    wanted.reader_tokens()
    wanted.database_dsn()
    if check_config:
        print("the settings are good")
        return
    from gpuledger_collector import serving

    serving.serve(wanted, lambda sentence: print(sentence, flush=True))
