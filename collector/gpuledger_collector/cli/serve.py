"""gpuledger serve: the collector."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from gpuledger_collector import serving
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app
from gpuledger_collector.cli.session import load_settings

app = new_app()


@app.command(epilog="Example: gpuledger serve --config /etc/gpuledger/collector.toml")
def serve(
    dsn: options.Dsn = None,
    config: options.Config = None,
    check_config: Annotated[bool, Option("--check-config", help="Check the settings and exit.")] = False,
) -> None:
    """Accept batches from agents, keep the ledger, run the jobs, answer the API."""
    settings = load_settings(config, dsn)
    # Secrets are read now, so that a missing file is an error at start.
    settings.agent_tokens()
    settings.reader_tokens()
    settings.database_dsn()
    if check_config:
        print("the settings are good")
        return
    serving.serve(settings, lambda sentence: print(sentence, flush=True))
